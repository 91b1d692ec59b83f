//! A client's messages as a template's `messages`.
//!
//! What transformers' `apply_chat_template` does to them is done here (keys that are null are dropped,
//! reasoning stands under all its names), and what only a server has to: content in the form the template
//! reads, tool-call arguments as a dict where the template wants one, `developer` as `system`.

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::value::{dict, from_json};
use super::{ContentForm, json};
use crate::error::{Code, Error, Result};
use crate::integers;

/// The names reasoning is passed under; the first is the one most templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// What a template reads, found by [`super::probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms {
    pub system: Content,
    pub user: Content,
    pub assistant: Content,
    pub tool: Content,
    /// What stands for the content of an assistant's message that only calls tools.
    pub beside_calls: Missing,
    /// What stands for the content of any other assistant's message that has none.
    pub missing: Missing,
    /// Tool-call arguments are read as a dict rather than as JSON text. So they are handed over parsed, as by
    /// SGLang, where the template would take the client's text as well: a prompt does not depend on the blanks
    /// that the client's JSON library writes.
    pub arguments_as_dict: bool,
    /// The template knows the role `developer`.
    pub developer: bool,
}

/// What a template makes of one role's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub parts: bool,
    pub text: bool,
}

/// What a template needs in the place of content that is null or left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing: transformers drops keys that are null.
    Absent,
    /// An empty text, as SGLang has it: most templates concatenate what they take for a text.
    Empty,
    /// None: some templates ask `content is none` before they look for calls.
    None,
}

impl Content {
    pub const TEXT: Self = Self { parts: false, text: true };

    pub fn form(self) -> ContentForm {
        if self.parts { ContentForm::Parts } else { ContentForm::String }
    }
}

impl Forms {
    /// Everything passed as it came: what transformers does.
    pub const AS_GIVEN: Self = {
        let both = Content { parts: true, text: true };
        Self {
            system: both,
            user: both,
            assistant: both,
            tool: both,
            beside_calls: Missing::Absent,
            missing: Missing::Absent,
            arguments_as_dict: false,
            developer: true,
        }
    };

    fn content(&self, role: &str) -> Content {
        match role {
            "system" | "developer" => self.system,
            "assistant" => self.assistant,
            "tool" | "function" => self.tool,
            _ => self.user,
        }
    }
}

/// The final message's text while it carries the mark at which the prompt will be cut.
pub struct Continued {
    /// The text before the mark was put behind it.
    pub text: String,
}

/// `messages` for the template; with `mark`, the last message's text is marked to be continued.
///
/// Errors: `InvalidRequest` at the message that cannot be read, or that has nothing to continue.
pub fn convert(messages: &Json, forms: &Forms, mark: Option<&str>) -> Result<(Value, Option<Continued>)> {
    let list = messages.as_array().filter(|list| !list.is_empty()).ok_or_else(|| {
        Error::new(Code::InvalidRequest, "messages must be a non-empty list").at("messages")
    })?;
    let mut continued = None;
    let mut out = Vec::with_capacity(list.len());
    for (index, message) in list.iter().enumerate() {
        let fail = |text: &str| Error::new(Code::InvalidRequest, text).at(format!("messages[{index}]"));
        let message = message.as_object().ok_or_else(|| fail("a message must be an object"))?;
        let mut entries = convert_message(message, forms);
        if let Some(mark) = mark.filter(|_| index + 1 == list.len()) {
            let text = mark_content(&mut entries, mark)
                .ok_or_else(|| fail("continue_final_message: the final message has no text to continue"))?;
            continued = Some(Continued { text });
        }
        out.push(dict(entries));
    }
    Ok((Value::from(out), continued))
}

fn convert_message(message: &Map<String, Json>, forms: &Forms) -> Vec<(Value, Value)> {
    let role = message.get("role").and_then(Json::as_str).unwrap_or_default();
    let given = |name: &str| message.get(name).filter(|given| !given.is_null());
    let reasoning = REASONING.iter().find_map(|name| given(name));
    let mut entries = Vec::with_capacity(message.len() + 2);
    // In front whoever put it there: templates may print a whole message.
    if let Some(thinking) = given("thinking").or(reasoning) {
        entries.push((Value::from("thinking"), from_json(thinking)));
    }
    for (key, given) in message {
        if given.is_null() || key == "thinking" {
            continue;
        }
        let value = match (key.as_str(), given) {
            ("role", Json::String(name)) if name == "developer" && !forms.developer => Value::from("system"),
            ("content", _) => convert_content(given, forms.content(role)),
            ("tool_calls", Json::Array(calls)) => {
                Value::from(calls.iter().map(|call| convert_call(call, forms)).collect::<Vec<_>>())
            }
            _ => from_json(given),
        };
        entries.push((Value::from(key.as_str()), value));
    }
    if role == "assistant" {
        fill_content(&mut entries, message, forms);
    }
    if let (Some(reasoning), None) = (reasoning, given("reasoning_content")) {
        entries.push((Value::from("reasoning_content"), from_json(reasoning)));
    }
    entries
}

