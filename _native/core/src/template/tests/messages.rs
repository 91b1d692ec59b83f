//! What becomes of messages before a template gets them.

use serde_json::{Value as Json, json};

use super::super::{ContentForm, Limits, RenderInput};
use super::{compile, input, render_with};
use crate::error::{Code, Result};

pub(super) const TEXT_FORM: &str = "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ ';' }}{% endfor %}";
const PARTS_FORM: &str =
    "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
const BOTH_FORMS: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                          {% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}";

#[test]
fn content_comes_in_the_form_the_template_reads() {
    let parts = || json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    let text = || json!([{"role": "user", "content": "a"}]);
    for (source, form, of_parts, of_text) in [
        (TEXT_FORM, ContentForm::String, "user:a b;", "user:a;"),
        (PARTS_FORM, ContentForm::Parts, "ab", "a"),
        (BOTH_FORMS, ContentForm::Parts, "[a][b]", "a"),
    ] {
        assert_eq!(compile(source).content_form(), form);
        assert_eq!(render_with(source, parts(), json!({})).as_deref(), Ok(of_parts));
        assert_eq!(render_with(source, text(), json!({})).as_deref(), Ok(of_text));
    }
}

#[test]
fn messages_lose_nulls_and_share_reasoning() {
    let source = "{% for m in messages %}{{ m }}{% endfor %}";
    let messages = json!([{"role": "assistant", "content": null, "reasoning": "r"}]);
    let want = "{'thinking': 'r', 'role': 'assistant', 'reasoning': 'r', 'reasoning_content': 'r'}";
    assert_eq!(render_with(source, messages, json!({})).as_deref(), Ok(want));
    let messages = json!([{"role": "assistant", "reasoning_content": "c", "thinking": "t"}]);
    let want = "{'thinking': 't', 'role': 'assistant', 'reasoning_content': 'c'}";
    assert_eq!(render_with(source, messages, json!({})).as_deref(), Ok(want));
}

#[test]
fn developer_is_system_where_the_template_lacks_it() {
    let messages = || json!([{"role": "developer", "content": "x"}]);
    assert_eq!(render_with(TEXT_FORM, messages(), json!({})).as_deref(), Ok("system:x;"));
    let knowing = format!("{{# developer #}}{TEXT_FORM}");
    assert_eq!(render_with(&knowing, messages(), json!({})).as_deref(), Ok("developer:x;"));
}

#[test]
fn arguments_come_as_the_template_needs_them() {
    let call = |arguments: Json| json!([{"role": "assistant", "content": "c", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
    let loops = |body: &str| {
        format!(
            "{{% for m in messages %}}{{% for t in m.tool_calls or [] %}}{body}{{% endfor %}}{{{{ m.content }}}}{{% endfor %}}"
        )
    };
    let as_dict = loops("{{ t.function.arguments|tojson }}");
    let as_text = loops("{{ 'A' + t.function.arguments }}");
    for arguments in [json!("{\"a\":1}"), json!({"a": 1})] {
        assert_eq!(render_with(&as_dict, call(arguments.clone()), json!({})).as_deref(), Ok("{\"a\": 1}c"));
        let text = render_with(&as_text, call(arguments), json!({})).unwrap();
        assert_eq!(text.replace(' ', ""), "A{\"a\":1}c");
    }
    assert_eq!(render_with(&as_dict, call(json!("not json")), json!({})).as_deref(), Ok("\"not json\"c"));
}

fn continued(source: &str, content: Json, add_generation_prompt: bool) -> Result<String> {
    let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]);
    let kwargs = json!({});
    let input =
        RenderInput { add_generation_prompt, continue_final_message: true, ..input(&messages, &kwargs) };
    compile(source).render(&input, &Limits::default())
}

#[test]
fn the_final_message_is_continued() {
    let trimming = "{% for m in messages %}<{{ m.content|trim }}>{% endfor %}";
    assert_eq!(continued(TEXT_FORM, json!("a \n"), false).as_deref(), Ok("user:q;assistant:a \n"));
    assert_eq!(continued(trimming, json!("a \n"), false).as_deref(), Ok("<q><a"));
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]);
    assert_eq!(continued(PARTS_FORM, parts, false).as_deref(), Ok("qab "));
    let dropping = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    for (error, code) in [
        (continued(dropping, json!("a"), false), Code::Template),
        (continued(TEXT_FORM, json!(null), false), Code::InvalidRequest),
        (continued(TEXT_FORM, json!("a"), true), Code::InvalidRequest),
        (continued("{{ messages|length }}", json!("a"), false), Code::InvalidRequest),
    ] {
        assert_eq!(error.unwrap_err().code, code);
    }
}

#[test]
fn content_that_is_null_becomes_what_the_template_needs() {
    let calls =
        || json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]);
    let messages = |content: Json| json!([{"role": "assistant", "content": content, "tool_calls": calls()}]);
    let shows = "{% for t in m.tool_calls %}{{ t.function.arguments }}{% endfor %}";
    let adding = format!("{{% for m in messages %}}{{{{ '<' + m.content + '>' }}}}{shows}{{% endfor %}}");
    let asking = format!(
        "{{% for m in messages %}}{{% if m.content is none %}}{shows}{{% else %}}{{{{ m.content + '' }}}}{{% endif %}}{{% endfor %}}"
    );
    for (source, content, want) in [
        (&adding, json!(null), "<>{\"a\": 1}"),
        (&adding, json!("x"), "<x>{\"a\": 1}"),
        (&asking, json!(null), "{\"a\": 1}"),
        (&asking, json!(""), "{\"a\": 1}"),
        (&asking, json!("x"), "x"),
    ] {
        assert_eq!(render_with(source, messages(content), json!({})).as_deref(), Ok(want), "{source}");
    }
    let silent = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": null}]);
    let adding = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}";
    assert_eq!(render_with(adding, silent, json!({})).as_deref(), Ok("<q><>"));
}
