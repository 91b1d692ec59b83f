//! Tool calls and reasoning in a model's text.
//!
//! Parsers are machines over characters: text goes in in pieces of any size, and what comes out adds up to the
//! same whatever the pieces. What a model's format looks like is data ([`formats`], [`reasoning`]); the machines
//! are one for calls in frames ([`engine`]) with readers for what stands in a frame ([`object`]: JSON with the
//! name inside, [`parameters`]: parameters in markers, [`python`]), and one for [`harmony`]. Text is held back only
//! while it may turn out to be a marker, or a call whose name is not complete.
//!
//! A call of a tool that the request does not have is dropped where markers frame it, as SGLang's detectors do
//! by default; without markers it cannot be told from an answer in JSON, and is content unless a known call stands
//! in the same list. A call that was cut off comes out as far as it goes: its arguments are not closed. One cut
//! off before its name was complete is content, but not behind a call of the same list, where no prose stands.

mod calls;
mod constrained;
mod engine;
mod formats;
mod harmony;
mod json;
mod literal;
mod markers;
mod object;
mod parameters;
mod python;
mod reasoning;
mod scan;
mod syntax;
mod tools;
mod values;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

pub use constrained::ConstrainedParser;
pub use formats::{tool_format, tool_format_names};
pub use reasoning::{ReasoningFormat, ReasoningParser, reasoning_format, reasoning_format_names};
pub use syntax::ToolFormat;
pub use tools::Tools;

use engine::Engine;
use harmony::Harmony;
use syntax::Syntax;

/// What becomes of a model's text. Nothing handed over is empty.
pub trait Sink {
    /// Text of the answer.
    fn content(&mut self, text: &str);
    /// The model's thinking.
    fn reasoning(&mut self, text: &str);
    /// A call begins; calls are counted from 0.
    fn call(&mut self, index: u32, name: &str);
    /// More of a call's arguments: the pieces of a complete call add up to one JSON object.
    fn arguments(&mut self, index: u32, json_fragment: &str);
}

/// Takes tool calls out of a model's text. A fresh one for each choice.
#[derive(Debug)]
pub struct ToolParser(Machine);

#[derive(Debug)]
enum Machine {
    None,
    Frames(Box<Engine>),
    Harmony(Box<Harmony>),
}

impl ToolParser {
    pub fn new(format: &'static ToolFormat, tools: Arc<Tools>) -> Self {
        Self(match &format.syntax {
            Syntax::None => Machine::None,
            Syntax::Frames(frames) => Machine::Frames(Box::new(Engine::new(frames, tools))),
            Syntax::Harmony => Machine::Harmony(Box::new(Harmony::new(Some(tools)))),
        })
    }

    pub fn push(&mut self, text: &str, sink: &mut dyn Sink) {
        match &mut self.0 {
            Machine::None if text.is_empty() => {}
            Machine::None => sink.content(text),
            Machine::Frames(engine) => engine.push(text, sink),
            Machine::Harmony(harmony) => harmony.push(text, sink),
        }
    }

    /// The text has ended: what waits comes out as what it is known to be.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        match &mut self.0 {
            Machine::None => {}
            Machine::Frames(engine) => engine.finish(sink),
            Machine::Harmony(harmony) => harmony.finish(sink),
        }
    }
}