/// Gives an assistant's message that has no content what the template needs there. Empty text beside calls is
/// no content either where the template would not look at the calls.
fn fill_content(entries: &mut Vec<(Value, Value)>, message: &Map<String, Json>, forms: &Forms) {
    let calls = message.get("tool_calls").and_then(Json::as_array).is_some_and(|calls| !calls.is_empty());
    let content = message.get("content").filter(|content| !content.is_null());
    let filler = match if calls { forms.beside_calls } else { forms.missing } {
        Missing::Absent => return,
        Missing::Empty => Value::from(""),
        Missing::None => Value::from(()),
    };
    let key = Value::from("content");
    if content.is_none() {
        // Where it usually stands, see above.
        let at = entries.iter().position(|(name, _)| name.as_str() == Some("role")).map_or(0, |at| at + 1);
        entries.insert(at, (key, filler));
    } else if filler.is_none()
        && content.and_then(Json::as_str) == Some("")
        && let Some(entry) = entries.iter_mut().find(|(name, _)| *name == key)
    {
        entry.1 = filler;
    }
}

/// Content in the form the template reads.
///
/// Text parts for a template that reads strings are joined by a blank, as SGLang joins them: a prompt is
/// then the same whichever of the two front ends made it. (transformers would print the list itself.)
fn convert_content(content: &Json, form: Content) -> Value {
    match content {
        Json::Array(parts) if !form.parts => {
            let texts: Vec<&str> = parts
                .iter()
                .filter_map(|part| part.as_str().or_else(|| part.get("text")?.as_str()))
                .collect();
            Value::from(texts.join(" "))
        }
        Json::String(text) if form.parts && !form.text => Value::from(vec![dict(vec![
            (Value::from("type"), Value::from("text")),
            (Value::from("text"), Value::from(text.as_str())),
        ])]),
        _ => from_json(content),
    }
}

/// A tool call, its arguments in the form the template reads. Text that is no JSON object stays text.
fn convert_call(call: &Json, forms: &Forms) -> Value {
    let Some(entries) = call.as_object() else {
        return from_json(call);
    };
    let convert = |key: &str, given: &Json| match (key, given) {
        ("function", Json::Object(_)) => convert_call(given, forms),
        ("arguments", Json::String(text)) if forms.arguments_as_dict => match text.trim() {
            "" => dict(Vec::new()),
            text => match serde_json::from_slice::<Json>(&integers::wrap(text.as_bytes())) {
                Ok(parsed @ Json::Object(_)) => from_json(&parsed),
                _ => from_json(given),
            },
        },
        ("arguments", Json::Object(_)) if !forms.arguments_as_dict && *forms != Forms::AS_GIVEN => {
            Value::from(json::dumps(given))
        }
        _ => from_json(given),
    };
    dict(entries.iter().map(|(key, given)| (Value::from(key.as_str()), convert(key, given))).collect())
}

/// Puts `mark` behind the content, or behind its last text part; the text it was put behind.
fn mark_content(entries: &mut [(Value, Value)], mark: &str) -> Option<String> {
    let content = entries.iter_mut().find(|(key, _)| key.as_str() == Some("content"))?;
    if let Some(text) = content.1.as_str().map(str::to_owned) {
        content.1 = Value::from(format!("{text}{mark}"));
        return Some(text);
    }
    let mut parts: Vec<Value> = content.1.try_iter().ok()?.collect();
    for part in parts.iter_mut().rev() {
        let key = Value::from("text");
        let Some(text) = part.get_item(&key).ok().and_then(|text| text.to_str()) else {
            continue;
        };
        let pairs = part.as_object()?.try_iter_pairs()?;
        let pairs = pairs.map(|(name, item)| match name.as_str() {
            Some("text") => (name, Value::from(format!("{text}{mark}"))),
            _ => (name, item),
        });
        *part = dict(pairs.collect());
        content.1 = Value::from(parts);
        return Some(text.to_string());
    }
    None
}
