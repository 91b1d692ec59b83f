//! Log probabilities of one choice, an entry a token, each exactly once and in order.
//!
//! Which entries of a message are new is told as for its ids ([`Ids`], a second time: a servicer may repeat
//! the one and not the other). An entry is ready once text of its token, or after it, has left the stop words,
//! so that it rides the event which carries that text; what is left rides the last event.
//!
//! Which entries a client gets:
//! - A stop word's own tokens are cut with it: an entry stays if the text that is shown reaches past the
//!   token's beginning. So a token whose text is cut in the middle keeps its entry.
//! - The id that ended an answer (end of text, a stop id) was sampled as any other and keeps its entry, though
//!   its text is not shown: SGLang and its gateway do so. It comes last.
//! - `/generate` shows ids, which no stop word cuts: all entries up to the id that completed the word.

use std::collections::VecDeque;

use super::Vocabulary;
use super::ids::Ids;
use crate::wire::{GenerateComplete, GenerateStreamChunk, InputLogProbs, OutputLogProbs, TopLogProbs};

/// What stands for "very unlikely", as OpenAI does: JSON has no infinity.
const LEAST: f32 = -9999.0;

/// One token and what it was worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Completion tokens up to this one; 0 for a token of the prompt.
    pub position: u64,
    pub id: u32,
    /// None for the first token of a prompt, which nothing predicts.
    pub logprob: Option<f32>,
    /// The likeliest tokens of the position, best first.
    pub top: Vec<(u32, f32)>,
    /// Characters before the token in the choice's text.
    pub offset: u64,
}

/// A place in a choice's text.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    bytes: u64,
    chars: u64,
}

/// Where the text of a token begins.
struct Start {
    position: u64,
    place: Place,
}

/// The entries of one choice. What runs for each message is marked cold to keep it out of the way of the many
/// answers that have none.
pub struct Entries {
    ids: Ids,
    /// How many of the likeliest tokens the client wants.
    limit: usize,
    /// Entries are not bound to text.
    by_id: bool,
    /// The prompt's entries come before any other and are not here yet.
    awaiting: bool,
    /// The prompt's entries are wanted and were not taken.
    prompt: bool,
    /// The prompt's text, while `awaiting`.
    echo: Option<String>,
    waiting: VecDeque<Entry>,
    /// Of tokens whose entries were not ready, in order.
    starts: VecDeque<Start>,
    /// End of the decoded text.
    end: Place,
    /// Bytes of decoded text that have left the stop words.
    released: u64,
    /// All of them when aggregated, what no event has carried when streamed.
    pub ready: Vec<Entry>,
}

impl Entries {
    /// `echo`: the prompt's text, if the answer begins with it. `by_id`: for `/generate`.
    pub fn new(limit: u32, echo: Option<&str>, by_id: bool) -> Self {
        let chars = echo.map_or(0, |text| text.chars().count()) as u64;
        Self {
            ids: Ids::default(),
            limit: limit as usize,
            by_id,
            awaiting: echo.is_some(),
            prompt: echo.is_some() || by_id,
            echo: echo.map(str::to_owned),
            waiting: VecDeque::new(),
            starts: VecDeque::new(),
            end: Place { bytes: 0, chars },
            released: 0,
            ready: Vec::new(),
        }
    }

    /// Takes what a chunk brings.
    #[cold]
    pub fn chunk<V: Vocabulary>(&mut self, chunk: &GenerateStreamChunk, vocabulary: &V) {
        self.prompt(chunk.input_logprobs.as_deref(), vocabulary);
        if let Some(list) = &chunk.output_logprobs {
            let ids = paired(list);
            let fresh = self.ids.chunk(ids, chunk.completion_tokens).len();
            self.add(list, ids.len() - fresh..ids.len());
        }
    }

    /// Takes what the closing message brings.
    #[cold]
    pub fn complete<V: Vocabulary>(&mut self, complete: &GenerateComplete, vocabulary: &V) {
        self.prompt(complete.input_logprobs.as_deref(), vocabulary);
        if let Some(list) = &complete.output_logprobs {
            let ids = paired(list);
            let fresh = self.ids.complete(ids, complete.completion_tokens).len();
            self.add(list, ids.len() - fresh..ids.len());
        }
    }

    fn add(&mut self, list: &OutputLogProbs, fresh: std::ops::Range<usize>) {
        let end = fresh.end as u64;
        for index in fresh {
            let position = (self.ids.count() + index as u64 + 1).saturating_sub(end).max(1);
            let (id, logprob) = (list.token_ids[index], Some(finite(list.token_logprobs[index])));
            let top = self.top(list.top_logprobs.get(index));
            self.waiting.push_back(Entry { position, id, logprob, top, offset: 0 });
        }
    }

