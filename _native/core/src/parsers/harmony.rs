//! Harmony, the format of gpt-oss: messages with a channel and maybe a recipient.
//!
//! ```text
//! <|start|>assistant<|channel|>analysis<|message|>…<|end|>                                  reasoning
//! <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>   a call
//! <|start|>assistant<|channel|>final<|message|>…<|return|>                                  the answer
//! ```
//! The prompt ends with `<|start|>assistant`, so the first header begins with a channel, or with a recipient and
//! then a channel. As a reasoning parser the machine leaves calls as they are, for
//! itself as a tool parser behind it, which takes text without a header as the answer.

use super::calls::Calls;
use super::json::{End, Json};
use super::scan::{Markers, Seen, window};
use super::{Sink, Tools};
use std::sync::Arc;

pub const TOKENS: &[&str] =
    &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"];

/// How a recipient begins.
const RECIPIENT: &str = "to=";

/// Longest header in bytes.
const LONGEST_HEADER: usize = 256;

#[derive(Debug)]
enum State {
    /// Before anything: a recipient may come, without `<|start|>`.
    Begin,
    /// Outside a message.
    Text,
    /// From `<|start|>` or `<|channel|>` on, which are still in `buf`. What is no header belongs to what came
    /// before it, which may be thinking.
    Header {
        thinking: bool,
    },
    Answer,
    Reasoning,
    /// A call that is left as it is.
    Verbatim,
    /// A call's arguments, once they have begun.
    Call(Option<Json>),
    /// Behind a call: blanks up to the end of the message mean nothing.
    Called,
    /// A call's arguments that are no JSON.
    Raw,
}

#[derive(Debug)]
pub struct Harmony {
    /// None: calls are left as they are.
    calls: Option<Calls>,
    state: State,
    buf: String,
    pos: usize,
    outside: Markers,
    header: Markers,
    ends: Markers,
    arguments: Markers,
    scratch: String,
}

impl Harmony {
    /// With tools: reads calls. Without: leaves them as they are.
    pub fn new(tools: Option<Arc<Tools>>) -> Self {
        let ends = ["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"];
        Self {
            calls: tools.map(Calls::new),
            state: State::Begin,
            buf: String::new(),
            pos: 0,
            outside: Markers::new(ends),
            header: Markers::new(["<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|start|>"]),
            ends: Markers::new(ends),
            arguments: Markers::new(ends.into_iter().chain(["{"])),
            scratch: String::new(),
        }
    }

    /// The prompt leaves a message of the analysis channel open.
    pub fn start_inside(&mut self) {
        self.state = State::Reasoning;
    }

