//! Tool calls, case by case; `thinking` has those of reasoning, `reading_laws` what holds for all of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::fixtures::{Bytes, EOS};
use super::response::*;
use super::said::*;
use crate::stream::*;
use crate::wire::MatchedStop;

#[test]
fn the_bytes_of_a_call() {
    let mut stream = stream(qwen(json!({})));
    let text = format!("Hi <think{SEARCH}");
    stream.feed(0, &chunk(&ids(&text), text.len() as u32)).unwrap();
    stream.feed(0, &complete(&[], text.len() as u32)).unwrap();
    let text = String::from_utf8(stream.take()).unwrap();
    let deltas: Vec<_> = text.split("\n\n").filter_map(|event| event.split_once("\"delta\":")).collect();
    let id = text.split("\"id\":\"call_").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(
        deltas.iter().map(|(_, delta)| delta.to_string()).collect::<Vec<_>>(),
        [
            r#"{"role":"assistant","content":""},"finish_reason":null}]}"#.to_owned(),
            r#"{"content":"Hi <think"},"finish_reason":null}]}"#.to_owned(),
            format!(
                r#"{{"tool_calls":[{{"index":0,"id":"call_{id}","type":"function","function":{{"name":"search","arguments":"{{\"query\": \"日本 }}\"}}"}}}}]}},"finish_reason":null}}]}}"#
            ),
            r#"{},"finish_reason":"tool_calls"}]}"#.to_owned(),
        ]
    );
}

#[test]
fn calls_with_prose_and_thoughts() {
    let all = qwen(json!({}));
    let read = said(&all, SEARCH);
    assert_eq!((parts(&read), calls(&read)), (("", "", "tool_calls"), vec![SEARCHED]));
    let read = said(&all, &format!("Let me look.{SEARCH}\n{PING}"));
    assert_eq!((parts(&read), calls(&read)), (("Let me look.", "", "tool_calls"), vec![SEARCHED, PINGED]));
    assert_eq!(
        read.deltas,
        ["content", "tool_calls", "tool_calls"],
        "a call is a delta where it comes at once"
    );
    let read = said(&all, &format!("<think>So <tool_call></think>{SEARCH}"));
    assert_eq!((parts(&read), calls(&read)), (("", "So <tool_call>", "tool_calls"), vec![SEARCHED]));
    assert_eq!(read.deltas, ["reasoning_content", "tool_calls"]);
    let read = said(&all, "No call.");
    assert_eq!(parts(&read), ("No call.", "", "stop"));
    let read = said(&all, &format!("{}{PING}", call("nobody")));
    assert_eq!((parts(&read), calls(&read)), (("", "", "tool_calls"), vec![PINGED]));
    let read = said(&all, &call("nobody"));
    assert_eq!((parts(&read), calls(&read)), (("", "", "stop"), vec![]));
    // Without tools the text is the answer.
    let mut none = qwen(json!({"tools": []}));
    assert_eq!(parts(&said(&none, PING)), (PING, "", "stop"));
    none["reasoning_format"] = Value::Null;
    assert_eq!(parts(&said(&none, PING)), (PING, "", "stop"));
    let unknown = options(json!({"tools": functions(), "tool_format": "nobody's"}));
    assert!(Stream::new(Bytes::new(), unknown).is_err());
}

#[test]
fn what_ends_a_choice_with_calls() {
    let text = ids(&format!("{SEARCH}{PING}"));
    let read = ended(&qwen(json!({})), &text, "length", None);
    assert_eq!((parts(&read), read.calls.len()), (("", "", "length"), 2));
    let read = ended(&qwen(json!({})), &text[..SEARCH.find('日').unwrap()], "length", None);
    assert_eq!(calls(&read), [("search", "{\"query\": \"")], "as far as it goes");
    assert_eq!(read.finish.as_deref(), Some("length"));
    let read = ended(&qwen(json!({})), &text, "content_filter", None);
    assert_eq!(read.finish.as_deref(), Some("content_filter"));
    let eos = Some(MatchedStop::TokenId(EOS));
    let read = ended(&qwen(json!({})), &[text.clone(), vec![EOS]].concat(), "stop", eos);
    assert_eq!((parts(&read), read.calls.len(), read.matched.clone()), (("", "", "tool_calls"), 2, None));
    for more in [json!({"legacy_function_call": true}), json!({"parallel": false})] {
        let read = ended(&qwen(more.clone()), &text, "stop", None);
        assert_eq!(calls(&read), [SEARCHED], "one call is all that may come: {more}");
        let legacy = more.get("legacy_function_call").is_some();
        assert_eq!(read.finish.as_deref(), Some(if legacy { "function_call" } else { "tool_calls" }));
        assert_eq!(read.calls[0].id.is_empty(), legacy);
    }
}

