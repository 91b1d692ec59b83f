//! Whole responses: the worker's messages in, parsed events and answers out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::{Value, json};

use super::testing::{Bytes, EOM, EOS, Random};
use super::*;
use crate::wire::MatchedStop;

fn chunk(ids: &[u32], count: u32) -> Vec<u8> {
    let chunk = GenerateStreamChunk {
        token_ids: ids.to_vec(),
        prompt_tokens: 7,
        completion_tokens: count,
        cached_tokens: 3,
        reasoning_tokens: 0,
    };
    GenerateResponse { response: Some(Response::Chunk(chunk)) }.encode_to_vec()
}

fn closing(ids: &[u32], count: u32, finish_reason: &str, matched_stop: Option<MatchedStop>) -> Vec<u8> {
    let complete = GenerateComplete {
        output_ids: ids.to_vec(),
        finish_reason: finish_reason.to_owned(),
        prompt_tokens: 7,
        completion_tokens: count,
        cached_tokens: 3,
        reasoning_tokens: 0,
        matched_stop,
    };
    GenerateResponse { response: Some(Response::Complete(complete)) }.encode_to_vec()
}

fn complete(ids: &[u32], count: u32) -> Vec<u8> {
    closing(ids, count, "stop", None)
}

fn options(more: Value) -> Options {
    let mut all = json!({"id": "chatcmpl-1", "created": 1_700_000_000, "model": "small", "streaming": true});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Options::from_json(all.to_string().as_bytes()).unwrap()
}

fn stream(more: Value) -> Stream<Bytes> {
    Stream::new(Bytes::new(), options(more))
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// One choice's events put together again.
#[derive(Debug, Default, PartialEq)]
struct Read {
    role: bool,
    content: String,
    finish: Option<String>,
    matched: Option<Value>,
    /// Usage on the finish event.
    usage: Option<Value>,
}

#[derive(Debug, Default)]
struct Events {
    choices: BTreeMap<u64, Read>,
    usage: Option<Value>,
    error: Option<Value>,
}

/// Reads a finished stream line by line and holds every event against the contract.
fn read(options: &Options, bytes: &[u8]) -> Events {
    let text = std::str::from_utf8(bytes).expect("UTF-8");
    assert!(!text.contains(['\u{2028}', '\u{2029}', '\u{85}', '\r', '\0']), "no line end but the framing's");
    let body = text.strip_suffix("data: [DONE]\n\n").expect("[DONE] comes last");
    let mut all = Events::default();
    for event in body.split_terminator("\n\n") {
        let data = event.strip_prefix("data: ").expect("one data line an event");
        let event: Value = serde_json::from_str(data).expect("JSON");
        assert!(all.usage.is_none() && all.error.is_none(), "nothing follows the usage or an error");
        if event.get("error").is_some() {
            all.error = Some(event);
        } else {
            check_head(options, &event);
            read_event(options, &event, &mut all);
        }
    }
    if all.error.is_none() {
        assert_eq!(all.choices.len() as u32, options.choices);
        assert!(all.choices.values().all(|choice| choice.finish.is_some()), "every choice ends");
        assert_eq!(all.usage.is_some(), options.include_usage);
    }
    all
}

fn check_head(options: &Options, event: &Value) {
    assert_eq!(event["id"], json!(options.id));
    assert_eq!(event["object"], "chat.completion.chunk");
    assert_eq!(event["created"], json!(options.created));
    assert_eq!(event["model"], json!(options.model));
    assert_eq!(
        event.get("system_fingerprint").map(|v| v.as_str().unwrap()),
        options.system_fingerprint.as_deref()
    );
}

fn read_event(options: &Options, event: &Value, all: &mut Events) {
    let usage = event.get("usage").cloned();
    let choices = event["choices"].as_array().unwrap();
    let [choice] = &choices[..] else {
        assert!(choices.is_empty() && options.include_usage, "only the usage event is without a choice");
        all.usage = Some(usage.expect("usage"));
        return;
    };
    match (options.continuous_usage, options.include_usage) {
        (true, _) => assert!(usage.as_ref().unwrap()["completion_tokens"].is_u64()),
        (false, true) => assert_eq!(usage, Some(Value::Null)),
        (false, false) => assert_eq!(usage, None),
    }
    let read = all.choices.entry(choice["index"].as_u64().unwrap()).or_default();
    assert_eq!(read.finish, None, "the finish event is a choice's last");
    let delta = choice["delta"].as_object().unwrap();
    assert!(delta.values().all(|value| !value.is_null()), "no null in a delta");
    if !read.role {
        assert_eq!(choice["delta"], json!({"role": "assistant", "content": ""}), "the role comes first");
        assert_eq!(choice["finish_reason"], Value::Null);
        read.role = true;
    } else if let Some(content) = delta.get("content") {
        assert_eq!(delta.len(), 1);
        assert_eq!(choice.get("finish_reason"), Some(&Value::Null));
        assert_ne!(content, "", "no empty delta");
        read.content.push_str(content.as_str().unwrap());
    } else {
        assert!(delta.is_empty());
        read.finish = Some(choice["finish_reason"].as_str().unwrap().to_owned());
        read.matched = choice.get("matched_stop").cloned();
        read.usage = usage.filter(|usage| !usage.is_null());
    }
}

/// The aggregated answer in the shape of `Read`.
fn read_whole(options: &Options, bytes: &[u8]) -> Events {
    let whole: Value = serde_json::from_slice(bytes).expect("JSON");
    assert_eq!(whole["id"], json!(options.id));
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], json!(options.model));
    let mut all = Events { usage: Some(whole["usage"].clone()), ..Events::default() };
    for choice in whole["choices"].as_array().unwrap() {
        let message = choice["message"].as_object().unwrap();
        assert_eq!(message.keys().collect::<Vec<_>>(), ["role", "content", "refusal"]);
        assert_eq!((&message["refusal"], choice.get("logprobs")), (&Value::Null, Some(&Value::Null)));
        let read = Read {
            role: message["role"] == "assistant",
            content: message["content"].as_str().unwrap().to_owned(),
            finish: Some(choice["finish_reason"].as_str().unwrap().to_owned()),
            matched: choice.get("matched_stop").cloned(),
            usage: None,
        };
        assert_eq!(all.choices.insert(choice["index"].as_u64().unwrap(), read), None);
    }
    all
}

