//! What a template reads, found by rendering small conversations with it.
//!
//! Rendering answers what no look at the source can: a loop over `content` may be for images only, a
//! variable of another name may hold it, and text may be dropped in the form the template does not expect.

use serde_json::{Map, Value as Json, json};

use super::messages::{Content, Forms};
use super::{ChatTemplate, Limits, RenderInput};

/// A text that no template contains.
const MARK: &str = "qz7probe";
/// Enough for any template's few messages, little enough for a hostile one.
const LIMITS: Limits = Limits { fuel: 100_000, max_output: 1 << 20 };

/// The forms `template`, which passes everything as given, reads.
pub fn forms(template: &ChatTemplate, source: &str) -> Forms {
    let user = role_content(template, &["user"]).unwrap_or(Content::TEXT);
    let content = |roles: &[&str]| role_content(template, roles).unwrap_or(user);
    Forms {
        user,
        system: content(&["system", "user"]),
        assistant: content(&["user", "assistant", "user"]),
        tool: content(&["user", "call", "tool"]),
        arguments_as_dict: arguments_as_dict(template),
        developer: source.contains("developer"),
    }
}

/// What the template makes of the content of the conversation's telling role; None if it refuses it.
fn role_content(template: &ChatTemplate, roles: &[&str]) -> Option<Content> {
    let telling = match roles {
        ["system", ..] => 0,
        [_, "assistant", ..] => 1,
        _ => roles.len() - 1,
    };
    let shows = |content: Json| {
        let messages = roles.iter().enumerate().map(|(at, role)| match *role {
            "call" => call_message(&json!({"probe_key": "value"})),
            role => message(role, if at == telling { content.clone() } else { json!("other") }),
        });
        render(template, messages.collect())
            .is_some_and(|text| text.contains(MARK) && !shows_structure(&text))
    };
    let text = shows(json!(MARK));
    let parts = shows(json!([{"type": "text", "text": MARK}]));
    (text || parts).then_some(Content { parts, text })
}

/// The part itself was printed, not its text.
fn shows_structure(text: &str) -> bool {
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    ["text", "probe_key"].iter().any(|key| {
        [format!("'{key}':'{MARK}"), format!("\"{key}\":\"{MARK}"), format!("\\\"{key}\\\":\\\"{MARK}")]
            .iter()
            .any(|shown| compact.contains(shown))
    })
}

/// Whether tool-call arguments should be passed as a dict: yes if the template renders that as anything but
/// Python's notation, or cannot do better with text.
fn arguments_as_dict(template: &ChatTemplate) -> bool {
    let arguments = json!({"probe_key": MARK});
    let shown = |arguments: &Json| {
        let messages = vec![message("user", json!("other")), call_message(arguments)];
        render(template, messages).filter(|text| text.contains(MARK))
    };
    let python = format!("{{'probe_key': '{MARK}'}}");
    match shown(&arguments) {
        Some(text) if !text.contains(&python) => true,
        _ => shown(&Json::from(arguments.to_string())).is_none(),
    }
}

fn message(role: &str, content: Json) -> Json {
    match role {
        "tool" => json!({"role": role, "name": "probe", "tool_call_id": "probe0001", "content": content}),
        _ => json!({"role": role, "content": content}),
    }
}

/// An assistant's call; the id suits templates that demand nine letters and digits.
fn call_message(arguments: &Json) -> Json {
    json!({"role": "assistant", "content": "", "tool_calls": [{
        "id": "probe0001",
        "type": "function",
        "function": {"name": "probe", "arguments": arguments},
    }]})
}

fn render(template: &ChatTemplate, messages: Vec<Json>) -> Option<String> {
    let tools = json!([{"type": "function", "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string", "description": "A key."}}},
    }}]);
    let with_tools = messages.len() > 1 && messages.iter().any(|message| message.get("tool_calls").is_some());
    let input = RenderInput {
        messages: &Json::Array(messages),
        tools: with_tools.then_some(&tools),
        documents: None,
        kwargs: &Map::new(),
        add_generation_prompt: false,
        continue_final_message: false,
        now: Some(0),
    };
    template.render(&input, &LIMITS).ok()
}
