//! A response: the worker's messages in, OpenAI's events out, or one aggregated answer. Both go through the
//! same machine, so that the streamed deltas add up to the aggregated content.
//!
//! - [`ids`]: which ids of a message are new
//! - [`choice`]: ids → text → stop words → answer, for one choice
//! - [`stop`]: stop words over streamed text
//! - [`reading`], [`forced`], [`parts`]: parsers of reasoning and tool calls
//! - [`logprobs`]: what rides along with the text
//! - [`emit`], [`json`]: framing, one file for each kind of object
//! - [`options`], [`usage`], [`stats`]: what is asked, counts and times

pub mod choice;
pub mod emit;
pub mod forced;
pub mod ids;
pub mod json;
pub mod logprobs;
pub mod options;
pub mod parts;
pub mod reading;
pub mod stats;
pub mod stop;
pub mod usage;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use prost::Message;

use crate::error::{Code, Error, Result};
use crate::tokenizer::{TextDecoder, Tokenizer};
use crate::wire::{GenerateComplete, GenerateResponse, GenerateStreamChunk, Response};
use choice::{Choice, Rules};
use emit::Events;
pub use options::{Object, Options, Prompt};
use reading::Plan;
pub use stats::{ITL_BOUNDS, Stats};
use usage::{Total, Usage};

/// Bytes are ready in the buffer.
pub const OUTPUT: u32 = 1;
/// The choice that was fed has ended.
pub const CHOICE_DONE: u32 = 2;
/// The choice ended here and not at the worker: cancel its RPC.
pub const CANCEL: u32 = 4;
/// The whole response has ended: the last event and `[DONE]` are in the buffer, or the aggregate is complete.
pub const ALL_DONE: u32 = 8;
/// The worker aborted or sent what cannot be read: see [`Stream::failure`], then call [`Stream::fail`].
pub const FAILED: u32 = 16;

/// Ids to text, a token at a time.
pub trait Decode {
    /// Appends the text that is now complete; whole characters only.
    fn push(&mut self, id: u32, out: &mut String);
    /// Appends what is left at the end.
    fn flush(&mut self, out: &mut String);
}

/// What a response asks of a tokenizer.
pub trait Vocabulary {
    type Decoder: Decode;
    fn decoder(self: &Arc<Self>, skip_special_tokens: bool) -> Self::Decoder;
    fn is_special(&self, id: u32) -> bool;
    fn eos_token_ids(&self) -> &[u32];
    /// None for an unknown id.
    fn token_bytes(&self, id: u32) -> Option<&[u8]>;
    fn token_id(&self, token: &str) -> Option<u32>;
}

impl Decode for TextDecoder {
    fn push(&mut self, id: u32, out: &mut String) {
        TextDecoder::push(self, id, out);
    }

    fn flush(&mut self, out: &mut String) {
        TextDecoder::flush(self, out);
    }
}

impl Vocabulary for Tokenizer {
    type Decoder = TextDecoder;

    fn decoder(self: &Arc<Self>, skip_special_tokens: bool) -> TextDecoder {
        Tokenizer::decoder(self, skip_special_tokens)
    }

    fn is_special(&self, id: u32) -> bool {
        Tokenizer::is_special(self, id)
    }

    fn eos_token_ids(&self) -> &[u32] {
        Tokenizer::eos_token_ids(self)
    }

    fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        Tokenizer::token_bytes(self, id)
    }

    fn token_id(&self, token: &str) -> Option<u32> {
        Tokenizer::token_id(self, token)
    }
}

/// One response with all its choices. Send; used by one thread at a time.
pub struct Stream<V: Vocabulary = Tokenizer> {
    options: Options,
    rules: Rules<V>,
    choices: Vec<Choice<V::Decoder>>,
    events: Events,
    total: Total,
    stats: Stats,
    /// Choices that have not ended.
    open: usize,
    failure: Option<String>,
    /// `fail` was called.
    closed: bool,
    started: bool,
    born: Instant,
}