#[test]
fn ids_of_calls() {
    let text = format!("{SEARCH}{PING}");
    let all = |more: Value| {
        let mut ids = Vec::new();
        for streaming in [true, false] {
            let mut all = qwen(json!({"choices": 3, "streaming": streaming}));
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut stream = stream(all);
            (0..3).for_each(|choice| {
                stream.feed(choice, &complete(&super::response::ids(&text), text.len() as u32)).unwrap();
            });
            let read = if streaming {
                read(&stream.options, stream.buffer())
            } else {
                read_whole(&stream.options, &stream.result())
            };
            let list = read.choices.values().flat_map(|choice| &choice.calls);
            ids.push(list.map(|call| call.id.clone()).collect::<Vec<_>>());
        }
        assert_eq!(ids[0], ids[1], "the same in both modes");
        ids.swap_remove(0)
    };
    let (own, other) = (all(json!({})), all(json!({"id": "chatcmpl-2"})));
    let distinct: BTreeSet<_> = own.iter().chain(&other).collect();
    assert_eq!(distinct.len(), 12, "no two calls share an id");
    for id in distinct {
        let digits = id.strip_prefix("call_").unwrap();
        assert!(digits.len() == 24 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
    }
    let kimi = all(json!({"id_style": "kimi", "calls_before": 4}));
    assert_eq!(kimi, ["functions.search:4", "functions.ping:5"].repeat(3));
}

#[test]
fn forced_calls() {
    let array = r#" [{"name": "search", "parameters": {"query": "a"}}, {"name": "ping", "parameters": {}}]"#;
    let named = r#"{"query": "a", "limit": 3}"#;
    let first = json!([functions()[0]]);
    let thoughts = "<think>[Hm] {\"name\"}</think>\n";
    for (reasoning, inside, opened) in [
        ("qwen3", Value::Null, true),
        ("qwen3", json!(true), false),
        ("deepseek_r1", Value::Null, false),
        ("deepseek_r1", json!(true), true),
        ("kimi_k2", json!(false), true),
    ] {
        let forced = |read_as: &str| {
            let tools = if read_as == "calls_array" { functions() } else { first.clone() };
            qwen(
                json!({"read_as": read_as, "tools": tools, "reasoning_format": reasoning, "starts_inside": inside}),
            )
        };
        let skip = if opened { 0 } else { "<think>".len() };
        for (before, thought) in [("", ""), (&thoughts[skip..], "[Hm] {\"name\"}")] {
            let text = format!("{before}{array}");
            let read = said(&forced("calls_array"), &text);
            assert_eq!(
                (parts(&read), calls(&read)),
                (("", thought, "tool_calls"), vec![("search", r#"{"query": "a"}"#), PINGED]),
                "{reasoning} {inside}"
            );
            let read = ended(
                &forced("calls_array"),
                &ids(text.split_once(", {\"name\": \"p").unwrap().0),
                "length",
                None,
            );
            assert_eq!(
                (parts(&read), calls(&read)),
                (("", thought, "length"), vec![("search", r#"{"query": "a"}"#)])
            );
            let text = format!("{before}{named}");
            let read = said(&forced("named_arguments"), &text);
            assert_eq!((parts(&read), calls(&read)), (("", thought, "tool_calls"), vec![("search", named)]));
            let read = ended(&forced("named_arguments"), &ids(&text)[..text.len() - 3], "length", None);
            let cut = &named[..named.len() - 3];
            assert_eq!((parts(&read), calls(&read)), (("", thought, "length"), vec![("search", cut)]));
            // Thoughts that stay in the content.
            let mut kept = forced("calls_array");
            kept["separate_reasoning"] = json!(false);
            let read = said(&kept, &format!("{before}{array}"));
            assert_eq!((read.content.trim_end(), calls(&read)[1]), (before.trim_end(), PINGED));
        }
    }
    let one = said(&qwen(json!({"read_as": "calls_array", "parallel": false})), array);
    assert_eq!((parts(&one), calls(&one)), (("", "", "tool_calls"), vec![("search", r#"{"query": "a"}"#)]));
    // What never tells is thoughts, as the prompt says.
    let all = qwen(json!({"read_as": "calls_array", "starts_inside": true}));
    for text in ["[", " [ ", "[x", "{"] {
        assert_eq!(parts(&ended(&all, &ids(text), "length", None)), ("", text, "length"));
    }
    let read = said(&qwen(json!({"read_as": "calls_array"})), r#"[{"name": "nobody", "parameters": {}}]"#);
    assert_eq!(read.calls.len(), 0, "only the tools of the request");
}

#[test]
fn stop_words_apply_to_the_answer() {
    let stopping = |more: Value| {
        let mut all = qwen(more);
        all["stop"] = json!(["STOP"]);
        all
    };
    let text = format!("<think>STOP? No.</think>Look. {SEARCH} And STOP{PING}");
    let read = said(&stopping(json!({})), &text);
    assert_eq!((parts(&read), calls(&read)), (("Look.  And ", "STOP? No.", "tool_calls"), vec![SEARCHED]));
    assert_eq!(read.matched, Some(json!("STOP")));
    let upto = text.rfind("STOP").unwrap() + 4;
    assert_eq!(read.usage.as_ref().unwrap()["completion_tokens"], upto, "tokens up to the stop");
    let read = said(&stopping(json!({"no_stop_trim": true})), "Well STOP it");
    assert_eq!((parts(&read), read.matched.clone()), (("Well STOP", "", "stop"), Some(json!("STOP"))));
    // Half in the thoughts and half behind them is none.
    let read = said(&stopping(json!({})), "<think>ST</think>OP");
    assert_eq!(parts(&read), ("OP", "ST", "stop"));
    // Nor does it matter where the thoughts go.
    let read = said(&stopping(json!({"separate_reasoning": false})), "<think>STOP?</think>a STOP b");
    assert_eq!(parts(&read), ("<think>STOP?</think>a ", "", "stop"));
    // A call is text of the model's: what comes before the word stays, and the word tells why it is cut.
    let text = "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"a STOP b\"}}</tool_call>";
    let read = said(&stopping(json!({})), text);
    assert_eq!((calls(&read), &read.matched), (vec![("search", "{\"query\": \"a ")], &Some(json!("STOP"))));
    assert_eq!(read.finish.as_deref(), Some("tool_calls"));
    let mut stream = stream(stopping(json!({})));
    let flags = stream.feed(0, &chunk(&ids(text), text.len() as u32)).unwrap();
    assert_eq!(flags & (CANCEL | ALL_DONE), CANCEL | ALL_DONE);
}

#[test]
fn choices_are_read_apart() {
    let texts = [SEARCH.to_owned(), format!("<think>so</think>{PING}"), "<think>so".to_owned()];
    for streaming in [true, false] {
        let mut stream = stream(qwen(json!({"choices": 3, "streaming": streaming, "include_usage": true})));
        let longest = texts.iter().map(String::len).max().unwrap();
        for at in 0..longest {
            for (choice, text) in (0..).zip(&texts).filter(|(_, text)| at < text.len()) {
                stream
                    .feed(
                        choice,
                        &chunk(
                            &text.as_bytes()[at..=at].iter().map(|&b| b.into()).collect::<Vec<_>>(),
                            at as u32 + 1,
                        ),
                    )
                    .unwrap();
            }
        }
        for (choice, text) in (0..).zip(&texts) {
            let finish = if choice == 2 { "length" } else { "stop" };
            stream.feed(choice, &closing(&[], text.len() as u32, finish, None)).unwrap();
        }
        let all = if streaming {
            read(&stream.options, stream.buffer())
        } else {
            read_whole(&stream.options, &stream.result())
        };
        let list: Vec<_> = all.choices.values().map(|read| (parts(read), calls(read))).collect();
        assert_eq!(
            list,
            [
                (("", "", "tool_calls"), vec![SEARCHED]),
                (("", "so", "tool_calls"), vec![PINGED]),
                (("", "so", "length"), vec![]),
            ]
        );
        let reasoning = "<think>so</think".len() - 6 + "<think>so".len() - 6;
        assert_eq!(all.usage.unwrap()["completion_tokens_details"]["reasoning_tokens"], reasoning);
    }
}

#[test]
fn a_failure_midway() {
    let text = SEARCH.split_once('本').unwrap().0;
    let mut stream = stream(qwen(json!({})));
    stream.feed(0, &chunk(&ids(text), text.len() as u32)).unwrap();
    assert_eq!(stream.end(0).unwrap() & FAILED, FAILED);
    stream.fail("{\"error\":{\"message\":\"no\"}}");
    let all = read(&stream.options, stream.buffer());
    assert_eq!(all.error.unwrap()["error"]["message"], "no");
    let read = &all.choices[&0];
    assert_eq!((&read.finish, &*read.calls[0].name), (&None, "search"));
    assert!(SEARCHED.1.starts_with(&read.calls[0].arguments));
}
