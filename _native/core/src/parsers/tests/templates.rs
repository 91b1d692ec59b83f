//! What chat templates write is what the parsers read: an assistant's turn with calls, rendered by the models' own
//! templates, comes back with the same names and arguments.
//!
//! The templates are fetched, not committed: Qwen 3's stands in `.cache/models`, which `make models` fills,
//! llama.cpp's in `.cache/templates`, where they are tried if they are there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::super::{ReasoningParser, reasoning_format};
use super::Parser;
use crate::template::{ChatTemplate, Limits, RenderInput};

/// A template's file, and the formats of tool calls and of reasoning.
const TEMPLATES: &[(&str, &str, &str)] = &[
    ("Qwen-Qwen2.5-7B-Instruct", "qwen", ""),
    ("Qwen-Qwen3-0.6B", "qwen", "qwen3"),
    ("Qwen-QwQ-32B", "qwen", "deepseek_r1"),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "qwen", ""),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "qwen", ""),
    ("MiMo-VL", "qwen", ""),
    ("Bielik-11B-v3.0-Instruct", "qwen", ""),
    ("ibm-granite-granite-4.0", "qwen", ""),
    ("Qwen3-Coder", "qwen_coder", ""),
    ("Qwen3.5-4B", "qwen_coder", "qwen3"),
    ("StepFun3.5-Flash", "qwen_coder", "qwen3"),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron", "nemotron"),
    ("NVIDIA-Nemotron-Nano-v2", "nemotron", "nemotron"),
    ("meta-llama-Llama-3.1-8B-Instruct", "llama", ""),
    ("meta-llama-Llama-3.2-3B-Instruct", "llama", ""),
    ("meta-llama-Llama-3.3-70B-Instruct", "llama", ""),
    ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", ""),
    ("Mistral-Small-3.2-24B-Instruct-2506", "mistral", ""),
    ("unsloth-mistral-Devstral-Small-2507", "mistral", ""),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "mistral", "mistral"),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3", "deepseek_r1"),
    ("llama-cpp-deepseek-r1", "deepseek_v3", "deepseek_r1"),
    ("deepseek-ai-DeepSeek-V3.1", "deepseek_v31", "base"),
    ("deepseek-ai-DeepSeek-V3.2", "deepseek_v32", "base"),
    ("deepseek-ai-DeepSeek-V4", "deepseek_v32", "base"),
    ("deepseek-ai-DeepSeek-V4-Flash-0731", "deepseek_v32", "base"),
    ("GLM-4.6", "glm45", "glm45"),
    ("GLM-4.7-Flash", "glm47", "glm45"),
    ("moonshotai-Kimi-K2", "kimi_k2", ""),
    ("Kimi-K2-Instruct", "kimi_k2", ""),
    ("Kimi-K2-Thinking", "kimi_k2", "kimi_k2"),
    ("MiniMax-M2", "minimax_m2", "minimax"),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere", "cohere"),
    ("Cohere2MoE", "cohere", "cohere"),
    ("openai-gpt-oss-120b", "gpt-oss", "gpt-oss"),
];

fn cached(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.cache").join(path)
}

fn tools() -> Value {
    let search = json!({"type": "object", "properties": {
        "query": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}}, "where": {"type": "object"}}});
    let none = json!({"type": "object", "properties": {}});
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}});
    json!([tool("search", search), tool("ping", none)])
}

type Wanted = Vec<(String, Value)>;

/// What a turn may call.
fn turns() -> Vec<Wanted> {
    let call = |name: &str, arguments: Value| (name.to_owned(), arguments);
    let one = call("search", json!({"query": "cats \"and\" {dogs}", "limit": 3, "exact": true}));
    let deep = call(
        "search",
        json!({"query": " größer\n日本 ", "where": {"a": [1, {"b": null}]}, "tags": ["x", "y, 'z'"]}),
    );
    let other = call("search", json!({"query": "", "limit": -7}));
    vec![vec![one.clone()], vec![deep.clone()], vec![call("ping", json!({}))], vec![one, deep, other]]
}

