//! The tokens of an expression.

/// What is wrong with an expression.
pub type Fault = &'static str;
pub type Parsed<T> = Result<T, Fault>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Name,
    Text,
    Number,
    Operator,
}

#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    pub start: usize,
    pub end: usize,
}

const OPERATORS: [&str; 31] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "(", ")", "[", "]", "{", "}", ",", ".",
    ":", "|", "=", "<", ">", ";", "@", "!", "?", "&", "^",
];

/// Behind the string literal that begins at `at`.
pub fn string_end(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let mut at = at + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

pub fn tokens(text: &str) -> Parsed<Vec<Token<'_>>> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let c = rest.chars().next().ok_or("the expression is cut off")?;
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let run = |test: fn(char) -> bool| rest.find(|c| !test(c)).unwrap_or(rest.len());
        let (kind, length) = if c == '\'' || c == '"' {
            (Kind::Text, string_end(bytes, at) - at)
        } else if c.is_ascii_digit() {
            (Kind::Number, number_length(rest))
        } else if c.is_alphabetic() || c == '_' {
            (Kind::Name, run(|c| c.is_alphanumeric() || c == '_'))
        } else {
            let operator = OPERATORS.iter().find(|operator| rest.starts_with(**operator));
            (Kind::Operator, operator.ok_or("a character that begins nothing")?.len())
        };
        out.push(Token { kind, text: &text[at..at + length], start: at, end: at + length });
        at += length;
    }
    Ok(out)
}

fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        bytes[from..].iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
    };
    let mut end = digits(0);
    let hexadecimal = bytes.len() > 1 && bytes[0] == b'0' && bytes[1].is_ascii_alphabetic();
    if !hexadecimal && bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end += 1 + digits(end + 1);
    }
    let exponent = bytes[end - 1].eq_ignore_ascii_case(&b'e') && !hexadecimal;
    if exponent && matches!(bytes.get(end), Some(b'+' | b'-')) {
        end += 1 + digits(end + 1);
    }
    end
}
