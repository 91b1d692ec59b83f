//! `tojson` as Hugging Face defines it: Python's `json.dumps`, not Jinja's HTML-safe one.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::repr;
use super::value::{Generator, as_float, is_big_integer};
use crate::integers;

/// A wider indent is no layout but an attempt to fill the memory.
const MAX_INDENT: i64 = 1000;

/// How `json.dumps` lays out its text.
struct Layout {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    type Given<'a> = Option<&'a Value>;
    let args = args.into_values();
    let (ensure_ascii, indent, separators, sort_keys, options): (Given, Given, Given, Given, Kwargs) =
        from_args(&args)?;
    let option = |given: Given, name| match given {
        Some(value) => Ok::<_, Error>(Some(value.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let ascii = option(ensure_ascii, "ensure_ascii")?;
    let indent = indent_text(option(indent, "indent")?)?;
    let separators = option(separators, "separators")?;
    let sort_keys = option(sort_keys, "sort_keys")?;
    options.assert_all_used()?;
    let (item_separator, key_separator) = match separators.filter(|given| !given.is_none()) {
        Some(given) => separator_pair(&given)?,
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let layout = Layout {
        ascii: ascii.is_some_and(|flag| flag.is_true()),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.is_some_and(|flag| flag.is_true()),
    };
    let mut out = String::new();
    write_value(&mut out, value, &layout, 0, state)?;
    Ok(Value::from(out))
}

/// `json.dumps(value)` with the defaults of the `tojson` filter, for values from a request.
pub fn dumps(value: &serde_json::Value) -> String {
    let layout = Layout {
        ascii: false,
        indent: None,
        item_separator: ", ".into(),
        key_separator: ": ".into(),
        sort_keys: false,
    };
    let mut out = String::new();
    dump_request(&mut out, value, &layout);
    out
}

fn dump_request(out: &mut String, value: &serde_json::Value, layout: &Layout) {
    match value {
        serde_json::Value::String(text) => write_string(out, text, layout.ascii),
        serde_json::Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(&layout.item_separator);
                }
                dump_request(out, item, layout);
            }
            out.push(']');
        }
        serde_json::Value::Object(entries) => {
            if let Some(digits) = integers::wrapped(value) {
                out.push_str(digits);
                return;
            }
            out.push('{');
            for (index, (key, item)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push_str(&layout.item_separator);
                }
                write_string(out, key, layout.ascii);
                out.push_str(&layout.key_separator);
                dump_request(out, item, layout);
            }
            out.push('}');
        }
        serde_json::Value::Number(number) if number.is_f64() => {
            out.push_str(&repr::float(number.as_f64().unwrap_or_default()));
        }
        other => {
            // Writing to a String cannot fail.
            let _ = write!(out, "{other}");
        }
    }
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn indent_text(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent.filter(|given| !given.is_none()) else {
        return Ok(None);
    };
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    match i64::try_from(indent) {
        Ok(width) if width > MAX_INDENT => Err(bad("tojson: indent is too large")),
        Ok(width) => Ok(Some(" ".repeat(usize::try_from(width).unwrap_or(0)))),
        Err(_) => Err(bad("tojson: indent must be a number or a string")),
    }
}

fn separator_pair(given: &Value) -> Result<(String, String), Error> {
    let mut pair = given.try_iter()?;
    match (pair.next(), pair.next(), pair.next()) {
        (Some(item), Some(key), None) => match (item.as_str(), key.as_str()) {
            (Some(item), Some(key)) => Ok((item.to_owned(), key.to_owned())),
            _ => Err(bad("tojson: separators must be strings")),
        },
        _ => Err(bad("tojson: separators must be two strings")),
    }
}

fn write_value(
    out: &mut String,
    value: &Value,
    layout: &Layout,
    depth: usize,
    state: &State,
) -> Result<(), Error> {
    if depth > repr::MAX_DEPTH {
        return Err(bad("tojson: nested too deeply"));
    }
    let start = out.len();
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value),
        ValueKind::Plain if is_big_integer(value) => write_number(out, value),
        ValueKind::Iterable if value.downcast_object_ref::<Generator>().is_some() => {
            return Err(bad("Object of type generator is not JSON serializable"));
        }
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), layout.ascii),
        ValueKind::Map => return write_object(out, value, layout, depth, state),
        ValueKind::Seq | ValueKind::Iterable => return write_array(out, value, layout, depth, state),
        kind => return Err(bad(format!("Object of type {kind} is not JSON serializable"))),
    }
    // Paid as it grows: the engine charges only for the finished text.
    state.consume_fuel(2 + ((out.len() - start) / 16) as u64)
}

