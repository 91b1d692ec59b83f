//! SGLang's own `/generate`. Each event says all that is known so far: the whole text, all ids, all log
//! probabilities. What was said is kept as JSON, so that an event costs a copy of it and no more.

use super::{Piece, matched, text};
use crate::stream::Vocabulary;
use crate::stream::choice::Finish;
use crate::stream::json;
use crate::stream::logprobs::Entry;
use crate::stream::options::Options;

/// The events of one stream.
pub struct Generate {
    frame: Frame,
    choices: Vec<Known>,
}

/// What is the same for all events.
struct Frame {
    id: String,
    ids: Vec<String>,
    /// `,"weight_version":…`, or nothing.
    version: Vec<u8>,
    /// The client wants the likeliest tokens.
    top: bool,
    text: bool,
    batch: bool,
}

/// What is known of a choice: the insides of JSON strings and arrays.
#[derive(Default)]
struct Known {
    text: Vec<u8>,
    ids: Vec<u8>,
    prompt: Rows,
    output: Rows,
}

/// Log probabilities, and the likeliest tokens beside them.
#[derive(Default)]
struct Rows {
    count: u64,
    own: Vec<u8>,
    top: Vec<u8>,
}

impl Generate {
    pub fn new(options: &Options) -> Self {
        let choices = (0..options.choices).map(|_| Known::default()).collect();
        Self { frame: Frame::new(options), choices }
    }

    /// One event for new ids or the end.
    pub fn say<V: Vocabulary>(&mut self, out: &mut Vec<u8>, vocabulary: &V, piece: &Piece) -> bool {
        let known = &mut self.choices[piece.choice as usize];
        known.learn(&self.frame, vocabulary, piece);
        if !piece.ids.is_empty() || piece.finish.is_some() {
            out.extend_from_slice(b"data: ");
            self.frame.write(out, known, piece);
            out.extend_from_slice(b"\n\n");
        }
        true
    }
}

/// The whole answer: an object, or a list of them.
pub fn whole<'a, V: Vocabulary>(
    out: &mut Vec<u8>,
    options: &Options,
    vocabulary: &V,
    mut pieces: impl Iterator<Item = Piece<'a>>,
) {
    let frame = Frame::new(options);
    let one = |out: &mut Vec<u8>, piece: Piece| {
        let mut known = Known::default();
        known.learn(&frame, vocabulary, &piece);
        frame.write(out, &known, &piece);
    };
    if options.in_batch() {
        json::array(out, pieces, one);
    } else if let Some(piece) = pieces.next() {
        one(out, piece);
    }
}

impl Known {
    fn learn<V: Vocabulary>(&mut self, frame: &Frame, vocabulary: &V, piece: &Piece) {
        json::escape(&mut self.text, piece.text);
        for &id in piece.ids {
            separate(&mut self.ids);
            json::number(&mut self.ids, id.into());
        }
        for entry in piece.entries.unwrap_or_default() {
            let rows = if entry.position == 0 { &mut self.prompt } else { &mut self.output };
            rows.add(frame, vocabulary, entry);
        }
    }
}

impl Rows {
    fn add<V: Vocabulary>(&mut self, frame: &Frame, vocabulary: &V, entry: &Entry) {
        self.count += 1;
        separate(&mut self.own);
        token(&mut self.own, frame, vocabulary, entry.id, entry.logprob);
        separate(&mut self.top);
        if entry.top.is_empty() {
            self.top.extend_from_slice(b"null");
        } else {
            json::array(&mut self.top, &entry.top, |out, &(id, logprob)| {
                token(out, frame, vocabulary, id, Some(logprob));
            });
        }
    }
}

impl Frame {
    fn new(options: &Options) -> Self {
        let mut version = Vec::new();
        if let Some(fingerprint) = &options.system_fingerprint {
            version.extend_from_slice(b",\"weight_version\":");
            json::string(&mut version, fingerprint);
        }
        Self {
            id: options.id.clone(),
            ids: options.ids.clone(),
            version,
            top: options.logprobs.is_some_and(|limit| limit > 0),
            text: options.logprobs_text,
            batch: options.in_batch(),
        }
    }

    fn write(&self, out: &mut Vec<u8>, known: &Known, piece: &Piece) {
        out.extend_from_slice(b"{\"text\":\"");
        out.extend_from_slice(&known.text);
        out.extend_from_slice(b"\",\"output_ids\":");
        list(out, &known.ids);
        out.extend_from_slice(b",\"meta_info\":{\"id\":");
        self.write_id(out, piece.choice);
        out.extend_from_slice(b",\"finish_reason\":");
        reason(out, piece);
        field(out, "prompt_tokens", piece.usage.prompt);
        out.extend_from_slice(&self.version);
        if piece.entries.is_some() {
            self.write_rows(out, known);
        }
        field(out, "reasoning_tokens", piece.usage.reasoning);
        field(out, "completion_tokens", piece.usage.completion);
        field(out, "cached_tokens", piece.usage.cached);
        if piece.finish.is_some() {
            out.extend_from_slice(b",\"e2e_latency\":");
            json::float(out, piece.latency);
        }
        out.push(b'}');
        if self.batch {
            field(out, "index", piece.choice.into());
        }
        out.push(b'}');
    }

    fn write_id(&self, out: &mut Vec<u8>, choice: u32) {
        match self.ids.get(choice as usize) {
            Some(id) => json::string(out, id),
            None if self.batch => json::string(out, &format!("{}_{choice}", self.id)),
            None => json::string(out, &self.id),
        }
    }

    fn write_rows(&self, out: &mut Vec<u8>, known: &Known) {
        out.extend_from_slice(b",\"input_token_logprobs\":");
        list(out, &known.prompt.own);
        out.extend_from_slice(b",\"output_token_logprobs\":");
        list(out, &known.output.own);
        field(out, "output_token_logprobs_length", known.output.count);
        if self.top {
            out.extend_from_slice(b",\"input_top_logprobs\":");
            list(out, &known.prompt.top);
            out.extend_from_slice(b",\"output_top_logprobs\":");
            list(out, &known.output.top);
        }
    }
}

/// `{"type":"stop","matched":…}`, `{"type":"length","length":…}`, or null.
fn reason(out: &mut Vec<u8>, piece: &Piece) {
    let Some(Finish { reason, matched: stop }) = piece.finish else {
        return out.extend_from_slice(b"null");
    };
    out.extend_from_slice(b"{\"type\":");
    json::string(out, reason);
    match stop {
        _ if *reason == "length" => field(out, "length", piece.usage.completion),
        None => out.extend_from_slice(b",\"matched\":null"),
        Some(stop) => {
            out.extend_from_slice(b",\"matched\":");
            matched(out, stop);
        }
    }
    out.push(b'}');
}

/// `[logprob, id, text or null]`
fn token<V: Vocabulary>(out: &mut Vec<u8>, frame: &Frame, vocabulary: &V, id: u32, logprob: Option<f32>) {
    out.push(b'[');
    json::float(out, logprob);
    out.push(b',');
    json::number(out, id.into());
    out.push(b',');
    if frame.text {
        json::string(out, &text(vocabulary, id));
    } else {
        out.extend_from_slice(b"null");
    }
    out.push(b']');
}

fn field(out: &mut Vec<u8>, name: &str, value: u64) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    json::number(out, value);
}

fn list(out: &mut Vec<u8>, inside: &[u8]) {
    out.push(b'[');
    out.extend_from_slice(inside);
    out.push(b']');
}

fn separate(out: &mut Vec<u8>) {
    if !out.is_empty() {
        out.push(b',');
    }
}
