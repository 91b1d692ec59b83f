//! What a response needs to know of its request.

use serde::Deserialize;

use super::parts::IdStyle;
use super::reading::{Function, ReadAs};
use crate::error::{Code, Error, Result};

/// What kind of object the client reads.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum Object {
    #[default]
    #[serde(rename = "chat.completion")]
    Chat,
    /// `/v1/completions`.
    #[serde(rename = "text_completion")]
    Completion,
    /// SGLang's own `/generate`.
    #[serde(rename = "generate")]
    Generate,
}

/// One prompt of a request that may have several.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// The router's count, for a worker that sends none.
    #[serde(default)]
    pub tokens: u32,
    /// Its text, if that is to stand before the answer (`echo`, completions only).
    #[serde(default)]
    pub echo: Option<String>,
}

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
    /// Absent: one prompt of `prompt_tokens`. Else each has the same number of choices, those of the first
    /// prompt first: choice `i` answers prompt `i / (choices / prompts)`.
    #[serde(default)]
    pub prompts: Vec<Prompt>,
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
    /// Absent: no log probabilities. Else how many of the likeliest tokens stand beside each one.
    #[serde(default)]
    pub logprobs: Option<u32>,
    /// `/generate`: the tokens' texts stand beside their ids (`return_text_in_logprobs`).
    #[serde(default)]
    pub logprobs_text: bool,
    /// `/generate`: the request was a list, and so is the answer, even if of one.
    #[serde(default)]
    pub batch: bool,
    /// `/generate`: an id for each choice; absent, `id` itself, or `id_0`, `id_1` … in a batch.
    #[serde(default)]
    pub ids: Vec<String>,
    /// Name of the format of tool calls; absent: none, the text is content.
    #[serde(default)]
    pub tool_format: Option<String>,
    /// The functions that may be called, no others.
    #[serde(default)]
    pub tools: Vec<Function>,
    /// False: at most one call comes out of each choice.
    #[serde(default = "yes")]
    pub parallel: bool,
    #[serde(default)]
    pub read_as: ReadAs,
    #[serde(default)]
    pub id_style: IdStyle,
    /// Calls in the conversation so far.
    #[serde(default)]
    pub calls_before: u32,
    /// `function_call` in place of `tool_calls`, as in requests with `functions`.
    #[serde(default)]
    pub legacy_function_call: bool,
    /// Name of the format of reasoning; absent: none.
    #[serde(default)]
    pub reasoning_format: Option<String>,
    /// Whether the answer begins inside the reasoning; absent: as the format has it.
    #[serde(default)]
    pub starts_inside: Option<bool>,
    /// False: reasoning stays in the content, its marks too.
    #[serde(default = "yes")]
    pub separate_reasoning: bool,
    /// False: reasoning comes whole, in one delta.
    #[serde(default = "yes")]
    pub stream_reasoning: bool,
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
        let wrong = |why: String| Error::new(Code::Internal, format!("The options of a response: {why}."));
        let mut options: Self = serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
        options.choices = options.choices.max(1);
        let choices = options.choices as usize;
        if !options.prompts.is_empty() && !choices.is_multiple_of(options.prompts.len()) {
            return Err(wrong(format!("{choices} choices for {} prompts", options.prompts.len())));
        }
        if !options.ids.is_empty() && choices != options.ids.len() {
            return Err(wrong(format!("{choices} choices and {} ids", options.ids.len())));
        }
        options.complete();
        Ok(options)
    }

    /// Makes what was left out explicit.
    pub(super) fn complete(&mut self) {
        self.choices = self.choices.max(1);
        if self.prompts.is_empty() {
            self.prompts.push(Prompt { tokens: self.prompt_tokens, echo: None });
        }
    }

    /// Which of `prompts` a choice answers.
    pub fn prompt_of(&self, choice: u32) -> usize {
        (choice / (self.choices / self.prompts.len() as u32).max(1)) as usize
    }

    /// Does the answer to the choice's prompt begin with the prompt?
    pub fn echo(&self, choice: u32) -> Option<&str> {
        let prompt = self.prompts.get(self.prompt_of(choice)).filter(|_| self.object == Object::Completion);
        prompt?.echo.as_deref()
    }

    /// One answer among several.
    pub fn in_batch(&self) -> bool {
        self.batch || self.choices > 1
    }
}
