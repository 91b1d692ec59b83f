//! Numbers and containers as text, the texts of a template, and filters by name.

use std::collections::BTreeMap;

use serde_json::json;

use super::{ChatTemplate, check, eval, refused, render_with};

#[test]
fn floats_are_numbers_and_print_as_in_python() {
    check(&[
        ("{{ big + 1 }} {{ -tiny }} {{ tiny * 2 }} {{ [big, tiny]|sum }}", "1e+22 -1e-05 2e-05 1e+22"),
        (
            "{{ tiny < 1 }}{{ big > n|default(1, true) }}{{ big == 1e22 }}{{ big is number }}",
            "TrueTrueTrueTrue",
        ),
        ("{{ 1e22 ~ '' }} {{ [1e22, 1.5] ~ 1 }} {{ big ~ tiny }}", "1e+22 [1e+22, 1.5]1 1e+221e-05"),
        (
            "{{ [big, 1e16 * 10]|join(' ') }} {{ big|upper }} {{ big|replace('+', '') }}",
            "1e+22 1e+17 1E+22 1e22",
        ),
        ("{{ '%s|%.1e|%f' % (big, big, tiny) }} {{ '{}'.format(big) }}", "1e+22|1.0e+22|0.000010 1e+22"),
        ("{{ big|int }} {{ tiny|float }} {{ tiny|string|length }}", "10000000000000000000000 1e-05 5"),
    ]);
}

#[test]
fn join_prints_what_it_joins() {
    check(&[
        (
            "{{ d|join(',') }}|{{ s|join('-') }}|{{ l|join }}|{{ undefd|join(',') }}|{{ {}|join }}",
            "b,a,items|H-i|312||",
        ),
        ("{{ [n, true, 1.0, [1, 'a'], {'b': n}, undefd]|join(';') }}", "None;True;1.0;[1, 'a'];{'b': None};"),
        ("{{ x|join(attribute='k') }}{{ x|join('-', 'v') }}{{ x|join(d='+', attribute='k') }}", "pq1-2p+q"),
        ("{{ ['<'|safe, '<']|join('&') + '<' }}{{ l|join(1) }}", "<&<<31112"),
    ]);
    refused(&["{{ n|join }}", "{{ 5|join }}", "{{ l|join(sep=',') }}"]);
}

#[test]
fn a_mapped_filter_gets_all_its_arguments() {
    check(&[
        (
            "{{ x|map('tojson', indent=1)|join }}",
            "{\n \"k\": \"p\",\n \"v\": 1\n}{\n \"k\": \"q\",\n \"v\": 2\n}",
        ),
        ("{{ ['', 'a']|map('default', 'z', boolean=true)|list }}", "['z', 'a']"),
        ("{{ [1.26]|map('round', precision=1)|list }}", "[1.3]"),
        ("{{ ['a']|map('replace', 'a', 'b')|first }}", "b"),
        ("{{ [x]|map('map', attribute='k')|map('join')|list }}", "['pq']"),
        (
            "{{ n|map('upper')|list }}{{ []|map('nothing')|list }}{{ 'ab'|map('upper')|list }}",
            "[][]['A', 'B']",
        ),
        ("{{ 'x'|int(default=5) }}{{ '1f'|int(base=16) }}{{ 'x'|float(default=2.5) }}", "5312.5"),
    ]);
    refused(&[
        "{{ l|map('nothing')|list }}",
        "{{ 5|map('string')|list }}",
        "{{ [1]|map('int', foo=1)|list }}",
    ]);
}

#[test]
fn escapes_are_those_of_python() {
    check(&[
        (r"{{ '\/' }}{{ '\a\v\f'|tojson(true) }}{{ '\U0001F600' }}", "\\/\"\\u0007\\u000b\\f\"😀"),
        ("{{ 'a\\\nb' }}{{ \"it's \\\"\\\n\\x41\" }}{{ {'k\\\ny': 1}['k\\\ny'] }}", "abit's \"A1"),
        (r"{{ '\d\8\\/\'' + '\/'|upper }}{{ '\/%s' % 1 }}{{ '\/a'[1:] }}", r"\d\8\/'\/\/1/a"),
    ]);
    let error = eval("{{ 'a\\\nb' }}\n{{ 1 + s }}").unwrap_err();
    assert!(error.message.contains("line 3"), "{}", error.message);
    for source in [r"{{ '\U0001F60' }}", r"{{ '\U00110000' }}", r"{{ '\", r"{{ 'é\", r"{{ '\é", r"{{ '\é' "]
    {
        assert!(ChatTemplate::new(source, &BTreeMap::new()).is_err(), "{source}");
    }
}

#[test]
fn a_raw_block_keeps_its_first_line_end() {
    check(&[
        ("{% raw %}\n\n {{ a }}{% endraw %}\nb", "\n\n {{ a }}b"),
        ("x\n  {%- raw %}\na{% endraw %}", "x\na"),
        ("x\n  {% raw %}\n a\n  {% endraw %}\nb", "x\n\n a\nb"),
        ("{% raw -%}\n\n a{%- endraw %}{% raw %}b{% endraw %}", "ab"),
    ]);
}

#[test]
fn minus_zero_in_arguments_is_an_integer() {
    let source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}";
    let call = json!({"function": {"name": "f", "arguments": "{\"a\": -0, \"b\": -0.0}"}});
    let messages = json!([{"role": "assistant", "content": "", "tool_calls": [call]}]);
    assert_eq!(render_with(source, messages, json!({})).as_deref(), Ok("{\"a\": 0, \"b\": -0.0}"));
}
