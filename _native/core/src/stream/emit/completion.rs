//! `text_completion`, whole or in chunks, which have the same form.

use std::borrow::Cow;

use super::{Envelope, INDEX, Piece, finish};
use crate::stream::Vocabulary;
use crate::stream::choice::Finish;
use crate::stream::json;
use crate::stream::logprobs::Entry;

pub const OBJECT: &str = "text_completion";

/// The next piece of an answer, then its end with no text. Entries alone are not worth an event.
pub fn say<V: Vocabulary>(out: &mut Vec<u8>, envelope: &Envelope, vocabulary: &V, piece: &Piece) -> bool {
    let mut entries = piece.entries;
    if !piece.text.is_empty() {
        envelope.open(out, piece.choice);
        rest(out, vocabulary, piece.text, entries.as_mut().map(std::mem::take), None);
        envelope.close(out, &piece.usage);
    }
    if piece.finish.is_some() {
        envelope.open(out, piece.choice);
        rest(out, vocabulary, "", entries, piece.finish);
        envelope.close(out, &piece.usage);
    }
    !piece.text.is_empty() || piece.finish.is_some()
}

/// One choice of a whole answer.
pub fn choice<V: Vocabulary>(out: &mut Vec<u8>, vocabulary: &V, piece: &Piece) {
    out.extend_from_slice(INDEX);
    json::number(out, piece.choice.into());
    rest(out, vocabulary, piece.text, piece.entries, piece.finish);
}

/// What follows a choice's index.
fn rest<V: Vocabulary>(
    out: &mut Vec<u8>,
    vocabulary: &V,
    text: &str,
    entries: Option<&[Entry]>,
    end: Option<&Finish>,
) {
    out.extend_from_slice(b",\"text\":");
    json::string(out, text);
    out.extend_from_slice(b",\"logprobs\":");
    match entries.unwrap_or_default() {
        [] => out.extend_from_slice(b"null"),
        entries => logprobs(out, vocabulary, entries),
    }
    match end {
        None => out.extend_from_slice(b",\"finish_reason\":null"),
        Some(end) => finish(out, end),
    }
    out.push(b'}');
}

fn logprobs<V: Vocabulary>(out: &mut Vec<u8>, vocabulary: &V, entries: &[Entry]) {
    out.extend_from_slice(b"{\"tokens\":");
    json::array(out, entries, |out, entry| json::string(out, &name(vocabulary, entry.id)));
    out.extend_from_slice(b",\"token_logprobs\":");
    json::array(out, entries, |out, entry| json::float(out, entry.logprob));
    out.extend_from_slice(b",\"top_logprobs\":");
    json::array(out, entries, |out, entry| top(out, vocabulary, entry));
    out.extend_from_slice(b",\"text_offset\":");
    json::array(out, entries, |out, entry| json::number(out, entry.offset));
    out.push(b'}');
}

/// The likeliest tokens and always the token itself, by name; null for a prompt's first, which has none. Of two
/// tokens with one name the likelier stands.
fn top<V: Vocabulary>(out: &mut Vec<u8>, vocabulary: &V, entry: &Entry) {
    let own = entry.logprob.map(|logprob| (entry.id, logprob));
    if own.is_none() && entry.top.is_empty() {
        return out.extend_from_slice(b"null");
    }
    let mut seen: Vec<&[u8]> = Vec::with_capacity(entry.top.len() + 1);
    out.push(b'{');
    for (id, logprob) in entry.top.iter().copied().chain(own) {
        let bytes = vocabulary.token_bytes(id).unwrap_or_default();
        if seen.contains(&bytes) {
            continue;
        }
        if !seen.is_empty() {
            out.push(b',');
        }
        seen.push(bytes);
        json::string(out, &name(vocabulary, id));
        out.push(b':');
        json::float(out, logprob);
    }
    out.push(b'}');
}

/// A token's text. One that is no text is spelled `bytes:\xe6\x97`, as OpenAI does in this object, which has no
/// `bytes` and where names have to differ.
fn name<V: Vocabulary>(vocabulary: &V, id: u32) -> Cow<'_, str> {
    let bytes = vocabulary.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            Cow::Owned(bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")))
        }
    }
}
