//! The semantics of templates, each as transformers has it; the expected texts were made with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json, json};

use super::{ChatTemplate, ContentForm, Limits, RenderInput};
use crate::error::{Code, Error, Result};

mod text;
mod variables;

fn compile(source: &str) -> ChatTemplate {
    let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    ChatTemplate::new(source, &tokens).unwrap()
}

fn render_with(source: &str, messages: Json, kwargs: Json) -> Result<String> {
    render_at(Some(1_720_267_200), source, messages, kwargs)
}

fn render_at(now: Option<i64>, source: &str, messages: Json, kwargs: Json) -> Result<String> {
    let input = RenderInput {
        messages: &messages,
        tools: None,
        documents: None,
        kwargs: kwargs.as_object().unwrap(),
        add_generation_prompt: false,
        continue_final_message: false,
        now,
    };
    compile(source).render(&input, &Limits::default())
}

fn variables() -> Json {
    json!({
        "n": null, "s": "Hi", "l": [3, 1, 2], "d": {"b": 1, "a": null, "items": [2.0]}, "big": 1e22,
        "tiny": 1e-5, "u": "é😀\u{a0}\u{1c}", "x": [{"k": "p", "v": 1}, {"k": "q", "v": 2}],
    })
}

fn eval(source: &str) -> Result<String> {
    render_with(source, json!([{"role": "user", "content": "hello"}]), variables())
}

fn check(cases: &[(&str, &str)]) {
    for (source, want) in cases {
        assert_eq!(eval(source).as_deref(), Ok(*want), "{source}");
    }
}

fn refused(sources: &[&str]) {
    for source in sources {
        let error = eval(source).expect_err(source);
        assert_eq!(error.code, Code::Template, "{source}");
    }
}

#[test]
fn clients_cannot_set_the_clock() {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let year = render_at(None, "{{ strftime_now('%Y') }}", messages, json!({"now\0": 0})).unwrap();
    assert!(year.parse::<u32>().unwrap() > 2000, "{year}");
}

#[test]
fn values_print_as_in_python() {
    check(&[
        ("{{ n }}{{ n ~ true }}{{ undefd }}", "NoneNoneTrue"),
        ("{{ d }}", "{'b': 1, 'a': None, 'items': [2.0]}"),
        ("{{ l }}{{ (1, 'a') }}{{ (1,) }}", "[3, 1, 2](1, 'a')(1,)"),
        (
            "{{ big }} {{ tiny ~ '' }} {{ [big] }} {{ 4 / 2 }} {{ 7 // 2 }} {{ -7 % 3 }}",
            "1e+22 1e-05 [1e+22] 2.0 3 2",
        ),
        ("{{ [u] }}", "['é😀\\xa0\\x1c']"),
        ("{{ d|string ~ l|string }}", "{'b': 1, 'a': None, 'items': [2.0]}[3, 1, 2]"),
        ("{{ '<a & b>' }}{{ '<'|e }}", "<a & b>&lt;"),
    ]);
}

#[test]
fn none_is_neither_iterable_nor_measured() {
    check(&[(
        "{{ n is iterable }}{{ n is sequence }}{{ s is iterable }}{{ d is sequence }}",
        "FalseFalseTrueTrue",
    )]);
    refused(&[
        "{{ n|length }}",
        "{{ n|list }}",
        "{% for x in n %}{% endfor %}",
        "{{ 'a' + n }}",
        "{{ n.a.b }}",
    ]);
}

#[test]
fn undefined_is_lenient_but_not_for_attributes() {
    check(&[(
        "{{ undefd|length }}{% for x in undefd %}x{% else %}none{% endfor %}{{ d.zz is defined }}",
        "0noneFalse",
    )]);
    refused(&["{{ undefd.a }}", "{{ undefd|tojson }}", "{{ 'a' + undefd }}", "{{ d.zz.y }}"]);
}