    /// Inside a message of the analysis channel.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning)
    }

    /// Bytes that are held back.
    pub fn held(&self) -> usize {
        self.buf.len()
    }

    pub fn push(&mut self, text: &str, sink: &mut dyn Sink) {
        self.buf.push_str(text);
        self.run(false, sink);
    }

    pub fn finish(&mut self, sink: &mut dyn Sink) {
        self.run(true, sink);
    }

    fn run(&mut self, last: bool, sink: &mut dyn Sink) {
        let buf = std::mem::take(&mut self.buf);
        while self.step(&buf[self.pos..], last, sink) {}
        self.buf = buf;
        self.buf.drain(..self.pos);
        self.pos = 0;
    }

    /// True: there is more to do.
    fn step(&mut self, rest: &str, last: bool, sink: &mut dyn Sink) -> bool {
        match self.state {
            State::Header { thinking } => self.header(rest, thinking, last, sink),
            State::Begin => self.begin(rest, last),
            State::Text => {
                let seen = self.outside.find(rest, last);
                show(sink, &rest[..seen.upto]);
                self.behind(&seen)
            }
            State::Answer => {
                let seen = self.ends.find(rest, last);
                show(sink, &rest[..seen.upto]);
                self.behind(&seen)
            }
            State::Reasoning => {
                let seen = self.ends.find(rest, last);
                think(sink, &rest[..seen.upto]);
                self.behind(&seen)
            }
            State::Verbatim => {
                let seen = self.ends.find(rest, last);
                let ended = seen.marker.filter(|marker| !begins(marker));
                show(sink, &rest[..seen.upto + ended.map_or(0, str::len)]);
                self.behind(&seen)
            }
            State::Raw => {
                let seen = self.ends.find(rest, last);
                if let Some(calls) = &mut self.calls {
                    calls.arguments(&rest[..seen.upto], sink);
                }
                self.end_call(&seen, sink)
            }
            State::Call(_) => self.call(rest, last, sink),
            State::Called => {
                let text = rest.trim_start();
                self.pos += rest.len() - text.len();
                if !text.is_empty() {
                    self.state = State::Text;
                }
                !text.is_empty()
            }
        }
    }

    /// Goes behind a text and the marker that ends it. True: there was a marker.
    fn behind(&mut self, seen: &Seen) -> bool {
        self.pos += seen.upto;
        let Some(marker) = seen.marker else { return false };
        if begins(marker) {
            self.state = State::Header { thinking: self.is_reasoning() };
        } else {
            self.pos += marker.len();
            self.state = State::Text;
        }
        true
    }

    fn begin(&mut self, rest: &str, last: bool) -> bool {
        let text = rest.strip_prefix(' ').unwrap_or(rest);
        if text.starts_with(RECIPIENT) {
            self.state = State::Header { thinking: false };
        } else if RECIPIENT.starts_with(text) && !last {
            return false;
        } else {
            self.state = State::Text;
        }
        true
    }

    /// What has no `<|message|>` is no header, unless the text was cut in it.
    fn header(&mut self, rest: &str, thinking: bool, last: bool, sink: &mut dyn Sink) -> bool {
        let first = ["<|start|>", "<|channel|>"].into_iter().find(|first| rest.starts_with(first));
        let first = first.unwrap_or_default();
        let seen = self.header.find(window(&rest[first.len()..], LONGEST_HEADER), last);
        let upto = first.len() + seen.upto;
        match seen.marker {
            Some("<|message|>") if upto <= LONGEST_HEADER => {
                let used = upto + "<|message|>".len();
                self.message(&rest[..upto], &rest[..used], sink);
                self.pos += used;
            }
            None if !last && upto <= LONGEST_HEADER => return false,
            None if is_cut_header(rest) => {
                self.pos += rest.len();
                self.state = State::Text;
            }
            _ => {
                self.state = if thinking {
                    think(sink, first);
                    State::Reasoning
                } else {
                    show(sink, first);
                    State::Text
                };
                self.pos += first.len();
            }
        }
        true
    }

    fn message(&mut self, header: &str, whole: &str, sink: &mut dyn Sink) {
        if let Some(recipient) = recipient(header) {
            match &mut self.calls {
                Some(calls) => {
                    let name = name(recipient, calls);
                    calls.begin(name, sink);
                    self.state = State::Call(None);
                }
                None => {
                    show(sink, whole);
                    self.state = State::Verbatim;
                }
            }
            return;
        }
        let channel = header.rsplit_once("<|channel|>").map_or("", |(_, channel)| channel.trim());
        self.state = if channel.starts_with("analysis") { State::Reasoning } else { State::Answer };
    }

    fn call(&mut self, rest: &str, last: bool, sink: &mut dyn Sink) -> bool {
        let (State::Call(json), Some(calls)) = (&mut self.state, &mut self.calls) else { return false };
        let Some(json) = json else {
            let seen = self.arguments.find(rest, last);
            if seen.marker == Some("{") {
                self.pos += seen.upto;
                *json = Some(Json::new());
                return true;
            }
            return self.end_call(&seen, sink);
        };
        self.scratch.clear();
        let fed = json.feed(rest, &mut self.scratch);
        calls.arguments(&self.scratch, sink);
        self.pos += fed.used;
        match fed.end {
            End::More => return false,
            End::Bad => self.state = State::Raw,
            End::Done => {
                calls.end(sink);
                self.state = State::Called;
            }
        }
        true
    }

    fn end_call(&mut self, seen: &Seen, sink: &mut dyn Sink) -> bool {
        if let (Some(_), Some(calls)) = (seen.marker, &mut self.calls) {
            calls.end(sink);
        }
        self.behind(seen)
    }
}

fn begins(marker: &str) -> bool {
    matches!(marker, "<|start|>" | "<|channel|>")
}

fn show(sink: &mut dyn Sink, text: &str) {
    if !text.is_empty() {
        sink.content(text);
    }
}

fn think(sink: &mut dyn Sink, text: &str) {
    if !text.is_empty() {
        sink.reasoning(text);
    }
}

/// Is all of this the beginning of a header? No mention of a marker is.
fn is_cut_header(text: &str) -> bool {
    let begins = |text: &str, names: &[&str]| {
        let text = text.trim();
        names.iter().any(|name| name.starts_with(text) || text.starts_with(name))
    };
    let (before, channel) = text.split_once("<|channel|>").unwrap_or((text, ""));
    let role = match before.strip_prefix("<|start|>") {
        Some(role) => begins(role, &["assistant"]),
        None => before.is_empty() || begins(before, &["to=functions."]),
    };
    role && begins(channel, &["analysis", "commentary", "final"])
}

/// Whom a message calls; an answer to the assistant or to all is no call.
fn recipient(header: &str) -> Option<&str> {
    let (_, to) = header.split_once(RECIPIENT)?;
    let end = to.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(to.len());
    Some(&to[..end]).filter(|to| !matches!(*to, "" | "assistant" | "all" | "user"))
}

/// `functions.NAME`, or with another namespace in front.
fn name<'a>(recipient: &'a str, calls: &Calls) -> &'a str {
    let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
    match name.rsplit_once('.') {
        Some((_, last)) if !calls.tools.knows(name) && calls.tools.knows(last) => last,
        _ => name,
    }
}
