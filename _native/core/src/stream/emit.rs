//! What goes to the client: server-sent events, or one JSON object. Knows nothing of decoding and stop words.
//!
//! [`Events`] has the buffer and what all kinds of object share; how each is framed is in a file of its own.
//! The head and the tail of an event are the same for the whole stream and built once; only the delta is
//! escaped, straight into the output buffer.

mod chat;
mod completion;
mod generate;

use std::borrow::Cow;

use super::Vocabulary;
use super::choice::{Finish, Matched};
use super::json;
use super::logprobs::Entry;
use super::options::{Object, Options};
use super::parts::Part;
use super::usage::Usage;
use generate::Generate;

/// The output buffer keeps its memory between writes, up to this much.
const KEEP: usize = 64 << 10;

/// What a choice has to say: since its last event when streamed, all of it when not.
pub struct Piece<'a> {
    pub choice: u32,
    /// The answer's text.
    pub text: &'a str,
    /// What parsers have made of the text, in place of `text`; None without parsers.
    pub parts: Option<&'a [Part]>,
    /// None if the client wants no log probabilities.
    pub entries: Option<&'a [Entry]>,
    /// Only where ids are shown.
    pub ids: &'a [u32],
    pub finish: Option<&'a Finish>,
    /// The choice's counts so far.
    pub usage: Usage,
    /// Seconds from the start to the end.
    pub latency: f64,
}

enum Framing {
    Chat(chat::Names),
    Completion,
    Generate(Generate),
}

/// Writes the events of one stream into a reused buffer.
pub struct Events {
    out: Vec<u8>,
    envelope: Envelope,
    framing: Framing,
}

impl Events {
    pub fn new(options: &Options) -> Self {
        let framing = match options.object {
            Object::Chat => Framing::Chat(chat::Names::new(options)),
            Object::Completion => Framing::Completion,
            Object::Generate => Framing::Generate(Generate::new(options)),
        };
        let object = if options.object == Object::Chat { chat::CHUNK } else { completion::OBJECT };
        Self { out: Vec::new(), envelope: Envelope::new(options, object), framing }
    }

    pub fn buffer(&self) -> &[u8] {
        &self.out
    }

    pub fn clear(&mut self) {
        self.out.clear();
        self.out.shrink_to(KEEP);
    }

    pub fn swap(&mut self, written: &mut Vec<u8>) {
        std::mem::swap(&mut self.out, written);
        self.clear();
    }

    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// A choice has begun; `usage` is what it was before.
    pub fn first(&mut self, choice: u32, usage: &Usage) {
        if let Framing::Chat(_) = self.framing {
            chat::role(&mut self.out, &self.envelope, choice, usage);
        }
    }

    /// The events for what a choice has to say, if that is enough for one. False: it waits.
    pub fn say<V: Vocabulary>(&mut self, vocabulary: &V, piece: &Piece) -> bool {
        match &mut self.framing {
            Framing::Chat(names) => chat::say(&mut self.out, &self.envelope, *names, vocabulary, piece),
            Framing::Completion => completion::say(&mut self.out, &self.envelope, vocabulary, piece),
            Framing::Generate(generate) => generate.say(&mut self.out, vocabulary, piece),
        }
    }

    /// After all choices: the usage, if it was asked for, and the end mark.
    pub fn last(&mut self, usage: &Usage) {
        if self.envelope.include_usage && !matches!(self.framing, Framing::Generate(_)) {
            self.envelope.total(&mut self.out, usage);
        }
        self.out.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// An error and the end mark. Line ends between the tokens of `error` would end the event early.
    pub fn error(&mut self, error: &str) {
        self.out.extend_from_slice(b"data: ");
        let flat = error.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte });
        self.out.extend(flat);
        self.out.extend_from_slice(b"\n\ndata: [DONE]\n\n");
    }
}

