//! Python's `str()` and `repr()` of template values.

use std::fmt::{self, Write};

use minijinja::Value;
use minijinja::value::ValueKind;

use super::value::{Generator, as_float};

/// Containers nested deeper than this are not printed; JSON input is at most 128 deep.
pub const MAX_DEPTH: usize = 200;

/// `str(value)`: what `{{ value }}` prints. Fails on nesting beyond [`MAX_DEPTH`].
pub fn write_str(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
        _ => write_repr(out, value, 0),
    }
}

/// `repr(value)`.
pub fn write_repr(out: &mut dyn Write, value: &Value, depth: usize) -> fmt::Result {
    if depth > MAX_DEPTH {
        return Err(fmt::Error);
    }
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Map => write_map(out, value, depth),
        ValueKind::Iterable if value.downcast_object_ref::<Generator>().is_some() => write!(out, "{value}"),
        ValueKind::Seq | ValueKind::Iterable => write_sequence(out, value, depth),
        _ => match as_float(value) {
            Some(number) => out.write_str(&float(number)),
            None => write!(out, "{value}"),
        },
    }
}

fn write_map(out: &mut dyn Write, value: &Value, depth: usize) -> fmt::Result {
    out.write_char('{')?;
    let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
    for (index, (key, item)) in pairs.into_iter().flatten().enumerate() {
        if index > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, &key, depth + 1)?;
        out.write_str(": ")?;
        write_repr(out, &item, depth + 1)?;
    }
    out.write_char('}')
}

fn write_sequence(out: &mut dyn Write, value: &Value, depth: usize) -> fmt::Result {
    let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
    out.write_char(open)?;
    let mut count = 0;
    for item in value.try_iter().map_err(|_| fmt::Error)? {
        if count > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, &item, depth + 1)?;
        count += 1;
    }
    if value.is_tuple() && count == 1 {
        out.write_char(',')?;
    }
    out.write_char(close)
}

/// `repr(str)`: single quotes unless only single ones are inside, unprintable characters escaped.
pub fn write_quoted(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            _ if c == quote => write!(out, "\\{c}")?,
            _ if is_printable(c) => out.write_char(c)?,
            _ => match u32::from(c) {
                code @ 0..=0xff => write!(out, "\\x{code:02x}")?,
                code @ 0x100..=0xffff => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
    }
    out.write_char(quote)
}

/// Python's `str.isprintable` for one character.
///
/// The standard library knows the same table (categories C and Z but the blank), but shows it only
/// through `escape_debug`, which leaves combining marks alone behind a first character.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let mut buffer = [b'a'; 5];
    let length = c.encode_utf8(&mut buffer[1..]).len();
    let pair = std::str::from_utf8(&buffer[..=length]).unwrap_or_default();
    pair.escape_debug().nth(1) != Some('\\')
}

/// `repr(float)`: shortest digits that read back, exponent from 1e16 and below 1e-4.
pub fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let shortest = format!("{number:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (number, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456.789, "123456.789"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn strings_are_quoted_as_in_python() {
        for (text, want) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\n\t\\", "'\\n\\t\\\\'"),
            ("\u{7f}\u{a0}\u{ad}", "'\\x7f\\xa0\\xad'"),
            ("\u{200d}\u{feff}", "'\\u200d\\ufeff'"),
            ("e\u{301}\u{301}é😀", "'e\u{301}\u{301}é😀'"),
            ("\u{301}", "'\u{301}'"),
            ("\u{e0001}", "'\\U000e0001'"),
        ] {
            let mut out = String::new();
            write_quoted(&mut out, text).unwrap();
            assert_eq!(out, want);
        }
    }
}
