//! The two ends of a response: a worker's messages, and what a client reads.

use std::collections::BTreeMap;

use prost::Message;
use serde_json::{Value, json};

use super::calls::{Call, take_delta, take_message};
use super::fixtures::Bytes;
use super::objects::{generated, read_generate, read_text, take_text};
use crate::stream::*;
use crate::wire::{InputLogProbs, MatchedStop, OutputLogProbs};

pub fn chunk(ids: &[u32], count: u32) -> Vec<u8> {
    scored_chunk(ids, count, None, None)
}

pub fn scored_chunk(
    ids: &[u32],
    count: u32,
    output: Option<Box<OutputLogProbs>>,
    input: Option<Box<InputLogProbs>>,
) -> Vec<u8> {
    let chunk = GenerateStreamChunk {
        token_ids: ids.to_vec(),
        prompt_tokens: 7,
        completion_tokens: count,
        cached_tokens: 3,
        reasoning_tokens: 0,
        output_logprobs: output,
        input_logprobs: input,
    };
    GenerateResponse { response: Some(Response::Chunk(chunk)) }.encode_to_vec()
}

pub fn complete_of(
    ids: &[u32],
    count: u32,
    finish_reason: &str,
    matched_stop: Option<MatchedStop>,
) -> GenerateComplete {
    GenerateComplete {
        output_ids: ids.to_vec(),
        finish_reason: finish_reason.to_owned(),
        prompt_tokens: 7,
        completion_tokens: count,
        cached_tokens: 3,
        matched_stop,
        ..Default::default()
    }
}

pub fn closing(ids: &[u32], count: u32, finish_reason: &str, matched_stop: Option<MatchedStop>) -> Vec<u8> {
    encode(complete_of(ids, count, finish_reason, matched_stop))
}

pub fn encode(complete: GenerateComplete) -> Vec<u8> {
    GenerateResponse { response: Some(Response::Complete(complete)) }.encode_to_vec()
}

pub fn complete(ids: &[u32], count: u32) -> Vec<u8> {
    closing(ids, count, "stop", None)
}

pub fn options(more: Value) -> Options {
    let mut all = json!({"id": "chatcmpl-1", "created": 1_700_000_000, "model": "small", "streaming": true});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Options::from_json(all.to_string().as_bytes()).unwrap()
}

pub fn stream(more: Value) -> Stream<Bytes> {
    Stream::new(Bytes::new(), options(more)).unwrap()
}

pub fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// One choice's events put together again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Read {
    pub role: bool,
    pub content: String,
    pub reasoning: String,
    /// By index; a `function_call` is one without an id.
    pub calls: Vec<Call>,
    /// What each delta said.
    pub deltas: Vec<String>,
    pub finish: Option<String>,
    pub matched: Option<Value>,
    /// Usage on the finish event.
    pub usage: Option<Value>,
    /// Log probabilities in the form of [`super::entries::expected`].
    pub entries: Vec<Value>,
    /// Likewise those of the prompt, where they come apart.
    pub prompt: Vec<Value>,
    pub ids: Vec<u32>,
}

#[derive(Debug, Default)]
pub struct Answer {
    pub choices: BTreeMap<u64, Read>,
    pub usage: Option<Value>,
    pub error: Option<Value>,
}

/// Reads a finished stream line by line and holds every event against the contract.
pub fn read(options: &Options, bytes: &[u8]) -> Answer {
    let text = std::str::from_utf8(bytes).expect("UTF-8");
    assert!(!text.contains(['\u{2028}', '\u{2029}', '\u{85}', '\r', '\0']), "no line end but the framing's");
    let body = text.strip_suffix("data: [DONE]\n\n").expect("[DONE] comes last");
    let mut all = Answer::default();
    for event in body.split_terminator("\n\n") {
        let data = event.strip_prefix("data: ").expect("one data line an event");
        let event: Value = serde_json::from_str(data).expect("JSON");
        assert!(all.usage.is_none() && all.error.is_none(), "nothing follows the usage or an error");
        if event.get("error").is_some() {
            all.error = Some(event);
        } else {
            match options.object {
                Object::Generate => read_generate(options, &event, &mut all),
                object => {
                    check_head(options, &event);
                    let read = if object == Object::Chat { read_event } else { read_text };
                    read(options, &event, &mut all);
                }
            }
        }
    }
    if all.error.is_none() {
        assert_eq!(all.choices.len() as u32, options.choices);
        assert!(all.choices.values().all(|choice| choice.finish.is_some()), "every choice ends");
        assert_eq!(all.usage.is_some(), options.include_usage && options.object != Object::Generate);
    }
    all
}

fn check_head(options: &Options, event: &Value) {
    assert_eq!(event["id"], json!(options.id));
    let object = if options.object == Object::Chat { "chat.completion.chunk" } else { "text_completion" };
    assert_eq!(event["object"], object);
    assert_eq!(event["created"], json!(options.created));
    assert_eq!(event["model"], json!(options.model));
    assert_eq!(
        event.get("system_fingerprint").map(|v| v.as_str().unwrap()),
        options.system_fingerprint.as_deref()
    );
}

