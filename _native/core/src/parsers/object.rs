//! Calls as JSON: `{"name": …, "arguments": {…}}`, one or an array of them.

use super::Sink;
use super::calls::Calls;
use super::json::{End, Json};

/// What a piece of text did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    More,
    /// A call of an array is complete.
    Call,
    /// So is one of a tool that there is none of, before any other: maybe this is no array of calls.
    Unknown,
    /// The last call is.
    Last,
    /// The next byte cannot stand there.
    Wrong,
}

/// Which value comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Key,
    Name,
    Arguments,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before `[` or `{`.
    Open,
    /// In an array, before `{`.
    Item,
    /// In an array behind a call.
    Next,
    Key {
        first: bool,
    },
    Colon,
    Value,
    /// In the value that `json` follows.
    Inside(Field),
    /// Behind a value.
    After,
}

/// One object, or an array of them, under way.
#[derive(Debug)]
pub struct Object {
    /// No marker tells that this is a call: only a call's keys and a known name make it one.
    strict: bool,
    array: bool,
    /// A known name has come.
    known: bool,
    state: State,
    json: Json,
    /// The value at hand, unless it can go out as it comes.
    text: String,
    field: Field,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    settled: bool,
}

impl Object {
    pub fn new(strict: bool) -> Self {
        Self {
            strict,
            array: false,
            known: false,
            state: State::Open,
            json: Json::new(),
            text: String::new(),
            field: Field::Other,
            name: None,
            early: None,
            settled: false,
        }
    }

    /// What begins here is a call, whatever comes.
    pub fn is_certain(&self) -> bool {
        self.known || !self.strict
    }

    /// Takes text up to the end of a call. Returns the bytes taken.
    pub fn feed(&mut self, text: &str, calls: &mut Calls, sink: &mut dyn Sink) -> (usize, Turn) {
        let mut at = 0;
        while at < text.len() {
            if let State::Inside(field) = self.state {
                let fed = self.json.feed(&text[at..], &mut self.text);
                at += fed.used;
                if field == Field::Arguments && calls.is_open() {
                    calls.arguments(&self.text, sink);
                    self.text.clear();
                }
                match fed.end {
                    End::More => break,
                    End::Done if self.value(field, calls).is_some() => continue,
                    End::Done | End::Bad => return (at, self.wrong(calls, sink)),
                }
            }
            let byte = text.as_bytes()[at];
            if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                at += 1;
                continue;
            }
            match self.byte(byte, calls, sink) {
                Some(Step::Take) => at += 1,
                Some(Step::Again) => {}
                Some(Step::Turn(turn)) => return (at + 1, turn),
                None => return (at, self.wrong(calls, sink)),
            }
        }
        (at, Turn::More)
    }

    /// With all its arguments a call is complete, even if the last brace is missing.
    fn wrong(&self, calls: &mut Calls, sink: &mut dyn Sink) -> Turn {
        if calls.is_open() && self.settled && self.is_certain() {
            calls.end(sink);
            return Turn::Last;
        }
        Turn::Wrong
    }

    /// A byte between values; None: it cannot stand there.
    fn byte(&mut self, byte: u8, calls: &mut Calls, sink: &mut dyn Sink) -> Option<Step> {
        self.state = match (self.state, byte) {
            (State::Open, b'[') => {
                self.array = true;
                State::Item
            }
            (State::Open | State::Item, b'{') => State::Key { first: true },
            (State::Next, b',') => State::Item,
            (State::Next, b']') if self.is_certain() => return Some(Step::Turn(Turn::Last)),
            (State::Key { .. }, b'"') => self.inside(Field::Key),
            (State::Key { first: true }, b'}') | (State::After, b'}') => return self.close(calls, sink),
            (State::Colon, b':') => State::Value,
            (State::Value, _) => {
                self.begin_value(byte, calls, sink)?;
                State::Inside(self.field)
            }
            (State::After, b',') => State::Key { first: false },
            _ => return None,
        };
        Some(if matches!(self.state, State::Inside(_)) { Step::Again } else { Step::Take })
    }

    fn inside(&mut self, field: Field) -> State {
        self.json = Json::new();
        self.text.clear();
        State::Inside(field)
    }

    /// Before a value: may it stand under its key? Arguments with a known name begin the call.
    fn begin_value(&mut self, byte: u8, calls: &mut Calls, sink: &mut dyn Sink) -> Option<()> {
        let fits = match self.field {
            Field::Name => byte == b'"',
            Field::Arguments => matches!(byte, b'{' | b'"' | b'n'),
            Field::Key | Field::Other => true,
        };
        fits.then_some(())?;
        self.inside(self.field);
        match &self.name {
            Some(name) if self.field == Field::Arguments && byte == b'{' => calls.begin(name, sink),
            _ => {}
        }
        Some(())
    }

    /// A value is complete; None: this is no call.
    fn value(&mut self, field: Field, calls: &Calls) -> Option<()> {
        self.state = State::After;
        match field {
            Field::Key => {
                self.state = State::Colon;
                self.field = self.key()?;
            }
            Field::Name => {
                let name: String = serde_json::from_str(&self.text).ok()?;
                self.known |= calls.accepts(&name);
                // In an array a known one may follow, beside which this one is dropped.
                (self.array || self.is_certain()).then_some(())?;
                self.name = Some(name).filter(|name| !name.is_empty());
            }
            Field::Arguments => self.settle()?,
            Field::Other => {}
        }
        Some(())
    }

    fn key(&self) -> Option<Field> {
        let key: String = serde_json::from_str(&self.text).ok()?;
        Some(match key.as_str() {
            "name" | "tool_name" if !self.settled || self.early.is_some() => Field::Name,
            "arguments" | "parameters" if !self.settled => Field::Arguments,
            "name" | "tool_name" | "arguments" | "parameters" | "id" | "tool_call_id" | "type" => {
                Field::Other
            }
            _ if self.strict => return None,
            _ => Field::Other,
        })
    }

    /// Arguments are complete. Those written as a string are what the string says; null are none.
    fn settle(&mut self) -> Option<()> {
        self.settled = true;
        let early = std::mem::take(&mut self.text);
        if early.starts_with('"') {
            self.early = Some(serde_json::from_str(&early).ok()?);
        } else if early.starts_with('{') {
            self.early = Some(early);
        } else if early.starts_with('n') {
            self.settled = false;
        }
        Some(())
    }

    /// The closing brace: what has not gone out yet goes out.
    fn close(&mut self, calls: &mut Calls, sink: &mut dyn Sink) -> Option<Step> {
        if !calls.is_open() {
            // Objects that have but a name are no rare answer.
            let bare = !self.settled && !self.is_certain();
            (!bare).then_some(())?;
            calls.begin(self.name.as_deref()?, sink);
            calls.arguments(self.early.as_deref().unwrap_or_default().trim(), sink);
        }
        calls.end(sink);
        *self = Self { array: self.array, known: self.known, state: State::Next, ..Self::new(self.strict) };
        Some(Step::Turn(match self.array {
            true if self.is_certain() => Turn::Call,
            true => Turn::Unknown,
            false => Turn::Last,
        }))
    }
}

enum Step {
    Take,
    /// The byte begins a value.
    Again,
    Turn(Turn),
}
