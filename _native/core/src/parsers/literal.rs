//! Python literals as JSON.

use super::json::{push_escaped, push_string};

/// Deeper nesting is no literal that a model means.
const DEPTH: u8 = 64;

/// The literal as JSON; None if it is not one.
pub fn to_json(source: &str) -> Option<String> {
    let mut reader = Reader { rest: source, out: String::with_capacity(source.len()) };
    reader.value(DEPTH)?;
    reader.blank();
    reader.rest.is_empty().then_some(reader.out)
}

struct Reader<'a> {
    rest: &'a str,
    out: String,
}

impl Reader<'_> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, wanted: char) -> bool {
        let after = self.rest.strip_prefix(wanted);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn value(&mut self, depth: u8) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        self.blank();
        match self.rest.chars().next()? {
            '\'' | '"' => self.text(),
            '[' => self.list(']', depth),
            '(' => self.list(')', depth),
            '{' => self.dict(depth),
            _ => self.word(),
        }
    }

    fn list(&mut self, close: char, depth: u8) -> Option<()> {
        self.rest = &self.rest[1..];
        self.out.push('[');
        let mut first = true;
        loop {
            self.blank();
            if self.eat(close) {
                break;
            }
            if !first {
                self.eat(',').then_some(())?;
                self.blank();
                if self.eat(close) {
                    break;
                }
                self.out.push_str(", ");
            }
            first = false;
            self.value(depth)?;
        }
        self.out.push(']');
        Some(())
    }

    fn dict(&mut self, depth: u8) -> Option<()> {
        self.rest = &self.rest[1..];
        self.out.push('{');
        let mut first = true;
        loop {
            self.blank();
            if self.eat('}') {
                break;
            }
            if !first {
                self.eat(',').then_some(())?;
                self.blank();
                if self.eat('}') {
                    break;
                }
                self.out.push_str(", ");
            }
            first = false;
            self.key()?;
            self.blank();
            self.eat(':').then_some(())?;
            self.out.push_str(": ");
            self.value(depth)?;
        }
        self.out.push('}');
        Some(())
    }

    /// A JSON key is a string; Python's other scalars become one.
    fn key(&mut self) -> Option<()> {
        if self.rest.starts_with(['\'', '"']) {
            return self.text();
        }
        self.out.push('"');
        self.word()?;
        self.out.push('"');
        Some(())
    }

    fn word(&mut self) -> Option<()> {
        let len = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-._".contains(c));
        let (word, rest) = self.rest.split_at(len.unwrap_or(self.rest.len()));
        self.rest = rest;
        match word {
            "True" | "true" => self.out.push_str("true"),
            "False" | "false" => self.out.push_str("false"),
            "None" | "null" => self.out.push_str("null"),
            _ => self.out.push_str(&number(word)?),
        }
        Some(())
    }

    /// One string, or several in a row, which Python joins.
    fn text(&mut self) -> Option<()> {
        self.out.push('"');
        while self.rest.starts_with(['\'', '"']) {
            let quote = self.rest.chars().next()?;
            self.rest = &self.rest[1..];
            loop {
                let at = self.rest.find([quote, '\\'])?;
                push_escaped(&self.rest[..at], &mut self.out);
                let escaped = self.rest[at..].starts_with('\\');
                self.rest = &self.rest[at + 1..];
                if !escaped {
                    break;
                }
                self.escape()?;
            }
            self.blank();
        }
        self.out.push('"');
        Some(())
    }

    fn escape(&mut self) -> Option<()> {
        let code = self.rest.chars().next()?;
        self.rest = &self.rest[code.len_utf8()..];
        let mut plain = [0; 4];
        let text: &str = match code {
            'n' => "\n",
            't' => "\t",
            'r' => "\r",
            'b' => "\u{8}",
            'f' => "\u{c}",
            'a' => "\u{7}",
            'v' => "\u{b}",
            '0' => "\0",
            '\n' => "",
            '\\' | '\'' | '"' => code.encode_utf8(&mut plain),
            'x' | 'u' | 'U' => return self.code_point(code),
            _ => {
                self.out.push_str("\\\\");
                code.encode_utf8(&mut plain)
            }
        };
        push_escaped(text, &mut self.out);
        Some(())
    }

    fn code_point(&mut self, kind: char) -> Option<()> {
        let len = match kind {
            'x' => 2,
            'u' => 4,
            _ => 8,
        };
        let code = u32::from_str_radix(self.rest.get(..len)?, 16).ok()?;
        self.rest = &self.rest[len..];
        match char::from_u32(code) {
            Some(c) => push_escaped(c.encode_utf8(&mut [0; 4]), &mut self.out),
            // Half of a surrogate pair: JSON writes pairs the same way.
            None => self.out.push_str(&format!("\\u{code:04x}")),
        }
        Some(())
    }
}

/// A number as JSON writes it; None if it is none.
pub fn number(word: &str) -> Option<String> {
    let plain = word.strip_prefix('+').unwrap_or(word).replace('_', "");
    let is_json = |text: &str| serde_json::from_str::<serde_json::Number>(text).is_ok();
    if is_json(&plain) {
        return Some(plain);
    }
    let digits = plain.starts_with(|c: char| c.is_ascii_digit() || "-.".contains(c));
    let value = plain.parse::<f64>().ok().filter(|value| digits && value.is_finite())?;
    let text = value.to_string();
    is_json(&text).then_some(text)
}

/// Text as a JSON string.
pub fn string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_string(text, &mut out);
    out
}
