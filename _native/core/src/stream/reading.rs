//! What parsers make of a choice's text: reasoning, content and tool calls, in order.
//!
//! ```text
//! decoded text → reasoning parser → stop words → tool parser → parts
//! ```
//! A choice without parsers has no [`Reading`]: its text is the answer. Reasoning that stays in the content is
//! reasoning all the same: neither stop words nor calls are looked for in it. Tags stay there with it; the marks of
//! a format whose every message has them do not.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::Vocabulary;
use super::forced::Opening;
use super::options::Options;
use super::parts::{CallIds, Parts, Split};
use crate::error::{Code, Error, Result};
use crate::parsers::{
    ConstrainedParser, ReasoningFormat, ReasoningParser, Sink, ToolFormat, ToolParser, Tools,
    reasoning_format, tool_format,
};

/// A function that may be called.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Function {
    pub name: String,
    /// JSON Schema; null: not told.
    #[serde(default)]
    pub parameters: Value,
}

/// What the text with the calls is.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ReadAs {
    /// The model's own way, by its format.
    #[default]
    Parser,
    /// A bare JSON array of `{"name", "parameters"}`.
    CallsArray,
    /// The bare arguments of the only function.
    NamedArguments,
}

/// How the choices of a response are read. Made once a response.
pub struct Plan {
    tools: Option<Arc<Tools>>,
    tool_format: Option<&'static ToolFormat>,
    read_as: ReadAs,
    /// The only function, where the answer is its arguments.
    named: String,
    reasoning: Option<&'static ReasoningFormat>,
    starts_inside: Option<bool>,
    separate: bool,
    whole_reasoning: bool,
    /// Special tokens whose text parsers need, sorted.
    markers: Vec<u32>,
}

impl Plan {
    /// Errors: `Internal` for a format that there is none of.
    pub fn new<V: Vocabulary>(vocabulary: &V, options: &Options) -> Result<Self> {
        let wanted = !options.tools.is_empty();
        let named_format = options.tool_format.as_deref().filter(|_| wanted);
        let tool_format = named_format.map(|name| find(name, tool_format)).transpose()?;
        let reasoning =
            options.reasoning_format.as_deref().map(|name| find(name, reasoning_format)).transpose()?;
        let reads_calls = wanted && (tool_format.is_some() || options.read_as != ReadAs::Parser);
        let tools = reads_calls.then(|| {
            let functions = options.tools.iter().map(|tool| (tool.name.as_str(), &tool.parameters));
            Arc::new(Tools::new(functions, options.parallel && !options.legacy_function_call))
        });
        let texts = tool_format.into_iter().flat_map(|format| format.tokens);
        let texts = texts.chain(reasoning.into_iter().flat_map(|format| format.tokens));
        let ids = texts.filter_map(|text| vocabulary.token_id(text));
        let mut markers: Vec<_> = ids.filter(|&id| vocabulary.is_special(id)).collect();
        markers.sort_unstable();
        Ok(Self {
            tools,
            tool_format,
            read_as: options.read_as,
            named: options.tools.first().map(|tool| tool.name.clone()).unwrap_or_default(),
            reasoning,
            starts_inside: options.starts_inside,
            separate: options.separate_reasoning,
            whole_reasoning: !options.stream_reasoning,
            markers,
        })
    }

    /// Some special tokens must reach the parsers while others stay hidden.
    pub fn has_markers(&self) -> bool {
        !self.markers.is_empty()
    }

    pub fn is_marker(&self, id: u32) -> bool {
        self.markers.binary_search(&id).is_ok()
    }

    /// The state of one choice; None if its text is the answer as it is.
    pub fn reading(&self, options: &Options, choice: u32) -> Option<Box<Reading>> {
        if self.tools.is_none() && self.reasoning.is_none() {
            return None;
        }
        let reasoning = self.reasoning.map(|format| ReasoningParser::begun(format, self.starts_inside));
        let tools = self.tools.as_ref().and_then(|tools| self.calls(Arc::clone(tools)));
        let ids = CallIds::new(options, choice);
        let inside = reasoning.as_ref().is_some_and(ReasoningParser::is_inside);
        Some(Box::new(Reading {
            opening: Opening::new(self.read_as).filter(|_| inside && tools.is_some()),
            raw: self.reasoning.filter(|format| !self.separate && format.is_tagged()).map(|_| String::new()),
            answered: false,
            reasoning,
            tools,
            visible: String::new(),
            parts: Parts::new(ids, self.separate, self.whole_reasoning),
            pushed: 0,
            handed: 0,
            passed: 0,
            released: 0,
            thoughts: 0,
        }))
    }

