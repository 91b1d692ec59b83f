//! Following a JSON value as it comes in, byte by byte, without keeping it.

/// How far a piece of text took a value.
#[derive(Debug, PartialEq, Eq)]
pub struct Fed {
    /// Bytes of the piece that belong to the value.
    pub used: usize,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    More,
    Done,
    /// The byte after `used` cannot stand there.
    Bad,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    Next,
    Text,
    Escape,
    Hex(u8),
    Scalar,
}

/// One JSON value under way.
#[derive(Debug)]
pub struct Json {
    state: State,
    open: Vec<u8>,
    /// The string at hand is a key.
    key: bool,
    scalar: String,
}

impl Json {
    pub fn new() -> Self {
        Self { state: State::Value, open: Vec::new(), key: false, scalar: String::new() }
    }

    /// Takes what belongs to the value and hands it on. What JSON forbids inside a string (control
    /// characters, unknown escapes) is handed on escaped: models write it, and its meaning is plain.
    pub fn feed(&mut self, text: &str, out: &mut String) -> Fed {
        let bytes = text.as_bytes();
        let (mut at, mut run) = (0, 0);
        let end = loop {
            if self.state == State::Text {
                at += plain(&bytes[at..]);
            }
            let Some(&byte) = bytes.get(at) else { break End::More };
            match self.state {
                State::Text if byte < b' ' => {
                    out.push_str(&text[run..at]);
                    escape(byte, out);
                    at += 1;
                    run = at;
                    continue;
                }
                State::Escape
                    if !matches!(byte, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' | b'u') =>
                {
                    out.push_str(&text[run..at]);
                    out.push('\\');
                    run = at;
                    self.state = State::Text;
                    continue;
                }
                State::Scalar if !scalar_byte(byte) => {
                    if serde_json::from_str::<serde::de::IgnoredAny>(&self.scalar).is_err() {
                        break End::Bad;
                    }
                    self.scalar.clear();
                    self.state = State::Next;
                    if self.open.is_empty() {
                        break End::Done;
                    }
                    continue;
                }
                _ => {}
            }
            let Some(next) = self.step(byte) else { break End::Bad };
            at += 1;
            self.state = next;
            if next == State::Next && self.open.is_empty() {
                break End::Done;
            }
        };
        out.push_str(&text[run..at]);
        Fed { used: at, end }
    }

    /// The state after a byte; None: the byte cannot stand here.
    fn step(&mut self, byte: u8) -> Option<State> {
        let blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        Some(match (self.state, byte) {
            (State::Text, b'"') if self.key => State::Colon,
            (State::Text, b'"') => State::Next,
            (State::Text, b'\\') => State::Escape,
            (State::Text, _) => State::Text,
            (State::Escape, b'u') => State::Hex(4),
            (State::Escape, _) => State::Text,
            (State::Hex(left), _) if byte.is_ascii_hexdigit() => match left {
                1 => State::Text,
                _ => State::Hex(left - 1),
            },
            (State::Scalar, _) => {
                self.scalar.push(char::from(byte));
                State::Scalar
            }
            (state, _) if blank && !matches!(state, State::Hex(_)) => state,
            (State::ValueOrEnd | State::Next, b']') => self.close(b'[')?,
            (State::KeyOrEnd | State::Next, b'}') => self.close(b'{')?,
            (State::Next, b',') if self.open.last() == Some(&b'{') => State::Key,
            (State::Next, b',') => State::Value,
            (State::Colon, b':') => State::Value,
            (State::Key | State::KeyOrEnd, b'"') => self.text(true),
            (State::Value | State::ValueOrEnd, b'"') => self.text(false),
            (State::Value | State::ValueOrEnd, b'{') => self.nest(b'{', State::KeyOrEnd),
            (State::Value | State::ValueOrEnd, b'[') => self.nest(b'[', State::ValueOrEnd),
            (State::Value | State::ValueOrEnd, _) if scalar_byte(byte) => {
                self.scalar.push(char::from(byte));
                State::Scalar
            }
            _ => return None,
        })
    }

    fn text(&mut self, key: bool) -> State {
        self.key = key;
        State::Text
    }

    fn nest(&mut self, open: u8, state: State) -> State {
        self.open.push(open);
        state
    }

    fn close(&mut self, open: u8) -> Option<State> {
        (self.open.pop()? == open).then_some(State::Next)
    }
}

/// Bytes up to the next one that matters inside a string.
fn plain(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| byte < b' ' || byte == b'"' || byte == b'\\').unwrap_or(bytes.len())
}

fn scalar_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

fn escape(byte: u8, out: &mut String) {
    match byte {
        b'\n' => out.push_str("\\n"),
        b'\r' => out.push_str("\\r"),
        b'\t' => out.push_str("\\t"),
        _ => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            out.push_str("\\u00");
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

/// Text as the inside of a JSON string, without the quotes.
pub fn push_escaped(text: &str, out: &mut String) {
    let mut run = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte < b' ' || byte == b'"' || byte == b'\\' {
            out.push_str(&text[run..at]);
            match byte {
                b'"' => out.push_str("\\\""),
                b'\\' => out.push_str("\\\\"),
                _ => escape(byte, out),
            }
            run = at + 1;
        }
    }
    out.push_str(&text[run..]);
}

/// Text as a JSON string.
pub fn push_string(text: &str, out: &mut String) {
    out.push('"');
    push_escaped(text, out);
    out.push('"');
}
