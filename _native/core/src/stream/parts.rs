//! What parsers have found in a choice's text, in order, and the ids of its calls.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;

use super::options::Options;
use crate::parsers::Sink;

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

/// Puts parts in order. As a sink it is the tool parser's.
pub struct Parts {
    /// All of them when aggregated, what no event has carried when streamed.
    pub list: Vec<Part>,
    /// Reasoning that waits until it is whole.
    thought: String,
    whole: bool,
    /// Reasoning is not content.
    separate: bool,
    /// How many calls there are so far.
    pub calls: u32,
    ids: CallIds,
}

impl Parts {
    /// `separate`: reasoning is a part of its own, `whole`: and one only.
    pub fn new(ids: CallIds, separate: bool, whole: bool) -> Self {
        Self { list: Vec::new(), thought: String::new(), whole, separate, calls: 0, ids }
    }

    /// Lets waiting reasoning out.
    pub fn speak(&mut self) {
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
        if !self.separate {
            self.content(text);
            return;
        }
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
pub struct Split<'a> {
    parts: &'a mut Parts,
    visible: &'a mut String,
    /// Something became visible, now or before.
    answered: &'a mut bool,
    /// The reasoning is taken from the text itself, with its marks.
    drops: bool,
}

impl<'a> Split<'a> {
    pub fn new(parts: &'a mut Parts, visible: &'a mut String, answered: &'a mut bool, drops: bool) -> Self {
        Self { parts, visible, answered, drops }
    }
}

impl Sink for Split<'_> {
    fn content(&mut self, text: &str) {
        *self.answered = true;
        self.visible.push_str(text);
    }

    fn reasoning(&mut self, text: &str) {
        if self.drops {
            return;
        }
        // In one content thoughts stand where they came: what is visible may be on its way yet.
        if *self.answered && !self.parts.separate {
            self.visible.push_str(text);
        } else {
            self.parts.reasoning(text);
        }
    }

    fn call(&mut self, index: u32, name: &str) {
        self.parts.call(index, name);
    }

    fn arguments(&mut self, index: u32, fragment: &str) {
        self.parts.arguments(index, fragment);
    }
}

/// Ids of calls: the same for the same response, whichever way it is read.
pub struct CallIds {
    style: IdStyle,
    /// The response's own id, which is random.
    response: String,
    choice: u32,
    /// Calls in the conversation so far.
    before: u32,
}

impl CallIds {
    pub fn new(options: &Options, choice: u32) -> Self {
        let (style, before) = (options.id_style, options.calls_before);
        Self { style, response: options.id.clone(), choice, before }
    }

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
