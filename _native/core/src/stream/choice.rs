//! One choice of a response, from the worker's messages to the answer's text.
//!
//! ```text
//! message → new ids (ids) → decoder → [reasoning parser] → stop words (stop) → [tool parser] → answer
//! ```
//! The brackets are the parsers of [`super::reading`], where there are any: stop words apply to the answer and
//! not to the reasoning, and what they release reaches the tool parser in order. They see a call as the model
//! writes it: one that is cut comes out as far as it goes, and `matched_stop` tells why. Nothing here knows how
//! the text is framed. What rides along with the text (logprob entries, see [`super::logprobs`]) waits beside `answer` for
//! the event that carries it. Entries follow the decoded text by its length: [`Choice::decode`] says what each
//! token added to it, and [`Choice::sieve`] how much nothing holds back any more.

use std::sync::Arc;

use super::emit::Piece;
use super::ids::Ids;
use super::logprobs::Entries;
use super::options::{Object, Options};
use super::reading::{Plan, Reading};
use super::stats::Pace;
use super::stop::{Cursor, StopWords};
use super::usage::{Total, Usage};
use super::{Decode, Vocabulary};
use crate::wire::{GenerateComplete, GenerateStreamChunk, MatchedStop};

/// What all choices of a response obey.
pub struct Rules<V> {
    pub stop: StopWords,
    /// A stop word or stop id stays in the text.
    keep: bool,
    skip_special: bool,
    ignore_eos: bool,
    /// The client's own, sorted.
    stop_ids: Vec<u32>,
    /// `/generate`: ids are shown, and every stop is told.
    by_id: bool,
    /// A choice with calls ends with this, as long as nothing worse has ended it.
    called: &'static str,
    pub plan: Plan,
    pub vocabulary: Arc<V>,
}

impl<V: Vocabulary> Rules<V> {
    pub fn new(vocabulary: Arc<V>, options: &mut Options, plan: Plan) -> Self {
        let mut stop_ids = std::mem::take(&mut options.stop_token_ids);
        stop_ids.sort_unstable();
        Self {
            stop: StopWords::new(std::mem::take(&mut options.stop)),
            keep: options.no_stop_trim,
            skip_special: options.skip_special_tokens,
            ignore_eos: options.ignore_eos,
            stop_ids,
            by_id: options.object == Object::Generate,
            called: if options.legacy_function_call { "function_call" } else { "tool_calls" },
            plan,
            vocabulary,
        }
    }

    /// A special token that nobody is to see. (Without markers the decoder itself leaves them out.)
    fn hides(&self, id: u32) -> bool {
        self.skip_special
            && self.plan.has_markers()
            && self.vocabulary.is_special(id)
            && !self.plan.is_marker(id)
    }

    fn asked_for(&self, id: u32) -> bool {
        self.stop_ids.binary_search(&id).is_ok()
    }

    fn is_eos(&self, id: u32) -> bool {
        self.vocabulary.eos_token_ids().contains(&id)
    }

    /// May the engine have stopped at this id? Then its text waits for the next message, which tells.
    fn may_end(&self, id: u32) -> bool {
        let shown = !self.skip_special || self.plan.is_marker(id);
        let ends = || self.asked_for(id) || self.is_eos(id) || shown && self.vocabulary.is_special(id);
        !self.ignore_eos && !self.keep && ends()
    }

    /// The id at which the engine stopped: by its own word, or, when it is silent, the last id if that is one
    /// of the client's or an end of text that must not be shown.
    fn ended_by(&self, complete: &GenerateComplete, last: Option<u32>) -> Option<u32> {
        match complete.matched_stop {
            Some(MatchedStop::TokenId(id)) => Some(id),
            Some(MatchedStop::Text(_)) => None,
            None if self.ignore_eos || complete.finish_reason != "stop" => None,
            None => last.filter(|&id| self.asked_for(id) || self.skip_special && self.is_eos(id)),
        }
    }

    /// The model's own end of text is no news to the client; any other stop is. (SGLang tells it too.)
    fn matched(&self, complete: &GenerateComplete, ended_by: Option<u32>) -> Option<Matched> {
        match &complete.matched_stop {
            Some(MatchedStop::Text(text)) => Some(Matched::Text(text.clone())),
            _ => ended_by
                .filter(|&id| self.by_id || self.asked_for(id) || !self.is_eos(id))
                .map(Matched::Token),
        }
    }
}

/// Why a choice ended, for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    pub reason: &'static str,
    pub matched: Option<Matched>,
}

/// The stop that ended a choice: `matched_stop`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    Token(u32),
    Text(String),
}

/// The worker's word to OpenAI's; an engine that gives no reason has stopped.
fn reason(word: &str) -> &'static str {
    match word {
        "length" => "length",
        "content_filter" => "content_filter",
        _ => "stop",
    }
}

/// A token whose text waits, and the completion tokens up to it.
#[derive(Clone, Copy)]
struct Held {
    id: u32,
    count: u64,
}

