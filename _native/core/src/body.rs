//! What a request's body will cost before anybody decodes it.

use memchr::memchr2;

/// Costs in units of a small number among others, as measured of Python's decoding and checking.
const CONTAINER: u64 = 16;
const STRING: u64 = 16;
const ITEM: u64 = 1;
const ESCAPE: u64 = 1;

/// How much work it is to decode a JSON text: its containers, strings, items and escapes, weighted.
///
/// Plain text costs nothing here: its size is bounded by itself. The text need not be valid.
pub fn work(json: &[u8]) -> u64 {
    let mut units = 0;
    let mut rest = json;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'"' => {
                let (end, escapes) = string(rest);
                rest = &rest[end..];
                units += STRING + ESCAPE * escapes;
            }
            b'[' | b'{' => units += CONTAINER,
            b',' => units += ITEM,
            _ => (),
        }
    }
    units
}

/// Of a string's text without its opening quote: where what follows it begins, and how many escapes it has.
fn string(text: &[u8]) -> (usize, u64) {
    let (mut at, mut escapes) = (0, 0);
    while let Some(found) = memchr2(b'"', b'\\', &text[at..]) {
        at += found + 1;
        if text[at - 1] == b'"' {
            return (at, escapes);
        }
        escapes += 1;
        at = (at + 1).min(text.len());
    }
    (text.len(), escapes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_strings_is_text() {
        assert_eq!(work(b""), 0);
        assert_eq!(work(b"[1, 2, 3]"), CONTAINER + 2 * ITEM);
        assert_eq!(work(br#"{"a": "[,{"}"#), CONTAINER + 2 * STRING);
        assert_eq!(work(br#"["a\"[,", "\\", 1]"#), CONTAINER + 2 * STRING + 2 * ITEM + 2 * ESCAPE);
    }

    #[test]
    fn texts_that_end_early_are_counted_too() {
        assert_eq!(work(br#"["abc,"#), CONTAINER + STRING);
        assert_eq!(work(br#"["abc\"#), CONTAINER + STRING + ESCAPE);
        assert_eq!(work(&[0xff, b'"', 0xfe]), STRING);
    }
}
