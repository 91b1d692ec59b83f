//! Reads `text_completion` and `/generate` answers into the shape of [`Read`].

use serde_json::{Value, json};

use super::response::*;
use crate::stream::*;

pub fn read_text(options: &Options, event: &Value, all: &mut Answer) {
    let usage = event.get("usage").cloned();
    let [choice] = &event["choices"].as_array().unwrap()[..] else {
        assert!(options.include_usage, "only the usage event is without a choice");
        all.usage = Some(usage.expect("usage"));
        return;
    };
    check_usage(options, &usage);
    let read = all.choices.entry(choice["index"].as_u64().unwrap()).or_default();
    assert_eq!(read.finish, None, "the finish event is a choice's last");
    take_text(read, choice);
    assert_eq!(choice["text"] == "", read.finish.is_some(), "no empty text but at the end");
    read.usage = usage.filter(|usage| !usage.is_null());
}

/// One choice of an event or of a whole answer.
pub fn take_text(read: &mut Read, choice: &Value) {
    read.role = true;
    let keys: Vec<_> = choice.as_object().unwrap().keys().filter(|key| *key != "matched_stop").collect();
    assert_eq!(keys, ["index", "text", "logprobs", "finish_reason"]);
    read.content.push_str(choice["text"].as_str().unwrap());
    read.finish = choice["finish_reason"].as_str().map(str::to_owned);
    read.matched = choice.get("matched_stop").cloned();
    if choice["logprobs"].is_null() {
        return;
    }
    let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    let lists = lists.map(|name| choice["logprobs"][name].as_array().unwrap());
    assert!(!lists[0].is_empty() && lists.iter().all(|list| list.len() == lists[0].len()));
    for at in 0..lists[0].len() {
        read.entries.push(json!(lists.map(|list| &list[at])));
    }
}

/// An event of `/generate`: all that the ones before said, and more.
pub fn read_generate(options: &Options, event: &Value, all: &mut Answer) {
    let index = event.get("index").map_or(0, |index| index.as_u64().unwrap());
    let before = all.choices.remove(&index).unwrap_or_default();
    assert_eq!(before.finish, None, "the finish event is a choice's last");
    let now = generated(options, event);
    assert!(now.content.starts_with(&before.content));
    assert!(now.ids.starts_with(&before.ids));
    assert!(now.entries.starts_with(&before.entries));
    assert!(now.prompt.starts_with(&before.prompt));
    assert!(now.ids.len() > before.ids.len() || now.finish.is_some(), "an event has news");
    all.choices.insert(index, now);
}

/// One object of `/generate`, whole or streamed.
pub fn generated(options: &Options, object: &Value) -> Read {
    let meta = &object["meta_info"];
    let index = object.get("index").map(|index| index.as_u64().unwrap());
    assert_eq!(index.is_some(), options.in_batch());
    let id =
        if options.in_batch() { format!("{}_{}", options.id, index.unwrap()) } else { options.id.clone() };
    assert_eq!(meta["id"], id);
    assert_eq!(meta.get("weight_version").and_then(Value::as_str), options.system_fingerprint.as_deref());
    assert_eq!(meta["prompt_tokens"], 7);
    assert_eq!(meta["cached_tokens"], 3);
    let ids: Vec<u32> = serde_json::from_value(object["output_ids"].clone()).unwrap();
    assert_eq!(meta["completion_tokens"], json!(ids.len()));
    let finish = meta["finish_reason"]["type"].as_str().map(str::to_owned);
    assert_eq!(meta.get("e2e_latency").is_some_and(Value::is_f64), finish.is_some());
    match finish.as_deref() {
        Some("length") => assert_eq!(meta["finish_reason"], json!({"type": "length", "length": ids.len()})),
        Some(_) => assert!(meta["finish_reason"].get("matched").is_some()),
        None => assert!(meta["finish_reason"].is_null()),
    }
    let rows = |own: &str, top: &str| match (&meta[own], options.logprobs) {
        (rows, None) => {
            assert!(rows.is_null());
            Vec::new()
        }
        (rows, Some(0)) => rows.as_array().unwrap().clone(),
        (rows, Some(_)) => {
            let (rows, tops) = (rows.as_array().unwrap(), meta[top].as_array().unwrap());
            assert_eq!(rows.len(), tops.len());
            rows.iter().zip(tops).map(|(own, top)| json!([own, top])).collect()
        }
    };
    let entries = rows("output_token_logprobs", "output_top_logprobs");
    if options.logprobs.is_some() {
        assert_eq!(meta["output_token_logprobs_length"], json!(entries.len()));
    }
    Read {
        role: true,
        content: object["text"].as_str().unwrap().to_owned(),
        matched: meta["finish_reason"].get("matched").filter(|matched| !matched.is_null()).cloned(),
        finish,
        usage: None,
        prompt: rows("input_token_logprobs", "input_top_logprobs"),
        entries,
        ids,
        ..Read::default()
    }
}
