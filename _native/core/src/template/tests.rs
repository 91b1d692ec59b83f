//! The semantics of templates, each as transformers has it; the expected texts were made with it.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::{ChatTemplate, Limits, RenderInput};
use crate::error::{Code, Error, Result};

mod limits;
mod messages;
mod text;
mod variables;

fn compile(source: &str) -> ChatTemplate {
    let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    ChatTemplate::new(source, &tokens).unwrap()
}

/// What a template is given at a certain time, and nothing besides.
fn input<'a>(messages: &'a Json, kwargs: &'a Json) -> RenderInput<'a> {
    RenderInput {
        messages,
        tools: None,
        documents: None,
        kwargs: kwargs.as_object().unwrap(),
        add_generation_prompt: false,
        continue_final_message: false,
        now: Some(1_720_267_200),
    }
}

fn render_with(source: &str, messages: Json, kwargs: Json) -> Result<String> {
    compile(source).render(&input(&messages, &kwargs), &Limits::default())
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
    let kwargs = json!({"now\0": 0});
    let input = RenderInput { now: None, ..input(&messages, &kwargs) };
    let year = compile("{{ strftime_now('%Y') }}").render(&input, &Limits::default()).unwrap();
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