#[test]
fn tojson_is_json_dumps() {
    check(&[
        ("{{ d|tojson }}", r#"{"b": 1, "a": null, "items": [2.0]}"#),
        ("{{ d|tojson(separators=(',', ':')) }}", r#"{"b":1,"a":null,"items":[2.0]}"#),
        (
            "{{ {'b': [], 'a': [1]}|tojson(indent=2, sort_keys=true) }}",
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}",
        ),
        (
            "{{ u|tojson }}{{ u|tojson(ensure_ascii=true) }}",
            "\"é😀\u{a0}\\u001c\"\"\\u00e9\\ud83d\\ude00\\u00a0\\u001c\"",
        ),
        ("{{ '</a>\"\\\\'|tojson }}{{ big|tojson }}", "\"</a>\\\"\\\\\"1e+22"),
        ("{{ {1: n, true: 2}|tojson }}", "{\"1\": 2}"),
    ]);
    refused(&["{{ x|map(attribute='k')|tojson }}", "{{ range|tojson }}", "{{ l|tojson(indent=10**9) }}"]);
}

#[test]
fn dicts_have_methods_before_items() {
    check(&[
        ("{{ d.items() | list }}", "[('b', 1), ('a', None), ('items', [2.0])]"),
        (
            "{{ d['items'] }}{{ d.get('items') }}{{ d.get('zz', 5) }}{{ d.items is defined }}",
            "[2.0][2.0]5True",
        ),
        ("{% for k, v in d|dictsort %}{{ k }}{% endfor %}{{ d.keys()|list }}", "abitems['b', 'a', 'items']"),
    ]);
    refused(&["{{ d.update({'z': 1}) }}", "{{ d.pop('b') }}", "{{ l.append(1) }}"]);
}

#[test]
fn strings_have_pythons_methods() {
    check(&[
        ("{{ ' \t\u{1c}a '.strip() ~ '|' ~ u|trim ~ '|' }}", "a|é😀|"),
        (
            "{{ '  a  b  '.split(none, 1) }}{{ 'a,b,,c'.split(',') }}{{ 'a-b-c'.rsplit('-', 1) }}",
            "['a', 'b  ']['a', 'b', '', 'c']['a-b', 'c']",
        ),
        (
            "{{ 'aXbX'.replace('X', '', 1) }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.find('c') }}",
            "abXTrue2",
        ),
        ("{{ 'a\\nb\\r\\nc'.splitlines() }}{{ 'x'.join(['a', 'b']) }}", "['a', 'b', 'c']axb"),
        ("{{ '{}-{:>3}'.format(1, 'a') }}{{ '%s=%d'|format('a', 2) }}", "1-  aa=2"),
        (
            "{{ 'hi you'.title() }}{{ 'ab'.center(5, '*') }}{{ 'a=b=c'.partition('=') }}",
            "Hi You**ab*('a', '=', 'b=c')",
        ),
        ("{{ s[::-1] }}{{ s[-1] }}{{ l[1:] }}{{ l[::-1] }}", "iHi[1, 2][2, 1, 3]"),
    ]);
    refused(&["{{ 'a'.split('') }}", "{{ ','.join(l) }}", "{{ 'a'.index('b') }}"]);
}

#[test]
fn operators_are_those_of_python() {
    check(&[
        ("{{ '%s-%d' % ('a', 2) }}{{ '%s' % l }}{{ 7 % 3 }}{{ -7 % 3 }}{{ 7.5 % 2 }}", "a-2[3, 1, 2]121.5"),
        ("{{ +1 }}{{ 2 - +1 }}{{ 1, 'a' }}{% set a, b = 1, 2 %}{{ b }}", "11(1, 'a')2"),
        ("{% for x in 1, 2 %}{{ x }}{% endfor %}{{ [true] ~ n ~ {'a': none} }}", "12[True]None{'a': None}"),
        ("{{ s[5:] }}{{ u[:2] }}{{ l[-2:] }}{{ (1, 2, 3)[::2] }}{{ 'abcd'[3:0:-2] }}", "é😀[1, 2](1, 3)db"),
    ]);
    refused(&[
        "{{ +'a' }}",
        "{{ 'a' % 1 }}",
        "{{ 1 % 0 }}",
        "{{ n[1:] }}",
        "{{ undefd[1:] }}",
        "{{ d[:1] }}",
    ]);
}

#[test]
fn markup_escapes_what_is_added_to_it() {
    check(&[
        ("{{ '<'|safe + '<' + d['items']|string }}", "<&lt;[2.0]"),
        ("{{ '<' + '<'|safe }}{{ '<' + '<' }}{{ '<'|safe ~ '<' }}", "&lt;<<<<<"),
        ("{{ '<'|e + '&' }}{{ '<'|e|e }}{{ '<'|e|forceescape }}", "&lt;&amp;&lt;&amp;lt;"),
        (
            "{{ '<a>'|safe|upper + '<' }}{{ [1]|e|length }}{{ l + l|safe|list }}",
            "<A>&lt;3[3, 1, 2, '[', '3', ',', ' ', '1', ',', ' ', '2', ']']",
        ),
    ]);
}

#[test]
fn text_is_laid_out_as_by_jinja() {
    check(&[
        (
            "{{ '{\n'|indent(4, first=true) }}|{{ 'a\n\nb'|indent(2) }}|{{ 'a\nb'|indent('--', true) }}",
            "    {\n|a\n\n  b|--a\n--b",
        ),
        (
            "{{ 'a\n\nb'|indent(1, blank=true) }}|{{ 'ab'|center(6) }}|{{ 'a b, c-d'|wordcount }}",
            "a\n \n b|  ab  |4",
        ),
        (
            "{{ 'hello big world'|truncate(9) }}|{{ 'hello big world'|truncate(9, true) }}",
            "hello...|hello ...",
        ),
    ]);
}

#[test]
fn what_a_template_cannot_have_is_told_when_it_is_loaded() {
    for (source, want) in [
        ("\n{{ s|nothing }}", "line 2: the filter 'nothing' does not exist"),
        ("{{ s|wordwrap(3) }}", "the filter 'wordwrap' is not supported"),
        ("{{ s is nothing }}", "the test 'nothing' does not exist"),
        ("{% macro m() %}{{ varargs }}{% endmacro %}", "varargs and kwargs of macros are not supported"),
        ("{% macro m(a, b=a) %}{% endmacro %}", "a value that depends on one beside it"),
        ("\n\n{% with a = 1, b = [a] %}{% endwith %}", "line 3: a value that depends on one beside it"),
        ("{{ '\\N{BULLET}' }}", "characters by name are not supported"),
    ] {
        let error = ChatTemplate::new(source, &BTreeMap::new()).unwrap_err();
        assert_eq!(error.code, Code::Load);
        assert!(error.message.contains(want), "{}", error.message);
    }
    check(&[("{% if n %}{{ s|from_json }}{% endif %}{{ s|nothing if n else 'a' }}", "a")]);
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

#[test]
fn integers_of_any_size_stay_whole() {
    let big = "123456789012345678901234567890123456789012345678901234567890";
    let wrapped = |digits: &str| json!({crate::integers::KEY: digits});
    let kwargs = json!({"a": wrapped("18446744073709551616"), "b": [wrapped(big)]});
    let source = "{{ a }} {{ a|tojson }} {{ b }} {{ b|tojson }} {{ b[0] is number }} {{ a + 1 }}";
    let want = format!("18446744073709551616 18446744073709551616 [{big}] [{big}] True 18446744073709551617");
    assert_eq!(render_with(source, json!([{"role": "user"}]), kwargs), Ok(want));
}

#[test]
fn generators_are_used_up_and_always_true() {
    check(&[
        (
            "{% set g = x|selectattr('k', 'equalto', 'p') %}{% for i in g %}{{ i.v }}{% endfor %}{% for i in g %}!{% endfor %}",
            "1",
        ),
        ("{{ 'yes' if x|selectattr('k', 'equalto', 'zz') else 'no' }}", "yes"),
        ("{{ x|map(attribute='k')|join(',') }}{{ x|map(attribute='v')|list }}", "p,q[1, 2]"),
    ]);
    refused(&["{{ x|map(attribute='k')|length }}"]);
}

#[test]
fn loops_namespaces_and_macros() {
    check(&[
        (
            "{% for i in l %}{{ loop.index }}{{ loop.last }}{{ loop.previtem }}{{ loop.cycle('a', 'b') }};{% endfor %}",
            "1Falsea;2False3b;3True1a;",
        ),
        ("{% for i in l if i > 1 %}{{ loop.length }}{% endfor %}", "22"),
        ("{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% break %}{% endfor %}", "3"),
        (
            "{% set ns = namespace(a=[]) %}{% for i in l %}{% set ns.a = ns.a + [i] %}{% endfor %}{{ ns.a }}",
            "[3, 1, 2]",
        ),
        (
            "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call m(1) %}body{% endcall %}",
            "1xbody",
        ),
        ("{% set y = 1 %}{% for i in l %}{% set y = i %}{% endfor %}{{ y }}", "1"),
        ("a\n  {% if s %}\n  b\n  {% endif %}\nc", "a\n  b\nc"),
        ("a\r\n{% if s %}\r\nb{% endif %}", "a\nb"),
        ("x{% generation %}{% set q = 1 %}{{ s }}{% endgeneration %}{{ q }}", "xHi"),
        ("{{ l|sort }}{{ ['b', 'A', 'a']|unique|list }}{{ l|length }}", "[1, 2, 3]['b', 'A']3"),
        (
            "{{ n|default('a') }}{{ n|default('a', true) }}{{ ''|default('b', boolean=true) }}{{ 'x'|int }}",
            "Noneab0",
        ),
        ("{{ strftime_now('%d %b %Y') }}{{ bos_token }}", "06 Jul 2024<s>"),
    ]);
}

#[test]
fn errors_say_what_the_template_raised_and_where_it_failed() {
    let raised = eval("{% if s %}{{ raise_exception('Only ' ~ s) }}{% endif %}").unwrap_err();
    assert_eq!(raised, Error::new(Code::Template, "Only Hi").at("messages"));
    let inside = eval("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}\n{{ m() }}").unwrap_err();
    assert_eq!(inside.message, "deep");
    assert!(eval("\n\n{{ 1 + s }}").unwrap_err().message.contains("line 3"));
    let tokens = BTreeMap::new();
    let syntax = ChatTemplate::new("a\n{% if %}", &tokens).unwrap_err();
    assert_eq!(syntax.code, Code::Load);
    assert!(syntax.message.contains("line 2"), "{}", syntax.message);
}

const TEXT_FORM: &str = "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ ';' }}{% endfor %}";
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
    let input = RenderInput {
        messages: &messages,
        tools: None,
        documents: None,
        kwargs: &Map::new(),
        add_generation_prompt,
        continue_final_message: true,
        now: None,
    };
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
fn bombs_end_with_fuel_and_in_time() {
    for source in [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in l %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ s * 10**9 }}",
        "{% for a in range(9999) %}{% set x = s * 1000000 %}{% endfor %}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('a', 'aaaa') %}{% endfor %}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ (s * 100000).join(['a'] * 100000) }}",
        "{{ s.ljust(10**9)|length }}",
        "{{ (l * 10**7)|string|length }}",
        "{{ (l * 10**7)|tojson|length }}",
        "{% set i = s * 100000 %}{{ ([1] * 100000)|tojson(separators=(i, i))|length }}",
        "{% for i in range(9999) %}{% set x = (l * 10000)|list %}{% endfor %}",
    ] {
        let template = compile(source);
        let start = Instant::now();
        let (kwargs, messages) = (variables(), json!([{"role": "user"}]));
        let input = RenderInput {
            messages: &messages,
            tools: None,
            documents: None,
            kwargs: kwargs.as_object().unwrap(),
            add_generation_prompt: false,
            continue_final_message: false,
            now: None,
        };
        let error = template.render(&input, &Limits::default()).expect_err(source);
        assert_eq!(error.code, Code::Fuel, "{source}");
        // Far above what it takes, for a busy machine.
        assert!(start.elapsed() < Duration::from_secs(10), "{source}");
    }
}

