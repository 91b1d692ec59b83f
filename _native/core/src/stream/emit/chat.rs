//! `chat.completion` and its chunks.

use super::{Envelope, INDEX, Piece, finish, text};
use crate::stream::Vocabulary;
use crate::stream::json;
use crate::stream::logprobs::Entry;
use crate::stream::options::Options;
use crate::stream::parts::Part;
use crate::stream::usage::Usage;

pub const OBJECT: &str = "chat.completion";
pub const CHUNK: &str = "chat.completion.chunk";

/// The first event of a choice.
pub fn role(out: &mut Vec<u8>, envelope: &Envelope, choice: u32, usage: &Usage) {
    envelope.open(out, choice);
    out.extend_from_slice(b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}");
    envelope.close(out, usage);
}

/// What calls are called.
#[derive(Clone, Copy)]
pub enum Names {
    ToolCalls,
    /// In answers to requests with `functions`.
    FunctionCall,
}

impl Names {
    pub fn new(options: &Options) -> Self {
        if options.legacy_function_call { Self::FunctionCall } else { Self::ToolCalls }
    }
}

/// The next piece of an answer, then its end. Entries alone are not worth an event: they wait for either.
pub fn say<V: Vocabulary>(
    out: &mut Vec<u8>,
    envelope: &Envelope,
    names: Names,
    vocabulary: &V,
    piece: &Piece,
) -> bool {
    let mut entries = piece.entries;
    let mut event = |out: &mut Vec<u8>, delta: &dyn Fn(&mut Vec<u8>)| {
        envelope.open(out, piece.choice);
        out.extend_from_slice(b",\"delta\":{");
        delta(out);
        out.push(b'}');
        logprobs(out, vocabulary, entries.as_mut().map(std::mem::take));
        out.extend_from_slice(b",\"finish_reason\":null}");
        envelope.close(out, &piece.usage);
    };
    if !piece.text.is_empty() {
        event(out, &|out| text_field(out, "content", piece.text));
    }
    let parts = piece.parts.unwrap_or_default();
    for part in parts {
        event(out, &|out| delta(out, names, part));
    }
    if let Some(end) = piece.finish {
        envelope.open(out, piece.choice);
        out.extend_from_slice(b",\"delta\":{}");
        logprobs(out, vocabulary, entries);
        finish(out, end);
        out.push(b'}');
        envelope.close(out, &piece.usage);
    }
    !piece.text.is_empty() || !parts.is_empty() || piece.finish.is_some()
}

fn text_field(out: &mut Vec<u8>, name: &str, text: &str) {
    json::string(out, name);
    out.extend_from_slice(b":\"");
    json::escape(out, text);
    out.push(b'"');
}

/// The fields of a part's delta.
fn delta(out: &mut Vec<u8>, names: Names, part: &Part) {
    let (index, id, name, arguments) = match part {
        Part::Reasoning(text) => return text_field(out, "reasoning_content", text),
        Part::Content(text) => return text_field(out, "content", text),
        Part::Call { index, id, name, arguments } => (*index, Some(id), Some(name), arguments),
        Part::Arguments { index, text } => (*index, None, None, text),
    };
    if let Names::FunctionCall = names {
        out.extend_from_slice(b"\"function_call\":");
        function(out, name, arguments);
        return;
    }
    out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
    json::number(out, index.into());
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        json::string(out, id);
        out.extend_from_slice(b",\"type\":\"function\"");
    }
    out.extend_from_slice(b",\"function\":");
    function(out, name, arguments);
    out.extend_from_slice(b"}]");
}

fn function(out: &mut Vec<u8>, name: Option<&String>, arguments: &str) {
    out.push(b'{');
    if let Some(name) = name {
        text_field(out, "name", name);
        out.push(b',');
    }
    text_field(out, "arguments", arguments);
    out.push(b'}');
}

/// One choice of a whole answer.
pub fn choice<V: Vocabulary>(out: &mut Vec<u8>, names: Names, vocabulary: &V, piece: &Piece) {
    out.extend_from_slice(INDEX);
    json::number(out, piece.choice.into());
    out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
    match piece.parts {
        None => json::string(out, piece.text),
        Some(parts) => message(out, names, parts),
    }
    out.extend_from_slice(b",\"refusal\":null}");
    logprobs(out, vocabulary, Some(piece.entries.unwrap_or_default()));
    if let Some(end) = piece.finish {
        finish(out, end);
    }
    out.push(b'}');
}

/// The content, null beside calls if there is none, then reasoning and calls.
fn message(out: &mut Vec<u8>, names: Names, parts: &[Part]) {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Reasoning(text) => reasoning.push_str(text),
            Part::Content(text) => content.push_str(text),
            Part::Call { id, name, arguments, .. } => calls.push((id, name, arguments.clone())),
            Part::Arguments { text, .. } => {
                if let Some((.., arguments)) = calls.last_mut() {
                    arguments.push_str(text);
                }
            }
        }
    }
    if content.is_empty() && !calls.is_empty() {
        out.extend_from_slice(b"null");
    } else {
        json::string(out, &content);
    }
    if !reasoning.is_empty() {
        out.push(b',');
        text_field(out, "reasoning_content", &reasoning);
    }
    if let (Names::FunctionCall, Some((_, name, arguments))) = (names, calls.first()) {
        out.extend_from_slice(b",\"function_call\":");
        function(out, Some(name), arguments);
    } else if !calls.is_empty() {
        out.extend_from_slice(b",\"tool_calls\":");
        json::array(out, &calls, |out, (id, name, arguments)| {
            out.extend_from_slice(b"{\"id\":");
            json::string(out, id);
            out.extend_from_slice(b",\"type\":\"function\",\"function\":");
            function(out, Some(name), arguments);
            out.push(b'}');
        });
    }
}

/// The field; left out if `entries` is None, null if there are none.
fn logprobs<V: Vocabulary>(out: &mut Vec<u8>, vocabulary: &V, entries: Option<&[Entry]>) {
    match entries {
        None => {}
        Some([]) => out.extend_from_slice(b",\"logprobs\":null"),
        Some(entries) => {
            out.extend_from_slice(b",\"logprobs\":{\"content\":");
            json::array(out, entries, |out, entry| write_entry(out, vocabulary, entry));
            out.extend_from_slice(b",\"refusal\":null}");
        }
    }
}

fn write_entry<V: Vocabulary>(out: &mut Vec<u8>, vocabulary: &V, entry: &Entry) {
    open_token(out, vocabulary, entry.id, entry.logprob);
    out.extend_from_slice(b",\"top_logprobs\":");
    json::array(out, &entry.top, |out, &(id, logprob)| {
        open_token(out, vocabulary, id, Some(logprob));
        out.push(b'}');
    });
    out.push(b'}');
}

/// `bytes` are the token's own, null for an id that the vocabulary lacks.
fn open_token<V: Vocabulary>(out: &mut Vec<u8>, vocabulary: &V, id: u32, logprob: Option<f32>) {
    out.extend_from_slice(b"{\"token\":");
    json::string(out, &text(vocabulary, id));
    out.extend_from_slice(b",\"logprob\":");
    json::float(out, logprob);
    out.extend_from_slice(b",\"bytes\":");
    match vocabulary.token_bytes(id) {
        None => out.extend_from_slice(b"null"),
        Some(bytes) => json::array(out, bytes, |out, &byte| json::number(out, byte.into())),
    }
}