/// State of one choice.
pub struct Choice<D> {
    /// Which prompt it answers.
    pub prompt: usize,
    ids: Ids,
    decoder: D,
    held: Option<Held>,
    /// The last token's id, held or shown.
    last: Option<u32>,
    cursor: Cursor,
    /// Text between decoder and stop words; kept for its memory.
    decoded: String,
    /// Text that stop words have released: all of it when aggregated, what no event has carried when streamed.
    pub answer: String,
    /// Parsers, and what they have made of the text; `answer` is empty then between messages.
    pub reading: Option<Box<Reading>>,
    /// Likewise the ids, where they are shown.
    pub shown: Vec<u32>,
    /// None if the client wants no log probabilities.
    pub entries: Option<Box<Entries>>,
    pub usage: Usage,
    /// Tokens of the reasoning, as the worker counts them; 0 where it does not.
    told_reasoning: u64,
    pub pace: Pace,
    /// The event with the role is out.
    pub greeted: bool,
    pub finish: Option<Finish>,
    /// Seconds from the start to the end.
    pub latency: f64,
}

impl<D: Decode> Choice<D> {
    pub fn new(decoder: D, options: &Options, plan: &Plan, index: u32) -> Self {
        let echo = options.echo(index);
        let by_id = options.object == Object::Generate;
        Self {
            prompt: options.prompt_of(index),
            ids: Ids::default(),
            decoder,
            held: None,
            last: None,
            cursor: Cursor::default(),
            decoded: String::new(),
            answer: echo.unwrap_or_default().to_owned(),
            reading: plan.reading(options, index),
            shown: Vec::new(),
            entries: options.logprobs.map(|limit| Box::new(Entries::new(limit, echo, by_id))),
            usage: Usage::default(),
            told_reasoning: 0,
            pace: Pace::default(),
            greeted: false,
            finish: None,
            latency: 0.0,
        }
    }

