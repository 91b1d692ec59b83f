//! A job → prompt → token ids → `GenerateRequest` bytes.
//!
//! A job is one JSON object that Python made of a validated request; see [`Job`]. Its sampling parameters are
//! written out one and all, since proto3's zeros are not SGLang's defaults.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::error::{Code, Error, Result};
use crate::integers;
use crate::template::{ChatTemplate, Limits, RESERVED, RenderInput};
use crate::tokenizer::Tokenizer;
use crate::wire::{Constraint, GenerateRequest, Kind, ListValue, SamplingParams, Struct, Value};

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
    Ok(source(tokenizer, template, &parse(job)?, limits)?.0)
}

/// Renders, tokenises, checks the length and encodes. Errors: those of [`render_job`]; `ContextLength`.
pub fn prepare(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    job: &[u8],
    limits: &Limits,
) -> Result<Prepared> {
    let job = parse(job)?;
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
    let body = encode(&job, &input_ids, max_new_tokens)?;
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

fn parse(job: &[u8]) -> Result<Job> {
    serde_json::from_slice(&integers::wrap(job))
        .map_err(|error| Error::new(Code::Internal, format!("The job: {error}.")))
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
    check_kwargs(job.chat_template_kwargs.as_ref().unwrap_or(&none))?;
    let input = RenderInput {
        messages,
        tools: job.tools.as_ref(),
        documents: job.documents.as_ref(),
        kwargs: job.chat_template_kwargs.as_ref().unwrap_or(&none),
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

/// Refuses text that cannot fit whatever its tokens are: encoding takes memory many times its size.
fn check_text(prompt: &str, job: &Job, longest_token: usize) -> Result<()> {
    let Some(context) = job.context_length else { return Ok(()) };
    let least = (prompt.len() as u64).div_ceil(longest_token.max(1) as u64);
    if least <= job.longest_prompt(context) {
        return Ok(());
    }
    let what = job.source();
    Err(job.too_long(format!(
        "This model's maximum context length is {context} tokens. However, your {what} resulted in more than \
         that ({} bytes of text). Please reduce the length of the {what}.",
        prompt.len()
    )))
}

impl Job {
    /// What the client calls its part of the context.
    fn source(&self) -> &'static str {
        if self.messages.is_some() { "messages" } else { "prompt" }
    }

    /// In tokens: an answer has one at least.
    fn longest_prompt(&self, context: u64) -> u64 {
        if self.embed { context } else { context.saturating_sub(1) }
    }

    fn too_long(&self, text: String) -> Error {
        Error::new(Code::ContextLength, text).at(self.source())
    }
}

/// How many tokens the worker may make.
fn answer_limit(job: &Job, prompt: u64) -> Result<Option<u32>> {
    if prompt == 0 {
        return Err(Error::new(Code::InvalidRequest, "The prompt is empty.").at(job.source()));
    }
    let what = job.source();
    let wanted = job.max_tokens;
    let Some(context) = job.context_length else {
        return Ok(wanted.map(clamp));
    };
    if prompt > job.longest_prompt(context) {
        return Err(job.too_long(format!(
            "This model's maximum context length is {context} tokens. However, your {what} resulted in \
             {prompt} tokens. Please reduce the length of the {what}."
        )));
    }
    let least = u64::from(job.sampling.min_new_tokens);
    if least > context - prompt {
        let text = format!(
            "'min_tokens' must leave room for the prompt: the model's context holds {context} tokens, the \
             messages are {prompt}, and {least} more were asked for."
        );
        return Err(Error::new(Code::InvalidRequest, text).at("min_tokens"));
    }
    match wanted {
        Some(wanted) if wanted > context - prompt => Err(job.too_long(format!(
            "This model's maximum context length is {context} tokens. However, you requested {} tokens \
             ({prompt} in the {what}, {wanted} in the completion). Please reduce the length of the {what} or \
             completion.",
            prompt.saturating_add(wanted)
        ))),
        wanted => Ok(Some(clamp(wanted.unwrap_or(context - prompt)))),
    }
}

fn clamp(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

fn encode(job: &Job, input_ids: &[u32], max_new_tokens: Option<u32>) -> Result<Vec<u8>> {
    let request = GenerateRequest {
        request_id: String::new(),
        tokenized: None,
        sampling_params: Some(sampling_params(&job.sampling, max_new_tokens)?),
        return_logprob: job.return_logprob,
        logprob_start_len: job.logprob_start_len,
        top_logprobs_num: job.top_logprobs_num,
        log_metrics: true,
        lora_id: job.lora_id.clone(),
        stream: job.stream,
        require_reasoning: job.require_reasoning,
    };
    Ok(request.encode_with(input_ids))
}

fn sampling_params(sampling: &Sampling, max_new_tokens: Option<u32>) -> Result<SamplingParams> {
    Ok(SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        repetition_penalty: sampling.repetition_penalty,
        max_new_tokens,
        stop_token_ids: sampling.stop_token_ids.clone(),
        // What the client wants skipped is skipped here, where the text is made.
        skip_special_tokens: true,
        spaces_between_special_tokens: true,
        constraint: constraint(sampling)?,
        n: 1,
        min_new_tokens: sampling.min_new_tokens,
        ignore_eos: sampling.ignore_eos,
        no_stop_trim: sampling.no_stop_trim,
        logit_bias: sampling.logit_bias.clone(),
        custom_params: sampling.custom_params.as_ref().map(structure),
    })
}

fn constraint(sampling: &Sampling) -> Result<Option<Constraint>> {
    let all = [
        sampling.regex.clone().map(Constraint::Regex),
        sampling.json_schema.clone().map(Constraint::JsonSchema),
        sampling.ebnf.clone().map(Constraint::EbnfGrammar),
        sampling.structural_tag.clone().map(Constraint::StructuralTag),
    ];
    let mut given = all.into_iter().flatten();
    let first = given.next();
    if given.next().is_some() {
        return Err(Error::new(Code::InvalidRequest, "At most one constraint can be given."));
    }
    Ok(first)
}

fn structure(object: &Map<String, Json>) -> Struct {
    let fields: BTreeMap<_, _> = object.iter().map(|(name, item)| (name.clone(), value(item))).collect();
    Struct { fields }
}

fn value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::Null(0),
        Json::Bool(flag) => Kind::Bool(*flag),
        Json::Number(number) => Kind::Number(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::String(text.clone()),
        Json::Array(items) => Kind::List(ListValue { values: items.iter().map(value).collect() }),
        Json::Object(object) => match integers::wrapped(json) {
            Some(digits) => Kind::Number(digits.parse().unwrap_or_default()),
            None => Kind::Struct(structure(object)),
        },
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use serde_json::json;

    use super::*;
    use crate::wire::TokenizedInput;

    fn job(mut fields: Json) -> Job {
        if fields.get("input_ids").is_none() {
            fields["messages"] = json!([]);
        }
        parse(fields.to_string().as_bytes()).unwrap()
    }

    fn limit(fields: Json, prompt: u64) -> std::result::Result<Option<u32>, Code> {
        answer_limit(&job(fields), prompt).map_err(|error| error.code)
    }

    #[test]
    fn the_answer_fits_into_the_context() {
        assert_eq!(limit(json!({}), 10), Ok(None));
        assert_eq!(limit(json!({"max_tokens": 5}), 10), Ok(Some(5)));
        assert_eq!(limit(json!({"context_length": 100}), 10), Ok(Some(90)));
        assert_eq!(limit(json!({"context_length": 100, "max_tokens": 90}), 10), Ok(Some(90)));
        assert_eq!(limit(json!({"context_length": 100, "max_tokens": 91}), 10), Err(Code::ContextLength));
        assert_eq!(limit(json!({"context_length": 100}), 100), Err(Code::ContextLength));
        assert_eq!(limit(json!({"context_length": 100, "embed": true}), 100), Ok(Some(0)));
        assert_eq!(limit(json!({"context_length": 100, "embed": true}), 101), Err(Code::ContextLength));
        assert_eq!(limit(json!({"context_length": 0}), 1), Err(Code::ContextLength));
        assert_eq!(
            limit(json!({"context_length": 100, "max_tokens": u64::MAX}), 10),
            Err(Code::ContextLength)
        );
        assert_eq!(limit(json!({}), 0), Err(Code::InvalidRequest));
        let at_least = |tokens: u32| json!({"context_length": 100, "sampling": {"min_new_tokens": tokens}});
        assert_eq!(limit(at_least(90), 10), Ok(Some(90)));
        assert_eq!(answer_limit(&job(at_least(91)), 10).unwrap_err().param, "min_tokens");
    }

    #[test]
    fn text_that_cannot_fit_is_not_encoded() {
        let of_ten = job(json!({"context_length": 10}));
        assert!(check_text(&"x".repeat(80), &of_ten, 8).is_err());
        assert!(check_text(&"x".repeat(72), &of_ten, 8).is_ok());
        assert!(check_text(&"x".repeat(1000), &job(json!({})), 8).is_ok());
    }

    #[test]
    fn the_defaults_are_written_out() {
        let bytes = encode(&job(json!({"stream": true})), &[5, 6], Some(7)).unwrap();
        let request = GenerateRequest::decode(&*bytes).unwrap();
        let sampling = request.sampling_params.unwrap();
        assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (1.0, 1.0, -1));
        assert_eq!((sampling.repetition_penalty, sampling.n), (1.0, 1));
        assert_eq!(sampling.max_new_tokens, Some(7));
        assert_eq!(request.tokenized.unwrap().input_ids, [5, 6]);
        assert_eq!(request.logprob_start_len, -1);
        assert!(request.stream && request.request_id.is_empty());
    }

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
    fn custom_params_become_a_struct() {
        let given = json!({"seed": 7, "list": [null, true, "x", {"y": 1.5}]});
        let made = structure(given.as_object().unwrap());
        assert_eq!(made.fields["seed"], Value { kind: Some(Kind::Number(7.0)) });
        let Some(Kind::List(list)) = &made.fields["list"].kind else { panic!("a list") };
        assert_eq!(list.values.len(), 4);
        assert_eq!(list.values[0], Value { kind: Some(Kind::Null(0)) });
    }

    #[test]
    fn two_constraints_are_refused() {
        let both = Sampling { regex: Some("a".into()), ebnf: Some("b".into()), ..Sampling::default() };
        assert_eq!(constraint(&both).unwrap_err().code, Code::InvalidRequest);
    }

    #[test]
    fn ids_outside_the_vocabulary_are_refused() {
        let error = check_ids(&[1, 9], |id| id < 9).unwrap_err();
        assert_eq!((error.code, error.param.as_str()), (Code::InvalidRequest, "input_ids[1]"));
    }

    #[test]
    fn unknown_fields_of_a_job_are_a_mistake_of_ours() {
        assert_eq!(parse(br#"{"message": []}"#).unwrap_err().code, Code::Internal);
    }
}
