//! A job → prompt → token ids → `GenerateRequest` bytes.
//!
//! - [`job`]: what Python hands over.
//! - `context`: whether prompt and answer fit.
//! - `request`: what the worker is sent.

use serde_json::{Map, Value as Json};

use self::context::{answer_limit, check_text};
use self::job::Job;
use crate::error::{Code, Error, Result};
use crate::template::{ChatTemplate, Limits, RESERVED, RenderInput};
use crate::tokenizer::Tokenizer;

mod context;
pub mod job;
mod request;

/// A request that is ready to be sent.
#[derive(Debug)]
pub struct Prepared {
    /// Empty when the job came with token ids.
    pub prompt: String,
    pub input_ids: Vec<u32>,
    /// How many of the ids the prompt cache had.
    pub reused: usize,
    /// None when neither the client nor the context limits the answer.
    pub max_new_tokens: Option<u32>,
    /// `GenerateRequest` without its `request_id`, which differs for each attempt.
    pub body: Vec<u8>,
}

/// The prompt of a job. Errors: those of [`ChatTemplate::render`]; `InvalidRequest` without a template.
pub fn render_job(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    job: &[u8],
    limits: &Limits,
) -> Result<String> {
    Ok(source(tokenizer, template, &Job::parse(job)?, limits)?.0)
}

/// Renders, tokenises, checks the length and encodes. Errors: those of [`render_job`]; `ContextLength`.
pub fn prepare(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    job: &[u8],
    limits: &Limits,
) -> Result<Prepared> {
    let job = Job::parse(job)?;
    let (prompt, input_ids) = source(tokenizer, template, &job, limits)?;
    let (input_ids, reused) = match input_ids {
        Some(ids) => (ids, 0),
        None => {
            check_text(&prompt, &job, tokenizer.longest_token())?;
            if job.messages.is_some() {
                // A template writes its own special tokens: the tokenizer must not add BOS a second time.
                tokenizer.encode_prompt(&prompt, false)?
            } else {
                encode_raw(tokenizer, &prompt)?
            }
        }
    };
    let max_new_tokens = answer_limit(&job, input_ids.len() as u64)?;
    let body = request::encode(&job, &input_ids, max_new_tokens)?;
    Ok(Prepared { prompt, input_ids, reused, max_new_tokens, body })
}

/// The ids of raw text, and how many the prompt cache had. A text that itself begins with BOS does not get another
/// one.
fn encode_raw(tokenizer: &Tokenizer, prompt: &str) -> Result<(Vec<u32>, usize)> {
    let (mut ids, reused) = tokenizer.encode_prompt(prompt, true)?;
    let bos = tokenizer.special_tokens().get("bos_token").filter(|bos| prompt.starts_with(bos.as_str()));
    if let Some(bos) = bos.and_then(|bos| tokenizer.token_id(bos))
        && ids.starts_with(&[bos, bos])
    {
        ids.remove(0);
    }
    Ok((ids, reused))
}

/// The job's text, or its ids.
fn source(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    job: &Job,
    limits: &Limits,
) -> Result<(String, Option<Vec<u32>>)> {
    if let Some(messages) = &job.messages {
        return Ok((render(template, messages, job, limits)?, None));
    }
    if let Some(ids) = &job.input_ids {
        check_ids(ids, |id| tokenizer.token_bytes(id).is_some())?;
        return Ok((String::new(), Some(ids.clone())));
    }
    Ok((job.prompt.clone().unwrap_or_default(), None))
}

fn render(template: Option<&ChatTemplate>, messages: &Json, job: &Job, limits: &Limits) -> Result<String> {
    let template = template
        .ok_or_else(|| Error::new(Code::InvalidRequest, "The model has no chat template.").at("messages"))?;
    let none = Map::new();
    let kwargs = job.chat_template_kwargs.as_ref().unwrap_or(&none);
    check_kwargs(kwargs)?;
    let input = RenderInput {
        messages,
        tools: job.tools.as_ref(),
        documents: job.documents.as_ref(),
        kwargs,
        add_generation_prompt: job.add_generation_prompt,
        continue_final_message: job.continue_final_message,
        now: job.now,
    };
    template.render(&input, limits)
}

fn check_kwargs(kwargs: &Map<String, Json>) -> Result<()> {
    match RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
        Some(name) => {
            let text = format!("chat_template_kwargs cannot set {name}.");
            Err(Error::new(Code::InvalidRequest, text).at(format!("chat_template_kwargs.{name}")))
        }
        None => Ok(()),
    }
}

