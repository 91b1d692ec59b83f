//! The law of splits for answers with reasoning and tool calls: whatever the tokens, the messages and the form
//! of the closing one, the deltas add up to the whole answer, and that is what the parsers make of the text.

use std::sync::Arc;

use serde_json::{Value, json};

use super::fixtures::{Bytes, EOM, EOS, Random};
use super::laws::messages;
use super::response::*;
use super::said::functions;
use crate::parsers::tests::grammar;
use crate::parsers::tests::{Answer as Parsed, Parser, tools};
use crate::parsers::{ReasoningParser, ToolParser, reasoning_format, tool_format};
use crate::stream::*;
use crate::wire::MatchedStop;

/// Tool format, reasoning format.
const FORMATS: [(&str, Option<&str>); 12] = [
    ("qwen", Some("qwen3")),
    ("qwen", Some("qwen3_thinking")),
    ("mistral", None),
    ("mistral", Some("base")),
    ("kimi_k2", Some("kimi_k2")),
    ("gpt-oss", Some("gpt-oss")),
    ("gpt-oss", None),
    ("glm45", Some("glm45")),
    ("pythonic", None),
    ("json", Some("deepseek_r1")),
    ("llama", None),
    ("deepseek_v3", Some("deepseek_r1")),
];
const THOUGHTS: [&str; 14] = [
    "<think>",
    "</think>",
    "</thi",
    "<",
    "Hm. ",
    "日本語",
    " ",
    "\n",
    "STOP",
    "[{",
    "{\"",
    "<tool_call>",
    "<|channel|>analysis<|message|>so<|end|>",
    "<|start|>assistant<|channel|>final<|message|>",
];

fn text(random: &mut Random, format: &str) -> String {
    let mut grammar = grammar::Random::new(random.below(1 << 40) as u64);
    let mut text: String = (0..random.below(5)).map(|_| *random.pick(&THOUGHTS)).collect();
    text.push_str(&grammar::text(tool_format(format).unwrap(), &mut grammar));
    text
}

/// What the parsers alone make of the text; None where reasoning and answer take turns.
fn parsed(options: &Options, text: &str) -> Option<Parsed> {
    let reasoning = options.reasoning_format.as_deref().map(|name| reasoning_format(name).unwrap());
    let simple = options.separate_reasoning && options.read_as == reading::ReadAs::Parser;
    if !simple || reasoning.is_some_and(|format| !format.is_tagged() && !options.stop.is_empty()) {
        return None;
    }
    let mut all = match reasoning {
        None => Parsed { content: text.to_owned(), ..Parsed::default() },
        Some(format) => Parser::Reasoning(ReasoningParser::begun(format, options.starts_inside)).read([text]),
    };
    let answer = std::mem::take(&mut all.content);
    let words = options.stop.iter().filter_map(|word| Some((answer.find(word.as_str())? + word.len(), word)));
    // The words do not overlap, so the first to end is the first to begin.
    let shown = match words.min() {
        Some((end, word)) => &answer[..end - if options.no_stop_trim { 0 } else { word.len() }],
        None => &answer,
    };
    let parallel = options.parallel && !options.legacy_function_call;
    let parser =
        ToolParser::new(tool_format(options.tool_format.as_deref().unwrap()).unwrap(), tools(parallel));
    let rest = Parser::Tools(parser).read([shown]);
    all.reasoning.push_str(&rest.reasoning);
    Some(Parsed { reasoning: all.reasoning, ..rest })
}

fn setting(random: &mut Random) -> Options {
    let (format, reasoning) = *random.pick(&FORMATS);
    let stop: &[&str] = match random.below(4) {
        0 => &["STOP", "search", "\u{fffd}"],
        1 => &["日本", "\n\n"],
        _ => &[],
    };
    let read_as =
        if random.chance(85) { "parser" } else { *random.pick(&["calls_array", "named_arguments"]) };
    options(json!({
        "tools": functions(), "tool_format": format, "reasoning_format": reasoning, "stop": stop,
        "read_as": read_as, "parallel": random.chance(80), "legacy_function_call": random.chance(15),
        "id_style": random.pick(&["call", "kimi"]), "calls_before": random.below(3),
        "starts_inside": random.pick(&[None, Some(true), Some(false)]),
        "separate_reasoning": random.chance(80), "stream_reasoning": random.chance(70),
        "no_stop_trim": random.chance(30), "skip_special_tokens": random.chance(70),
        "logprobs": random.pick(&[None, Some(0), Some(1)]),
    }))
}

