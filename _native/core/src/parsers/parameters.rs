//! Arguments written as parameters in markers, on their way to a JSON object.

use super::Sink;
use super::calls::Calls;
use super::engine::LONGEST_NAME;
use super::json::{push_escaped, push_string};
use super::scan::{Markers, window};
use super::syntax::{Parameters, Trim};
use super::tools::Types;
use super::values;

/// What a piece of text did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    More,
    On,
    /// A JSON object stands here instead.
    Json,
    /// The call is complete; its end is taken, what ends more than the call is not.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Between,
    Key,
    Attributes,
    ValueOpen,
    Value,
}

/// How far a string that streams has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    First,
    Inside,
}

/// The markers of a call with parameters, ready to search for.
#[derive(Debug)]
pub struct ParameterMarkers {
    syntax: &'static Parameters,
    between: Markers,
    key_end: Markers,
    value: Markers,
}

impl ParameterMarkers {
    /// `ends` is what ends a call that is not ended properly, too.
    pub fn new(syntax: &'static Parameters, ends: impl Iterator<Item = &'static str>) -> Self {
        let object = syntax.json.then_some("{");
        Self {
            syntax,
            between: Markers::new(ends.chain(syntax.open.iter().copied()).chain(object)),
            key_end: Markers::new(syntax.key_end.iter().copied()),
            value: Markers::new(syntax.close.iter().chain(syntax.stops).copied()),
        }
    }
}

/// The parameters of one call under way.
#[derive(Debug)]
pub struct Reader {
    state: State,
    key: String,
    types: Types,
    /// A value that must be complete to be read; of one that streams, the blanks that may be its end.
    value: String,
    place: Place,
    any: bool,
    out: String,
}

impl Reader {
    pub fn new() -> Self {
        Self {
            state: State::Between,
            key: String::new(),
            types: Types::default(),
            value: String::new(),
            place: Place::Before,
            any: false,
            out: String::new(),
        }
    }

    /// Takes one thing.
    pub fn feed(
        &mut self,
        text: &str,
        markers: &ParameterMarkers,
        last: bool,
        calls: &mut Calls,
        sink: &mut dyn Sink,
    ) -> (usize, Edge) {
        self.out.clear();
        let taken = match self.state {
            State::Between => self.between(text, markers, last),
            State::Key => self.key(text, markers, last, calls),
            State::Attributes => self.attributes(text, last),
            State::ValueOpen => self.value_open(text, markers.syntax, last),
            State::Value => self.value(text, markers, last),
        };
        calls.arguments(&self.out, sink);
        if taken.1 == Edge::End {
            calls.end(sink);
        }
        taken
    }

    /// What stands between parameters and is no marker means nothing.
    fn between(&mut self, text: &str, markers: &ParameterMarkers, last: bool) -> (usize, Edge) {
        let seen = markers.between.find(text, last);
        let Some(marker) = seen.marker else { return (seen.upto, Edge::More) };
        if markers.syntax.open.contains(&marker) {
            self.state = State::Key;
            return (seen.upto + marker.len(), Edge::On);
        }
        match marker {
            "{" if self.any => return (seen.upto + 1, Edge::On),
            "{" => return (seen.upto, Edge::Json),
            _ => {}
        }
        if self.any {
            self.out.push('}');
        }
        (seen.upto, Edge::End)
    }

    fn key(&mut self, text: &str, markers: &ParameterMarkers, last: bool, calls: &Calls) -> (usize, Edge) {
        let seen = markers.key_end.find(window(text, LONGEST_NAME), last);
        if seen.upto > LONGEST_NAME {
            self.state = State::Between;
            return (0, Edge::On);
        }
        let Some(marker) = seen.marker else { return (0, Edge::More) };
        text[..seen.upto].trim().clone_into(&mut self.key);
        self.types = calls.tools.types(calls.name(), &self.key);
        self.value.clear();
        self.place = Place::Before;
        self.state = match markers.syntax {
            syntax if syntax.attributes => State::Attributes,
            syntax if syntax.value_open.is_empty() => State::Value,
            _ => State::ValueOpen,
        };
        (seen.upto + marker.len(), Edge::On)
    }

