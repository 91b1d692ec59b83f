//! Filters, tests and functions in which minijinja's answer is not Jinja's, or which Hugging Face adds.

use std::fmt;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::expression::Names;
use super::value::{Dict, Generator, as_float, is_big_integer};
use super::{clock, json, layout, lazy, methods, operators, repr, source, strings};

/// The hidden name under which a render's clock stands; no template can spell it.
pub const NOW: &str = "now\0";

/// Jinja's filters, of which templates may expect that they are there.
const FILTERS: [&str; 46] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
];

/// Jinja's filters that make HTML, lay out text for people or are random: no prompt has a use for them.
const UNSUPPORTED: [&str; 8] =
    ["filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr", "urlencode"];

const TESTS: [&str; 33] = [
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// What is wrong with the filters and tests that a template names, as Jinja says it when it compiles.
pub fn unknown(names: &Names) -> Option<String> {
    let filter = names.filters.iter().find(|name| !FILTERS.contains(&name.as_str()));
    if let Some(name) = filter {
        let known = UNSUPPORTED.contains(&name.as_str());
        let text = if known { "is not supported" } else { "does not exist" };
        return Some(format!("the filter '{name}' {text}"));
    }
    let test = names.tests.iter().find(|name| !TESTS.contains(&name.as_str()))?;
    Some(format!("the test '{test}' does not exist"))
}

/// How much of a raised message is kept; templates may put a whole conversation into one.
const MAX_MESSAGE: usize = 4096;

/// What a template passed to `raise_exception`.
#[derive(Debug)]
pub struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Makes `env` behave as the environment Hugging Face compiles chat templates in.
pub fn install(env: &mut Environment<'static>) {
    env.set_formatter(print);
    env.set_unknown_method_callback(methods::call);
    env.add_filter("tojson", json::tojson);
    env.add_filter("string", string);
    env.add_filter("trim", trim);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("list", list);
    env.add_filter("safe", safe);
    env.add_filter(source::ITERATED, iterated);
    env.add_filter(source::STORED, stored);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("e", escape);
    env.add_filter("escape", escape);
    env.add_filter("forceescape", force_escape);
    operators::install(env);
    layout::install(env);
    lazy::install(env);
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || is_big_integer(value)
    });
    env.add_test("float", |value: &Value| as_float(value).is_some());
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_test("callable", is_callable);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `{{ value }}`.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    repr::write_str(out, value, state)
}

/// The filter `string`: `str(value)`.
pub fn string(state: &State, value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => repr::to_text(value, state).map(Value::from),
    }
}

/// The filter `trim`, by Python's white space.
fn trim(state: &State, value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    let text = repr::to_text(value, state)?;
    let Some(chars) = chars else {
        return Ok(Value::from(strings::strip(&text)));
    };
    let set = strings::CharSet::new(chars);
    Ok(Value::from(text.trim_matches(|c| set.contains(c))))
}

/// The filter `length`: an error on None and numbers, 0 on what is undefined.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| bad(format!("object of type {} has no len()", value.kind())))
}

/// The filter `list`.
fn list(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(bad("'NoneType' object is not iterable"));
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        state.consume_fuel(1)?;
        items.push(item?);
    }
    Ok(Value::from(items))
}

/// What a `for` loops over.
fn iterated(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None => Err(bad("'NoneType' object is not iterable")),
        _ => Ok(value.clone()),
    }
}

/// How many containers were stored in namespaces.
#[derive(Default)]
struct Stores(u64);

/// What a namespace's attribute is set to. Pays for its length, and every so often looks how deep it is.
fn stored(state: &mut State, value: Value) -> Result<Value, Error> {
    let Some(length) = value.as_object().map(|_| value.len().unwrap_or(0)) else {
        return Ok(value);
    };
    state.consume_fuel((length / 16) as u64)?;
    let stores = state.get_or_insert_extension_with(Stores::default);
    stores.0 += 1;
    if stores.0.is_multiple_of(16) {
        check_depth(&value, 0, state)?;
    }
    Ok(value)
}

fn check_depth(value: &Value, depth: usize, state: &State) -> Result<(), Error> {
    let containers = matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable);
    // Request data is 128 deep at most and cannot be added to.
    if !containers || value.downcast_object_ref::<Dict>().is_some() {
        return Ok(());
    }
    if depth > repr::MAX_DEPTH {
        return Err(bad("value is nested too deeply"));
    }
    state.consume_fuel(1)?;
    if let Some(generator) = value.downcast_object_ref::<Generator>() {
        return generator.peek().iter().try_for_each(|item| check_depth(item, depth + 1, state));
    }
    let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
    for (_, item) in pairs.into_iter().flatten() {
        check_depth(&item, depth + 1, state)?;
    }
    Ok(())
}