/// The whole answer of a response that is not streamed; `pieces` are its choices in order.
pub fn whole<'a, V: Vocabulary>(
    options: &Options,
    vocabulary: &V,
    pieces: impl Iterator<Item = Piece<'a>>,
    usage: &Usage,
) -> Vec<u8> {
    let mut out = Vec::new();
    let object = match options.object {
        Object::Chat => chat::OBJECT,
        Object::Completion => completion::OBJECT,
        Object::Generate => {
            generate::whole(&mut out, options, vocabulary, pieces);
            return out;
        }
    };
    open_object(&mut out, options, object);
    out.extend_from_slice(b",\"choices\":");
    json::array(&mut out, pieces, |out, piece| match options.object {
        Object::Chat => chat::choice(out, chat::Names::new(options), vocabulary, &piece),
        _ => completion::choice(out, vocabulary, &piece),
    });
    out.extend_from_slice(b",\"usage\":");
    usage.write(&mut out);
    out.push(b'}');
    out
}

/// What a choice begins with.
const INDEX: &[u8] = b"{\"index\":";

/// What is round the one choice of an event of OpenAI's.
struct Envelope {
    /// `data: {"id":…,"choices":[{"index":`
    head: Vec<u8>,
    include_usage: bool,
    continuous_usage: bool,
}

impl Envelope {
    fn new(options: &Options, object: &str) -> Self {
        let mut head = b"data: ".to_vec();
        open_object(&mut head, options, object);
        head.extend_from_slice(b",\"choices\":[");
        head.extend_from_slice(INDEX);
        Self { head, include_usage: options.include_usage, continuous_usage: options.continuous_usage }
    }

    fn open(&self, out: &mut Vec<u8>, choice: u32) {
        out.extend_from_slice(&self.head);
        json::number(out, choice.into());
    }

    /// Behind the choice; `usage` is its own so far.
    fn close(&self, out: &mut Vec<u8>, usage: &Usage) {
        if self.continuous_usage {
            out.extend_from_slice(b"],\"usage\":");
            usage.write(out);
            out.extend_from_slice(b"}\n\n");
        } else if self.include_usage {
            out.extend_from_slice(b"],\"usage\":null}\n\n");
        } else {
            out.extend_from_slice(b"]}\n\n");
        }
    }

    /// The event that has no choice.
    fn total(&self, out: &mut Vec<u8>, usage: &Usage) {
        out.extend_from_slice(&self.head[..self.head.len() - INDEX.len()]);
        out.extend_from_slice(b"],\"usage\":");
        usage.write(out);
        out.extend_from_slice(b"}\n\n");
    }
}

/// What every event and the whole answer begin with.
fn open_object(out: &mut Vec<u8>, options: &Options, object: &str) {
    out.extend_from_slice(b"{\"id\":");
    json::string(out, &options.id);
    out.extend_from_slice(b",\"object\":");
    json::string(out, object);
    out.extend_from_slice(b",\"created\":");
    json::number(out, options.created);
    out.extend_from_slice(b",\"model\":");
    json::string(out, &options.model);
    if let Some(fingerprint) = &options.system_fingerprint {
        out.extend_from_slice(b",\"system_fingerprint\":");
        json::string(out, fingerprint);
    }
}

fn finish(out: &mut Vec<u8>, finish: &Finish) {
    out.extend_from_slice(b",\"finish_reason\":");
    json::string(out, finish.reason);
    if let Some(stop) = &finish.matched {
        out.extend_from_slice(b",\"matched_stop\":");
        matched(out, stop);
    }
}

fn matched(out: &mut Vec<u8>, stop: &Matched) {
    match stop {
        Matched::Token(id) => json::number(out, (*id).into()),
        Matched::Text(text) => json::string(out, text),
    }
}

/// A token as text; bytes that are no character become U+FFFD, an unknown id nothing.
fn text<V: Vocabulary>(vocabulary: &V, id: u32) -> Cow<'_, str> {
    String::from_utf8_lossy(vocabulary.token_bytes(id).unwrap_or_default())
}
