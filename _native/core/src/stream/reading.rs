//! What parsers make of a choice's text: reasoning, content and tool calls, in order.
//!
//! ```text
//! decoded text → reasoning parser → stop words → tool parser → parts
//! ```
//! A choice without parsers has no [`Reading`]: its text is the answer.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::Vocabulary;
use super::options::Options;
use crate::error::{Code, Error, Result};
use crate::parsers::{
    ConstrainedParser, ReasoningFormat, ReasoningParser, Sink, ToolFormat, ToolParser, Tools, reasoning_format,
    tool_format,
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

/// How the ids of calls look.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum IdStyle {
    /// `call_` and 24 hex digits.
    #[default]
    Call,
    /// `functions.NAME:IDX`, counted over the whole conversation.
    Kimi,
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
            Arc::new(Tools::new(functions, options.parallel))
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
            reasoning: reasoning.filter(|_| options.separate_reasoning),
            starts_inside: options.starts_inside,
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
        let ids = CallIds {
            style: options.id_style,
            response: options.id.clone(),
            choice,
            before: options.calls_before,
        };
        Some(Box::new(Reading {
            reasoning,
            tools,
            visible: String::new(),
            parts: Parts {
                list: Vec::new(),
                thought: String::new(),
                whole: self.whole_reasoning,
                calls: 0,
                ids,
            },
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

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Content(String),
    /// A call begins; `arguments` is what is known of them.
    Call {
        index: u32,
        id: String,
        name: String,
        arguments: String,
    },
    /// More arguments of a call that an earlier event has begun.
    Arguments {
        index: u32,
        text: String,
    },
}

/// Parsers of one choice and what they have made of its text.
pub struct Reading {
    reasoning: Option<ReasoningParser>,
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
        let Self { reasoning, visible, parts, .. } = self;
        match reasoning {
            None => visible.push_str(text),
            Some(parser) => parser.push(text, &mut Split { parts, visible }),
        }
    }

    /// No more text comes: what the reasoning parser holds becomes a part or `visible`.
    pub fn end_thinking(&mut self) {
        let Self { reasoning, visible, parts, .. } = self;
        if let Some(parser) = reasoning {
            parser.finish(&mut Split { parts, visible });
        }
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
        let thinking = self.reasoning.as_ref().map_or(0, ReasoningParser::held) as u64;
        let free = self.pushed.saturating_sub(thinking + (self.handed - self.passed));
        let more = free.saturating_sub(self.released);
        self.released += more;
        more as usize
    }
}

/// Puts parts in order. As a sink it is the tool parser's.
pub struct Parts {
    /// All of them when aggregated, what no event has carried when streamed.
    pub list: Vec<Part>,
    /// Reasoning that waits until it is whole.
    thought: String,
    whole: bool,
    /// How many calls there are so far.
    pub calls: u32,
    ids: CallIds,
}

impl Parts {
    /// Lets waiting reasoning out.
    fn speak(&mut self) {
        if !self.thought.is_empty() {
            let thought = std::mem::take(&mut self.thought);
            self.list.push(Part::Reasoning(thought));
        }
    }
}

impl Sink for Parts {
    fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.speak();
        match self.list.last_mut() {
            Some(Part::Content(last)) => last.push_str(text),
            _ => self.list.push(Part::Content(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        if self.whole {
            self.thought.push_str(text);
            return;
        }
        match self.list.last_mut() {
            Some(Part::Reasoning(last)) => last.push_str(text),
            _ => self.list.push(Part::Reasoning(text.to_owned())),
        }
    }

    fn call(&mut self, index: u32, name: &str) {
        self.speak();
        self.calls += 1;
        let id = self.ids.of(index, name);
        self.list.push(Part::Call { index, id, name: name.to_owned(), arguments: String::new() });
    }

    fn arguments(&mut self, index: u32, fragment: &str) {
        match self.list.last_mut() {
            Some(Part::Call { index: last, arguments: text, .. } | Part::Arguments { index: last, text })
                if *last == index =>
            {
                text.push_str(fragment);
            }
            _ => self.list.push(Part::Arguments { index, text: fragment.to_owned() }),
        }
    }
}

/// The reasoning parser's sink.
struct Split<'a> {
    parts: &'a mut Parts,
    visible: &'a mut String,
}

impl Sink for Split<'_> {
    fn content(&mut self, text: &str) {
        self.visible.push_str(text);
    }

    fn reasoning(&mut self, text: &str) {
        self.parts.reasoning(text);
    }

    fn call(&mut self, index: u32, name: &str) {
        self.parts.call(index, name);
    }

    fn arguments(&mut self, index: u32, fragment: &str) {
        self.parts.arguments(index, fragment);
    }
}

/// Ids of calls: the same for the same response, whichever way it is read.
struct CallIds {
    style: IdStyle,
    /// The response's own id, which is random.
    response: String,
    choice: u32,
    /// Calls in the conversation so far.
    before: u32,
}

impl CallIds {
    fn of(&self, index: u32, name: &str) -> String {
        if self.style == IdStyle::Kimi {
            return format!("functions.{name}:{}", self.before + index);
        }
        let half = |part: u8| {
            let mut hasher = DefaultHasher::new();
            (part, &self.response, self.choice, index).hash(&mut hasher);
            hasher.finish()
        };
        format!("call_{:016x}{:08x}", half(0), half(1) >> 32)
    }
}