fn write_number(out: &mut String, value: &Value) {
    match as_float(value) {
        Some(number) if number.is_nan() => out.push_str("NaN"),
        Some(number) if number.is_infinite() => {
            out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
        }
        Some(number) => out.push_str(&repr::float(number)),
        None => out.push_str(&value.to_string()),
    }
}

fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let short = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\0'..='\u{1f}' => "",
            _ if ascii && !(' '..='~').contains(&c) => "",
            _ => continue,
        };
        out.push_str(&text[plain..at]);
        plain = at + c.len_utf8();
        if short.is_empty() {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push_str(short);
        }
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

/// The line break and indent in front of an item `depth` levels in.
fn break_line(out: &mut String, layout: &Layout, depth: usize, state: &State) -> Result<(), Error> {
    let Some(indent) = &layout.indent else { return Ok(()) };
    state.consume_fuel((indent.len() * depth / 64) as u64)?;
    out.push('\n');
    for _ in 0..depth {
        out.push_str(indent);
    }
    Ok(())
}

/// The text between two items.
fn separate(out: &mut String, layout: &Layout, state: &State) -> Result<(), Error> {
    out.push_str(&layout.item_separator);
    state.consume_fuel(((layout.item_separator.len() + layout.key_separator.len()) / 64) as u64)
}

fn write_array(
    out: &mut String,
    value: &Value,
    layout: &Layout,
    depth: usize,
    state: &State,
) -> Result<(), Error> {
    out.push('[');
    let mut any = false;
    for item in value.try_iter()?.checked() {
        if any {
            separate(out, layout, state)?;
        }
        break_line(out, layout, depth + 1, state)?;
        write_value(out, &item?, layout, depth + 1, state)?;
        any = true;
    }
    if any {
        break_line(out, layout, depth, state)?;
    }
    out.push(']');
    state.consume_fuel(1)
}

fn write_object(
    out: &mut String,
    value: &Value,
    layout: &Layout,
    depth: usize,
    state: &State,
) -> Result<(), Error> {
    let mut pairs = value
        .as_object()
        .and_then(|object| object.try_iter_pairs())
        .map(|pairs| pairs.collect::<Vec<_>>())
        .unwrap_or_default();
    state.consume_fuel(1 + pairs.len() as u64)?;
    if layout.sort_keys {
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    out.push('{');
    for (index, (key, item)) in pairs.iter().enumerate() {
        if index > 0 {
            separate(out, layout, state)?;
        }
        break_line(out, layout, depth + 1, state)?;
        write_key(out, key, layout)?;
        out.push_str(&layout.key_separator);
        write_value(out, item, layout, depth + 1, state)?;
    }
    if !pairs.is_empty() {
        break_line(out, layout, depth, state)?;
    }
    out.push('}');
    Ok(())
}

/// A key: strings as they are, numbers, booleans and null as strings, as `json.dumps` does.
fn write_key(out: &mut String, key: &Value, layout: &Layout) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => write_string(out, key.as_str().unwrap_or_default(), layout.ascii),
        ValueKind::None => out.push_str("\"null\""),
        ValueKind::Bool => out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
        ValueKind::Number => {
            out.push('"');
            write_number(out, key);
            out.push('"');
        }
        kind => return Err(bad(format!("keys must be str, int, float, bool or None, not {kind}"))),
    }
    Ok(())
}
