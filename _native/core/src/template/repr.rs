//! Python's `str()` and `repr()` of template values.

use std::fmt::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::value::{Generator, as_float};

/// Containers nested deeper than this are not printed; JSON input is at most 128 deep.
pub const MAX_DEPTH: usize = 200;

/// `str(value)`: what `{{ value }}` prints.
///
/// Containers are paid for with `state`'s fuel as they are walked. Errors: fuel used up, nesting beyond
/// [`MAX_DEPTH`], or those of `out`.
pub fn write_str(out: &mut dyn Write, value: &Value, state: &State) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None if value.is_undefined() => Ok(()),
        None => Printer { out, state: Some(state) }.value(value, 0),
    }
}

/// `repr(value)` where no fuel is at hand: request data, which is as long as the request.
pub fn write_unpaid(out: &mut dyn Write, value: &Value) -> fmt::Result {
    Printer { out, state: None }.value(value, 0).map_err(|_| fmt::Error)
}

/// `str(value)` as a string of its own; see [`write_str`].
pub fn to_text(value: &Value, state: &State) -> Result<String, Error> {
    let mut out = String::new();
    write_str(&mut out, value, state)?;
    Ok(out)
}

struct Printer<'a, 'b> {
    out: &'a mut dyn Write,
    state: Option<&'a State<'b, 'b>>,
}

impl Printer<'_, '_> {
    /// Writes `repr(value)`.
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply to print"));
        }
        if let Some(state) = self.state {
            state.consume_fuel(2 + value.as_str().map_or(0, |text| (text.len() / 16) as u64))?;
        }
        match value.kind() {
            ValueKind::Undefined => self.out.write_str("Undefined")?,
            ValueKind::None => self.out.write_str("None")?,
            ValueKind::String => write_quoted(self.out, value.as_str().unwrap_or_default())?,
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Iterable if value.downcast_object_ref::<Generator>().is_some() => {
                write!(self.out, "{value}")?;
            }
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            _ => match as_float(value) {
                Some(number) => self.out.write_str(&float(number))?,
                None => write!(self.out, "{value}")?,
            },
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.write_char('{')?;
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        for (index, (key, item)) in pairs.into_iter().flatten().enumerate() {
            if index > 0 {
                self.out.write_str(", ")?;
            }
            self.value(&key, depth + 1)?;
            self.out.write_str(": ")?;
            self.value(&item, depth + 1)?;
        }
        Ok(self.out.write_char('}')?)
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
        self.out.write_char(open)?;
        let mut count = 0;
        for item in value.try_iter()?.checked() {
            if count > 0 {
                self.out.write_str(", ")?;
            }
            self.value(&item?, depth + 1)?;
            count += 1;
        }
        if value.is_tuple() && count == 1 {
            self.out.write_char(',')?;
        }
        Ok(self.out.write_char(close)?)
    }
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
