//! Log probabilities, completions and `/generate`, byte for byte.

use serde_json::{Value, json};

use super::fixtures::{Bytes, EOS};
use super::laws;
use super::response::*;
use crate::stream::*;
use crate::wire::{InputLogProbs, InputTokenLogProb, MatchedStop, OutputLogProbs, TopLogProbs};

fn output(list: &[(u32, f32)], top: &[&[(u32, f32)]]) -> Option<Box<OutputLogProbs>> {
    let (token_ids, token_logprobs) = list.iter().copied().unzip();
    Some(Box::new(OutputLogProbs {
        token_logprobs,
        token_ids,
        top_logprobs: top.iter().map(|row| self::row(row)).collect(),
    }))
}

fn row(row: &[(u32, f32)]) -> TopLogProbs {
    let (token_ids, values) = row.iter().copied().unzip();
    TopLogProbs { values, token_ids }
}

fn input(list: &[(u32, Option<f32>)], top: &[&[(u32, f32)]]) -> Option<Box<InputLogProbs>> {
    Some(Box::new(InputLogProbs {
        token_logprobs: list.iter().map(|&(_, value)| InputTokenLogProb { value }).collect(),
        token_ids: list.iter().map(|&(id, _)| id).collect(),
        top_logprobs: top.iter().map(|row| self::row(row)).collect(),
    }))
}

/// A chunk whose tokens are all worth -0.5.
fn halves(ids: &[u32], count: u32) -> Vec<u8> {
    let list: Vec<_> = ids.iter().map(|&id| (id, -0.5)).collect();
    scored_chunk(ids, count, output(&list, &[]), None)
}

fn closing_halves(ids: &[u32], count: u32, scored: &[u32], matched: Option<u32>) -> Vec<u8> {
    let list: Vec<_> = scored.iter().map(|&id| (id, -0.5)).collect();
    encode(GenerateComplete {
        output_logprobs: output(&list, &[]),
        ..complete_of(ids, count, "stop", matched.map(MatchedStop::TokenId))
    })
}

/// The one choice of each event in the buffer.
fn events<V: Vocabulary>(stream: &mut Stream<V>) -> Vec<Value> {
    let text = String::from_utf8(stream.take()).unwrap();
    let data = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    let data = data.filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str::<Value>(data).unwrap()["choices"][0].take()).collect()
}

fn tokens(choice: &Value) -> Vec<&str> {
    let content = choice["logprobs"]["content"].as_array();
    content.into_iter().flatten().map(|entry| entry["token"].as_str().unwrap()).collect()
}

#[test]
fn the_bytes_of_chat_logprobs() {
    let mut stream = stream(json!({"logprobs": 2}));
    let list = output(
        &[(256, -0.125), (264, f32::NEG_INFINITY)],
        &[&[(256, -0.125), (0xe6, -3.4e38), (97, f32::NAN)], &[(5000, -1e-7)]],
    );
    stream.feed(0, &scored_chunk(&[256, 264], 2, list, None)).unwrap();
    let text = String::from_utf8(stream.take()).unwrap();
    let hello = r#"{"token":"Hello","logprob":-0.125,"bytes":[72,101,108,108,111],"top_logprobs":[{"token":"Hello","logprob":-0.125,"bytes":[72,101,108,108,111]},{"token":"�","logprob":-9999.0,"bytes":[230]}]}"#;
    let event = format!(
        r#"{{"index":0,"delta":{{"content":"Hello"}},"logprobs":{{"content":[{hello}],"refusal":null}},"finish_reason":null}}]}}"#
    );
    assert!(text.ends_with(&format!("{event}\n\n")), "{text}");
    stream.feed(0, &closing_halves(&[EOS], 3, &[EOS], Some(EOS))).unwrap();
    let [content, finish] = &events(&mut stream)[..] else { panic!("two events") };
    // The half character is shown as U+FFFD, and its entry comes with it.
    assert_eq!(content["delta"]["content"], "\u{fffd}");
    assert_eq!(
        content["logprobs"]["content"][0],
        json!({"token": "\u{fffd}", "logprob": -9999.0, "bytes": [0xe6, 0x97],
               "top_logprobs": [{"token": "", "logprob": -1e-7, "bytes": null}]})
    );
    assert_eq!(tokens(content), ["\u{fffd}", "<|eos|>"]);
    assert_eq!(finish["logprobs"], Value::Null);
}

