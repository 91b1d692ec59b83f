//! What a template may cost, and where it runs.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::Limits;
use super::messages::TEXT_FORM;
use super::{compile, input, refused, variables};
use crate::error::Code;

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
        let input = input(&messages, &kwargs);
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
    let (messages, kwargs) = (json!([{"role": "user", "content": "x".repeat(1000)}]), json!({}));
    let input = input(&messages, &kwargs);
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
    let (messages, kwargs) = (json!([{"role": "user", "content": "a"}]), json!({}));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let input = input(&messages, &kwargs);
                for _ in 0..50 {
                    assert_eq!(template.render(&input, &Limits::default()).as_deref(), Ok("user:a;"));
                }
            });
        }
    });
}
