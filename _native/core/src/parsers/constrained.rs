//! Reading forced calls: the output is JSON by a schema of ours, with no model's markers round it.

use std::sync::Arc;

use super::calls::Calls;
use super::engine::Engine;
use super::json::{End, Json};
use super::syntax::{Bare, Frames};
use super::{Sink, Tools};

static ARRAY: Frames = Frames { frames: &[], bare: Bare::JsonOnly, erase: &[] };

/// Reads output that a constraint has shaped. Only calls of the tools given come out. A fresh one for each choice.
#[derive(Debug)]
pub struct ConstrainedParser(Machine);

#[derive(Debug)]
enum Machine {
    Array(Box<Engine>),
    Named(Named),
}

#[derive(Debug)]
struct Named {
    name: String,
    calls: Calls,
    place: Place,
    json: Json,
    out: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    Inside,
    /// Behind the arguments, where only blanks are dropped.
    Behind,
    /// No arguments at all.
    Other,
}

impl ConstrainedParser {
    /// For `[{"name": …, "parameters": {…}}, …]`.
    pub fn array(tools: Arc<Tools>) -> Self {
        Self(Machine::Array(Box::new(Engine::new(&ARRAY, tools))))
    }

    /// For the bare arguments of one function.
    pub fn named(name: &str, tools: Arc<Tools>) -> Self {
        let calls = Calls::new(tools);
        Self(Machine::Named(Named {
            name: name.to_owned(),
            calls,
            place: Place::Before,
            json: Json::new(),
            out: String::new(),
        }))
    }

    pub fn push(&mut self, text: &str, sink: &mut dyn Sink) {
        match &mut self.0 {
            Machine::Array(engine) => engine.push(text, sink),
            Machine::Named(named) => named.push(text, sink),
        }
    }

    /// The text has ended: what waits comes out.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        if let Machine::Array(engine) = &mut self.0 {
            engine.finish(sink);
        }
    }
}

impl Named {
    fn push(&mut self, text: &str, sink: &mut dyn Sink) {
        let mut rest = text;
        while !rest.is_empty() {
            rest = &rest[self.step(rest, sink)..];
        }
    }

    fn step(&mut self, rest: &str, sink: &mut dyn Sink) -> usize {
        let blank = rest.len() - rest.trim_start().len();
        match self.place {
            Place::Before | Place::Behind if blank > 0 => blank,
            Place::Before => {
                if rest.starts_with('{') {
                    self.calls.begin(&self.name, sink);
                    self.place = Place::Inside;
                } else {
                    self.place = Place::Other;
                }
                0
            }
            Place::Inside => {
                self.out.clear();
                let fed = self.json.feed(rest, &mut self.out);
                self.calls.arguments(&self.out, sink);
                match fed.end {
                    End::More => {}
                    End::Done => {
                        self.calls.end(sink);
                        self.place = Place::Behind;
                    }
                    End::Bad => self.place = Place::Other,
                }
                fed.used
            }
            Place::Behind => {
                self.place = Place::Other;
                0
            }
            Place::Other => {
                sink.content(rest);
                rest.len()
            }
        }
    }
}
