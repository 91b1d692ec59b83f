//! Integers that serde_json would turn into floats: those beyond 64 bits, and `-0`.
//!
//! Python keeps them whole, and a template prints them. (serde_json's own feature for them changes how every crate
//! of the program reads numbers.) They are wrapped before JSON is parsed: `{"\u0000int": "…"}`. A client that sends
//! such an object itself gets the integer it spelt. `-0` is written as the `0` that Python makes of it.

use std::borrow::Cow;

/// The only key of a wrapped integer.
pub const KEY: &str = "\0int";

/// Integers shorter than this fit into 64 bits.
const LEAST_DIGITS: usize = 19;

/// `json` with its large integers wrapped and without `-0`. Text that is no JSON stays none.
pub fn wrap(json: &[u8]) -> Cow<'_, [u8]> {
    if !has_long_run(json) && !has_minus_zero(json) {
        return Cow::Borrowed(json);
    }
    let mut out = Vec::with_capacity(json.len() + 64);
    let mut at = 0;
    while at < json.len() {
        let length = match json[at] {
            b'"' => string_length(&json[at..]),
            b'-' | b'0'..=b'9' => number_length(&json[at..]),
            _ => 1,
        };
        let piece = &json[at..at + length];
        match large(piece) {
            _ if piece == b"-0" => out.push(b'0'),
            Some(digits) => {
                out.extend_from_slice(br#"{"\u0000int":""#);
                out.extend_from_slice(digits.as_bytes());
                out.extend_from_slice(br#""}"#);
            }
            None => out.extend_from_slice(piece),
        }
        at += length;
    }
    Cow::Owned(out)
}

/// The digits of a wrapped integer.
pub fn wrapped(value: &serde_json::Value) -> Option<&str> {
    let entries = value.as_object().filter(|entries| entries.len() == 1)?;
    let digits = entries.get(KEY)?.as_str()?;
    let bare = digits.strip_prefix('-').unwrap_or(digits);
    let spelt = !bare.is_empty() && bare.bytes().all(|byte| byte.is_ascii_digit());
    spelt.then_some(digits)
}

/// Looks at every 19th byte only.
fn has_long_run(json: &[u8]) -> bool {
    let digit = |byte: &u8| byte.is_ascii_digit();
    let mut at = LEAST_DIGITS - 1;
    while at < json.len() {
        if json[at].is_ascii_digit() {
            let before = json[..at].iter().rev().take_while(|byte| digit(byte)).take(LEAST_DIGITS).count();
            let after = json[at..].iter().take_while(|byte| digit(byte)).take(LEAST_DIGITS).count();
            if before + after >= LEAST_DIGITS {
                return true;
            }
        }
        at += LEAST_DIGITS;
    }
    false
}

/// Dates have a digit behind it.
fn has_minus_zero(json: &[u8]) -> bool {
    memchr::memmem::find_iter(json, b"-0").any(|at| json.get(at + 2).is_none_or(|byte| !number_goes_on(byte)))
}

fn number_goes_on(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
}

fn string_length(json: &[u8]) -> usize {
    let mut at = 1;
    while at < json.len() && json[at] != b'"' {
        at += if json[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(json.len())
}

fn number_length(json: &[u8]) -> usize {
    json.iter().take_while(|byte| number_goes_on(byte)).count()
}

/// The text of a number that is an integer and fits into no 64 bits.
fn large(piece: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(piece).ok()?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let integer = digits.len() >= LEAST_DIGITS
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0');
    (integer && text.parse::<i64>().is_err() && text.parse::<u64>().is_err()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_beyond_64_bits_are_wrapped() {
        for (json, want) in [
            ("18446744073709551616", r#"{"\u0000int":"18446744073709551616"}"#),
            ("[-9223372036854775809]", r#"[{"\u0000int":"-9223372036854775809"}]"#),
            (
                r#"{"a\"1":"99999999999999999999","b":99999999999999999999}"#,
                r#"{"a\"1":"99999999999999999999","b":{"\u0000int":"99999999999999999999"}}"#,
            ),
        ] {
            assert_eq!(wrap(json.as_bytes()), want.as_bytes(), "{json}");
        }
    }

    #[test]
    fn minus_zero_is_an_integer_too() {
        for (json, want) in [
            ("-0", "0"),
            (r#"{"a":-0,"b":[-0 ],"c":"-0 "}"#, r#"{"a":0,"b":[0 ],"c":"-0 "}"#),
            ("[-0.0,-0e1,-01,1e-0]", "[-0.0,-0e1,-01,1e-0]"),
        ] {
            assert_eq!(wrap(json.as_bytes()), want.as_bytes(), "{json}");
        }
    }

    #[test]
    fn all_else_stays() {
        for json in [
            "",
            "1",
            "18446744073709551615",
            "-9223372036854775808",
            "1000000000000000000000.0",
            "1e99999999999999999999",
            "\"12345678901234567890123\"",
            "\"12345678901234567890123",
            "\"1234567890123456789012\\",
            "12345678901234567890123x",
        ] {
            let out = wrap(json.as_bytes());
            assert!(json.ends_with('x') || out == json.as_bytes(), "{json}");
        }
    }

    #[test]
    fn a_run_is_found_wherever_it_stands() {
        for before in 0..60 {
            let json = format!("[{}{}]", " ".repeat(before), "9".repeat(20));
            assert!(matches!(wrap(json.as_bytes()), Cow::Owned(_)), "{before}");
        }
    }

    #[test]
    fn wrapped_integers_are_known() {
        let parse = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).unwrap();
        assert_eq!(wrapped(&parse(&wrap(b"123456789012345678901"))), Some("123456789012345678901"));
        for json in
            [&br#"{"\u0000int":"x"}"#[..], br#"{"\u0000int":1}"#, br#"{"\u0000int":"-"}"#, b"{}", b"1"]
        {
            assert_eq!(wrapped(&parse(json)), None);
        }
    }
}
