//! The machine that takes calls out of a model's text, for all formats with frames.
//!
//! ```text
//! Text → Gap → Name → Arguments | Parameters → Gap → … → Text
//!            ↘ Object (name inside) ↗
//! ```
//! Text waits in `buf` only while it may be the beginning of a marker, or of a call whose name is not known yet
//! (from `mark`). What begins like a call and is none is read again as content, from behind its marker.

use std::sync::Arc;

use super::calls::Calls;
use super::json::{End, Json};
use super::markers::FrameMarkers;
use super::object::{Object, Turn};
use super::parameters::{Edge, Reader};
use super::python::{self, List};
use super::scan::{Markers, Match, window};
use super::syntax::{Bare, Body, Frame, Frames, Head};
use super::{Sink, Tools};

/// Longest name, key or attribute list, in bytes; a longer one is something else.
pub const LONGEST_NAME: usize = 256;

/// Bytes of failed calls that are read again whatever the text before.
const FREE_BYTES: usize = 64 * 1024;

/// Where a text that may be a call begins, and the bytes of its marker.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: usize,
    skip: usize,
    /// Behind a call of the same list: no prose stands here.
    listed: bool,
}

#[derive(Debug)]
enum State {
    Text,
    Gap,
    Name,
    Object(Object),
    /// JSON arguments, once they have begun.
    Arguments(Option<Json>),
    Parameters(Reader),
    Python(List),
    /// Arguments that are not what they should be, up to the call's end.
    Raw,
}

/// What a step did.
enum Went {
    On,
    /// More text is needed.
    Nowhere,
    /// This is no call.
    Astray,
}

#[derive(Debug)]
pub struct Engine {
    frames: &'static Frames,
    /// The frame whose block this is; None: calls without one.
    frame: Option<usize>,
    markers: Vec<FrameMarkers>,
    text: Markers,
    text_in_block: Markers,
    calls: Calls,
    state: State,
    buf: String,
    pos: usize,
    mark: Option<Mark>,
    /// Nothing but blanks and calls so far, or since the last call; the blanks are in `pad`.
    lead: bool,
    pad: String,
    /// The call at hand began outside a block: only a tool's name makes it one.
    lone: bool,
    /// A call has been read; its block has not been closed.
    called: bool,
    block: bool,
    /// Bytes taken from `buf` before its beginning, and bytes read again.
    before: usize,
    again: usize,
    scratch: String,
}

impl Engine {
    pub fn new(frames: &'static Frames, tools: Arc<Tools>) -> Self {
        let openers = || {
            let lone = |frame: &'static Frame| if frame.lone { frame.call } else { &[] };
            let framed = frames.frames.iter().flat_map(move |frame| frame.open.iter().chain(lone(frame)));
            let bare: &[&str] = match frames.bare {
                Bare::Json => &["{", "["],
                Bare::Python => &["["],
                Bare::No | Bare::JsonFirst | Bare::JsonOnly => &[],
            };
            framed.chain(frames.erase).chain(bare).copied()
        };
        let closers = frames.frames.iter().flat_map(|frame| frame.end.iter().chain(frame.close)).copied();
        Self {
            frames,
            frame: None,
            markers: frames.frames.iter().map(|frame| FrameMarkers::new(frame, openers())).collect(),
            text: Markers::new(openers()),
            text_in_block: Markers::new(openers().chain(closers)),
            calls: Calls::new(tools),
            state: State::Text,
            buf: String::new(),
            pos: 0,
            mark: None,
            lead: true,
            pad: String::new(),
            lone: false,
            called: false,
            block: false,
            before: 0,
            again: 0,
            scratch: String::new(),
        }
    }

    pub fn push(&mut self, text: &str, sink: &mut dyn Sink) {
        self.buf.push_str(text);
        self.run(false, sink);
    }

