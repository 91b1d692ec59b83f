//! Calls as Python writes them: `[name(key=value, …), …]`.

use super::Sink;
use super::calls::Calls;
use super::engine::LONGEST_NAME;
use super::json::push_string;
use super::literal;

/// What a piece of text did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    More,
    On,
    /// The first call is certain.
    Begun,
    /// The list is complete.
    Last,
    /// This is no list of calls, or no longer.
    Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a name.
    Name,
    /// In parentheses, before a key.
    Argument,
    Value,
    /// Behind a call.
    Next,
}

/// Bytes after which a list without a known name is taken for prose.
const LONGEST_GUESS: usize = 4096;

/// A list of calls under way, behind its bracket.
#[derive(Debug)]
pub struct List {
    state: State,
    /// A known name has come.
    begun: bool,
    read: usize,
    key: Option<String>,
    value: String,
    nesting: Nesting,
    any: bool,
}

/// What could be seen of a short text.
enum Peek<T> {
    More,
    No,
    Yes(T),
}

impl List {
    pub fn new() -> Self {
        Self {
            state: State::Name,
            begun: false,
            read: 0,
            key: None,
            value: String::new(),
            nesting: Nesting::default(),
            any: false,
        }
    }

    /// Takes one thing. Returns the bytes taken.
    pub fn feed(&mut self, text: &str, last: bool, calls: &mut Calls, sink: &mut dyn Sink) -> (usize, Turn) {
        if !self.begun && self.read >= LONGEST_GUESS {
            return (0, Turn::Wrong);
        }
        let (used, turn) = match self.state {
            State::Name => self.name(text, last, calls, sink),
            State::Argument => self.argument(text, last, calls, sink),
            State::Value if self.begun => self.value(text, calls, sink),
            State::Value => {
                let upto = text.floor_char_boundary(LONGEST_GUESS + 4 - self.read);
                match self.value(&text[..upto], calls, sink) {
                    (used, Turn::More) if used < text.len() => (used, Turn::On),
                    taken => taken,
                }
            }
            State::Next => self.next(text),
        };
        self.read += used;
        (used, turn)
    }

    /// A name, its parenthesis, and a look at what follows: prose has brackets and parentheses too.
    fn name(&mut self, text: &str, last: bool, calls: &mut Calls, sink: &mut dyn Sink) -> (usize, Turn) {
        // No prose stands behind a call of the list: what was cut off there says nothing.
        let (name, used) = match call(text, last && !self.begun) {
            Peek::More => return (0, Turn::More),
            Peek::No => return (0, Turn::Wrong),
            Peek::Yes(found) => found,
        };
        // An unknown one is dropped if a known one stands beside it.
        calls.begin(name, sink);
        self.any = false;
        self.state = State::Argument;
        if self.begun || !calls.accepts(name) {
            return (used, Turn::On);
        }
        self.begun = true;
        (used, Turn::Begun)
    }

    fn argument(&mut self, text: &str, last: bool, calls: &mut Calls, sink: &mut dyn Sink) -> (usize, Turn) {
        let blank = blanks(text);
        let rest = &text[blank..];
        match rest.bytes().next() {
            None => return (blank, Turn::More),
            Some(b',') => return (blank + 1, Turn::On),
            Some(b')') => {
                if self.any {
                    calls.arguments("}", sink);
                }
                calls.end(sink);
                self.state = State::Next;
                return (blank + 1, Turn::On);
            }
            Some(_) => {}
        }
        self.key = None;
        let mut used = blank;
        match key(rest, last) {
            Peek::More => return (blank, Turn::More),
            Peek::No => {}
            Peek::Yes((name, len)) => {
                self.key = Some(name.to_owned());
                used += len;
            }
        }
        self.value.clear();
        self.nesting = Nesting::default();
        self.state = State::Value;
        (used, Turn::On)
    }

