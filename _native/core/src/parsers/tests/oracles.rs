//! Whole texts in every format, read as the parsers of SGLang's gateway read them, or with a reason not to.
//!
//! `tests/cases/parser_texts.json` has the texts, `parser_oracles.json` what the crates `tool-parser` and
//! `reasoning-parser` (for gpt-oss: `openai-harmony`) made of them, as `make oracles` recorded it, and
//! `parser_differences.json` where ours reads otherwise, why, and who is right.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::formats::FORMATS;
use super::super::{
    ReasoningParser, ToolParser, Tools, reasoning_format, reasoning_format_names, tool_format,
};
use super::{Answer, Parser};

#[derive(Deserialize)]
struct Texts {
    tools: Vec<Tool>,
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Tool {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    parameters: Value,
}

#[derive(Deserialize)]
struct Text {
    id: String,
    kind: String,
    format: String,
    text: String,
    #[serde(default)]
    inside: bool,
}

/// Why some texts are read otherwise; `texts` has what ours makes of each.
#[derive(Deserialize)]
struct Difference {
    right: String,
    why: String,
    texts: HashMap<String, Value>,
}

fn case<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn ours(text: &Text, tools: &Arc<Tools>) -> Value {
    let calls = || ToolParser::new(tool_format(&text.format).expect("format"), Arc::clone(tools));
    let answer = if text.kind == "tools" {
        whole_and_cut(&|| Parser::Tools(calls()), &text.text)
    } else {
        let format = reasoning_format(&text.format).expect("format");
        let begun = text.inside.then_some(true);
        let read = whole_and_cut(&|| Parser::Reasoning(ReasoningParser::begun(format, begun)), &text.text);
        // The reasoning parser leaves gpt-oss's calls to the tool parser.
        match text.format.as_str() {
            "gpt-oss" => {
                let behind = whole_and_cut(&|| Parser::Tools(calls()), &read.content);
                Answer { reasoning: read.reasoning + &behind.reasoning, ..behind }
            }
            _ => read,
        }
    };
    json!({"content": answer.content, "reasoning": answer.reasoning, "calls": answer.calls})
}

/// The answer to a text, which is the same for the whole text and in pieces of 1, 2, 3 and 7 characters.
fn whole_and_cut(make: &dyn Fn() -> Parser, text: &str) -> Answer {
    let whole = make().read([text]);
    for size in [1, 2, 3, 7] {
        let chars: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
        assert_eq!(whole, make().read(pieces.iter().map(String::as_str)), "pieces of {size}: {text:?}");
    }
    whole
}

/// Arguments that are JSON are compared as JSON.
fn meaning(answer: &Value) -> Value {
    let mut answer = answer.clone();
    for call in answer.get_mut("calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let parsed = call[1].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(parsed) = parsed.filter(Value::is_object) {
            call[1] = parsed;
        }
    }
    answer
}

#[test]
fn texts_are_read_as_the_gateway_reads_them_or_with_a_reason() {
    let Texts { tools, texts } = case("parser_texts.json");
    let recorded: HashMap<String, Value> = case("parser_oracles.json");
    let differences: Vec<Difference> = case("parser_differences.json");
    let functions = tools.iter().map(|tool| (tool.function.name.as_str(), &tool.function.parameters));
    let tools = Arc::new(Tools::new(functions, true));
    let listed: HashMap<_, _> = differences.iter().flat_map(|group| &group.texts).collect();
    assert_eq!(listed.len(), differences.iter().map(|group| group.texts.len()).sum::<usize>());
    for group in &differences {
        assert!(["ours", "theirs", "either"].contains(&group.right.as_str()), "{}", group.why);
        assert!(!group.why.is_empty());
    }
    let mut wrong = Vec::new();
    for text in &texts {
        let ours = ours(text, &tools);
        let theirs = recorded.get(&text.id).unwrap_or_else(|| panic!("not recorded: {}", text.id));
        let same = meaning(&ours) == meaning(theirs);
        match listed.get(&text.id) {
            Some(expected) if **expected == ours && !same => {}
            None if same => {}
            found => wrong.push(format!(
                "{}\n   text  {:?}\n   ours  {ours}\n   their {theirs}\n   list  {found:?}",
                text.id, text.text
            )),
        }
    }
    let ids: Vec<_> = texts.iter().map(|text| &text.id).collect();
    wrong.extend(listed.keys().filter(|id| !ids.contains(id)).map(|id| format!("{id}: no such text")));
    if let Ok(path) = std::env::var("ORACLES_OUT") {
        let all: HashMap<_, _> = texts.iter().map(|text| (&text.id, ours(text, &tools))).collect();
        std::fs::write(path, serde_json::to_string(&all).expect("JSON")).expect("written");
    }
    assert!(wrong.is_empty(), "{} of {} texts:\n{}", wrong.len(), texts.len(), wrong.join("\n"));
}

#[test]
fn every_format_has_texts() {
    let Texts { texts, .. } = case("parser_texts.json");
    let count = |kind: &str, format: &str| {
        texts.iter().filter(|text| text.kind == kind && text.format == format).count()
    };
    for format in FORMATS {
        assert!(count("tools", format.name) >= 20, "{}", format.name);
    }
    for name in reasoning_format_names() {
        assert!(count("reasoning", name) >= 20, "{name}");
    }
}

/// A request's constraint, and texts that it allows.
#[derive(Deserialize)]
struct Constrained {
    case: String,
    format: Option<String>,
    field: String,
    request: Request,
    accepts: Vec<String>,
}

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    tools: Vec<Tool>,
}

/// The router's table of markers, by which it constrains calls, and the table by which they are read here.
#[test]
fn calls_in_the_form_that_a_constraint_gives_them_are_read() {
    let mut read = 0;
    for case in case::<Vec<Constrained>>("constraints.json") {
        let Some(format) = case.format.filter(|_| case.field == "structural_tag") else { continue };
        let format = tool_format(&format).unwrap_or_else(|| panic!("{}: no format {format}", case.case));
        let functions = case.request.tools.iter();
        let functions = functions.map(|tool| (tool.function.name.as_str(), &tool.function.parameters));
        let tools = Arc::new(Tools::new(functions, true));
        for text in &case.accepts {
            let answer = whole_and_cut(&|| Parser::Tools(ToolParser::new(format, Arc::clone(&tools))), text);
            let marked = format.tokens.iter().find(|token| answer.content.contains(**token));
            assert_eq!(marked, None, "{}: {text:?}: {answer:?}", case.case);
            for (name, arguments) in &answer.calls {
                let parsed: Value = serde_json::from_str(arguments).expect("JSON");
                assert!(tools.knows(name) && parsed.is_object(), "{}: {arguments}", case.case);
            }
            read += answer.calls.len();
        }
    }
    assert!(read > 50, "{read} calls");
}