fn run(random: &mut Random, vocabulary: &Arc<Bytes>, options: &Options, messages: &[Vec<u8>]) -> (Read, u64) {
    let mut stream = Stream::new(vocabulary.clone(), options.clone()).unwrap();
    let (mut out, mut flags) = (Vec::new(), 0);
    for message in messages {
        flags = stream.feed(0, message).unwrap();
        if random.chance(50) {
            out.extend(stream.take());
        }
    }
    assert_eq!(flags & (ALL_DONE | FAILED), ALL_DONE);
    out.extend(stream.take());
    let usage = stream.stats().usage;
    assert!(usage.reasoning <= usage.completion);
    let mut all = if options.streaming { read(options, &out) } else { read_whole(options, &stream.result()) };
    let mut read = all.choices.remove(&0).unwrap();
    let thoughts = read.deltas.iter().filter(|name| *name == "reasoning_content").count();
    let tagged =
        options.reasoning_format.as_deref().is_none_or(|name| reasoning_format(name).unwrap().is_tagged());
    if !options.stream_reasoning && tagged && options.tool_format.as_deref() != Some("gpt-oss") {
        assert!(thoughts <= 1, "{:?}", read.deltas);
    }
    read.deltas.clear();
    (read, usage.reasoning)
}

/// The tokens of `all` that entries are of, as a client reads them.
fn names(vocabulary: &Bytes, all: &[u32]) -> Vec<Value> {
    all.iter().map(|&id| json!(String::from_utf8_lossy(vocabulary.bytes(id)))).collect()
}

fn round(random: &mut Random, vocabulary: &Arc<Bytes>) -> bool {
    let mut options = setting(random);
    let text = text(random, options.tool_format.as_deref().unwrap());
    let expected = parsed(&options, &text);
    let mut markers = tool_format(options.tool_format.as_deref().unwrap()).unwrap().tokens.to_vec();
    let name = options.reasoning_format.as_deref();
    markers.extend(name.into_iter().flat_map(|name| reasoning_format(name).unwrap().tokens));
    let finish = *random.pick(&["stop", "stop", "length"]);
    let mut first: Option<Read> = None;
    for _ in 0..3 {
        let mut all = vocabulary.cut(random, &text, &markers);
        let hidden = if options.skip_special_tokens { random.below(3) } else { 0 };
        (0..hidden).for_each(|_| all.insert(random.below(all.len() + 1), EOM));
        if finish == "stop" {
            all.push(EOS);
        } else if matches!(all.last(), Some(&id) if id >= EOS) || all.is_empty() {
            // The last id must not look like a stop.
            return false;
        }
        let matched = (finish == "stop").then_some(MatchedStop::TokenId(EOS));
        let scored: Option<&[u32]> = options.logprobs.map(|_| &[97][..]);
        let mut same: Option<(Read, u64)> = None;
        for streaming in [true, false, true] {
            options.streaming = streaming;
            let cut = finish == "stop" && options.no_stop_trim && !options.skip_special_tokens;
            let (all, matched) =
                if cut { (&all[..all.len() - 1], None) } else { (&all[..], matched.clone()) };
            if all.is_empty() {
                return false;
            }
            let messages = messages(random, all, finish, matched, scored);
            let (read, thoughts) = run(random, vocabulary, &options, &messages);
            if options.logprobs.is_some() {
                let tokens: Vec<_> = read.entries.iter().map(|entry| entry["token"].clone()).collect();
                let names = names(vocabulary, all);
                if read.matched.is_none() {
                    assert_eq!(tokens, names, "each entry once");
                } else {
                    assert!(names.starts_with(&tokens), "{tokens:?} {names:?}");
                }
            }
            let same = same.get_or_insert_with(|| (read.clone(), thoughts));
            assert_eq!(*same, (read, thoughts), "messages of {text:?}");
        }
        let (mut read, _) = same.unwrap();
        read.entries.clear();
        if let Some(expected) = &expected {
            let calls: Vec<_> =
                read.calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect();
            assert_eq!(
                Parsed { content: read.content.clone(), reasoning: read.reasoning.clone(), calls },
                *expected
            );
        }
        let called = if options.legacy_function_call { "function_call" } else { "tool_calls" };
        let stopped = finish == "stop" || read.matched.is_some();
        let reason = match (read.calls.is_empty(), stopped) {
            (_, false) => "length",
            (true, true) => "stop",
            (false, true) => called,
        };
        assert_eq!(read.finish.as_deref(), Some(reason));
        let first = first.get_or_insert_with(|| read.clone());
        assert_eq!(*first, read, "tokens of {text:?}");
    }
    !first.unwrap().calls.is_empty()
}

#[test]
fn any_tokens_any_messages_any_form_make_the_same_answer() {
    let vocabulary = Bytes::new();
    let rounds = std::env::var("STREAM_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(600);
    let mut called = 0;
    for seed in 0..rounds {
        let one = || round(&mut Random::new(seed), &vocabulary);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(one)) {
            Ok(calls) => called += usize::from(calls),
            Err(_) => panic!("seed {seed}: {:?}", setting(&mut Random::new(seed))),
        }
    }
    assert!(called > rounds as usize / 5, "only {called} of {rounds} texts have calls");
}