    fn attributes(&mut self, text: &str, last: bool) -> (usize, Edge) {
        let end = window(text, LONGEST_NAME).find('>').filter(|&end| end <= LONGEST_NAME);
        if end.is_none() && !last && text.len() <= LONGEST_NAME {
            return (0, Edge::More);
        }
        let attributes = &text[..end.unwrap_or(0)];
        if attributes.contains("string=\"true\"") {
            self.types = Types::STRING;
        } else if attributes.contains("string=\"false\"") && values::is_text(self.types) {
            self.types = Types::default();
        }
        self.state = State::Value;
        (end.map_or(0, |end| end + 1), Edge::On)
    }

    fn value_open(&mut self, text: &str, syntax: &Parameters, last: bool) -> (usize, Edge) {
        let blank = text.len() - text.trim_start().len();
        let rest = &text[blank..];
        let open = syntax.value_open.iter().find(|marker| rest.starts_with(**marker));
        let begun = !last && syntax.value_open.iter().any(|marker| marker.starts_with(rest));
        match open {
            None if begun => return (blank, Edge::More),
            // A key without a value is none.
            None => self.state = State::Between,
            Some(_) => self.state = State::Value,
        }
        (blank + open.map_or(0, |marker| marker.len()), Edge::On)
    }

    fn value(&mut self, text: &str, markers: &ParameterMarkers, last: bool) -> (usize, Edge) {
        let seen = markers.value.find(text, last);
        let piece = &text[..seen.upto];
        let end = seen.marker.is_some();
        if values::is_text(self.types) {
            self.stream(piece, markers.syntax.trim, end);
        } else {
            self.value.push_str(piece);
            if end {
                self.whole(markers.syntax.trim);
            }
        }
        let Some(marker) = seen.marker else { return (seen.upto, Edge::More) };
        self.state = State::Between;
        let closed = markers.syntax.close.contains(&marker);
        (seen.upto + if closed { marker.len() } else { 0 }, Edge::On)
    }

    /// A string goes out as it comes, but for what may be its end and does not count then.
    fn stream(&mut self, mut piece: &str, trim: Trim, end: bool) {
        if self.place == Place::Before && (end || !piece.is_empty()) {
            self.open_value();
            self.out.push('"');
            self.place = Place::First;
        }
        if self.place == Place::First && !piece.is_empty() {
            match trim {
                Trim::Nothing => {}
                Trim::Newline => piece = piece.strip_prefix('\n').unwrap_or(piece),
                Trim::Blanks => piece = piece.trim_start(),
            }
            if trim != Trim::Blanks || !piece.is_empty() {
                self.place = Place::Inside;
            }
        }
        self.hold_back(piece, trim);
        if end {
            self.out.push('"');
        }
    }

    /// Hands on a piece without its last blanks, which wait in `value`; they are dropped if the value ends.
    fn hold_back(&mut self, piece: &str, trim: Trim) {
        if piece.is_empty() {
            return;
        }
        let shown = match trim {
            Trim::Nothing => piece.len(),
            Trim::Newline => piece.strip_suffix('\n').unwrap_or(piece).len(),
            Trim::Blanks => piece.trim_end().len(),
        };
        if shown > 0 || trim == Trim::Newline {
            push_escaped(&self.value, &mut self.out);
            self.value.clear();
        }
        push_escaped(&piece[..shown], &mut self.out);
        self.value.push_str(&piece[shown..]);
    }

    fn whole(&mut self, trim: Trim) {
        let text = std::mem::take(&mut self.value);
        let value = match trim {
            Trim::Nothing => text.as_str(),
            Trim::Newline => {
                let text = text.strip_prefix('\n').unwrap_or(&text);
                text.strip_suffix('\n').unwrap_or(text)
            }
            Trim::Blanks => text.trim(),
        };
        self.open_value();
        self.out.push_str(&values::to_json(value, self.types));
    }

    fn open_value(&mut self) {
        self.out.push_str(if self.any { ", " } else { "{" });
        self.any = true;
        push_string(&self.key, &mut self.out);
        self.out.push_str(": ");
    }
}