#[test]
fn entries_wait_for_their_text() {
    let mut stream = stream(json!({"logprobs": 0, "stop": ["STOP"]}));
    let mut fed = |message: &[u8]| {
        stream.feed(0, message).unwrap();
        events(&mut stream)
    };
    let first = fed(&halves(&ids("aS"), 2));
    assert_eq!(first[0].get("logprobs"), None, "the role is no text");
    assert_eq!(
        (tokens(&first[1]), &first[1]["logprobs"]["content"][0]["top_logprobs"]),
        (vec!["a"], &json!([]))
    );
    assert_eq!(fed(&halves(&ids("T"), 3)), [Value::Null; 0]);
    let released = fed(&halves(&ids("b"), 4));
    assert_eq!(
        (&released[0]["delta"]["content"], tokens(&released[0])),
        (&json!("STb"), vec!["S", "T", "b"])
    );
    // An end of text has no text to ride on, and half a character none yet.
    assert_eq!(fed(&halves(&[0xe6, 0x97], 6)), [Value::Null; 0]);
    assert_eq!(tokens(&fed(&halves(&[0xa5], 7))[0]), ["\u{fffd}"; 3]);
    assert_eq!(fed(&halves(&[EOS], 8)), [Value::Null; 0]);
    let end = fed(&closing_halves(&[EOS], 8, &[EOS], Some(EOS)));
    assert_eq!((&end[0]["delta"], tokens(&end[0])), (&json!({}), vec!["<|eos|>"]));
}

#[test]
fn a_stop_word_takes_the_entries_of_its_tokens() {
    // "P now" is cut in its middle, "ST" and "O" at their beginning.
    let message = [halves(&[256, 259, 79, 261, 97], 5)];
    for streaming in [true, false] {
        let shown = |more: Value| {
            let mut all = json!({"logprobs": 0, "streaming": streaming});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let (read, _) = answer(all, &message);
            let tokens: Vec<_> =
                read.entries.iter().map(|entry| entry["token"].as_str().unwrap().to_owned()).collect();
            (read.content, tokens.join("|"))
        };
        assert_eq!(shown(json!({"stop": ["STOP"]})), ("Hello".into(), "Hello".into()));
        assert_eq!(shown(json!({"stop": ["TOP"]})), ("HelloS".into(), "Hello|ST".into()));
        let keep = json!({"stop": ["STOP"], "no_stop_trim": true});
        assert_eq!(shown(keep), ("HelloSTOP".into(), "Hello|ST|O|P now".into()));
        assert_eq!(shown(json!({"stop": ["Hell"]})), (String::new(), String::new()));
    }
}

#[test]
fn entries_that_only_the_closing_message_has() {
    let all = ids("abc");
    for streaming in [true, false] {
        let more = json!({"logprobs": 1, "streaming": streaming});
        let messages = [chunk(&all[..2], 2), chunk(&all[2..], 3), closing_halves(&[], 3, &all, None)];
        assert_eq!(answer(more.clone(), &messages).0.entries.len(), 3);
        // A chunk that got lost takes its entry along.
        let messages =
            [halves(&all[..1], 1), halves(&all[2..], 3), closing_halves(&all[2..], 3, &all[2..], None)];
        assert_eq!(answer(more.clone(), &messages).0.entries.len(), 2);
        // Neither lists of different lengths nor none at all break anything.
        let odd = OutputLogProbs { token_ids: all.clone(), token_logprobs: vec![-1.0], top_logprobs: vec![] };
        let messages = [scored_chunk(&all, 3, Some(Box::new(odd)), None), complete(&[], 3)];
        assert!(answer(more.clone(), &messages).0.entries.len() <= 1);
        assert_eq!(answer(more, &[chunk(&all, 3), complete(&[], 3)]).0.entries, [Value::Null; 0]);
    }
    let (read, _) = answer(json!({}), &[halves(&all, 3), complete(&[], 3)]);
    assert_eq!(read.entries, [Value::Null; 0], "nobody asked");
}