    fn top(&self, row: Option<&TopLogProbs>) -> Vec<(u32, f32)> {
        let pairs = row.into_iter().flat_map(|row| row.token_ids.iter().zip(&row.values));
        pairs.take(self.limit).map(|(&id, &value)| (id, finite(value))).collect()
    }

    /// Takes the prompt's entries, the first time that they come and if they are wanted.
    fn prompt<V: Vocabulary>(&mut self, list: Option<&InputLogProbs>, vocabulary: &V) {
        let Some(list) = list.filter(|list| self.prompt && !list.token_ids.is_empty()) else { return };
        (self.prompt, self.awaiting) = (false, false);
        let echo = self.echo.take().unwrap_or_default();
        let mut walk = Walk { text: &echo, at: 0, chars: 0 };
        for (index, (&id, value)) in list.token_ids.iter().zip(&list.token_logprobs).enumerate() {
            let (logprob, top) = (value.value.map(finite), self.top(list.top_logprobs.get(index)));
            let offset = if self.by_id { 0 } else { walk.step(vocabulary, id) };
            self.ready.push(Entry { position: 0, id, logprob, top, offset });
        }
    }

    /// A token was decoded, and `text` came of it.
    #[cold]
    pub fn token(&mut self, position: u64, text: &str) {
        if !self.by_id {
            self.starts.push_back(Start { position, place: self.end });
            self.end.bytes += text.len() as u64;
            self.end.chars += text.chars().count() as u64;
        }
    }

    /// More decoded text has passed the stop words (or went elsewhere before them).
    pub fn release(&mut self, bytes: usize) {
        self.released += bytes as u64;
    }

    /// Moves what is ready; `count` are the completion tokens so far.
    #[cold]
    pub fn settle(&mut self, count: u64) {
        while !self.awaiting && self.move_one(count) {}
    }

    fn move_one(&mut self, count: u64) -> bool {
        let Some(position) = self.waiting.front().map(|entry| entry.position) else { return false };
        let offset = if self.by_id {
            (position <= count).then_some(0)
        } else {
            let start = self.start(position);
            start.filter(|start| start.bytes < self.released).map(|start| start.chars)
        };
        let moved = offset.and_then(|offset| Some(Entry { offset, ..self.waiting.pop_front()? }));
        let is_some = moved.is_some();
        self.ready.extend(moved);
        is_some
    }

    /// Where the token's text begins (the next one's, if its own message was lost); None if it waits.
    fn start(&mut self, position: u64) -> Option<Place> {
        while self.starts.front().is_some_and(|start| start.position < position) {
            self.starts.pop_front();
        }
        self.starts.front().map(|start| start.place)
    }

    /// The choice has ended after `count` tokens, by a stop word (`cut`) or not.
    pub fn finish(&mut self, count: u64, cut: bool) {
        self.awaiting = false;
        self.settle(count);
        while let Some(mut entry) = self.waiting.pop_front().filter(|_| !cut) {
            entry.offset = self.start(entry.position).unwrap_or(self.end).chars;
            self.ready.push(entry);
        }
        self.waiting.clear();
        self.starts.clear();
    }
}

/// The ids that have a log probability.
fn paired(list: &OutputLogProbs) -> &[u32] {
    &list.token_ids[..list.token_ids.len().min(list.token_logprobs.len())]
}

fn finite(value: f32) -> f32 {
    if value.is_finite() { value.max(LEAST) } else { LEAST }
}

/// Finds the tokens of a prompt in its text. What a tokenizer adds (begin of text, a first space) or changes is
/// not in it: then the place stays, or moves by the token's length.
struct Walk<'a> {
    text: &'a str,
    at: usize,
    chars: u64,
}

impl Walk<'_> {
    /// Characters before the token.
    fn step<V: Vocabulary>(&mut self, vocabulary: &V, id: u32) -> u64 {
        let before = self.chars;
        let token = vocabulary.token_bytes(id).unwrap_or_default();
        let bare = token.strip_prefix(b" ").unwrap_or(token);
        let rest = &self.text.as_bytes()[self.at..];
        let known = [token, bare].into_iter().find(|bytes| rest.starts_with(bytes));
        let length = match known {
            Some(bytes) => bytes.len(),
            None if vocabulary.is_special(id) => 0,
            None => token.len().min(rest.len()),
        };
        let passed = self.at + 1..=self.at + length;
        self.chars += passed.filter(|&place| self.text.is_char_boundary(place)).count() as u64;
        self.at += length;
        before
    }
}