/// Feeds one choice's messages, then the end of its RPC, and reads the answer.
fn answer(more: Value, messages: &[Vec<u8>]) -> (Read, Value) {
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

#[test]
fn the_bytes_of_a_small_stream() {
    let mut stream = stream(json!({"model": "a \"b\"", "system_fingerprint": "v1", "include_usage": true}));
    assert!(!stream.started());
    assert_eq!(stream.feed(0, &chunk(&ids("Hi"), 2)).unwrap(), OUTPUT);
    assert!(stream.started());
    let head = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"a \"b\"","system_fingerprint":"v1","choices":["#;
    let role = r#"{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}"#;
    let hi = r#"{"index":0,"delta":{"content":"Hi"},"finish_reason":null}],"usage":null}"#;
    assert_eq!(String::from_utf8(stream.take()).unwrap(), format!("{head}{role}\n\n{head}{hi}\n\n"));
    assert_eq!(stream.feed(0, &complete(&ids("i"), 2)).unwrap(), OUTPUT | CHOICE_DONE | ALL_DONE);
    let finish = r#"{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#;
    let usage = r#"],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":0}}}"#;
    assert_eq!(
        std::str::from_utf8(stream.buffer()).unwrap(),
        format!("{head}{finish}\n\n{head}{usage}\n\ndata: [DONE]\n\n")
    );
    stream.clear();
    assert_eq!(stream.feed(0, &complete(&ids("i"), 2)).unwrap(), CHOICE_DONE | ALL_DONE);
    stream.fail(r#"{"error":{}}"#);
    assert_eq!(stream.buffer(), b"", "all was said");
}

#[test]
fn an_empty_answer() {
    for streaming in [true, false] {
        let (read, usage) = answer(
            json!({"streaming": streaming, "include_usage": true}),
            &[closing(&[EOS], 1, "stop", None)],
        );
        assert_eq!((read.role, &*read.content, read.finish.as_deref()), (true, "", Some("stop")));
        assert_eq!(usage["completion_tokens"], 1);
        let (read, usage) = answer(
            json!({"streaming": streaming, "include_usage": true}),
            &[closing(&[], 0, "length", None)],
        );
        assert_eq!((&*read.content, read.finish.as_deref()), ("", Some("length")));
        assert_eq!(usage["completion_tokens"], 0);
    }
}

#[test]
fn a_stop_word_ends_the_choice_at_once_and_the_count_with_it() {
    let mut stream = stream(json!({"stop": ["STOP"], "include_usage": true}));
    assert_eq!(stream.feed(0, &chunk(&ids("One. ST"), 7)).unwrap(), OUTPUT);
    assert_eq!(stream.take().windows(4).filter(|w| w == b"ST\"}").count(), 0, "ST is held back");
    let flags = stream.feed(0, &chunk(&ids("OP and more"), 18)).unwrap();
    assert_eq!(flags, OUTPUT | CHOICE_DONE | CANCEL | ALL_DONE);
    let text = String::from_utf8(stream.take()).unwrap();
    assert!(text.contains(r#""delta":{},"finish_reason":"stop","matched_stop":"STOP"}"#), "{text}");
    assert!(text.contains(r#""completion_tokens":9,"#), "{text}");
    assert_eq!(stream.feed(0, &chunk(&ids("!"), 19)).unwrap(), CHOICE_DONE | ALL_DONE);
    let aborted = closing(&[], 19, "abort", None);
    assert_eq!(stream.feed(0, &aborted).unwrap(), CHOICE_DONE | ALL_DONE, "our cancel is no failure");
    assert_eq!(stream.stats().finish_reasons, ["stop"]);
    assert_eq!(stream.stats().usage.completion, 9);
}

#[test]
fn stop_words_kept_and_cut() {
    let text = |more: Value, messages: &[Vec<u8>]| {
        let (read, _) = answer(more, messages);
        (read.content, read.matched)
    };
    let word = |word: &str| Some(json!(word));
    let message = [complete(&ids("a STOP b"), 8)];
    assert_eq!(text(json!({"stop": ["STOP"]}), &message), ("a ".into(), word("STOP")));
    assert_eq!(
        text(json!({"stop": ["STOP"], "no_stop_trim": true}), &message),
        ("a STOP".into(), word("STOP"))
    );
    assert_eq!(text(json!({"stop": ["STOPPED"]}), &[complete(&ids("a STOP"), 6)]), ("a STOP".into(), None));
    assert_eq!(text(json!({"stop": ["日"]}), &[chunk(&[0xe6, 0x97], 2), complete(&[0xa5], 3)]).0, "");
    // What never became a character is shown as U+FFFD at the end, and may be what a stop word wants.
    assert_eq!(
        text(json!({"stop": ["\u{fffd}"]}), &[complete(&[65, 0xe6], 2)]),
        ("A".into(), word("\u{fffd}"))
    );
    assert_eq!(text(json!({"stop": ["zz"]}), &[complete(&[65, 0xe6], 2)]), ("A\u{fffd}".into(), None));
}

#[test]
fn the_id_that_ended_the_answer_is_not_shown() {
    let hi = [ids("hi"), vec![EOS]].concat();
    let eos = Some(MatchedStop::TokenId(EOS));
    let shown = |more: Value, messages: &[Vec<u8>]| {
        let (read, _) = answer(more, messages);
        (read.content, read.matched)
    };
    for message in
        [vec![closing(&hi, 3, "stop", eos.clone())], vec![chunk(&hi, 3), closing(&[EOS], 3, "stop", eos)]]
    {
        assert_eq!(shown(json!({}), &message), ("hi".into(), None));
        assert_eq!(shown(json!({"skip_special_tokens": false}), &message), ("hi".into(), None));
        let keep = json!({"skip_special_tokens": false, "no_stop_trim": true});
        assert_eq!(shown(keep, &message), ("hi<|eos|>".into(), None));
    }
    // Without the worker's word the text is what Hugging Face's decode would make of the ids.
    let silent = [chunk(&hi, 3), complete(&[EOS], 3)];
    assert_eq!(shown(json!({}), &silent), ("hi".into(), None));
    assert_eq!(shown(json!({"skip_special_tokens": false}), &silent), ("hi<|eos|>".into(), None));
    // The client's own stop id, an ordinary token.
    let dot = ids("hi.");
    let by_dot = Some(MatchedStop::TokenId(46));
    for matched in [by_dot, None] {
        let messages = [chunk(&dot, 3), closing(&[], 3, "stop", matched)];
        assert_eq!(shown(json!({"stop_token_ids": [46]}), &messages), ("hi".into(), Some(json!(46))));
    }
    let messages = [chunk(&dot, 3), closing(&[], 3, "stop", Some(MatchedStop::TokenId(46)))];
    let keep = json!({"stop_token_ids": [46], "no_stop_trim": true});
    assert_eq!(shown(keep, &messages), ("hi.".into(), Some(json!(46))));
    // Not the last token, or not a stop: it stays.
    let more = [chunk(&dot, 3), chunk(&[33], 4), closing(&[], 4, "length", None)];
    assert_eq!(shown(json!({"stop_token_ids": [46]}), &more), ("hi.!".into(), None));
    assert_eq!(
        shown(json!({"stop_token_ids": [46]}), &[chunk(&dot, 3), closing(&[46], 3, "length", None)]),
        ("hi.".into(), None)
    );
    // An end that only the engine knows of.
    let eom = [chunk(&[104, 105, EOM], 3), closing(&[], 3, "stop", Some(MatchedStop::TokenId(EOM)))];
    assert_eq!(shown(json!({"skip_special_tokens": false}), &eom), ("hi".into(), Some(json!(EOM))));
    // With ignore_eos an end of text is a token like others, and waits for nothing.
    let mut stream = stream(json!({"ignore_eos": true, "skip_special_tokens": false}));
    stream.feed(0, &chunk(&hi, 3)).unwrap();
    assert!(String::from_utf8(stream.take()).unwrap().contains(r#""hi<|eos|>""#));
}

#[test]
fn choices_go_their_own_ways() {
    for streaming in [true, false] {
        let more = json!({"streaming": streaming, "choices": 3, "stop": ["x"], "include_usage": true});
        let mut stream = stream(more);
        let mut flags = |choice, message: Vec<u8>| stream.feed(choice, &message).unwrap() & !OUTPUT;
        assert_eq!(flags(0, chunk(&ids("a"), 1)), 0);
        assert_eq!(flags(2, chunk(&ids("b"), 1)), 0);
        assert_eq!(flags(0, chunk(&ids("axa"), 4)), CHOICE_DONE | CANCEL);
        assert_eq!(flags(1, complete(&ids("whole"), 5)), CHOICE_DONE);
        assert_eq!(flags(0, chunk(&ids("b"), 5)), CHOICE_DONE);
        assert_eq!(flags(2, closing(&ids("bb"), 2, "length", None)), CHOICE_DONE | ALL_DONE);
        assert!(stream.feed(3, &[]).is_err());
        let all = if streaming {
            read(&stream.options, stream.buffer())
        } else {
            read_whole(&stream.options, &stream.result())
        };
        let contents: Vec<_> = all.choices.values().map(|choice| &*choice.content).collect();
        assert_eq!(contents, ["aa", "whole", "bb"]);
        let finishes: Vec<_> = all.choices.values().map(|choice| choice.finish.as_deref().unwrap()).collect();
        assert_eq!(finishes, ["stop", "stop", "length"]);
        let usage = all.usage.unwrap();
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(7), &json!(3 + 5 + 2)));
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 3);
        assert_eq!(stream.stats().usage.completion, 10);
        assert_eq!(stream.stats().finish_reasons, ["stop", "stop", "length"]);
    }
}

#[test]
fn continuous_usage_counts_up() {
    let mut stream = stream(json!({"continuous_usage": true, "prompt_tokens": 5}));
    let empty = GenerateResponse { response: Some(Response::Chunk(GenerateStreamChunk::default())) };
    stream.feed(0, &empty.encode_to_vec()).unwrap();
    let first = String::from_utf8(stream.take()).unwrap();
    assert!(first.contains(r#""usage":{"prompt_tokens":5,"completion_tokens":0,"#), "{first}");
    stream.feed(0, &chunk(&ids("ab"), 2)).unwrap();
    let second = String::from_utf8(stream.take()).unwrap();
    assert!(second.contains(r#""usage":{"prompt_tokens":7,"completion_tokens":2,"#), "{second}");
    stream.feed(0, &complete(&ids("c"), 3)).unwrap();
    let last = String::from_utf8(stream.take()).unwrap();
    assert_eq!(last.matches(r#""completion_tokens":3,"total_tokens":10"#).count(), 2, "{last}");
    assert!(!last.contains(r#""choices":[],"#), "{last}");
}

#[test]
fn failures() {
    let aborted = closing(&[], 0, "abort", None);
    let wordy = closing(&[], 0, "abort: out of memory", None);
    assert_eq!(first_failure(&aborted).as_deref(), Some("The worker aborted the request."));
    assert_eq!(first_failure(&wordy).as_deref(), Some("out of memory"));
    assert_eq!(first_failure(&complete(&[1], 1)), None);
    assert_eq!(first_failure(&chunk(&[1], 1)), None);
    assert_eq!(first_failure(b"\xff"), None);
    for (message, words) in
        [(wordy, "out of memory"), (vec![0x12, 0xff], "The worker's message cannot be read"), (vec![], "")]
    {
        let mut before = stream(json!({}));
        let flags = if message.is_empty() { before.end(0) } else { before.feed(0, &message) };
        assert_eq!(flags.unwrap(), FAILED);
        assert!(before.failure().unwrap().contains(words), "{:?}", before.failure());
        assert!(!before.started() && before.buffer().is_empty() && before.result().is_empty());

        let mut after = stream(json!({"include_usage": true}));
        after.feed(0, &chunk(&ids("Hi"), 2)).unwrap();
        let flags = if message.is_empty() { after.end(0) } else { after.feed(0, &message) };
        assert_eq!(flags.unwrap(), OUTPUT | FAILED);
        assert_eq!(after.feed(0, &chunk(&ids("!"), 3)).unwrap(), OUTPUT | FAILED);
        after.fail("{\"error\":\n{\"message\":\"no\"}}");
        after.fail("{\"error\":{}}");
        let all = read(&after.options, after.buffer());
        assert_eq!(all.error.unwrap()["error"]["message"], "no");
        assert_eq!((&*all.choices[&0].content, &all.choices[&0].finish), ("Hi", &None));
        assert_ne!(after.feed(0, &complete(&ids("!"), 3)).unwrap() & ALL_DONE, 0);
    }
    let mut whole = stream(json!({"streaming": false}));
    whole.feed(0, &chunk(&ids("Hi"), 2)).unwrap();
    assert_eq!(whole.end(0).unwrap(), FAILED);
    whole.fail("{\"error\":{}}");
    assert!(whole.result().is_empty() && whole.buffer().is_empty() && !whole.started());
}

#[test]
fn what_is_not_known_is_skipped() {
    let mut stream = stream(json!({}));
    assert_eq!(stream.feed(0, &[]).unwrap(), 0, "a message of a kind that is not ours");
    let (read, _) = answer(json!({}), &[chunk(&[u32::MAX, 104, 5000], 3), complete(&[], u32::MAX)]);
    assert_eq!(read.content, "h");
    assert!(Options::from_json(b"{\"id\":\"\",\"created\":1,\"model\":\"\",\"stops\":[]}").is_err());
    assert_eq!(format!("{stream:?}"), "<Stream chatcmpl-1 0/1 choices done, 0 tokens, not started>");
}

#[test]
fn inter_token_times_are_taken_per_choice() {
    let mut stream = stream(json!({"choices": 2}));
    let start = Instant::now();
    let mut at = |ms, choice, message: &[u8]| {
        stream.feed_at(choice, message, start + Duration::from_millis(ms)).unwrap()
    };
    at(0, 0, &chunk(&[65], 1));
    at(500, 1, &chunk(&[65], 1));
    at(1000, 0, &chunk(&[65, 66, 67, 68], 5));
    at(2000, 0, &complete(&[68], 5));
    let itl = &stream.stats().itl;
    assert_eq!((itl.count, itl.buckets.iter().sum::<u64>()), (4, 4));
    assert!((itl.sum - 1.0).abs() < 1e-9);
    assert_eq!(itl.buckets[ITL_BOUNDS.iter().position(|&bound| bound == 0.3).unwrap()], 4);
}

/// One choice as a worker would send it, and what must come of it.
struct Case {
    messages: Vec<Vec<u8>>,
    content: String,
    finish: &'static str,
    matched: Option<Value>,
    tokens: usize,
}

/// The shortest text with a stop word in it, by the tokens: (tokens, bytes before the word, the word).
fn stopped(
    vocabulary: &Arc<Bytes>,
    shown: &[u32],
    skip: bool,
    words: &[String],
) -> Option<(usize, usize, String)> {
    let mut decoder = vocabulary.decoder(skip);
    let mut text = String::new();
    let mut from = 0;
    for count in 1..=shown.len() + 1 {
        match shown.get(count - 1) {
            Some(&id) => decoder.push(id, &mut text),
            None => decoder.flush(&mut text),
        }
        for end in (from..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = words.iter().filter(|word| text[..end].ends_with(word.as_str()));
            if let Some(word) = ending.max_by_key(|word| word.len()) {
                return Some((count.min(shown.len()), end - word.len(), word.clone()));
            }
        }
        from = text.len();
    }
    None
}

fn case(random: &mut Random, vocabulary: &Arc<Bytes>, options: &Options) -> Case {
    let length = if random.chance(10) { 0 } else { random.below(30) };
    let mut all: Vec<u32> = (0..length)
        .map(|_| match random.below(10) {
            0 => random.below(256) as u32,
            1 => *random.pick(&[EOS, EOM, 46, 5000]),
            2..5 => *random.pick(&[97, 98]),
            _ => 256 + random.below(vocabulary.size() as usize - 256) as u32,
        })
        .collect();
    let (finish, end) =
        *random.pick(&[("stop", Some(EOS)), ("stop", Some(46)), ("length", None), ("stop", None)]);
    all.extend(end);
    // A stop of the worker's that it does not name is covered apart: here the last id must not look like one.
    if end.is_none() {
        all.push(97);
    }
    let matched_id = end.map(MatchedStop::TokenId);
    let cut = end.is_some() && !options.no_stop_trim;
    let shown = &all[..all.len() - usize::from(cut)];
    let skip = options.skip_special_tokens;
    let text = vocabulary.decode(shown, skip);
    let messages = messages(random, &all, finish, matched_id);
    match stopped(vocabulary, shown, skip, &options.stop) {
        Some((tokens, at, word)) => {
            // A word that only the flush completed counts all tokens, the trimmed one too.
            let flushed = tokens == shown.len() && stopped_early(vocabulary, shown, skip, &options.stop);
            let tokens = if flushed { all.len() } else { tokens };
            let end = if options.no_stop_trim { at + word.len() } else { at };
            Case {
                messages,
                content: text[..end].to_owned(),
                finish: "stop",
                matched: Some(json!(word)),
                tokens,
            }
        }
        None => {
            let matched = end.filter(|id| *id != EOS).map(|id| json!(id));
            Case { messages, content: text, finish, matched, tokens: all.len() }
        }
    }
}

/// Is the stop word complete only once the decoder was flushed?
fn stopped_early(vocabulary: &Arc<Bytes>, shown: &[u32], skip: bool, words: &[String]) -> bool {
    let mut decoder = vocabulary.decoder(skip);
    let mut text = String::new();
    shown.iter().for_each(|&id| decoder.push(id, &mut text));
    !words.iter().any(|word| text.contains(word.as_str()))
}

/// The ids in some worker's messages: any cut, any of the forms, chunks repeated now and then.
fn messages(random: &mut Random, all: &[u32], finish: &str, matched: Option<MatchedStop>) -> Vec<Vec<u8>> {
    let close = |ids: &[u32]| closing(ids, all.len() as u32, finish, matched.clone());
    if random.chance(15) {
        return vec![close(all)];
    }
    let mut messages = Vec::new();
    let (mut at, mut last) = (0, 0..0);
    while at < all.len() {
        let end = (at + 1 + if random.chance(60) { 0 } else { random.below(8) }).min(all.len());
        last = at..end;
        messages.push(chunk(&all[last.clone()], end as u32));
        at = end;
    }
    if random.chance(30) {
        let copy = random.below(messages.len());
        messages.insert(copy, messages[copy].clone());
    }
    match random.below(5) {
        0 => messages.push(close(&all[last])),
        1 => messages.push(close(&[])),
        2 => messages.push(close(all)),
        form => {
            messages.retain(|message| *message != chunk(&all[last.clone()], all.len() as u32));
            messages.push(close(if form == 3 { &all[last] } else { all }));
        }
    }
    messages
}

/// Feeds the choices' messages in turn; what comes after a CANCEL is sent on now and then.
fn run(random: &mut Random, options: &Options, vocabulary: &Arc<Bytes>, cases: &[Case]) -> Events {
    let mut stream = Stream::new(vocabulary.clone(), options.clone());
    let mut queues: Vec<_> = cases.iter().map(|case| case.messages.iter().peekable()).collect();
    let mut out = Vec::new();
    let mut flags = 0;
    loop {
        let open: Vec<_> = (0..queues.len()).filter(|&n| queues[n].peek().is_some()).collect();
        if open.is_empty() {
            break;
        }
        let choice = *random.pick(&open);
        let message = queues[choice].next().unwrap();
        flags = stream.feed(choice as u32, message).unwrap();
        assert_eq!(flags & OUTPUT != 0, !stream.buffer().is_empty());
        if flags & CANCEL != 0 && random.chance(50) {
            queues[choice].by_ref().for_each(drop);
        }
        if random.chance(50) {
            out.extend(stream.take());
        }
    }
    assert_eq!(flags & (ALL_DONE | FAILED), ALL_DONE);
    out.extend(stream.take());
    let tokens: usize = cases.iter().map(|case| case.tokens).sum();
    assert_eq!(stream.stats().usage.completion, tokens as u64);
    if options.streaming { read(options, &out) } else { read_whole(options, &stream.result()) }
}

#[test]
fn any_ids_any_cut_any_form_make_the_same_answer() {
    let vocabulary = Bytes::new();
    let mut random = Random::new(11);
    for round in 0..6_000 {
        let words =
            ["STOP", "ST", "P n", "ab", "aab", "本語", "日本", "\u{fffd}", "<|eom", "😀", "\u{2028}", "bb"];
        let stop: Vec<_> = (0..random.below(4)).map(|_| *random.pick(&words)).collect();
        let mut all = json!({
            "stop": stop, "choices": if random.chance(70) { 1 } else { 3 }, "stop_token_ids": [46],
            "no_stop_trim": random.chance(30), "skip_special_tokens": random.chance(70),
            "include_usage": random.chance(50), "continuous_usage": random.chance(20), "id": "q\"\\\u{2028}",
        });
        if random.chance(50) {
            all["system_fingerprint"] = json!("é\u{1}");
        }
        let mut options = options(all);
        let cases: Vec<_> = (0..options.choices).map(|_| case(&mut random, &vocabulary, &options)).collect();
        for streaming in [true, false] {
            options.streaming = streaming;
            let all = run(&mut random, &options, &vocabulary, &cases);
            for (read, case) in all.choices.values().zip(&cases) {
                assert_eq!(read.content, case.content, "round {round}");
                assert_eq!(read.finish.as_deref(), Some(case.finish), "round {round}");
                assert_eq!(read.matched, case.matched, "round {round}");
                if let Some(usage) = &read.usage {
                    assert_eq!(usage["completion_tokens"], json!(case.tokens), "round {round}");
                }
            }
            if let Some(usage) = all.usage {
                let tokens: usize = cases.iter().map(|case| case.tokens).sum();
                assert_eq!(usage["completion_tokens"], json!(tokens), "round {round}");
                assert_eq!(usage["total_tokens"], json!(tokens + 7));
            }
        }
    }
}

#[test]
fn a_megabyte_with_sixteen_stop_words_costs_linear_time() {
    let stop: Vec<_> = (0..16).map(|n| format!("{}{}", "ab".repeat(1 << (n % 12)), n + 1)).collect();
    let mut stream = stream(json!({"stop": stop}));
    let text = ids(&"ab".repeat(1 << 19));
    let clock = Instant::now();
    let (mut count, mut out) = (0, 0);
    for piece in text.chunks(16) {
        count += piece.len() as u32;
        stream.feed(0, &chunk(piece, count)).unwrap();
        out += stream.buffer().len();
        stream.clear();
    }
    stream.feed(0, &complete(&[], count)).unwrap();
    assert!(out > 1 << 20);
    assert_eq!(stream.stats().usage.completion, 1 << 20);
    assert!(clock.elapsed() < Duration::from_secs(20), "{:?}", clock.elapsed());
}

/// The cost of one message with one token. Meant for an optimised build; prints what it measures.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_message() {
    for (name, more) in [
        ("plain", json!({})),
        ("4 stop words", json!({"stop": ["STOP", "\n\n", "Observation:", "<|end|>"]})),
        ("continuous usage", json!({"continuous_usage": true})),
    ] {
        let mut stream = stream(more);
        let tokens = [256, 257, 262, 263, 44, 32];
        let messages: Vec<_> = (0..1_000_000u32).map(|n| chunk(&[tokens[n as usize % 6]], n + 1)).collect();
        let clock = Instant::now();
        let mut bytes = 0;
        for message in &messages {
            stream.feed(0, message).unwrap();
            bytes += stream.buffer().len();
            stream.clear();
        }
        let each = clock.elapsed().as_secs_f64() * 1e9 / messages.len() as f64;
        println!("{name}: {each:.0} ns a message, {} bytes each", bytes / messages.len());
    }
}
