//! Which values a name stands for.

use serde_json::{Map, json};

use super::render_with;

fn shown(source: &str, kwargs: serde_json::Value) -> String {
    render_with(source, json!([{"role": "user", "content": "hello"}]), kwargs).unwrap()
}

#[test]
fn a_clients_value_wins_over_a_special_token_and_over_nothing_else() {
    assert_eq!(shown("{{ bos_token }}{{ eos_token is defined }}", json!({})), "<s>False");
    assert_eq!(shown("{{ bos_token }}", json!({"bos_token": "b"})), "b");
    assert_eq!(shown("{{ messages|length }}{{ tools }}", json!({"messages": [], "tools": 1})), "1None");
}

#[test]
fn no_name_is_taken_for_a_dicts_method() {
    assert_eq!(shown("{{ items is defined }}{{ get is defined }}", json!({})), "FalseFalse");
    assert_eq!(shown("{{ items }}{{ get }}", json!({"items": 1, "get": 2})), "12");
}

#[test]
fn any_number_of_variables_is_found() {
    for count in [1, 11, 12, 13, 200] {
        let kwargs: Map<_, _> = (0..count).map(|n| (format!("v{n}"), json!(n))).collect();
        for n in [0, count / 2, count - 1] {
            let source = format!("{{{{ v{n} }}}} {{{{ v{count} is defined }}}} {{{{ bos_token }}}}");
            assert_eq!(shown(&source, kwargs.clone().into()), format!("{n} False <s>"));
        }
    }
}
