//! What a template reads, found by rendering small conversations with it.
//!
//! Rendering answers what no look at the source can: a loop over `content` may be for images only, a
//! variable of another name may hold it, and text may be dropped in the form the template does not expect.

use serde_json::{Map, Value as Json, json};

use super::messages::{Content, Forms, Missing};
use super::{ChatTemplate, Limits, RenderInput};

/// A text that no template contains.
const MARK: &str = "qz7probe";
/// Enough for any template's few messages, little enough for a hostile one.
const LIMITS: Limits = Limits { fuel: 100_000, max_output: 1 << 20 };

/// The forms `template`, which passes everything as given, reads.
pub fn forms(template: &ChatTemplate, source: &str) -> Forms {
    let user = role_content(template, &["user"]).unwrap_or(Content::TEXT);
    let content = |roles: &[&str]| role_content(template, roles).unwrap_or(user);
    let arguments_as_dict = arguments_as_dict(template);
    Forms {
        user,
        system: content(&["system", "user"]),
        assistant: content(&["user", "assistant", "user"]),
        tool: content(&["user", "call", "tool"]),
        beside_calls: beside_calls(template, arguments_as_dict),
        missing: missing(template),
        arguments_as_dict,
        developer: source.contains("developer") && knows_developer(template),
    }
}

/// Whether a developer's message is shown.
fn knows_developer(template: &ChatTemplate) -> bool {
    let messages = vec![message("developer", json!(MARK)), message("user", json!("other"))];
    render(template, messages).is_some_and(|text| text.contains(MARK))
}

/// What shows a call whose message has no content; what renders at all where nothing shows it.
fn beside_calls(template: &ChatTemplate, arguments_as_dict: bool) -> Missing {
    let call = without_content(call_message(&json!({"probe_key": MARK})));
    let messages = [message("user", json!("other")), call];
    // An earlier turn may be treated otherwise than the last.
    let answered =
        [&messages[..], &[message("tool", json!("other")), message("user", json!("other"))]].concat();
    let shown_in = |messages: &[Json], form: &Missing| {
        let forms = Forms { beside_calls: *form, arguments_as_dict, ..Forms::AS_GIVEN };
        render_as(template, messages.to_vec(), &forms)
    };
    let shown = |form: &Missing| shown_in(&messages, form);
    let forms = [Missing::Absent, Missing::Empty, Missing::None];
    let shows = |form: &Missing| shown(form).is_some_and(|text| text.contains(MARK));
    let renders = |form: &Missing| shown(form).is_some();
    let always = |form: &Missing| shows(form) && shown_in(&answered, form).is_some();
    let mut found = forms.into_iter().find(always);
    found = found.or_else(|| forms.into_iter().find(shows)).or_else(|| forms.into_iter().find(renders));
    found.unwrap_or(Missing::Absent)
}

/// What a message without content and calls is rendered with.
fn missing(template: &ChatTemplate) -> Missing {
    let other = || message("user", json!("other"));
    let messages = [other(), without_content(message("assistant", json!(""))), other()];
    let renders = |form: &Missing| {
        render_as(template, messages.to_vec(), &Forms { missing: *form, ..Forms::AS_GIVEN }).is_some()
    };
    [Missing::Absent, Missing::Empty].into_iter().find(renders).unwrap_or(Missing::Absent)
}

fn without_content(mut message: Json) -> Json {
    if let Some(entries) = message.as_object_mut() {
        entries.shift_remove("content");
    }
    message
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
/// Python's notation, or cannot do better with text. Some look at calls only where there is no content.
fn arguments_as_dict(template: &ChatTemplate) -> bool {
    let arguments = json!({"probe_key": MARK});
    let text = Json::from(arguments.to_string());
    let shown = |arguments: &Json, beside_calls: Missing| {
        let messages = vec![message("user", json!("other")), without_content(call_message(arguments))];
        let forms = Forms { beside_calls, arguments_as_dict: arguments.is_object(), ..Forms::AS_GIVEN };
        render_as(template, messages, &forms).filter(|text| text.contains(MARK))
    };
    let python = format!("{{'probe_key': '{MARK}'}}");
    for form in [Missing::Empty, Missing::Absent, Missing::None] {
        match (shown(&arguments, form), shown(&text, form)) {
            (Some(text), _) if !text.contains(&python) => return true,
            (dict, None) if dict.is_some() => return true,
            (_, Some(_)) => return false,
            _ => {}
        }
    }
    true
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
    render_as(template, messages, &Forms::AS_GIVEN)
}

fn render_as(template: &ChatTemplate, messages: Vec<Json>, forms: &Forms) -> Option<String> {
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
    template.render_as(&input, forms, &LIMITS).ok()
}
