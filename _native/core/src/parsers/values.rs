//! Untyped text as the JSON value that a tool's schema expects.

use super::literal;
use super::tools::Types;

/// Can a value of these types be handed on as a string before it is complete?
pub fn is_text(types: Types) -> bool {
    types == Types::STRING
}

/// The JSON value of a parameter's text. Where the schema leaves a choice the narrower type wins; what fits no
/// type, or has none, is a string unless it is JSON of another kind.
pub fn to_json(text: &str, types: Types) -> String {
    if is_text(types) {
        return literal::string(text);
    }
    typed(text.trim(), types).unwrap_or_else(|| literal::string(text))
}

fn typed(text: &str, types: Types) -> Option<String> {
    if types.is_unknown() {
        return json(text).filter(|_| !text.starts_with('"'));
    }
    let lower = text.to_ascii_lowercase();
    if types.has(Types::NULL) && matches!(lower.as_str(), "null" | "none") {
        return Some("null".to_owned());
    }
    let integer = || text.trim_start_matches(['+', '-']).bytes().all(|byte| byte.is_ascii_digit());
    let narrow = types.has(Types::INTEGER) && (!types.has(Types::STRING) || integer());
    if let Some(number) = literal::number(text).filter(|_| narrow || types.has(Types::NUMBER)) {
        return Some(number);
    }
    if types.has(Types::BOOLEAN) && matches!(lower.as_str(), "true" | "false") {
        return Some(lower);
    }
    let nested = types.has(Types::OBJECT) && text.starts_with('{')
        || types.has(Types::ARRAY) && text.starts_with(['[', '(']);
    if nested {
        return json(text).or_else(|| literal::to_json(text));
    }
    if types.has(Types::STRING) {
        return None;
    }
    // Not what the schema wants: as it is, if it is JSON at all.
    json(text)
}

fn json(text: &str) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok().then(|| text.to_owned())
}