impl<V: Vocabulary> Stream<V> {
    /// Errors: `Internal` for a format of tool calls or reasoning that there is none of.
    pub fn new(vocabulary: Arc<V>, mut options: Options) -> Result<Self> {
        options.complete();
        let plan = Plan::new(&*vocabulary, &options)?;
        let skip = options.skip_special_tokens && !plan.has_markers();
        let choice = |index| Choice::new(vocabulary.decoder(skip), &options, &plan, index);
        let choices: Vec<_> = (0..options.choices).map(choice).collect();
        let total = Total::new(options.prompts.iter().map(|prompt| prompt.tokens.into()));
        Ok(Self {
            rules: Rules::new(vocabulary, &mut options, plan),
            events: Events::new(&options),
            stats: Stats { usage: *total.sum(), ..Stats::default() },
            total,
            open: choices.len(),
            choices,
            failure: None,
            closed: false,
            started: false,
            born: Instant::now(),
            options,
        })
    }

    /// Takes one `GenerateResponse` of `choice` and returns flags. Messages of a choice that has ended are
    /// ignored, as is all after a failure. Err: `choice` is none of this response's.
    pub fn feed(&mut self, choice: u32, message: &[u8]) -> Result<u32> {
        self.feed_at(choice, message, Instant::now())
    }

    fn feed_at(&mut self, choice: u32, message: &[u8], now: Instant) -> Result<u32> {
        if self.ended(choice)? {
            return Ok(self.state(choice));
        }
        match GenerateResponse::decode(message) {
            Err(error) => {
                Ok(self.break_off(choice, format!("The worker's message cannot be read: {error}.")))
            }
            Ok(GenerateResponse { response: None }) => Ok(self.state(choice)),
            Ok(GenerateResponse { response: Some(Response::Chunk(chunk)) }) => {
                Ok(self.chunk(choice, &chunk, now))
            }
            Ok(GenerateResponse { response: Some(Response::Complete(complete)) }) => {
                Ok(self.complete(choice, &complete, now))
            }
        }
    }

    /// The RPC of `choice` ended with status OK, which is a failure before the choice has ended.
    pub fn end(&mut self, choice: u32) -> Result<u32> {
        if self.ended(choice)? {
            return Ok(self.state(choice));
        }
        Ok(self.break_off(choice, "The worker ended the stream before the answer was complete.".to_owned()))
    }

    /// Ends the response early. Streamed: an error event and `[DONE]`, unless all is said. `error_json` is the
    /// whole `{"error":{…}}` object.
    pub fn fail(&mut self, error_json: &str) {
        if self.open > 0 && !self.closed && self.options.streaming {
            self.events.error(error_json);
            self.started = true;
        }
        self.closed = true;
    }

    /// The bytes to write now; `clear` after writing them.
    pub fn buffer(&self) -> &[u8] {
        self.events.buffer()
    }

    pub fn clear(&mut self) {
        self.events.clear();
    }

    /// Swaps the bytes to write now with those of an earlier call, whose memory is used again.
    pub fn swap(&mut self, written: &mut Vec<u8>) {
        self.events.swap(written);
    }

    /// `buffer` and `clear` in one, for who wants to own the bytes.
    pub fn take(&mut self) -> Vec<u8> {
        self.events.take()
    }

    /// Not streamed: the whole answer as JSON, empty before `ALL_DONE`.
    pub fn result(&self) -> Vec<u8> {
        if self.options.streaming || self.open > 0 {
            return Vec::new();
        }
        let pieces = self.choices.iter().zip(0..).map(|(state, index)| state.piece(index, &self.total));
        emit::whole(&self.options, &*self.rules.vocabulary, pieces, &self.stats.usage)
    }