/// What the template writes for the turn, without the header before it.
fn written(template: &ChatTemplate, turn: &Wanted, content: &str) -> Result<String, String> {
    let kwargs = Map::new();
    let tools = tools();
    let render = |messages: Value, add_generation_prompt: bool| {
        let input = RenderInput {
            messages: &messages,
            tools: Some(&tools),
            documents: None,
            kwargs: &kwargs,
            add_generation_prompt,
            continue_final_message: false,
            now: Some(0),
        };
        template.render(&input, &Limits::default()).map_err(|error| error.message)
    };
    let calls: Vec<_> = turn
        .iter()
        .enumerate()
        .map(|(at, (name, arguments))| {
            let id = format!("call{at:05}");
            let function = json!({"name": name, "arguments": arguments.to_string()});
            json!({"id": id, "type": "function", "function": function})
        })
        .collect();
    let user = json!({"role": "user", "content": "Find it."});
    let prompt = render(json!([user]), true)?;
    let assistant = json!({"role": "assistant", "content": content, "tool_calls": calls});
    let text = render(json!([user, assistant]), false)?;
    let common = text.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
    // Where the prompt goes on otherwise, in the middle of a marker or a character, that is whole again.
    let common = text.floor_char_boundary(common);
    let begun = text[..common].rfind('<').filter(|at| !text[*at..common].contains('>'));
    Ok(text[begun.unwrap_or(common)..].to_owned())
}

/// The calls that the parsers find, the content, and the thoughts.
fn read_back(tools: &str, reasoning: &str, text: &str) -> (Wanted, String, String) {
    let (mut text, mut thoughts) = (text.to_owned(), String::new());
    if let Some(format) = reasoning_format(reasoning) {
        // Some templates leave the thoughts of earlier turns out.
        let inside = text.contains("</think>") && !text.contains("<think>");
        let parser = ReasoningParser::begun(format, Some(inside));
        let read = Parser::Reasoning(parser).read([text.as_str()]);
        (text, thoughts) = (read.content, read.reasoning);
    }
    let answer = Parser::tools(tools).read([text.as_str()]);
    let calls = answer.calls.into_iter().map(|(name, arguments)| {
        let parsed = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
        (name, parsed)
    });
    (calls.collect(), answer.content, thoughts)
}

fn check(name: &str, source: &str, tools: &str, reasoning: &str, wrong: &mut Vec<String>) -> usize {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>")];
    let tokens: BTreeMap<_, _> = tokens.map(|(key, token)| (key.to_owned(), token.to_owned())).into();
    let template = match ChatTemplate::new(source, &tokens) {
        Ok(template) => template,
        Err(error) => {
            wrong.push(format!("{name}: {}", error.message));
            return 0;
        }
    };
    let mut done = 0;
    for turn in turns() {
        for content in ["", "Let me look."] {
            match written(&template, &turn, content) {
                // Whether a template that refuses does so rightly is no question to the parsers.
                Err(error) => println!("{name}: {error}"),
                Ok(text) => {
                    let (calls, left, thoughts) = read_back(tools, reasoning, &text);
                    done += 1;
                    // This one writes no more than one call a turn.
                    let written = if name == "openai-gpt-oss-120b" { &turn[..1] } else { &turn };
                    // Prose beside calls is dropped by some, and written as thoughts by others.
                    let said = !text.contains(content) || left.contains(content) || thoughts == content;
                    if calls != *written || !said {
                        wrong.push(format!("{name}\n  text  {text:?}\n  calls {calls:?}\n  left  {left:?}"));
                    }
                }
            }
        }
    }
    done
}

#[test]
fn what_templates_write_is_read_back() {
    let mut wrong = Vec::new();
    let mut done = 0;
    let path = cached("models/qwen3/tokenizer_config.json");
    let config = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("make models: {}", path.display()));
    let config: Value = serde_json::from_str(&config).expect("JSON");
    done += check("qwen3", config["chat_template"].as_str().expect("text"), "qwen", "qwen3", &mut wrong);
    for (name, tools, reasoning) in TEMPLATES {
        if let Ok(source) = std::fs::read_to_string(cached(&format!("templates/{name}.jinja"))) {
            done += check(name, &source, tools, reasoning, &mut wrong);
        }
    }
    assert!(done >= 8, "{done} turns");
    println!("{done} turns");
    assert!(wrong.is_empty(), "{} of {done}:\n{}", wrong.len(), wrong.join("\n"));
}