#[test]
fn what_python_refuses_at_once_is_refused() {
    refused(&["{{ range(10**9) }}", "{{ '{:>100000}'.format(1) }}"]);
}

#[test]
fn a_long_prompt_ends_at_the_limit() {
    let input = json!([{"role": "user", "content": "x".repeat(1000)}]);
    let input = RenderInput {
        messages: &input,
        tools: None,
        documents: None,
        kwargs: &Map::new(),
        add_generation_prompt: false,
        continue_final_message: false,
        now: None,
    };
    let limits = Limits { max_output: 1000, ..Limits::default() };
    assert_eq!(compile(TEXT_FORM).render(&input, &limits).unwrap_err().code, Code::Fuel);
    assert_eq!(compile("{{ messages[0].content }}").render(&input, &limits).unwrap().len(), 1000);
}

#[test]
fn recursion_is_an_error_in_a_small_stack() {
    let run = || {
        refused(&[
            "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
            "{% for i in [[1]] recursive %}{{ loop([i]) }}{% endfor %}",
            "{% set ns = namespace(s=[1]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}",
            "{% set ns = namespace(s={}) %}{% for i in range(99999) %}{% set ns.s = {'a': ns.s} %}{% endfor %}",
        ]);
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap();
    thread.join().unwrap();
}

#[test]
fn a_template_is_shared_between_threads() {
    let template = compile(TEXT_FORM);
    let messages = json!([{"role": "user", "content": "a"}]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let input = RenderInput {
                    messages: &messages,
                    tools: None,
                    documents: None,
                    kwargs: &Map::new(),
                    add_generation_prompt: true,
                    continue_final_message: false,
                    now: None,
                };
                for _ in 0..50 {
                    assert_eq!(template.render(&input, &Limits::default()).as_deref(), Ok("user:a;"));
                }
            });
        }
    });
}