    /// What is there to say; `index` is the choice's.
    pub fn piece(&self, index: u32, total: &Total) -> Piece<'_> {
        Piece {
            choice: index,
            text: &self.answer,
            parts: self.reading.as_ref().map(|reading| &*reading.parts.list),
            entries: self.entries.as_ref().map(|entries| &*entries.ready),
            ids: &self.shown,
            finish: self.finish.as_ref(),
            usage: total.settled(self.prompt, &self.usage),
            latency: self.latency,
        }
    }

    /// An event has carried all that was there to say.
    pub fn said(&mut self) {
        self.answer.clear();
        if let Some(reading) = &mut self.reading {
            reading.parts.list.clear();
        }
        self.shown.clear();
        if let Some(entries) = &mut self.entries {
            entries.ready.clear();
        }
    }

    /// Takes a chunk. Sets `finish` if a stop word is complete. Returns the number of new tokens.
    pub fn chunk<V: Vocabulary>(&mut self, rules: &Rules<V>, chunk: &GenerateStreamChunk) -> u64 {
        if let Some(entries) = &mut self.entries {
            entries.chunk(chunk, &*rules.vocabulary);
        }
        let fresh = self.ids.chunk(&chunk.token_ids, chunk.completion_tokens);
        self.count(chunk.prompt_tokens, chunk.cached_tokens, chunk.reasoning_tokens);
        if let Some(word) = self.take(rules, fresh, false) {
            self.stop_at(rules, word);
        } else if let Some(entries) = &mut self.entries {
            entries.settle(self.usage.completion);
        }
        self.count_reasoning();
        self.show(rules, fresh);
        fresh.len() as u64
    }

    /// Takes the closing message, which is no abort, and sets `finish`. Returns the number of new tokens.
    pub fn complete<V: Vocabulary>(&mut self, rules: &Rules<V>, complete: &GenerateComplete) -> u64 {
        if let Some(entries) = &mut self.entries {
            entries.complete(complete, &*rules.vocabulary);
        }
        let fresh = self.ids.complete(&complete.output_ids, complete.completion_tokens);
        self.count(complete.prompt_tokens, complete.cached_tokens, complete.reasoning_tokens);
        match self.take(rules, fresh, true) {
            Some(word) => self.stop_at(rules, word),
            None => self.close(rules, complete),
        }
        self.count_reasoning();
        self.show(rules, fresh);
        fresh.len() as u64
    }

    fn count(&mut self, prompt: u32, cached: u32, reasoning: u32) {
        let usage = &mut self.usage;
        usage.prompt = usage.prompt.max(prompt.into());
        usage.cached = usage.cached.max(cached.into());
        self.told_reasoning = self.told_reasoning.max(reasoning.into());
    }

    /// The tokens of the reasoning: the worker's word counts more than what the parser saw.
    fn count_reasoning(&mut self) {
        let seen = self.reading.as_ref().map_or(0, |reading| reading.thoughts);
        let reasoning = if self.told_reasoning > 0 { self.told_reasoning } else { seen };
        self.usage.reasoning = reasoning.min(self.usage.completion);
    }

    /// Keeps new ids, up to the one that completed a stop word, if they are to be shown.
    fn show<V: Vocabulary>(&mut self, rules: &Rules<V>, fresh: &[u32]) {
        if rules.by_id {
            let dropped = self.ids.count().saturating_sub(self.usage.completion) as usize;
            self.shown.extend_from_slice(&fresh[..fresh.len().saturating_sub(dropped)]);
        }
    }

    /// Pushes new ids through, up to the one that completes a stop word. The last one may have to wait.
    fn take<V: Vocabulary>(&mut self, rules: &Rules<V>, fresh: &[u32], closing: bool) -> Option<usize> {
        self.usage.completion = self.ids.count();
        let (&last, others) = fresh.split_last()?;
        self.last = Some(last);
        let first = self.ids.count().saturating_sub(others.len() as u64);
        let earlier = self.held.take().into_iter();
        let others = others.iter().zip(first..).map(|(&id, count)| Held { id, count });
        if let Some(word) = earlier.chain(others).find_map(|token| self.push(rules, token)) {
            return Some(word);
        }
        let last = Held { id: last, count: self.ids.count() };
        if closing || rules.may_end(last.id) {
            self.held = Some(last);
            return None;
        }
        self.push(rules, last)
    }

    /// One token's text. Some(stop word): usage ends with this token.
    fn push<V: Vocabulary>(&mut self, rules: &Rules<V>, token: Held) -> Option<usize> {
        let straight = rules.stop.is_empty() && self.reading.is_none();
        if !rules.hides(token.id) {
            self.decode(straight, token);
        }
        if straight {
            return None;
        }
        let word = self.sieve(rules);
        if let Some(reading) = &mut self.reading {
            reading.count();
        }
        if word.is_some() {
            self.usage.completion = token.count;
        }
        word
    }

    /// One token's text to where the stop words look for it, or straight to the answer.
    fn decode(&mut self, straight: bool, token: Held) {
        let out = if straight { &mut self.answer } else { &mut self.decoded };
        let before = out.len();
        self.decoder.push(token.id, out);
        if let Some(entries) = &mut self.entries {
            entries.token(token.count, &out[before..]);
            if straight {
                entries.release(out.len() - before);
            }
        }
    }

    /// Decoded text through the stop words into the answer.
    fn sieve<V: Vocabulary>(&mut self, rules: &Rules<V>) -> Option<usize> {
        let before = self.answer.len();
        let Some(reading) = &mut self.reading else {
            let word = rules.stop.feed(&mut self.cursor, &self.decoded, rules.keep, &mut self.answer);
            if let Some(entries) = &mut self.entries {
                entries.release(self.answer.len() - before);
            }
            self.decoded.clear();
            return word;
        };
        reading.think(&self.decoded);
        self.decoded.clear();
        let word = rules.stop.feed(&mut self.cursor, &reading.visible, rules.keep, &mut self.answer);
        reading.answer(&self.answer);
        self.answer.clear();
        if let Some(entries) = &mut self.entries {
            entries.release(reading.release());
        }
        word
    }

    /// The engine ended: settles the waiting token, then what the decoder and the stop words hold back.
    fn close<V: Vocabulary>(&mut self, rules: &Rules<V>, complete: &GenerateComplete) {
        let held = self.held.take();
        let ended_by = rules.ended_by(complete, self.last);
        let shown = held.filter(|token| rules.keep || ended_by != Some(token.id));
        let mut word = shown.and_then(|token| self.push(rules, token));
        if word.is_none() {
            self.decoder.flush(&mut self.decoded);
            word = self.sieve(rules);
        }
        if let (None, Some(reading)) = (word, &mut self.reading) {
            reading.end_thinking();
            word = self.sieve(rules);
        }
        match word {
            Some(word) => self.stop_at(rules, word),
            None => {
                rules.stop.flush(&mut self.cursor, &mut self.answer);
                let matched = rules.matched(complete, ended_by);
                self.ends(rules, Finish { reason: reason(&complete.finish_reason), matched }, false);
            }
        }
    }

    fn stop_at<V: Vocabulary>(&mut self, rules: &Rules<V>, word: usize) {
        let matched = Some(Matched::Text(rules.stop.word(word).to_owned()));
        self.ends(rules, Finish { reason: "stop", matched }, true);
    }

    /// `cut`: tokens of which no text is shown lose their entries.
    fn ends<V: Vocabulary>(&mut self, rules: &Rules<V>, mut finish: Finish, cut: bool) {
        if let Some(reading) = &mut self.reading {
            reading.end(&self.answer);
            self.answer.clear();
            if reading.parts.calls > 0 && finish.reason == "stop" {
                finish.reason = rules.called;
            }
        }
        if let Some(entries) = &mut self.entries {
            entries.finish(self.usage.completion, cut);
        }
        self.finish = Some(finish);
    }
}
