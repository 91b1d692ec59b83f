//! The escapes of text literals: Jinja reads Python's, minijinja some of them and JSON's.

use crate::template::tokens::Parsed;

/// The inside of a literal in `quote`, written so that minijinja reads in it what Jinja does.
///
/// Errors: a character by name, or a number that is none.
pub fn escapes(inside: &str, quote: char) -> Parsed<String> {
    let mut out = String::with_capacity(inside.len());
    let mut rest = inside;
    while let Some(at) = rest.find('\\') {
        let (text, escape) = rest.split_at(at);
        out.push_str(text);
        let length = match escape[1..].chars().next() {
            Some('U') => 10,
            Some(c) => 1 + c.len_utf8(),
            None => 1,
        };
        let (escape, behind) = escape.split_at_checked(length).ok_or("a character has eight digits")?;
        match escape {
            "\\/" => out.push_str("\\\\/"),
            "\\a" => out.push_str("\\x07"),
            "\\v" => out.push_str("\\x0b"),
            // Nothing, and the line it stands in keeps its number: adjacent literals are one.
            "\\\n" => out.extend([quote, '\n', quote]),
            "\\N" => return Err("characters by name are not supported"),
            _ if length == 10 => out.push_str(&by_number(&escape[2..])?),
            _ => out.push_str(escape),
        }
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// The character of eight hexadecimal digits, as the four or eight that minijinja reads.
fn by_number(digits: &str) -> Parsed<String> {
    let number = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
    let character = number.ok_or("no character has this number")?;
    Ok(character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect())
}