/// The filter `int(default=0, base=10)`: what cannot be read is the default.
fn int(value: &Value, default: Option<Value>, base: Option<u32>, options: Kwargs) -> Result<Value, Error> {
    let default = default.or(options.get("default")?).unwrap_or_else(|| Value::from(0));
    let base = base.or(options.get("base")?).unwrap_or(10);
    options.assert_all_used()?;
    Ok(whole(value, default, base))
}

fn whole(value: &Value, default: Value, base: u32) -> Value {
    let Some(text) = value.as_str().map(strings::strip) else {
        let whole = as_float(value).filter(|number| number.is_finite()).map(|number| number.trunc() as i128);
        return match value.kind() {
            ValueKind::Bool => Value::from(i64::from(value.is_true())),
            ValueKind::Number if whole.is_none() => value.clone(),
            _ => whole.map_or(default, Value::from),
        };
    };
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = match (base, digits.get(..2)) {
        (16, Some("0x" | "0X")) | (8, Some("0o" | "0O")) | (2, Some("0b" | "0B")) => &digits[2..],
        _ => digits,
    };
    if (2..=36).contains(&base)
        && !digits.starts_with(['-', '+'])
        && let Ok(number) = i128::from_str_radix(&digits.replace('_', ""), base)
    {
        return Value::from(sign * number);
    }
    let whole = text.parse::<f64>().ok().filter(|number| number.is_finite());
    whole.map_or(default, |number| Value::from(number.trunc() as i128))
}

/// The filter `float(default=0.0)`.
fn float(value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default = default.or(options.get("default")?).unwrap_or_else(|| Value::from(0.0));
    options.assert_all_used()?;
    let number = match value.as_str() {
        Some(text) => strings::strip(text).parse().ok(),
        None => as_float(value).or_else(|| f64::try_from(value.clone()).ok()),
    };
    Ok(number.map_or(default, Value::from))
}

/// The filter `default(default_value='', boolean=False)`.
fn default(
    value: &Value,
    default: Option<Value>,
    boolean: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let default = match default {
        None if options.has("default_value") => options.get("default_value")?,
        given => given.unwrap_or_else(|| Value::from("")),
    };
    let boolean = match boolean {
        None if options.has("boolean") => options.get::<Value>("boolean")?.is_true(),
        given => given.is_some_and(|flag| flag.is_true()),
    };
    options.assert_all_used()?;
    let replaced = value.is_undefined() || (boolean && !value.is_true());
    Ok(if replaced { default } else { value.clone() })
}

/// The filters `escape` and `e`: Markup, whose text is escaped unless it is Markup already.
fn escape(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { force_escape(state, value) }
}

/// The filter `forceescape`.
fn force_escape(state: &State, value: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    push_escaped(&mut out, &repr::to_text(value, state)?);
    Ok(Value::from_safe_string(out))
}

/// Appends `text` as markupsafe escapes it.
pub fn push_escaped(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
}

/// The filter `safe`: text that `+` does not escape, and that makes `+` escape the other side.
fn safe(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { repr::to_text(value, state).map(Value::from_safe_string) }
}

/// The test `sequence`: has a length and takes an index, as strings and dicts do in Python.
fn is_sequence(value: &Value) -> bool {
    is_iterable(value) && value.downcast_object_ref::<Generator>().is_none()
}

/// The test `iterable`: None is not. (Asking a generator for its items would use them up.)
fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
    )
}

/// The test `callable`.
fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain && !is_big_integer(value)
}

/// `raise_exception(message)`.
fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    let mut text = repr::to_text(message, state)?;
    text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    Err(bad("the template raised an exception").with_source(Raised(text)))
}

/// `strftime_now(format)`.
fn strftime_now(state: &State, format: Option<&str>, options: Kwargs) -> Result<Value, Error> {
    let format = match format {
        Some(format) => format,
        None => options.get::<&str>("format")?,
    };
    options.assert_all_used()?;
    state.consume_fuel(8 * format.len() as u64)?;
    let now = state.lookup(NOW).and_then(|now| now.as_i64());
    Ok(Value::from(clock::strftime_now(format, now)))
}
