//! Ids → text as they come: [`TextDecoder`].

use std::sync::Arc;

use tokenizers_fallback::DecoderWrapper;
use tokenizers_fallback::tokenizer::Decoder as _;

use super::Tokenizer;
use super::plan::{Lead, Plan};
use super::stage::{self, Stage};
use super::vocab::RAW_BYTE;

/// The text of one choice, token by token. Memory is bounded (a few bytes; a kilobyte within a run
/// of byte-fallback tokens) and a token costs the same however long the text is.
///
/// For any ids, and whenever the text is looked at, what [`push`](Self::push) and
/// [`flush`](Self::flush) append adds up to [`Tokenizer::decode`] of the whole.
pub struct TextDecoder {
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    machine: Machine,
}

impl TextDecoder {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Self {
        let machine = Machine::new(&tokenizer);
        Self { tokenizer, skip_special_tokens, machine }
    }

    /// Appends the text that `id` completes. Ids that the vocabulary lacks are skipped.
    pub fn push(&mut self, id: u32, out: &mut String) {
        self.machine.push(&self.tokenizer, id, self.skip_special_tokens, out);
    }

    /// The end: appends what is pending, U+FFFD for what never became a character.
    pub fn flush(&mut self, out: &mut String) {
        self.machine.flush(&self.tokenizer, out);
    }
}

/// The state behind a [`TextDecoder`], and behind the decoding of a whole.
pub(super) enum Machine {
    Bytes { utf8: Utf8, stages: Vec<Stage> },
    Fallback { run: Run, stages: Vec<Stage> },
    Text { stages: Vec<Stage> },
    Window(Window),
}

impl Machine {
    pub fn new(tokenizer: &Tokenizer) -> Self {
        match &tokenizer.plan {
            Plan::Stream { lead, stages, .. } => {
                let stages = stages.clone();
                match lead {
                    Lead::ByteLevel => Self::Bytes { utf8: Utf8::default(), stages },
                    Lead::ByteFallback => Self::Fallback { run: Run::default(), stages },
                    Lead::Text => Self::Text { stages },
                }
            }
            Plan::Window(_) => Self::Window(Window::default()),
        }
    }

    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, skip_special_tokens: bool, out: &mut String) {
        let Some(token) = tokenizer.table.get(id) else { return };
        if skip_special_tokens && tokenizer.is_special(id) {
            return;
        }
        match self {
            Self::Bytes { utf8, stages } => utf8.push(token, &mut |text| stage::push(stages, text, out)),
            Self::Fallback { run, stages } => {
                let mut emit = |text: &str| stage::push(stages, text, out);
                if tokenizer.table.is(id, RAW_BYTE) {
                    run.byte(token[0], &mut emit);
                } else {
                    run.end(&mut emit);
                    emit(text(token));
                }
            }
            Self::Text { stages } => stage::push(stages, text(token), out),
            Self::Window(window) => {
                if let Plan::Window(decoder) = &tokenizer.plan {
                    window.push(decoder, text(token), out);
                }
            }
        }
    }

    pub fn flush(&mut self, tokenizer: &Tokenizer, out: &mut String) {
        match self {
            Self::Bytes { utf8, stages } => {
                utf8.end(&mut |text| stage::push(stages, text, out));
                stage::finish(stages, out);
            }
            Self::Fallback { run, stages } => {
                run.end(&mut |text| stage::push(stages, text, out));
                stage::finish(stages, out);
            }
            Self::Text { stages } => stage::finish(stages, out),
            Self::Window(window) => {
                if let Plan::Window(decoder) = &tokenizer.plan {
                    window.end(decoder, out);
                }
            }
        }
    }
}

/// A token that is text by the plan: the table holds what came from a JSON string.
fn text(token: &[u8]) -> &str {
    std::str::from_utf8(token).unwrap_or_default()
}

const REPLACEMENT: &str = "\u{fffd}";

/// Bytes → text, with one U+FFFD for each maximal part of a broken character, as
/// [`String::from_utf8_lossy`] does it over the whole.
#[derive(Default)]
pub(super) struct Utf8 {
    /// The beginning of a character: three bytes at most.
    pending: Vec<u8>,
}

impl Utf8 {
    fn push(&mut self, bytes: &[u8], emit: &mut impl FnMut(&str)) {
        if self.pending.is_empty() {
            self.pending.extend_from_slice(lossy(bytes, emit));
            return;
        }
        self.pending.extend_from_slice(bytes);
        let kept = lossy(&self.pending, emit).len();
        self.pending.drain(..self.pending.len() - kept);
    }

    fn end(&mut self, emit: &mut impl FnMut(&str)) {
        if !self.pending.is_empty() {
            self.pending.clear();
            emit(REPLACEMENT);
        }
    }
}

