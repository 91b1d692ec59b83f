//! Reads reasoning and tool calls out of deltas and messages.

use serde_json::{Map, Value, json};

use super::response::Read;
use crate::stream::*;

/// A tool call put together again; the id and type of a `function_call` are empty.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

/// A delta that is neither the first nor the last of its choice.
pub fn take_delta(options: &Options, read: &mut Read, delta: &Map<String, Value>) {
    let (name, value) = delta.iter().next().unwrap();
    assert_eq!(delta.len(), 1, "a delta says one thing");
    read.deltas.push(name.clone());
    match name.as_str() {
        "content" => add(&mut read.content, value),
        "reasoning_content" => add(&mut read.reasoning, value),
        "function_call" => {
            assert!(options.legacy_function_call);
            take_function(
                &mut read.calls,
                read.deltas.iter().filter(|name| *name == "function_call").count() == 1,
                value,
            );
        }
        "tool_calls" => {
            assert!(!options.legacy_function_call);
            let [call] = &value.as_array().unwrap()[..] else { panic!("one call a delta") };
            let index = call["index"].as_u64().unwrap() as usize;
            let first = index == read.calls.len();
            assert!(first || index + 1 == read.calls.len(), "calls come one after the other");
            let keys: Vec<_> = call.as_object().unwrap().keys().collect();
            if first {
                assert_eq!(keys, ["index", "id", "type", "function"]);
                assert_eq!(call["type"], "function");
            } else {
                assert_eq!(keys, ["index", "function"], "a call is named once");
            }
            take_function(&mut read.calls, first, &call["function"]);
            if first {
                call["id"].as_str().unwrap().clone_into(&mut read.calls[index].id);
            }
        }
        other => panic!("{other}"),
    }
}

fn add(text: &mut String, value: &Value) {
    assert_ne!(value, "", "no empty delta");
    text.push_str(value.as_str().unwrap());
}

fn take_function(calls: &mut Vec<Call>, first: bool, function: &Value) {
    let arguments = function["arguments"].as_str().unwrap();
    if first {
        assert_eq!(function.as_object().unwrap().keys().collect::<Vec<_>>(), ["name", "arguments"]);
        calls.push(Call { name: function["name"].as_str().unwrap().to_owned(), ..Call::default() });
    } else {
        assert_eq!(*function, json!({"arguments": arguments}));
        assert_ne!(arguments, "", "no empty delta");
    }
    calls.last_mut().unwrap().arguments.push_str(arguments);
}

/// The message of a whole answer.
pub fn take_message(options: &Options, read: &mut Read, message: &Map<String, Value>) {
    let mut keys = vec!["role", "content"];
    if let Some(reasoning) = message.get("reasoning_content") {
        keys.push("reasoning_content");
        add(&mut read.reasoning, reasoning);
    }
    if let Some(call) = message.get("function_call") {
        keys.push("function_call");
        assert!(options.legacy_function_call);
        take_function(&mut read.calls, true, call);
    }
    for call in message.get("tool_calls").map(|calls| calls.as_array().unwrap()).into_iter().flatten() {
        assert!(!options.legacy_function_call);
        assert_eq!(call.as_object().unwrap().keys().collect::<Vec<_>>(), ["id", "type", "function"]);
        take_function(&mut read.calls, true, &call["function"]);
        call["id"].as_str().unwrap().clone_into(&mut read.calls.last_mut().unwrap().id);
    }
    keys.extend(message.get("tool_calls").map(|_| "tool_calls"));
    keys.push("refusal");
    assert_eq!(message.keys().collect::<Vec<_>>(), keys);
    assert_ne!(message.get("tool_calls"), Some(&json!([])));
    assert_eq!(message["refusal"], Value::Null);
    message["content"].as_str().unwrap_or_default().clone_into(&mut read.content);
    let none = read.content.is_empty() && !read.calls.is_empty();
    assert_eq!(message["content"].is_null(), none, "null where there are calls and nothing else");
}
