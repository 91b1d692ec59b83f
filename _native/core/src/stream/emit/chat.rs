//! `chat.completion` and its chunks.

use super::{Envelope, INDEX, Piece, finish, text};
use crate::stream::Vocabulary;
use crate::stream::json;
use crate::stream::logprobs::Entry;
use crate::stream::usage::Usage;

pub const OBJECT: &str = "chat.completion";
pub const CHUNK: &str = "chat.completion.chunk";

/// The first event of a choice.
pub fn role(out: &mut Vec<u8>, envelope: &Envelope, choice: u32, usage: &Usage) {
    envelope.open(out, choice);
    out.extend_from_slice(b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}");
    envelope.close(out, usage);
}

/// The next piece of an answer, then its end. Entries alone are not worth an event: they wait for either.
pub fn say<V: Vocabulary>(out: &mut Vec<u8>, envelope: &Envelope, vocabulary: &V, piece: &Piece) -> bool {
    let mut entries = piece.entries;
    if !piece.text.is_empty() {
        envelope.open(out, piece.choice);
        out.extend_from_slice(b",\"delta\":{\"content\":\"");
        json::escape(out, piece.text);
        out.extend_from_slice(b"\"}");
        logprobs(out, vocabulary, entries.as_mut().map(std::mem::take));
        out.extend_from_slice(b",\"finish_reason\":null}");
        envelope.close(out, &piece.usage);
    }
    if let Some(end) = piece.finish {
        envelope.open(out, piece.choice);
        out.extend_from_slice(b",\"delta\":{}");
        logprobs(out, vocabulary, entries);
        finish(out, end);
        out.push(b'}');
        envelope.close(out, &piece.usage);
    }
    !piece.text.is_empty() || piece.finish.is_some()
}

/// One choice of a whole answer.
pub fn choice<V: Vocabulary>(out: &mut Vec<u8>, vocabulary: &V, piece: &Piece) {
    out.extend_from_slice(INDEX);
    json::number(out, piece.choice.into());
    out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
    json::string(out, piece.text);
    out.extend_from_slice(b",\"refusal\":null}");
    logprobs(out, vocabulary, Some(piece.entries.unwrap_or_default()));
    if let Some(end) = piece.finish {
        finish(out, end);
    }
    out.push(b'}');
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
