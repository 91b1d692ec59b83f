//! Filters, tests and functions in which minijinja's answer is not Jinja's, or which Hugging Face adds.

use std::fmt;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::value::{Generator, as_float};
use super::{clock, json, lazy, methods, repr, source, strings};

/// The hidden name under which a render's clock stands; no template can spell it.
pub const NOW: &str = "now\0";

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
    lazy::install(env);
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || as_float(value).is_some()
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
fn print(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => repr::write_str(out, value).map_err(|_| bad("value is nested too deeply to print")),
    }
}

/// The filter `string`: `str(value)`.
fn string(state: &State, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let mut out = String::new();
    repr::write_str(&mut out, value).map_err(|_| bad("value is nested too deeply to print"))?;
    state.consume_fuel((out.len() / 8) as u64)?;
    Ok(Value::from(out))
}

/// The filter `trim`, by Python's white space.
fn trim(value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    let mut text = String::new();
    repr::write_str(&mut text, value).map_err(|_| bad("value is nested too deeply to print"))?;
    Ok(Value::from(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => strings::strip(&text),
    }))
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

/// The filter `safe`: there is no escaping here for it to switch off.
fn safe(value: &Value) -> Value {
    value.clone()
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
    value.kind() == ValueKind::Plain && as_float(value).is_none()
}

/// `raise_exception(message)`.
fn raise_exception(message: &Value, _more: Rest<Value>) -> Result<Value, Error> {
    let mut text = String::new();
    // A message too deep to print is still an exception.
    let _ = repr::write_str(&mut text, message);
    Err(bad("the template raised an exception").with_source(Raised(text)))
}

/// `strftime_now(format)`.
fn strftime_now(state: &State, format: Option<&str>, options: Kwargs) -> Result<Value, Error> {
    let format = match format {
        Some(format) => format,
        None => options.get::<&str>("format")?,
    };
    options.assert_all_used()?;
    let now = state.lookup(NOW).and_then(|now| now.as_i64());
    Ok(Value::from(clock::strftime_now(format, now)))
}
