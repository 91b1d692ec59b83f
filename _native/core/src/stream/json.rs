//! JSON written straight into a reused buffer.

/// Bytes that cannot stand in a string as they are, or may begin a character that should not.
const SPECIAL: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table[0xc2] = true;
    table[0xe2] = true;
    table
};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends the inside of a JSON string. Non-ASCII text stays UTF-8, but for the three characters that many
/// line readers of event streams take for line ends: U+0085, U+2028 and U+2029.
pub fn escape(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let (mut from, mut at) = (0, 0);
    while let Some(skip) = bytes[at..].iter().position(|&byte| SPECIAL[byte as usize]) {
        at += skip;
        let (code, width) = match &bytes[at..] {
            [0xc2, 0x85, ..] => (0x85, 2),
            [0xe2, 0x80, last @ (0xa8 | 0xa9), ..] => (0x2000 | u16::from(last & 0x3f), 3),
            [0xc2 | 0xe2, ..] => {
                at += 1;
                continue;
            }
            [byte, ..] => (u16::from(*byte), 1),
            [] => break,
        };
        out.extend_from_slice(&bytes[from..at]);
        escape_one(out, code);
        at += width;
        from = at;
    }
    out.extend_from_slice(&bytes[from..]);
}

fn escape_one(out: &mut Vec<u8>, code: u16) {
    let short = match code {
        0x08 => b'b',
        0x09 => b't',
        0x0a => b'n',
        0x0c => b'f',
        0x0d => b'r',
        0x22 => b'"',
        0x5c => b'\\',
        _ => {
            let digit = |shift: u16| HEX[usize::from(code >> shift & 15)];
            out.extend_from_slice(&[b'\\', b'u', digit(12), digit(8), digit(4), digit(0)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

/// Appends a JSON string, quotes included.
pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape(out, text);
    out.push(b'"');
}

/// Appends a number in decimal.
pub fn number(out: &mut Vec<u8>, mut value: u64) {
    if value < 10 {
        return out.push(b'0' + value as u8);
    }
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a finite number; one that is not, which JSON cannot say, as null.
pub fn float(out: &mut Vec<u8>, value: impl serde::Serialize) {
    serde_json::to_writer(out, &value).expect("a number fits into memory");
}

/// Appends `items` as an array.
pub fn array<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(b'[');
    for (index, value) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        item(out, value);
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut out = Vec::new();
        string(&mut out, text);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_character_comes_back() {
        let all: String = (0..=0x10ffff).filter_map(char::from_u32).collect();
        assert_eq!(serde_json::from_str::<String>(&written(&all)).unwrap(), all);
    }

    #[test]
    fn line_ends_of_any_reader_are_escaped_and_other_text_is_not() {
        assert_eq!(
            written("a\u{85}b\u{2028}\u{2029}\n\r\u{b}\u{c}\u{1c}"),
            r#""a\u0085b\u2028\u2029\n\r\u000b\f\u001c""#
        );
        assert_eq!(
            written("é 日本 € 😀 \u{a0}\u{2027}\u{202a}\u{7f}"),
            "\"é 日本 € 😀 \u{a0}\u{2027}\u{202a}\u{7f}\""
        );
        assert_eq!(written(r#"say "hi" \ "#), r#""say \"hi\" \\ ""#);
    }

    #[test]
    fn numbers() {
        for value in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let mut out = Vec::new();
            number(&mut out, value);
            assert_eq!(out, value.to_string().into_bytes());
        }
    }
}