fn check_ids(ids: &[u32], known: impl Fn(u32) -> bool) -> Result<()> {
    match ids.iter().position(|&id| !known(id)) {
        Some(index) => {
            let text = format!("Token id {} is not in the model's vocabulary.", ids[index]);
            Err(Error::new(Code::InvalidRequest, text).at(format!("input_ids[{index}]")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use serde_json::json;

    use super::*;
    use crate::wire::{Constraint, GenerateRequest, Kind, TokenizedInput};

    /// A tokenizer of bytes with BOS 0, which its post-processor puts in front, and EOS 1.
    fn tiny() -> (Tokenizer, ChatTemplate) {
        let alphabet = (b'!'..=b'~').map(char::from).chain(['Ġ', 'Ċ']);
        let mut vocab = Map::from_iter([("<s>".to_owned(), json!(0)), ("</s>".to_owned(), json!(1))]);
        for (index, token) in alphabet.enumerate() {
            vocab.insert(token.to_string(), json!(index + 2));
        }
        let special = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let byte_level = |kind: &str| json!({"type": kind, "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [special(0, "<s>"), special(1, "</s>")],
            "normalizer": null, "pre_tokenizer": byte_level("ByteLevel"), "decoder": byte_level("ByteLevel"),
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": []},
        });
        let config = json!({
            "bos_token": "<s>", "eos_token": "</s>",
            "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.role[0] ~ ':' ~ m.content }}{% endfor %}",
        });
        static FOLDERS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("prepare-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tokenizer.json"), file.to_string()).unwrap();
        std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = Tokenizer::load(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let tokenizer = tokenizer.unwrap();
        let source = tokenizer.chat_template_source().unwrap();
        let template = ChatTemplate::new(source, tokenizer.special_tokens()).unwrap();
        (tokenizer, template)
    }

    fn prepared(fields: Json) -> Result<Prepared> {
        let (tokenizer, template) = tiny();
        prepare(&tokenizer, Some(&template), fields.to_string().as_bytes(), &Limits::default())
    }

    #[test]
    fn a_conversation_becomes_a_request() {
        let job = json!({
            "messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": [{"type": "text", "text": "c"}]}],
            "context_length": 20, "max_tokens": 12, "stream": true, "require_reasoning": true, "lora_id": "l",
            "sampling": {"temperature": 0.5, "top_k": 3, "stop_token_ids": [9], "ignore_eos": true, "min_new_tokens": 2,
                         "json_schema": "{}", "logit_bias": {"5": -1.5}, "custom_params": {"seed": 7}},
        });
        let got = prepared(job).unwrap();
        assert_eq!(got.prompt, "<s>u:aba:c");
        assert_eq!(got.input_ids.len(), 8);
        assert_eq!(got.input_ids.iter().filter(|id| **id == 0).count(), 1);
        let request = GenerateRequest::decode(&*got.body).unwrap();
        assert_eq!(
            request.tokenized.unwrap(),
            TokenizedInput { original_text: String::new(), input_ids: got.input_ids }
        );
        assert!(request.stream && request.require_reasoning);
        assert_eq!(request.lora_id, "l");
        let sampling = request.sampling_params.unwrap();
        assert_eq!(
            (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p),
            (0.5, 1.0, 3, 0.0)
        );
        assert_eq!((sampling.repetition_penalty, sampling.n, sampling.max_new_tokens), (1.0, 1, Some(12)));
        assert_eq!(
            (sampling.stop_token_ids, sampling.ignore_eos, sampling.min_new_tokens),
            (vec![9], true, 2)
        );
        assert_eq!(sampling.constraint, Some(Constraint::JsonSchema("{}".into())));
        assert_eq!(sampling.logit_bias["5"], -1.5);
        assert!(sampling.skip_special_tokens);
        assert_eq!(sampling.custom_params.unwrap().fields["seed"].kind, Some(Kind::Number(7.0)));
    }

    #[test]
    fn a_prompt_has_one_bos() {
        for text in ["ab", "<s>ab"] {
            let got = prepared(json!({"prompt": text})).unwrap();
            assert_eq!((got.input_ids[0], got.input_ids.len()), (0, 3), "{text}");
            assert_eq!(got.max_new_tokens, None);
        }
        assert_eq!(prepared(json!({"input_ids": [3, 4]})).unwrap().input_ids, [3, 4]);
    }

    #[test]
    fn jobs_that_cannot_be_served_say_why() {
        let messages = json!([{"role": "user", "content": "ab"}]);
        let error =
            prepared(json!({"messages": messages, "context_length": 6, "max_tokens": 2})).unwrap_err();
        assert_eq!((error.code, error.param.as_str()), (Code::ContextLength, "messages"));
        assert!(
            error.message.contains("7 tokens (5 in the messages, 2 in the completion)"),
            "{}",
            error.message
        );
        let kwargs = json!({"chat_template": "{{ 1 }}"});
        let error = prepared(json!({"messages": messages, "chat_template_kwargs": kwargs})).unwrap_err();
        assert_eq!(
            (error.code, error.param.as_str()),
            (Code::InvalidRequest, "chat_template_kwargs.chat_template")
        );
        let (tokenizer, _) = tiny();
        let job = json!({"messages": messages}).to_string();
        let error = prepare(&tokenizer, None, job.as_bytes(), &Limits::default()).unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest);
    }

    #[test]
    fn ids_outside_the_vocabulary_are_refused() {
        let error = check_ids(&[1, 9], |id| id < 9).unwrap_err();
        assert_eq!((error.code, error.param.as_str()), (Code::InvalidRequest, "input_ids[1]"));
    }
}