    fn calls(&self, tools: Arc<Tools>) -> Option<Calls> {
        Some(match self.read_as {
            ReadAs::CallsArray => Calls::Constrained(ConstrainedParser::array(tools)),
            ReadAs::NamedArguments => Calls::Constrained(ConstrainedParser::named(&self.named, tools)),
            ReadAs::Parser => Calls::Format(ToolParser::new(self.tool_format?, tools)),
        })
    }
}

fn find<T>(name: &str, table: impl Fn(&str) -> Option<T>) -> Result<T> {
    table(name).ok_or_else(|| Error::new(Code::Internal, format!("There is no format {name}.")))
}

/// Parsers of one choice and what they have made of its text.
pub struct Reading {
    /// Until it is clear whether a forced answer begins with thoughts.
    opening: Option<Opening>,
    reasoning: Option<ReasoningParser>,
    /// Reasoning stays in the content: text that is in neither `parts` nor `visible` yet.
    raw: Option<String>,
    /// Something of the answer has come.
    answered: bool,
    tools: Option<Calls>,
    /// Behind the reasoning parser, before the stop words.
    pub visible: String,
    pub parts: Parts,
    /// Bytes of decoded text, of those that went to the stop words, and that came out of them.
    pushed: u64,
    handed: u64,
    passed: u64,
    /// Bytes of decoded text that nothing holds back any more, as told to the log probabilities.
    released: u64,
    /// Tokens of the reasoning.
    pub thoughts: u64,
}

enum Calls {
    Format(ToolParser),
    Constrained(ConstrainedParser),
}

impl Reading {
    /// Decoded text: thinking becomes a part, the rest is `visible`.
    pub fn think(&mut self, text: &str) {
        self.pushed += text.len() as u64;
        match &mut self.opening {
            None => self.split(text, false),
            Some(opening) => match opening.push(text) {
                None => {}
                Some(forced) => self.begin(forced),
            },
        }
    }

    /// It is clear how a forced answer begins.
    fn begin(&mut self, forced: bool) {
        if forced {
            self.reasoning = None;
            self.thoughts = 0;
        }
        if let Some(opening) = self.opening.take() {
            self.split(&opening.into_text(), false);
        }
    }

    fn split(&mut self, text: &str, last: bool) {
        let Self { reasoning: Some(parser), raw, answered, visible, parts, .. } = self else {
            self.visible.push_str(text);
            return;
        };
        let before = visible.len();
        let mut sink = Split::new(parts, visible, answered, raw.is_some());
        parser.push(text, &mut sink);
        if last {
            parser.finish(&mut sink);
        }
        let Some(raw) = raw else { return };
        raw.push_str(text);
        // Thoughts and their marks are all that comes before the answer.
        let free = raw.len().saturating_sub(parser.held());
        let marked = free.saturating_sub(visible.len() - before);
        parts.content(&raw[..marked]);
        raw.drain(..free);
    }

    /// No more text comes: what the reasoning parser holds becomes a part or `visible`.
    pub fn end_thinking(&mut self) {
        if self.opening.is_some() {
            self.begin(false);
        }
        self.split("", true);
    }

    /// What the stop words have let through of `visible`, which was all of it handed to them.
    pub fn answer(&mut self, text: &str) {
        self.handed += self.visible.len() as u64;
        self.visible.clear();
        self.passed += text.len() as u64;
        match &mut self.tools {
            None => self.parts.content(text),
            Some(Calls::Format(parser)) => parser.push(text, &mut self.parts),
            Some(Calls::Constrained(parser)) => parser.push(text, &mut self.parts),
        }
    }

    /// The answer has ended, with the last of `text`.
    pub fn end(&mut self, text: &str) {
        self.answer(text);
        match &mut self.tools {
            None => {}
            Some(Calls::Format(parser)) => parser.finish(&mut self.parts),
            Some(Calls::Constrained(parser)) => parser.finish(&mut self.parts),
        }
        self.parts.speak();
    }

    /// Counts a token, once its text was taken.
    pub fn count(&mut self) {
        self.thoughts += u64::from(self.reasoning.as_ref().is_some_and(ReasoningParser::is_inside));
    }

    /// Bytes of decoded text that have become free since the last call.
    pub fn release(&mut self) -> usize {
        let opening = self.opening.as_ref().map_or(0, Opening::held);
        let thinking = (opening + self.reasoning.as_ref().map_or(0, ReasoningParser::held)) as u64;
        let free = self.pushed.saturating_sub(thinking + (self.handed - self.passed));
        let more = free.saturating_sub(self.released);
        self.released += more;
        more as usize
    }
}