    /// The worker's words for why it failed, or ours for how.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// An event was produced: what fails from now on cannot be an HTTP status. Never, if not streamed.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Totals so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    fn chunk(&mut self, choice: u32, chunk: &GenerateStreamChunk, now: Instant) -> u32 {
        self.advance(choice, now, |state, rules| state.chunk(rules, chunk), CANCEL)
    }

    fn complete(&mut self, choice: u32, complete: &GenerateComplete, now: Instant) -> u32 {
        match abort(complete) {
            Some(message) => self.break_off(choice, message),
            None => self.advance(choice, now, |state, rules| state.complete(rules, complete), 0),
        }
    }

    /// Runs one message through its choice, then counts and emits what came of it. `stopped`: the flag for a
    /// choice that ends with this message.
    fn advance(
        &mut self,
        choice: u32,
        now: Instant,
        take: impl FnOnce(&mut Choice<V::Decoder>, &Rules<V>) -> u64,
        stopped: u32,
    ) -> u32 {
        let state = &mut self.choices[choice as usize];
        let (prompt, before) = (state.prompt, state.usage);
        let tokens = take(state, &self.rules);
        state.pace.tick(now, tokens, &mut self.stats.itl);
        self.total.advance(prompt, &before, &state.usage);
        self.stats.usage = *self.total.sum();
        let finish = state.finish.as_ref().map(|finish| finish.reason);
        self.stats.finish_reasons.extend(finish);
        self.open -= usize::from(finish.is_some());
        if finish.is_some() {
            state.latency = now.saturating_duration_since(self.born).as_secs_f64();
        }
        if self.options.streaming {
            if !state.greeted {
                self.greet(choice, &before);
            }
            self.emit(choice);
            self.started |= !self.events.buffer().is_empty();
        }
        self.state(choice) | if finish.is_some() { stopped } else { 0 }
    }

    /// The first events of the choice and of those before it, whatever comes first from the workers: the SDK's
    /// streaming helper keeps choices in the order in which they begin, and finds them by their index.
    fn greet(&mut self, choice: u32, before: &Usage) {
        for (state, index) in self.choices[..=choice as usize].iter_mut().zip(0..) {
            if !std::mem::replace(&mut state.greeted, true) {
                let usage = if index == choice { before } else { &state.usage };
                self.events.first(index, &self.total.settled(state.prompt, usage));
            }
        }
    }

    /// Events for what the choice has to say, and for the end of all.
    fn emit(&mut self, choice: u32) {
        let state = &mut self.choices[choice as usize];
        if self.events.say(&*self.rules.vocabulary, &state.piece(choice, &self.total)) {
            state.said();
        }
        if self.open == 0 {
            self.events.last(&self.stats.usage);
        }
    }

    fn ended(&self, choice: u32) -> Result<bool> {
        let state = self.choices.get(choice as usize);
        let state =
            state.ok_or_else(|| Error::new(Code::Internal, format!("There is no choice {choice}.")))?;
        Ok(state.finish.is_some() || self.failure.is_some() || self.closed)
    }

    fn break_off(&mut self, choice: u32, message: String) -> u32 {
        self.failure = Some(message);
        self.state(choice)
    }

    /// The flags that tell a state and no change of it.
    fn state(&self, choice: u32) -> u32 {
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        flag(!self.events.buffer().is_empty(), OUTPUT)
            | flag(self.choices[choice as usize].finish.is_some(), CHOICE_DONE)
            | flag(self.open == 0 || self.closed, ALL_DONE)
            | flag(self.failure.is_some(), FAILED)
    }
}

impl<V: Vocabulary> fmt::Debug for Stream<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (done, all) = (self.choices.len() - self.open, self.choices.len());
        write!(f, "<Stream {} {done}/{all} choices done", self.options.id)?;
        write!(f, ", {} tokens", self.stats.usage.completion)?;
        match &self.failure {
            Some(failure) => write!(f, ", failed: {failure}>"),
            None => f.write_str(if self.started { ", started>" } else { ", not started>" }),
        }
    }
}

/// The worker's message, if this is an abort.
fn abort(complete: &GenerateComplete) -> Option<String> {
    let reason = complete.finish_reason.as_str();
    let end = reason.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(reason.len());
    let (word, words) = reason.split_at(end);
    if !matches!(word, "abort" | "aborted") {
        return None;
    }
    let words = words.trim_matches(|c: char| c == ':' || c.is_whitespace());
    Some(if words.is_empty() { "The worker aborted the request.".to_owned() } else { words.to_owned() })
}

/// Is this message, the first of its RPC, a failure that may go to another worker? Some(the worker's words).
pub fn first_failure(message: &[u8]) -> Option<String> {
    match GenerateResponse::decode(message).ok()?.response? {
        Response::Complete(complete) => abort(&complete),
        Response::Chunk(_) => None,
    }
}
