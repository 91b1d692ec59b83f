//! Reasoning, and what rides along with it and with calls, case by case.

use serde_json::{Value, json};

use super::entries;
use super::fixtures::{Bytes, EOM, EOS};
use super::response::*;
use super::said::*;
use crate::wire::MatchedStop;

#[test]
fn where_the_reasoning_begins_and_ends() {
    let read = |format: &str, inside: Value, text: &str| {
        let read = said(&json!({"reasoning_format": format, "starts_inside": inside}), text);
        (read.reasoning, read.content)
    };
    let split = |reasoning: &str, content: &str| (reasoning.to_owned(), content.to_owned());
    for (format, always) in
        [("qwen3", false), ("glm45", false), ("base", false), ("deepseek_r1", true), ("kimi_k2", true)]
    {
        let tail = "so</think>it";
        assert_eq!(read(format, json!(true), tail), split("so", "it"));
        assert_eq!(read(format, json!(false), tail), split("", tail));
        let expected = if always { split("so", "it") } else { split("", tail) };
        assert_eq!(read(format, Value::Null, tail), expected, "{format}");
        for inside in [json!(true), json!(false), Value::Null] {
            assert_eq!(read(format, inside, "<think>so</think>it"), split("so", "it"), "{format}");
        }
        assert_eq!(read(format, Value::Null, "<think>so</thi"), split("so</thi", ""));
        assert_eq!(read(format, json!(false), "<thi"), split("", "<thi"));
    }
    let harmony =
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>it<|return|>";
    assert_eq!(read("gpt-oss", Value::Null, harmony), split("so", "it"));
    let rest = harmony.split_once("<|message|>").unwrap().1;
    assert_eq!(read("gpt-oss", json!(true), rest), split("so", "it"));

    let mut stream = stream(thinking(json!({"starts_inside": true})));
    let mut fed = |text: &str, count| {
        stream.feed(0, &chunk(&ids(text), count)).unwrap();
        String::from_utf8(stream.take()).unwrap()
    };
    assert!(fed("a</thi", 6).contains(r#""delta":{"reasoning_content":"a"}"#));
    assert_eq!(fed("n", 7), "", "held back");
    assert!(fed("g", 8).contains(r#""delta":{"reasoning_content":"</thing"}"#));
    stream.feed(0, &chunk(&ids("</th"), 12)).unwrap();
    stream.feed(0, &complete(&[], 12)).unwrap();
    let end = String::from_utf8(stream.take()).unwrap();
    assert!(end.contains(r#""delta":{"reasoning_content":"</th"}"#), "{end}");
}

#[test]
fn how_the_reasoning_is_shown() {
    let text = format!(" <think>a b</think>c{PING}");
    let all = qwen(json!({"separate_reasoning": false}));
    let read = said(&all, &text);
    assert_eq!((parts(&read), calls(&read)), ((" <think>a b</think>c", "", "tool_calls"), vec![PINGED]));
    assert_eq!(read.usage.unwrap()["completion_tokens_details"]["reasoning_tokens"], "a b</think".len() + 1);
    let read = said(&thinking(json!({"separate_reasoning": false})), "<think>a b</thi");
    assert_eq!(parts(&read), ("<think>a b</thi", "", "stop"));
    let messages = |text: &str| -> Vec<_> {
        let all = ids(text);
        let count = all.len() as u32;
        let single = all.iter().zip(1..).map(|(&id, at)| chunk(&[id], at));
        single.chain([complete(&[], count)]).collect()
    };
    let whole = qwen(json!({"stream_reasoning": false}));
    assert_eq!(both(&whole, &messages(&text)).deltas[..2], ["reasoning_content", "content"]);
    for text in ["<think>a b", &format!("<think>a b</think>{PING}"), "<think>a b</think>"] {
        let read = both(&whole, &messages(text));
        let thoughts = read.deltas.iter().filter(|name| *name == "reasoning_content");
        assert_eq!((&*read.reasoning, thoughts.count(), &*read.deltas[0]), ("a b", 1, "reasoning_content"));
    }
    assert_eq!(both(&qwen(json!({})), &messages("<think>a b")).deltas, ["reasoning_content"; 3]);
    // The marks of gpt-oss's messages are never shown, and stop words do not count in its thoughts.
    let message = |channel: &str, text: &str| format!("<|channel|>{channel}<|message|>{text}<|end|>");
    let harmony = [("commentary", "a"), ("analysis", "so"), ("final", "it"), ("analysis", "on")]
        .map(|(channel, text)| message(channel, text))
        .join("<|start|>assistant");
    let begun = message("analysis", "so STOP") + "<|start|>assistant" + &message("final", "it STOP");
    for tools in [json!({}), json!({"tools": functions(), "tool_format": "gpt-oss"})] {
        let all = |extra: Value| {
            let mut all = tools.clone();
            all["reasoning_format"] = json!("gpt-oss");
            all["separate_reasoning"] = json!(false);
            all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            all
        };
        assert_eq!(parts(&both(&all(json!({})), &messages(&harmony))), ("asoiton", "", "stop"));
        let read = both(&all(json!({"stop": [" STOP"]})), &messages(&begun));
        assert_eq!(parts(&read), ("so STOPit", "", "stop"));
    }
    // With gpt-oss the tool parser itself reads thoughts.
    let harmony = "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>it";
    for (separate, expected) in [(true, ("it", "so", "stop")), (false, ("soit", "", "stop"))] {
        let all = json!({"tools": functions(), "tool_format": "gpt-oss", "separate_reasoning": separate});
        assert_eq!(parts(&said(&all, harmony)), expected);
    }
}

#[test]
fn markers_that_are_special_tokens() {
    let search = &SEARCH["<tool_call>".len()..SEARCH.len() - "</tool_call>".len()];
    let mut text = tokens(&["<think>", "so", "</think>", "Well", "<tool_call>", search, "</tool_call>"]);
    text.insert(2, EOM);
    text.insert(text.len() - 2, EOM);
    let read = ended(&qwen(json!({})), &text, "stop", None);
    assert_eq!((parts(&read), calls(&read)), (("Well", "so", "tool_calls"), vec![SEARCHED]));
    // Others than those of the formats asked for stay hidden; without parsers all do.
    let other = tokens(&["a", "[TOOL_CALLS]", "b", "<|call|>", "c"]);
    assert_eq!(parts(&ended(&qwen(json!({})), &other, "stop", None)), ("abc", "", "stop"));
    assert_eq!(parts(&ended(&json!({}), &text, "stop", None)), (&*format!("soWell{search}"), "", "stop"));
    let shown = qwen(json!({"skip_special_tokens": false}));
    assert_eq!(parts(&ended(&shown, &other, "stop", None)), ("a[TOOL_CALLS]b<|call|>c", "", "stop"));
    // A marker at which the engine stopped is not shown, whatever the messages.
    let end = tokens(&["ab", "<tool_call>"]);
    let by = Some(MatchedStop::TokenId(end[2]));
    let read = ended(&qwen(json!({})), &end, "stop", by);
    assert_eq!((parts(&read), read.matched.clone()), (("ab", "", "stop"), Some(json!(end[2]))));
    let end = tokens(&["<think>", "ab", "</think>"]);
    let read = ended(
        &thinking(json!({"separate_reasoning": false})),
        &end,
        "stop",
        Some(MatchedStop::TokenId(end[3])),
    );
    assert_eq!(parts(&read), ("<think>ab", "", "stop"));
    let kimi = tokens(&[
        "so",
        "</think>",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "functions.ping:0",
        "<|tool_call_argument_begin|>",
        "{}",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ]);
    let all = json!({"tools": functions(), "tool_format": "kimi_k2", "reasoning_format": "kimi_k2", "id_style": "kimi"});
    let read = ended(&all, &kimi, "stop", None);
    assert_eq!(
        (parts(&read), calls(&read), &*read.calls[0].id),
        (("", "so", "tool_calls"), vec![PINGED], "functions.ping:0")
    );
}

#[test]
fn tokens_of_the_reasoning() {
    let count =
        |read: &Read| read.usage.as_ref().unwrap()["completion_tokens_details"]["reasoning_tokens"].clone();
    let text = tokens(&["<think>", "abc", "</think>", "de"]);
    assert_eq!(count(&ended(&thinking(json!({})), &text, "stop", None)), 4, "the marks' own: one of two");
    assert_eq!(count(&ended(&json!({}), &text, "stop", None)), 0);
    let told = |tokens: u32, own: &[u32]| {
        let mut close = complete_of(own, own.len() as u32, "stop", None);
        close.reasoning_tokens = tokens;
        count(&both(&thinking(json!({})), &[encode(close)]))
    };
    assert_eq!((told(2, &text), told(9, &text), told(9, &text[..5])), (json!(2), json!(7), json!(5)));
    // Nor does one choice's odd count spoil the sum.
    let mut stream = stream(thinking(json!({"choices": 2, "streaming": false})));
    for (choice, tokens) in [(0, 9), (1, 0)] {
        let mut close = complete_of(&text, 7, "stop", None);
        close.reasoning_tokens = tokens;
        stream.feed(choice, &encode(close)).unwrap();
    }
    assert_eq!((stream.stats().usage.reasoning, stream.stats().usage.completion), (7 + 4, 14));
    // Behind a stop word nothing counts.
    let stopping = thinking(json!({"stop": ["d"]}));
    let mut close = complete_of(&text, 7, "stop", None);
    close.reasoning_tokens = 7;
    let read = both(&stopping, &[encode(close)]);
    assert_eq!((count(&read), &read.usage.as_ref().unwrap()["completion_tokens"]), (json!(6), &json!(6)));
}

#[test]
fn entries_beside_reasoning_and_calls() {
    let mut text = tokens(&["\n", "<think>", "so", "</think>", "Well STO", "<tool_call>"]);
    text.extend(ids(&SEARCH["<tool_call>".len()..]));
    text.push(EOS);
    let all = qwen(json!({"logprobs": 1, "stop": ["STOP"]}));
    let count = text.len() as u32;
    let scored = |from: usize, upto: usize| {
        scored_chunk(&text[from..upto], upto as u32, entries::output(&text[from..upto], from), None)
    };
    let close = closing(&[], count, "stop", Some(MatchedStop::TokenId(EOS)));
    let single: Vec<_> = (0..text.len()).map(|at| scored(at, at + 1)).chain([close.clone()]).collect();
    let vocabulary = Bytes::new();
    let names = |ids: &[u32]| -> Vec<_> {
        ids.iter().map(|&id| json!(String::from_utf8_lossy(vocabulary.bytes(id)))).collect()
    };
    let of = |read: &Read| read.entries.iter().map(|entry| entry["token"].clone()).collect::<Vec<_>>();
    for messages in
        [single, vec![scored(0, text.len()), close.clone()], vec![scored(0, 7), scored(7, text.len()), close]]
    {
        let read = both(&all, &messages);
        assert_eq!(of(&read), names(&text), "each exactly once, in order");
        assert_eq!(parts(&read), ("Well STO", "so", "tool_calls"));
    }
    // A stop word takes its own along, and blanks before the answer that belong to it.
    for (stop, shown) in [("STO", 10), ("Well", 5), ("l STOP", 18)] {
        let all = qwen(json!({"logprobs": 0, "stop": [stop]}));
        let text = tokens(&["\n", "<think>", "so", "</think>", "Well STO"]);
        let list = entries::output(&text, 0);
        let read = both(
            &all,
            &[scored_chunk(&text, text.len() as u32, list, None), complete(&[], text.len() as u32)],
        );
        assert_eq!(of(&read), names(&text[..shown.min(text.len())]), "{stop}");
    }
    let blank = ids("\n\nA");
    let stopping = thinking(json!({"logprobs": 0, "stop": ["\n\nA"]}));
    let single: Vec<_> = (0..3)
        .map(|at| {
            scored_chunk(&blank[at..at + 1], at as u32 + 1, entries::output(&blank[at..at + 1], at), None)
        })
        .collect();
    assert_eq!(of(&both(&stopping, &single)), names(&[]));
}
