//! Tests of the parsers: each format on its own, and the law of splits for all of them.

mod formats;
pub mod grammar;
mod laws;
mod oracles;
mod reasoning;
mod speed;
mod templates;

use std::sync::Arc;

use serde_json::json;

use super::{ConstrainedParser, ReasoningParser, Sink, ToolParser, Tools, reasoning_format, tool_format};

/// An answer as it adds up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub content: String,
    pub reasoning: String,
    /// Name and arguments.
    pub calls: Vec<(String, String)>,
}

impl Sink for Answer {
    fn content(&mut self, text: &str) {
        assert!(!text.is_empty());
        self.content.push_str(text);
    }

    fn reasoning(&mut self, text: &str) {
        assert!(!text.is_empty());
        self.reasoning.push_str(text);
    }

    fn call(&mut self, index: u32, name: &str) {
        assert_eq!(index as usize, self.calls.len(), "indices count up");
        self.calls.push((name.to_owned(), String::new()));
    }

    fn arguments(&mut self, index: u32, json_fragment: &str) {
        assert!(!json_fragment.is_empty());
        assert_eq!(index as usize + 1, self.calls.len(), "arguments belong to the last call");
        self.calls[index as usize].1.push_str(json_fragment);
    }
}

pub fn tools(parallel: bool) -> Arc<Tools> {
    let search = json!({"type": "object", "properties": {
        "query": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"},
        "score": {"type": ["number", "null"]}, "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"$ref": "#/$defs/Where"}}, "$defs": {"Where": {"type": "object"}}});
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "number"}}});
    let none = json!(null);
    Arc::new(Tools::new([("search", &search), ("get_weather", &weather), ("ping", &none)], parallel))
}

/// Something that takes text in pieces.
pub enum Parser {
    Tools(ToolParser),
    Reasoning(ReasoningParser),
    Constrained(ConstrainedParser),
}

impl Parser {
    pub fn tools(format: &str) -> Self {
        Self::Tools(ToolParser::new(tool_format(format).expect(format), tools(true)))
    }

    pub fn reasoning(format: &str, inside: bool) -> Self {
        Self::Reasoning(ReasoningParser::new(reasoning_format(format).expect(format), inside))
    }

    pub fn read<'a>(mut self, pieces: impl IntoIterator<Item = &'a str>) -> Answer {
        let mut answer = Answer::default();
        for piece in pieces {
            match &mut self {
                Self::Tools(parser) => parser.push(piece, &mut answer),
                Self::Reasoning(parser) => parser.push(piece, &mut answer),
                Self::Constrained(parser) => parser.push(piece, &mut answer),
            }
        }
        match &mut self {
            Self::Tools(parser) => parser.finish(&mut answer),
            Self::Reasoning(parser) => parser.finish(&mut answer),
            Self::Constrained(parser) => parser.finish(&mut answer),
        }
        answer
    }
}

/// A text's answer, the same for the whole text and for its characters one by one.
pub fn read(make: impl Fn() -> Parser, text: &str) -> Answer {
    let whole = make().read([text]);
    let single = make().read(text.split_inclusive(|_| true));
    assert_eq!(whole, single, "text: {text:?}");
    whole
}

/// The answer to a text in a tool format.
pub fn calls(format: &str, text: &str) -> Answer {
    read(|| Parser::tools(format), text)
}