/// Emits all of `bytes` but a last incomplete character, which is returned.
fn lossy<'b>(mut bytes: &'b [u8], emit: &mut impl FnMut(&str)) -> &'b [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                if !text.is_empty() {
                    emit(text);
                }
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                if !valid.is_empty() {
                    emit(text(valid));
                }
                let Some(broken) = error.error_len() else { return rest };
                emit(REPLACEMENT);
                bytes = &rest[broken..];
            }
        }
    }
}

/// A run of byte-fallback tokens. The library reads a run as a whole: text if all of it is UTF-8,
/// else one U+FFFD for each byte. So a run is held until it ends or breaks, up to [`LONGEST_RUN`].
#[derive(Default)]
pub(super) struct Run {
    bytes: Vec<u8>,
    /// How many of `bytes` are whole characters.
    whole: usize,
    broken: bool,
}

/// A run this long is let out as far as it is text, so that a script the vocabulary has no tokens
/// for (written without spaces) does not wait for ever. A break behind that no longer takes the
/// characters before it along; that is the one difference to the library, and not a worse text.
const LONGEST_RUN: usize = 1024;

impl Run {
    fn byte(&mut self, byte: u8, emit: &mut impl FnMut(&str)) {
        if self.broken {
            emit(REPLACEMENT);
            return;
        }
        self.bytes.push(byte);
        match std::str::from_utf8(&self.bytes[self.whole..]) {
            Ok(_) => self.whole = self.bytes.len(),
            Err(error) if error.error_len().is_some() => {
                self.broken = true;
                self.give_up(emit);
            }
            Err(_) => {}
        }
        if self.bytes.len() >= LONGEST_RUN {
            emit(text(&self.bytes[..self.whole]));
            self.bytes.drain(..self.whole);
            self.whole = 0;
        }
    }

    /// A token that is no byte, or the end.
    fn end(&mut self, emit: &mut impl FnMut(&str)) {
        if self.whole < self.bytes.len() {
            self.give_up(emit);
        } else if self.whole > 0 {
            emit(text(&self.bytes));
        }
        self.bytes.clear();
        self.whole = 0;
        self.broken = false;
    }

    fn give_up(&mut self, emit: &mut impl FnMut(&str)) {
        for _ in 0..self.bytes.len() {
            emit(REPLACEMENT);
        }
        self.bytes.clear();
        self.whole = 0;
    }
}

/// For decoders that only the library runs: the last tokens are decoded again and again, and what
/// is new behind the part already given out is given out.
#[derive(Default)]
pub(super) struct Window {
    tokens: Vec<String>,
    /// How many of `tokens` are wholly given out; they stay as what the others lean on.
    before: usize,
    /// The text of those.
    prefix: String,
}

/// Tokens kept while the text does not become whole, or longer: a decoder may drop what it reads.
const LONGEST_WINDOW: usize = 64;

impl Window {
    fn push(&mut self, decoder: &DecoderWrapper, token: &str, out: &mut String) {
        self.tokens.push(token.to_string());
        let text = decode_all(decoder, &self.tokens);
        let waiting = text.ends_with(REPLACEMENT) || text.len() <= self.prefix.len();
        if !waiting || self.tokens.len() - self.before >= LONGEST_WINDOW {
            out.push_str(behind(&text, &self.prefix));
            self.tokens.drain(..self.before);
            self.before = self.tokens.len();
            self.prefix = decode_all(decoder, &self.tokens);
        }
    }

    fn end(&mut self, decoder: &DecoderWrapper, out: &mut String) {
        out.push_str(behind(&decode_all(decoder, &self.tokens), &self.prefix));
        self.tokens.clear();
        self.before = 0;
        self.prefix.clear();
    }
}

/// `text` without what it shares with `prefix`: the library may read the tokens before otherwise
/// once others follow.
fn behind<'t>(text: &'t str, prefix: &str) -> &'t str {
    let shared = text.char_indices().zip(prefix.chars()).find(|((_, a), b)| a != b);
    let end = shared.map_or(prefix.len().min(text.len()), |((at, _), _)| at);
    &text[end..]
}

/// What the library makes of `tokens`; nothing if it fails.
pub(super) fn decode_all(decoder: &DecoderWrapper, tokens: &[String]) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    decoder.decode(tokens.to_vec()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_window_stays_small_over_what_its_decoder_drops() {
        let decoder = json!({"type": "Sequence", "decoders": [{"type": "Fuse"},
            {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}]});
        let decoder = serde_json::from_value(decoder).unwrap();
        let (mut window, mut text) = (Window::default(), String::new());
        for _ in 0..1000 {
            window.push(&decoder, "a", &mut text);
            assert!(window.tokens.len() <= 2 * LONGEST_WINDOW);
        }
        for token in ["b", "a", "c"] {
            window.push(&decoder, token, &mut text);
        }
        window.end(&decoder, &mut text);
        assert_eq!(text, "bc");
    }
}