#[test]
fn the_bytes_of_a_completion() {
    let more = json!({"object": "text_completion", "id": "cmpl-1", "logprobs": 1, "include_usage": true,
                      "prompts": [{"tokens": 2, "echo": "é b"}]});
    let before = input(&[(EOS, None), (97, Some(-1.5))], &[&[], &[(98, -0.25)]]);
    let first = scored_chunk(&[256], 1, output(&[(256, -0.5)], &[&[(256, -0.5)]]), before);
    let mut stream = stream(more.clone());
    assert_eq!(stream.feed(0, &first).unwrap(), OUTPUT);
    let head =
        r#"data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"small","choices":["#;
    let logprobs = r#"{"tokens":["<|eos|>","a","Hello"],"token_logprobs":[null,-1.5,-0.5],"top_logprobs":[null,{"b":-0.25,"a":-1.5},{"Hello":-0.5}],"text_offset":[0,0,3]}"#;
    let text = r#"{"index":0,"text":"é bHello","logprobs":"#;
    let expected = format!("{head}{text}{logprobs},\"finish_reason\":null}}],\"usage\":null}}\n\n");
    assert_eq!(String::from_utf8(stream.take()).unwrap(), expected);
    stream.feed(0, &closing_halves(&[264, 10], 3, &[264, 10], None)).unwrap();
    let rest = String::from_utf8(stream.take()).unwrap();
    let list = r#"{"tokens":["bytes:\\xe6\\x97","\n"],"token_logprobs":[-0.5,-0.5],"top_logprobs":[{"bytes:\\xe6\\x97":-0.5},{"\n":-0.5}],"text_offset":[8,8]}"#;
    assert!(rest.contains(list), "{rest}");
    let end = r#"{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}"#;
    let usage = r#"],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"#;
    assert!(
        rest.contains(&format!("{head}{end}\n\n{head}{usage}")) && rest.ends_with("data: [DONE]\n\n"),
        "{rest}"
    );
}

#[test]
fn late_entries_of_a_prompt_come_first_all_the_same() {
    let more = json!({"object": "text_completion", "logprobs": 0, "prompts": [{"echo": "a b"}]});
    let close = encode(GenerateComplete {
        input_logprobs: input(&[(97, None), (5000, Some(-1.0)), (98, Some(-2.0))], &[]),
        ..complete_of(&[], 1, "length", None)
    });
    let (read, _) = answer(more, &[halves(&ids("c"), 1), close]);
    assert_eq!(read.content, "a bc");
    let entries: Vec<_> = read.entries.iter().map(|entry| (&entry[0], &entry[1], &entry[3])).collect();
    let expected = json!([["a", null, 0], ["", -1.0, 1], ["b", -2.0, 1], ["c", -0.5, 3]]);
    assert_eq!(json!(entries), expected);
}

#[test]
fn several_prompts_add_up() {
    let more = json!({"object": "text_completion", "choices": 4, "streaming": false,
                      "prompts": [{"tokens": 5, "echo": "one"}, {"tokens": 9, "echo": "two"}]});
    let mut stream = stream(more);
    assert_eq!(stream.stats().usage.prompt, 14);
    for choice in 0..4 {
        let known = GenerateComplete { prompt_tokens: 0, ..complete_of(&ids("!"), 1, "stop", None) };
        stream.feed(choice, &encode(known)).unwrap();
    }
    let all = read_whole(&stream.options, &stream.result());
    let texts: Vec<_> = all.choices.values().map(|read| &*read.content).collect();
    assert_eq!(texts, ["one!", "one!", "two!", "two!"]);
    let usage = all.usage.unwrap();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(14), &json!(4)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 6);
    let wrong = |more: Value| {
        let mut all = json!({"id": "", "created": 1, "model": "", "choices": 3});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Options::from_json(all.to_string().as_bytes()).is_err()
    };
    assert!(wrong(json!({"prompts": [{}, {}]})) && wrong(json!({"ids": ["a"]})));
    assert!(
        wrong(json!({"object": "chat"})) && !wrong(json!({"prompts": [{}, {}, {}], "ids": ["a", "b", "c"]}))
    );
}