    /// A value up to the comma or parenthesis that ends it. Without a key it has no place and is dropped.
    fn value(&mut self, text: &str, calls: &mut Calls, sink: &mut dyn Sink) -> (usize, Turn) {
        let Some(end) = self.nesting.end(text) else {
            self.value.push_str(text);
            return (text.len(), Turn::More);
        };
        self.value.push_str(&text[..end]);
        self.state = State::Argument;
        if let Some(key) = self.key.take() {
            let mut out = String::from(if self.any { ", " } else { "{" });
            self.any = true;
            push_string(&key, &mut out);
            out.push_str(": ");
            let value = self.value.trim();
            out.push_str(&literal::to_json(value).unwrap_or_else(|| literal::string(value)));
            calls.arguments(&out, sink);
        }
        if text[end..].starts_with(']') {
            // The parenthesis is missing.
            if self.any {
                calls.arguments("}", sink);
            }
            calls.end(sink);
            self.state = State::Next;
        }
        (end, Turn::On)
    }

    fn next(&mut self, text: &str) -> (usize, Turn) {
        let blank = blanks(text);
        match text[blank..].bytes().next() {
            None => (blank, Turn::More),
            Some(b',') => {
                self.state = State::Name;
                (blank + 1, Turn::On)
            }
            Some(b']') if self.begun => (blank + 1, Turn::Last),
            Some(_) => (blank, Turn::Wrong),
        }
    }
}

fn blanks(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// `name(` with `)` or `key=` behind it: the name and the bytes up to the parenthesis.
fn call(text: &str, last: bool) -> Peek<(&str, usize)> {
    let begin = blanks(text);
    let name = identifier(&text[begin..], true);
    let paren = begin + name.len() + blanks(&text[begin + name.len()..]);
    if paren > LONGEST_NAME {
        return Peek::No;
    }
    if paren == text.len() {
        return if last { Peek::No } else { Peek::More };
    }
    if name.is_empty() || !text[paren..].starts_with('(') {
        return Peek::No;
    }
    let inside = &text[paren + 1..];
    let first = &inside[blanks(inside)..];
    if inside.len() - first.len() > LONGEST_NAME {
        return Peek::No;
    }
    if first.starts_with(')') {
        return Peek::Yes((name, paren + 1));
    }
    match key(first, last) {
        Peek::More => Peek::More,
        Peek::No => Peek::No,
        Peek::Yes(_) => Peek::Yes((name, paren + 1)),
    }
}

/// `key=`: the key and the bytes with the sign.
fn key(text: &str, last: bool) -> Peek<(&str, usize)> {
    let name = identifier(text, false);
    let sign = name.len() + blanks(&text[name.len()..]);
    if sign > LONGEST_NAME {
        return Peek::No;
    }
    if sign == text.len() {
        return if last { Peek::No } else { Peek::More };
    }
    if name.is_empty() || !text[sign..].starts_with('=') {
        return Peek::No;
    }
    Peek::Yes((name, sign + 1))
}

fn identifier(text: &str, dotted: bool) -> &str {
    let part = |c: char| c.is_alphanumeric() || c == '_' || dotted && (c == '.' || c == '-');
    &text[..text.find(|c| !part(c)).unwrap_or(text.len())]
}

/// Where in brackets and quotes a value is.
#[derive(Clone, Copy, Debug, Default)]
struct Nesting {
    depth: usize,
    quote: Option<u8>,
    escaped: bool,
}

impl Nesting {
    /// Where the value ends in the next piece of it.
    fn end(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            if self.escaped {
                self.escaped = false;
                continue;
            }
            match (self.quote, byte) {
                (Some(_), b'\\') => self.escaped = true,
                (Some(quote), _) if byte == quote => self.quote = None,
                (Some(_), _) => {}
                (None, b'\'' | b'"') => self.quote = Some(byte),
                (None, b'(' | b'[' | b'{') => self.depth += 1,
                (None, b')' | b']' | b',') if self.depth == 0 => return Some(at),
                (None, b')' | b']' | b'}') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        None
    }
}
