//! Records what the parsers of SGLang's gateway make of whole texts.
//!
//! `oracles TEXTS RECORDED`: TEXTS is `{"tools": […], "texts": [{"kind", "format", "name", "text", "inside"}]}`;
//! RECORDED becomes one line of JSON a text, null where the crates have no such format.

use std::collections::HashMap;
use std::{env, error::Error, fs};

use futures_executor::block_on;
use openai_protocol::common::Tool;
use reasoning_parser::parsers::BaseReasoningParser;
use reasoning_parser::traits::{DEFAULT_MAX_BUFFER_SIZE, ParserConfig};
use reasoning_parser::{ParserFactory as ReasoningFactory, ReasoningParser};
use serde::{Deserialize, Serialize};
use tool_parser::ParserFactory as ToolFactory;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Deserialize)]
struct Texts {
    tools: Vec<Tool>,
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    id: String,
    kind: Kind,
    format: String,
    text: String,
    /// The prompt leaves the reasoning open.
    #[serde(default)]
    inside: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Tools,
    Reasoning,
}

/// `{"content", "reasoning", "calls": [[name, arguments]]}`, or `{"error"}`.
#[derive(Default, Serialize)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

/// The crates' name of a format; None: they have none.
fn tool_oracle(format: &str) -> Option<&str> {
    Some(match format {
        "deepseek_v3" => "deepseek",
        "deepseek_v31" => "deepseek31",
        "deepseek_v32" => "deepseek32",
        "glm45" => "glm45_moe",
        "glm47" => "glm47_moe",
        "kimi_k2" => "kimik2",
        "gpt-oss" => return None,
        same => same,
    })
}

fn reasoning_oracle(format: &str) -> Option<Box<dyn ReasoningParser>> {
    let name = match format {
        "kimi_k2" => "kimi_thinking",
        "cohere" => "cohere_cmd",
        "nemotron" => "nano_v3",
        "gpt-oss" => return None,
        // The crate has no row for it; SGLang reads it with the base detector and these tags.
        "mistral" => {
            return Some(Box::new(BaseReasoningParser::new(ParserConfig {
                think_start_token: "[THINK]".to_owned(),
                think_end_token: "[/THINK]".to_owned(),
                stream_reasoning: true,
                max_buffer_size: DEFAULT_MAX_BUFFER_SIZE,
                always_in_reasoning: false,
            })));
        }
        same => same,
    };
    ReasoningFactory::new().registry().create_parser(name)
}

fn calls(text: &Text, tools: &[Tool]) -> Result<Option<Answer>> {
    let Some(name) = tool_oracle(&text.format) else { return Ok(None) };
    let parser =
        ToolFactory::new().registry().create_parser(name).ok_or_else(|| format!("no parser {name}"))?;
    let (content, calls) = block_on(parser.parse_complete_with_tools(&text.text, tools))?;
    let calls = calls.into_iter().map(|call| (call.function.name, call.function.arguments)).collect();
    Ok(Some(Answer { content, calls, ..Answer::default() }))
}

fn reasoning(text: &Text) -> Result<Option<Answer>> {
    let Some(mut parser) = reasoning_oracle(&text.format) else { return Ok(None) };
    if text.inside {
        parser.mark_reasoning_started();
        parser.mark_think_start_stripped();
    }
    let parsed = parser.detect_and_parse_reasoning(&text.text)?;
    Ok(Some(Answer { content: parsed.normal_text, reasoning: parsed.reasoning_text, ..Answer::default() }))
}

fn main() -> Result<()> {
    let [texts, recorded] =
        env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "two paths are needed")?;
    let texts: Texts = serde_json::from_str(&fs::read_to_string(&texts)?)?;
    let mut lines = Vec::new();
    let mut failed = HashMap::new();
    for text in &texts.texts {
        let answer = match text.kind {
            Kind::Tools => calls(text, &texts.tools),
            Kind::Reasoning => reasoning(text),
        };
        let line = match answer {
            Ok(answer) => serde_json::to_string(&answer)?,
            Err(error) => {
                *failed.entry(text.format.as_str()).or_insert(0) += 1;
                serde_json::to_string(&HashMap::from([("error", error.to_string())]))?
            }
        };
        lines.push(format!("{}: {line}", serde_json::to_string(&text.id)?));
    }
    fs::write(&recorded, format!("{{\n{}\n}}\n", lines.join(",\n")))?;
    println!("{} texts; errors: {failed:?}", texts.texts.len());
    Ok(())
}
