//! Whole responses, case by case; `laws` has what holds for all of them.

mod calls;
mod entries;
pub mod fixtures;
mod laws;
mod objects;
mod reading;
mod reading_laws;
mod response;
mod said;
mod scored;
mod thinking;

use std::time::{Duration, Instant};

use prost::Message;
use serde_json::{Value, json};

use super::*;
use crate::wire::MatchedStop;
use fixtures::{EOM, EOS};
use response::*;

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
    // It is kept where the client wants it, and told all the same, though the worker says nothing.
    for matched in [Some(MatchedStop::TokenId(46)), None] {
        for skip in [true, false] {
            let keep = json!({"stop_token_ids": [46], "no_stop_trim": true, "skip_special_tokens": skip});
            for messages in [
                vec![chunk(&dot, 3), closing(&[], 3, "stop", matched.clone())],
                vec![chunk(&dot, 3), closing(&dot[2..], 3, "stop", matched.clone())],
                vec![chunk(&dot[..2], 2), closing(&dot[2..], 3, "stop", matched.clone())],
                vec![closing(&dot, 3, "stop", matched.clone())],
            ] {
                assert_eq!(shown(keep.clone(), &messages), ("hi.".into(), Some(json!(46))));
            }
        }
    }
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
    assert_eq!(first_failure(&closing(&[], 0, "aborted", None)), first_failure(&aborted));
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
fn a_stream_may_move_between_threads() {
    fn movable<T: Send>() {}
    movable::<Stream>();
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