/// The usage beside a choice.
pub fn check_usage(options: &Options, usage: &Option<Value>) {
    match (options.continuous_usage, options.include_usage) {
        (true, _) => assert!(usage.as_ref().unwrap()["completion_tokens"].is_u64()),
        (false, true) => assert_eq!(*usage, Some(Value::Null)),
        (false, false) => assert_eq!(*usage, None),
    }
}

/// A choice's `logprobs`, whole or streamed.
fn take_logprobs(read: &mut Read, logprobs: &Value) {
    if !logprobs.is_null() {
        assert_eq!(logprobs["refusal"], Value::Null);
        let entries = logprobs["content"].as_array().unwrap();
        assert!(!entries.is_empty());
        read.entries.extend(entries.iter().cloned());
    }
}

fn read_event(options: &Options, event: &Value, all: &mut Answer) {
    let usage = event.get("usage").cloned();
    let choices = event["choices"].as_array().unwrap();
    let [choice] = &choices[..] else {
        assert!(choices.is_empty() && options.include_usage, "only the usage event is without a choice");
        all.usage = Some(usage.expect("usage"));
        return;
    };
    check_usage(options, &usage);
    let index = choice["index"].as_u64().unwrap();
    let begun = all.choices.len() as u64;
    assert!(index <= begun, "choices begin in their order");
    let read = all.choices.entry(index).or_default();
    assert_eq!(read.finish, None, "the finish event is a choice's last");
    let delta = choice["delta"].as_object().unwrap();
    let named = options.logprobs.is_some() && read.role;
    assert_eq!(choice.get("logprobs").is_some(), named, "beside a delta if asked for");
    take_logprobs(read, &choice["logprobs"]);
    assert!(delta.values().all(|value| !value.is_null()), "no null in a delta");
    if !read.role {
        assert_eq!(choice["delta"], json!({"role": "assistant", "content": ""}), "the role comes first");
        assert_eq!(choice["finish_reason"], Value::Null);
        read.role = true;
    } else if !delta.is_empty() {
        assert_eq!(choice.get("finish_reason"), Some(&Value::Null));
        take_delta(options, read, delta);
    } else {
        read.finish = Some(choice["finish_reason"].as_str().unwrap().to_owned());
        read.matched = choice.get("matched_stop").cloned();
        read.usage = usage.filter(|usage| !usage.is_null());
    }
}

/// The aggregated answer in the shape of `Read`.
pub fn read_whole(options: &Options, bytes: &[u8]) -> Answer {
    let whole: Value = serde_json::from_slice(bytes).expect("JSON");
    if options.object == Object::Generate {
        let one = std::slice::from_ref(&whole);
        let list = if options.in_batch() { whole.as_array().unwrap() } else { one };
        let choices = list.iter().map(|object| generated(options, object));
        return Answer { choices: (0..).zip(choices).collect(), ..Answer::default() };
    }
    assert_eq!(whole["id"], json!(options.id));
    let object = if options.object == Object::Chat { "chat.completion" } else { "text_completion" };
    assert_eq!(whole["object"], object);
    assert_eq!(whole["model"], json!(options.model));
    let mut all = Answer { usage: Some(whole["usage"].clone()), ..Answer::default() };
    for choice in whole["choices"].as_array().unwrap() {
        let index = choice["index"].as_u64().unwrap();
        if options.object == Object::Completion {
            let mut read = Read::default();
            take_text(&mut read, choice);
            assert_eq!(all.choices.insert(index, read), None);
            continue;
        }
        let message = choice["message"].as_object().unwrap();
        let mut read = Read {
            role: message["role"] == "assistant",
            finish: Some(choice["finish_reason"].as_str().unwrap().to_owned()),
            matched: choice.get("matched_stop").cloned(),
            ..Read::default()
        };
        take_message(options, &mut read, message);
        take_logprobs(&mut read, choice.get("logprobs").expect("always there"));
        assert_eq!(all.choices.insert(index, read), None);
    }
    all
}

/// Feeds one choice's messages, then the end of its RPC, and reads the answer.
pub fn answer(more: Value, messages: &[Vec<u8>]) -> (Read, Value) {
    let mut stream = stream(more);
    let mut flags = 0;
    for message in messages {
        flags = stream.feed(0, message).unwrap();
    }
    assert_eq!(flags & (CHOICE_DONE | ALL_DONE | FAILED), CHOICE_DONE | ALL_DONE);
    assert_eq!(stream.end(0).unwrap() & FAILED, 0, "the end of the RPC changes nothing");
    let mut all = if stream.options.streaming {
        read(&stream.options, stream.buffer())
    } else {
        read_whole(&stream.options, &stream.result())
    };
    (all.choices.remove(&0).unwrap(), all.usage.unwrap_or_default())
}
