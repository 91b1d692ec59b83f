//! A job: one JSON object that Python made of a validated request.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::error::{Code, Error, Result};
use crate::integers;

/// What to prepare. Exactly one of `messages`, `prompt` and `input_ids` is there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// A conversation, as the client sent it.
    pub messages: Option<Json>,
    /// Raw text, tokenised with special tokens and without a template.
    pub prompt: Option<String>,
    pub input_ids: Option<Vec<u32>>,
    pub tools: Option<Json>,
    pub documents: Option<Json>,
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Json>>,
    #[serde(default)]
    pub add_generation_prompt: bool,
    #[serde(default)]
    pub continue_final_message: bool,
    /// Unix seconds for the template's date; None is the clock.
    pub now: Option<i64>,
    /// Tokens of prompt and answer together; None when the worker did not say.
    pub context_length: Option<u64>,
    /// The prompt may fill the context: it is embedded, and nothing is generated.
    #[serde(default)]
    pub embed: bool,
    /// The client's own limit; None is the rest of the context.
    pub max_tokens: Option<u64>,
    #[serde(default)]
    pub stream: bool,
    #[serde(default)]
    pub sampling: Sampling,
    #[serde(default)]
    pub return_logprob: bool,
    #[serde(default = "no_prompt_logprobs")]
    pub logprob_start_len: i32,
    #[serde(default)]
    pub top_logprobs_num: i32,
    #[serde(default)]
    pub lora_id: String,
    #[serde(default)]
    pub require_reasoning: bool,
}

fn no_prompt_logprobs() -> i32 {
    -1
}

/// Sampling parameters; the defaults are SGLang's.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i32,
    pub min_p: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub repetition_penalty: f32,
    pub stop_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    pub min_new_tokens: u32,
    pub no_stop_trim: bool,
    pub logit_bias: HashMap<String, f32>,
    pub custom_params: Option<Map<String, Json>>,
    pub regex: Option<String>,
    pub json_schema: Option<String>,
    pub ebnf: Option<String>,
    pub structural_tag: Option<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            min_new_tokens: 0,
            no_stop_trim: false,
            logit_bias: HashMap::new(),
            custom_params: None,
            regex: None,
            json_schema: None,
            ebnf: None,
            structural_tag: None,
        }
    }
}

impl Job {
    pub(super) fn parse(job: &[u8]) -> Result<Self> {
        serde_json::from_slice(&integers::wrap(job))
            .map_err(|error| Error::new(Code::Internal, format!("The job: {error}.")))
    }

    /// What the client calls its part of the context.
    pub(super) fn source(&self) -> &'static str {
        if self.messages.is_some() { "messages" } else { "prompt" }
    }

    /// In tokens: an answer has one at least.
    pub(super) fn longest_prompt(&self, context: u64) -> u64 {
        if self.embed { context } else { context.saturating_sub(1) }
    }

    pub(super) fn too_long(&self, text: String) -> Error {
        Error::new(Code::ContextLength, text).at(self.source())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::prepare) fn job(mut fields: Json) -> Job {
        if fields.get("input_ids").is_none() {
            fields["messages"] = json!([]);
        }
        Job::parse(fields.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn unknown_fields_of_a_job_are_a_mistake_of_ours() {
        assert_eq!(Job::parse(br#"{"message": []}"#).unwrap_err().code, Code::Internal);
    }
}
