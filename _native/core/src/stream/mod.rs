//! A response: the worker's messages in, OpenAI's events out, or one aggregated answer. Both go through the
//! same machine, so that the streamed deltas add up to the aggregated content.
//!
//! - [`ids`]: which ids of a message are new
//! - [`choice`]: ids → text → stop words → answer, for one choice
//! - [`stop`]: stop words over streamed text
//! - [`emit`], [`json`]: framing
//! - [`usage`], [`stats`]: counts and times

pub mod choice;
pub mod emit;
pub mod ids;
pub mod json;
pub mod stats;
pub mod stop;
pub mod usage;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use serde::Deserialize;

use crate::error::{Code, Error, Result};
use crate::tokenizer::{TextDecoder, Tokenizer};
use crate::wire::{GenerateComplete, GenerateResponse, GenerateStreamChunk, Response};
use choice::{Choice, Rules};
use emit::Events;
pub use stats::{ITL_BOUNDS, Stats};
use usage::Usage;

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

/// What kind of object the client reads.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum Object {
    #[default]
    #[serde(rename = "chat.completion")]
    Chat,
}

impl Object {
    fn name(self) -> &'static str {
        match self {
            Object::Chat => "chat.completion",
        }
    }

    fn chunk_name(self) -> &'static str {
        match self {
            Object::Chat => "chat.completion.chunk",
        }
    }
}

/// What a response needs to know of its request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    #[serde(default)]
    pub system_fingerprint: Option<String>,
    #[serde(default)]
    pub object: Object,
    #[serde(default = "one")]
    pub choices: u32,
    #[serde(default)]
    pub streaming: bool,
    #[serde(default)]
    pub include_usage: bool,
    /// Every event carries its choice's usage so far.
    #[serde(default)]
    pub continuous_usage: bool,
    #[serde(default)]
    pub stop: Vec<String>,
    /// The client's own, as sent to the worker: one that ends the answer is cut off and reported.
    #[serde(default)]
    pub stop_token_ids: Vec<u32>,
    #[serde(default)]
    pub ignore_eos: bool,
    /// The stop word, or the id that ended the answer, stays in the text.
    #[serde(default)]
    pub no_stop_trim: bool,
    #[serde(default = "yes")]
    pub skip_special_tokens: bool,
    /// The router's count, for a worker that sends none.
    #[serde(default)]
    pub prompt_tokens: u32,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

impl Options {
    /// From one JSON object with the fields' names; all but `id`, `created` and `model` may be left out.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json)
            .map_err(|error| Error::new(Code::Internal, format!("The options of a response: {error}.")))
    }
}

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
}

/// One response with all its choices. Send; used by one thread at a time.
pub struct Stream<V: Vocabulary = Tokenizer> {
    options: Options,
    rules: Rules<V>,
    choices: Vec<Choice<V::Decoder>>,
    events: Events,
    /// As the worker counts; `stats` has it settled.
    total: Usage,
    stats: Stats,
    /// Choices that have not ended.
    open: usize,
    failure: Option<String>,
    /// `fail` was called.
    closed: bool,
    started: bool,
}

impl<V: Vocabulary> Stream<V> {
    pub fn new(vocabulary: Arc<V>, mut options: Options) -> Self {
        options.choices = options.choices.max(1);
        let skip = options.skip_special_tokens;
        let choices: Vec<_> = (0..options.choices).map(|_| Choice::new(vocabulary.decoder(skip))).collect();
        let total = Usage::default();
        let usage = total.settled(options.prompt_tokens.into());
        Self {
            rules: Rules::new(vocabulary, &mut options),
            events: Events::new(&options),
            total,
            stats: Stats { usage, ..Stats::default() },
            open: choices.len(),
            choices,
            failure: None,
            closed: false,
            started: false,
            options,
        }
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

    /// `buffer` and `clear` in one, for who wants to own the bytes.
    pub fn take(&mut self) -> Vec<u8> {
        self.events.take()
    }

    /// Not streamed: the whole answer as JSON, empty before `ALL_DONE`.
    pub fn result(&self) -> Vec<u8> {
        let finished =
            || self.choices.iter().filter_map(|choice| Some((&*choice.answer, choice.finish.as_ref()?)));
        if self.options.streaming || self.open > 0 {
            return Vec::new();
        }
        emit::aggregate(&self.options, finished(), &self.stats.usage)
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
        let prompt = self.options.prompt_tokens.into();
        let state = &mut self.choices[choice as usize];
        let before = state.usage;
        if self.options.streaming && !state.greeted {
            state.greeted = true;
            self.started = true;
            self.events.role(choice, &before.settled(prompt));
        }
        let tokens = take(state, &self.rules);
        state.pace.tick(now, tokens, &mut self.stats.itl);
        self.total.advance(&before, &state.usage);
        self.stats.usage = self.total.settled(prompt);
        let finish = state.finish.as_ref().map(|finish| finish.reason);
        self.stats.finish_reasons.extend(finish);
        self.open -= usize::from(finish.is_some());
        if self.options.streaming {
            self.emit(choice);
        }
        self.state(choice) | if finish.is_some() { stopped } else { 0 }
    }

    /// Events for what the choice has to say, and for the end of all.
    fn emit(&mut self, choice: u32) {
        let prompt = self.options.prompt_tokens.into();
        let state = &mut self.choices[choice as usize];
        let usage = state.usage.settled(prompt);
        if !state.answer.is_empty() {
            self.events.content(choice, &state.answer, &usage);
            state.answer.clear();
        }
        if let Some(finish) = &state.finish {
            self.events.finish(choice, finish, &usage);
            if self.open == 0 {
                self.events.done(&self.stats.usage);
            }
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