#[test]
fn the_bytes_of_generate() {
    let more = json!({"object": "generate", "id": "r", "logprobs": 1, "logprobs_text": true, "stop": ["zz"],
                      "include_usage": true, "system_fingerprint": "v1"});
    let mut stream = stream(more);
    let nothing = scored_chunk(&[], 0, None, input(&[(97, None)], &[]));
    assert_eq!(stream.feed(0, &nothing).unwrap(), 0, "no news, no event");
    assert!(!stream.started());
    stream
        .feed(0, &scored_chunk(&ids("az"), 2, output(&[(97, -0.5), (122, -1.0)], &[&[(97, -0.5)]]), None))
        .unwrap();
    let event = r#"{"text":"a","output_ids":[97,122],"meta_info":{"id":"r","finish_reason":null,"prompt_tokens":7,"weight_version":"v1","input_token_logprobs":[[null,97,"a"]],"output_token_logprobs":[[-0.5,97,"a"],[-1.0,122,"z"]],"output_token_logprobs_length":2,"input_top_logprobs":[null],"output_top_logprobs":[[[-0.5,97,"a"]],null],"reasoning_tokens":0,"completion_tokens":2,"cached_tokens":3}}"#;
    assert_eq!(String::from_utf8(stream.take()).unwrap(), format!("data: {event}\n\n"));
    let flags = stream.feed(0, &halves(&ids("zb"), 4)).unwrap();
    assert_eq!(flags, OUTPUT | CHOICE_DONE | CANCEL | ALL_DONE);
    let text = String::from_utf8(stream.take()).unwrap();
    assert!(text.contains(r#"{"text":"a","output_ids":[97,122,122],"#), "the word's own ids stay: {text}");
    assert!(text.contains(r#""finish_reason":{"type":"stop","matched":"zz"},"#), "{text}");
    assert!(text.contains(r#""completion_tokens":3,"cached_tokens":3,"e2e_latency":"#), "{text}");
    assert!(text.ends_with("}}\n\ndata: [DONE]\n\n"), "no usage event: {text}");
}

#[test]
fn the_bytes_of_all_entries_are_the_text() {
    let tokenizer = laws::tokenizer();
    let text = "STAR 日本語 👩‍👩‍👧 é\n<|end|>";
    let all = tokenizer.encode(text, false).unwrap();
    let options = options(json!({"logprobs": 0, "skip_special_tokens": false}));
    let mut stream: Stream = Stream::new(tokenizer, options.clone()).unwrap();
    for (at, id) in all.iter().enumerate() {
        stream.feed(0, &halves(&[*id], at as u32 + 1)).unwrap();
    }
    stream.feed(0, &closing(&[], all.len() as u32, "length", None)).unwrap();
    let read = read(&options, stream.buffer()).choices.remove(&0).unwrap();
    assert_eq!((&*read.content, read.entries.len()), (text, all.len()));
    let bytes = |entry: &Value| serde_json::from_value::<Vec<u8>>(entry["bytes"].clone()).unwrap();
    assert_eq!(read.entries.iter().flat_map(bytes).collect::<Vec<_>>(), text.as_bytes());
    assert_eq!(read.entries.last().unwrap()["token"], "<|end|>");
}

#[test]
fn generate_in_batches() {
    let more = json!({"object": "generate", "id": "r", "choices": 2, "streaming": false});
    let mut whole = stream(more.clone());
    whole.feed(1, &closing(&[104, EOS], 2, "stop", Some(MatchedStop::TokenId(EOS)))).unwrap();
    whole.feed(0, &closing(&[105], 1, "length", None)).unwrap();
    let list: Value = serde_json::from_slice(&whole.result()).unwrap();
    assert_eq!(
        (&list[0]["text"], &list[0]["index"], &list[0]["meta_info"]["id"]),
        (&json!("i"), &json!(0), &json!("r_0"))
    );
    assert_eq!(list[0]["meta_info"]["finish_reason"], json!({"type": "length", "length": 1}));
    assert_eq!((&list[1]["text"], &list[1]["output_ids"]), (&json!("h"), &json!([104, EOS])));
    assert_eq!(
        list[1]["meta_info"]["finish_reason"],
        json!({"type": "stop", "matched": EOS}),
        "SGLang tells it"
    );
    assert_eq!(list[1]["meta_info"].get("output_token_logprobs"), None);
    for (batch, ids, id) in
        [(true, json!(["mine"]), "mine"), (true, json!([]), "r_0"), (false, json!([]), "r")]
    {
        let mut one =
            json!({"object": "generate", "id": "r", "batch": batch, "ids": ids, "streaming": false});
        one["system_fingerprint"] = Value::Null;
        let mut stream = Stream::new(Bytes::new(), options(one)).unwrap();
        stream.feed(0, &complete(&[105], 1)).unwrap();
        let whole: Value = serde_json::from_slice(&stream.result()).unwrap();
        let object = if batch { &whole[0] } else { &whole };
        assert_eq!(object["meta_info"]["id"], id);
        assert_eq!(object["meta_info"]["finish_reason"], json!({"type": "stop", "matched": null}));
    }
}