    /// The text has ended: what waits comes out as what it is known to be.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        self.run(true, sink);
        if !self.called && !self.pad.is_empty() {
            sink.content(&self.pad);
        }
        self.pad.clear();
    }

    fn run(&mut self, last: bool, sink: &mut dyn Sink) {
        let buf = std::mem::take(&mut self.buf);
        loop {
            match self.step(&buf, last, sink) {
                Went::On => {}
                Went::Astray => self.astray(&buf, sink),
                Went::Nowhere if last && self.mark.is_some() => self.cut_off(&buf, sink),
                Went::Nowhere => break,
            }
        }
        self.buf = buf;
        let keep = self.mark.map_or(self.pos, |mark| mark.at);
        self.buf.drain(..keep);
        self.before += keep;
        self.pos -= keep;
        if let Some(mark) = &mut self.mark {
            mark.at = 0;
        }
    }

    fn step(&mut self, buf: &str, last: bool, sink: &mut dyn Sink) -> Went {
        match self.state {
            State::Text => self.text(buf, last, sink),
            State::Gap => self.gap(buf, last),
            State::Name => self.name(buf, last, sink),
            State::Object(_) => self.object(buf, sink),
            State::Arguments(_) => self.arguments(buf, last, sink),
            State::Parameters(_) => self.parameters(buf, last, sink),
            State::Python(_) => self.python(buf, last, sink),
            State::Raw => self.raw(buf, last, sink),
        }
    }

    fn frame(&self) -> Option<(&'static Frame, &FrameMarkers)> {
        self.frame.map(|at| (&self.frames.frames[at], &self.markers[at]))
    }

    /// Hands on prose, with the blanks that waited for it.
    fn content(&mut self, text: &str, sink: &mut dyn Sink) {
        if text.is_empty() {
            return;
        }
        self.lead = false;
        if !self.pad.is_empty() {
            sink.content(&self.pad);
            self.pad.clear();
        }
        sink.content(text);
    }

    /// What began at the mark is no call: its marker is prose, and what follows is read again.
    fn astray(&mut self, buf: &str, sink: &mut dyn Sink) {
        self.state = State::Text;
        self.calls.abandon();
        let Some(mark) = self.mark.take() else { return };
        let behind = self.pos.min(mark.at + mark.skip);
        let again = self.pos - behind;
        let allowed = FREE_BYTES + 4 * (self.before + self.pos);
        let from = if self.again + again > allowed { self.pos } else { behind };
        self.again += self.pos - from;
        self.pos = from;
        self.content(&buf[mark.at..from], sink);
    }

    /// The text has ended in what may have become a call.
    fn cut_off(&mut self, buf: &str, sink: &mut dyn Sink) {
        if self.mark.is_some_and(|mark| mark.listed) {
            self.state = State::Text;
            self.calls.abandon();
            self.mark = None;
            self.pos = buf.len();
        } else {
            self.astray(buf, sink);
        }
    }

    /// A call is certain.
    fn commit(&mut self) {
        self.mark = None;
        self.pad.clear();
        self.lead = true;
        self.called = true;
        self.block = true;
    }

    fn text(&mut self, buf: &str, last: bool, sink: &mut dyn Sink) -> Went {
        let rest = &buf[self.pos..];
        if self.lead {
            let blank = rest.len() - rest.trim_start().len();
            if blank > 0 {
                self.pad.push_str(&rest[..blank]);
                self.pos += blank;
                return Went::On;
            }
            if matches!(self.frames.bare, Bare::JsonFirst | Bare::JsonOnly) && rest.starts_with(['{', '[']) {
                return self.open_bare();
            }
        }
        let seen = if self.block { &self.text_in_block } else { &self.text }.find(rest, last);
        self.content(&rest[..seen.upto], sink);
        self.pos += seen.upto;
        match seen.marker {
            None => Went::Nowhere,
            Some(marker) => self.marker(marker),
        }
    }

    /// A marker in prose.
    fn marker(&mut self, marker: &'static str) -> Went {
        match (self.frames.bare, marker) {
            (Bare::Json, "{" | "[") => return self.open_bare(),
            (Bare::Python, "[") => {
                self.mark = Some(Mark { at: self.pos, skip: 1, listed: false });
                self.pos += 1;
                self.state = State::Python(List::new());
                return Went::On;
            }
            _ => {}
        }
        let frames = self.frames.frames;
        let opened = frames.iter().position(|frame| frame.open.contains(&marker));
        let called = || frames.iter().position(|frame| frame.lone && frame.call.contains(&marker));
        if let Some(frame) = opened.or_else(called) {
            self.frame = Some(frame);
            self.mark = Some(Mark { at: self.pos, skip: marker.len(), listed: false });
            self.lone = opened.is_none();
            self.state = if self.lone { State::Name } else { State::Gap };
        } else if self.frame().is_some_and(|(frame, _)| frame.close.contains(&marker)) {
            self.block = false;
        }
        self.pos += marker.len();
        Went::On
    }

    fn open_bare(&mut self) -> Went {
        self.frame = None;
        self.open_object()
    }

    fn open_object(&mut self) -> Went {
        self.mark.get_or_insert(Mark { at: self.pos, skip: 1, listed: false });
        let strict = self.frame.is_none() && self.frames.bare != Bare::JsonOnly;
        self.state = State::Object(Object::new(strict));
        Went::On
    }

    /// Between a block's calls. Before the first one, only blanks may stand there.
    fn gap(&mut self, buf: &str, last: bool) -> Went {
        let rest = &buf[self.pos..];
        let first = self.mark.is_some();
        let Some(next) = rest.chars().next() else { return Went::Nowhere };
        let frame = self.frame();
        let objects = frame.is_none_or(|(frame, _)| matches!(frame.head, Head::Json | Head::Either(_)));
        if next.is_whitespace() || !first && objects && matches!(next, ',' | ';') {
            if !first {
                self.pad.push(next);
            }
            self.pos += next.len_utf8();
            return Went::On;
        }
        match frame.map_or(Match::Not, |(_, markers)| markers.between.at(rest)) {
            Match::Begun if !last => return Went::Nowhere,
            Match::Whole(marker) => return self.between(marker),
            _ if objects && matches!(next, '{' | '[') => return self.open_object(),
            _ => {}
        }
        match frame {
            Some((frame, _)) if first && frame.call.is_empty() && !matches!(frame.head, Head::Json) => {
                self.state = State::Name;
            }
            _ if first => return Went::Astray,
            // One bracket too many is a slip that models make.
            _ if objects && matches!(next, '}' | ']') => self.pos += 1,
            _ => self.state = State::Text,
        }
        Went::On
    }

    /// A marker between calls.
    fn between(&mut self, marker: &'static str) -> Went {
        let Some((frame, _)) = self.frame() else { return Went::Astray };
        if frame.call.contains(&marker) {
            self.mark.get_or_insert(Mark { at: self.pos, skip: marker.len(), listed: true });
            self.pos += marker.len();
            self.state = State::Name;
            return Went::On;
        }
        if let Some(mark) = &mut self.mark {
            if !frame.open.contains(&marker) {
                return Went::Astray;
            }
            // Opened twice is open.
            self.pos += marker.len();
            mark.skip = self.pos - mark.at;
            return Went::On;
        }
        if frame.close.contains(&marker) {
            self.block = false;
            self.state = State::Text;
        } else if !frame.end.contains(&marker) {
            self.state = State::Text;
            return Went::On;
        }
        self.pad.clear();
        self.pos += marker.len();
        Went::On
    }

    fn name(&mut self, buf: &str, last: bool, sink: &mut dyn Sink) -> Went {
        let Some((frame, markers)) = self.frame() else { return Went::Astray };
        let (Head::Name(head) | Head::Either(head)) = &frame.head else { return Went::Astray };
        let rest = window(&buf[self.pos..], LONGEST_NAME);
        // Blanks before a name may be what ends one.
        let blank = rest.len() - rest.trim_start().len();
        let seen = markers.name.find(&rest[blank..], last);
        let upto = blank + seen.upto;
        if upto > LONGEST_NAME || !may_be_name(&rest[blank..upto]) {
            return Went::Astray;
        }
        let Some(marker) = seen.marker else { return Went::Nowhere };
        let name = (head.clean)(rest[blank..upto].trim_end());
        let strict = self.mark.is_some() && self.lone;
        if name.is_empty() || strict && !self.calls.accepts(name) {
            return Went::Astray;
        }
        self.pos += upto;
        if head.ends.contains(&marker) {
            self.pos += marker.len();
        }
        self.commit();
        self.calls.begin(name, sink);
        self.state = match &frame.body {
            Body::Json => State::Arguments(None),
            Body::Parameters(_) => State::Parameters(Reader::new()),
        };
        Went::On
    }

    fn object(&mut self, buf: &str, sink: &mut dyn Sink) -> Went {
        let State::Object(object) = &mut self.state else { return Went::Astray };
        let (used, turn) = object.feed(&buf[self.pos..], &mut self.calls, sink);
        self.pos += used;
        if self.calls.is_open() && object.is_certain() || matches!(turn, Turn::Call | Turn::Last) {
            self.commit();
        }
        match turn {
            Turn::More => return Went::Nowhere,
            Turn::Unknown => {}
            // The next one may be no call, though this one was.
            Turn::Call => self.mark = Some(Mark { at: self.pos, skip: 1, listed: true }),
            Turn::Last => self.state = State::Gap,
            Turn::Wrong if self.mark.is_some() => return Went::Astray,
            Turn::Wrong => self.wrong(sink),
        }
        Went::On
    }

    /// Arguments that are not JSON: with a marker to end them they go out as they are.
    fn wrong(&mut self, sink: &mut dyn Sink) {
        if self.frame().is_some_and(|(_, markers)| !markers.ends.is_empty()) {
            self.state = State::Raw;
        } else {
            self.calls.end(sink);
            self.state = State::Gap;
        }
    }

    fn raw(&mut self, buf: &str, last: bool, sink: &mut dyn Sink) -> Went {
        let rest = &buf[self.pos..];
        let Some((_, markers)) = self.frame() else { return Went::Astray };
        let seen = markers.ends.find(rest, last);
        self.calls.arguments(&rest[..seen.upto], sink);
        self.pos += seen.upto;
        if seen.marker.is_none() {
            return Went::Nowhere;
        }
        self.calls.end(sink);
        self.state = State::Gap;
        Went::On
    }

    fn arguments(&mut self, buf: &str, last: bool, sink: &mut dyn Sink) -> Went {
        let rest = &buf[self.pos..];
        let (State::Arguments(json), Some(frame)) = (&mut self.state, self.frame) else {
            return Went::Astray;
        };
        let Some(json) = json else {
            let seen = self.markers[frame].arguments.find(rest, last);
            self.pos += seen.upto;
            match seen.marker {
                None => return Went::Nowhere,
                Some("{") => *json = Some(Json::new()),
                Some(_) => {
                    self.calls.end(sink);
                    self.state = State::Gap;
                }
            }
            return Went::On;
        };
        self.scratch.clear();
        let fed = json.feed(rest, &mut self.scratch);
        self.pos += fed.used;
        self.calls.arguments(&self.scratch, sink);
        match fed.end {
            End::More => return Went::Nowhere,
            End::Bad => self.wrong(sink),
            End::Done => {
                self.calls.end(sink);
                self.state = State::Gap;
            }
        }
        Went::On
    }

    fn parameters(&mut self, buf: &str, last: bool, sink: &mut dyn Sink) -> Went {
        let (State::Parameters(reader), Some(frame)) = (&mut self.state, self.frame) else {
            return Went::Astray;
        };
        let Some(markers) = &self.markers[frame].parameters else { return Went::Astray };
        let (used, edge) = reader.feed(&buf[self.pos..], markers, last, &mut self.calls, sink);
        self.pos += used;
        match edge {
            Edge::More => return Went::Nowhere,
            Edge::On => {}
            Edge::Json => self.state = State::Arguments(None),
            Edge::End => self.state = State::Gap,
        }
        Went::On
    }

    fn python(&mut self, buf: &str, last: bool, sink: &mut dyn Sink) -> Went {
        let State::Python(list) = &mut self.state else { return Went::Astray };
        let (used, turn) = list.feed(&buf[self.pos..], last, &mut self.calls, sink);
        self.pos += used;
        match turn {
            python::Turn::More => return Went::Nowhere,
            python::Turn::On => {}
            python::Turn::Begun => self.commit(),
            python::Turn::Wrong if self.mark.is_some() => return Went::Astray,
            python::Turn::Wrong | python::Turn::Last => self.state = State::Text,
        }
        Went::On
    }
}

/// Could this be a tool's name, or the beginning of one?
fn may_be_name(text: &str) -> bool {
    let text = text.trim_end();
    !text.contains(|c: char| c.is_whitespace() || c.is_control() || "<>{}()[]\"'`,;".contains(c))
}
