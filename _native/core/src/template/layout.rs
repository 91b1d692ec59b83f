//! Filters that lay out text.

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::{builtins, methods, repr, strings};

pub fn install(env: &mut Environment<'static>) {
    env.add_filter("center", center);
    env.add_filter("indent", indent);
    env.add_filter("join", join);
    env.add_filter("truncate", truncate);
    env.add_filter("wordcount", wordcount);
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// The filter `indent(width=4, first=False, blank=False)`. `width` may be the text to indent by.
fn indent(
    state: &State,
    value: &Value,
    width: Option<Value>,
    first: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let width = width.or(options.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(options.get("first")?).is_some_and(|flag| flag.is_true());
    let blank = options.get::<Option<Value>>("blank")?.is_some_and(|flag| flag.is_true());
    options.assert_all_used()?;
    let text = repr::to_text(value, state)? + "\n";
    let lines = strings::lines(&text, false);
    let by = match width.as_str() {
        Some(by) => by.to_owned(),
        None => {
            let width = usize::try_from(i64::try_from(width)?).unwrap_or(0);
            state.consume_fuel((width.saturating_mul(lines.len()) / 64) as u64)?;
            " ".repeat(width)
        }
    };
    state.consume_fuel((by.len().saturating_mul(lines.len()) / 64) as u64)?;
    let mut out = String::new();
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(if value.is_safe() { Value::from_safe_string(out) } else { Value::from(out) })
}

/// The filter `center(width=80)`.
fn center(state: &mut State, value: &Value, width: Option<i64>, options: Kwargs) -> Result<Value, Error> {
    let width = width.or(options.get("width")?).unwrap_or(80);
    options.assert_all_used()?;
    let text = builtins::string(state, value)?;
    methods::call(state, &text, "center", &[Value::from(width)])
}

/// The filter `join(d='', attribute=None)`.
fn join(
    state: &mut State,
    value: Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let separator = separator.or(options.get("d")?).unwrap_or_else(|| Value::from(""));
    let attribute = attribute.or(options.get("attribute")?);
    options.assert_all_used()?;
    if value.is_none() {
        return Err(bad("'NoneType' object is not iterable"));
    }
    let items = match attribute {
        Some(attribute) => {
            let named = Kwargs::from_iter([("attribute", attribute)]);
            state.apply_filter("map", &[value, named.into()])?
        }
        None => value,
    };
    let texts = items.try_iter()?.checked().map(|item| builtins::string(state, &item?));
    strings::joined(state, &repr::to_text(&separator, state)?, texts).map(Value::from)
}

/// The filter `wordcount`.
fn wordcount(state: &State, value: &Value) -> Result<usize, Error> {
    let text = repr::to_text(value, state)?;
    let word = |c: char| c.is_alphanumeric() || c == '_';
    Ok(text.split(|c| !word(c)).filter(|run| !run.is_empty()).count())
}

/// The filter `truncate(length=255, killwords=False, end='...', leeway=5)`.
fn truncate(
    state: &State,
    value: &Value,
    length: Option<usize>,
    killwords: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let length = length.or(options.get("length")?).unwrap_or(255);
    let killwords = killwords.or(options.get("killwords")?).unwrap_or(false);
    let end = options.get::<Option<&str>>("end")?.unwrap_or("...");
    let leeway = options.get::<Option<usize>>("leeway")?.unwrap_or(5);
    options.assert_all_used()?;
    let end_length = end.chars().count();
    if length < end_length {
        return Err(bad(format!("expected length >= {end_length}, got {length}")));
    }
    let text = repr::to_text(value, state)?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(Value::from(text));
    }
    let kept: String = text.chars().take(length - end_length).collect();
    let kept =
        if killwords { kept.as_str() } else { kept.rsplit_once(' ').map_or(kept.as_str(), |cut| cut.0) };
    Ok(Value::from([kept, end].concat()))
}
