//! Requests with parsers, and what comes of a text in each way that a worker may send it.

use serde_json::{Value, json};

use super::fixtures::Bytes;
use super::response::*;
use crate::stream::*;
use crate::wire::MatchedStop;

pub fn functions() -> Value {
    let search = json!({"type": "object", "properties": {
        "query": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"},
        "score": {"type": ["number", "null"]}, "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"$ref": "#/$defs/Where"}}, "$defs": {"Where": {"type": "object"}}});
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "number"}}});
    json!([{"name": "search", "parameters": search}, {"name": "get_weather", "parameters": weather},
           {"name": "ping"}])
}

pub const SEARCH: &str =
    "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"日本 }\"}}\n</tool_call>";
pub const PING: &str = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";

pub fn qwen(more: Value) -> Value {
    let mut all = json!({"tools": functions(), "tool_format": "qwen", "reasoning_format": "qwen3"});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

pub fn thinking(more: Value) -> Value {
    let mut all = json!({"reasoning_format": "qwen3"});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

/// The text of a call of `name`.
pub fn call(name: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"a\": 1}}}}\n</tool_call>")
}

/// The answer, which is the same whole; `deltas` and `usage` are the streamed one's.
pub fn both(more: &Value, messages: &[Vec<u8>]) -> Read {
    let mut all = more.clone();
    all["streaming"] = json!(false);
    let (whole, usage) = answer(all.clone(), messages);
    all["streaming"] = json!(true);
    all["include_usage"] = json!(true);
    let (streamed, total) = answer(all, messages);
    assert_eq!(usage, total);
    assert_eq!(Read { deltas: Vec::new(), ..streamed.clone() }, whole);
    Read { usage: Some(usage), ..streamed }
}

/// The answer to a text: token by token (with the last in the closing message or not), all in one chunk, and
/// all in the closing message.
pub fn ended(more: &Value, all: &[u32], finish: &str, matched: Option<MatchedStop>) -> Read {
    let count = all.len() as u32;
    let close = |ids: &[u32]| closing(ids, count, finish, matched.clone());
    let mut single: Vec<_> = all.iter().zip(1..).map(|(&id, at)| chunk(&[id], at)).collect();
    let whole = both(more, &[close(all)]);
    for messages in [vec![chunk(all, count), close(&[])], [single.clone(), vec![close(all)]].concat(), {
        single.pop();
        single.push(close(&all[all.len() - 1..]));
        single
    }] {
        let read = both(more, &messages);
        assert_eq!(Read { deltas: whole.deltas.clone(), ..read }, whole);
    }
    whole
}

pub fn said(more: &Value, text: &str) -> Read {
    ended(more, &ids(text), "stop", None)
}

/// Names and arguments.
pub fn calls(read: &Read) -> Vec<(&str, &str)> {
    read.calls.iter().map(|call| (&*call.name, &*call.arguments)).collect()
}

/// Content, reasoning, finish reason.
pub fn parts(read: &Read) -> (&str, &str, &str) {
    (&read.content, &read.reasoning, read.finish.as_deref().unwrap())
}

/// The ids of a text; what stands between `{}` is one token.
pub fn tokens(pieces: &[&str]) -> Vec<u32> {
    let vocabulary = Bytes::new();
    pieces
        .iter()
        .flat_map(|piece| vocabulary.token_id(piece).map_or_else(|| ids(piece), |id| vec![id]))
        .collect()
}

pub const SEARCHED: (&str, &str) = ("search", r#"{"query": "日本 }"}"#);
pub const PINGED: (&str, &str) = ("ping", "{}");
