//! Finding markers in text that comes in pieces.

/// A set of markers, none of which is a prefix of another.
#[derive(Debug)]
pub struct Markers {
    list: Vec<&'static str>,
    firsts: Vec<u8>,
}

/// What a search saw in a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    /// Bytes before the marker; without one, bytes that no marker can begin in.
    pub upto: usize,
    /// The marker at `upto`, if it is whole.
    pub marker: Option<&'static str>,
}

impl Markers {
    pub fn new(list: impl IntoIterator<Item = &'static str>) -> Self {
        let mut list: Vec<_> = list.into_iter().filter(|marker| !marker.is_empty()).collect();
        list.sort_unstable();
        list.dedup();
        let mut firsts: Vec<_> = list.iter().map(|marker| marker.as_bytes()[0]).collect();
        firsts.dedup();
        Self { list, firsts }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The first marker in `text`. What may become one at the end is left unless nothing follows (`last`).
    pub fn find(&self, text: &str, last: bool) -> Seen {
        let mut from = 0;
        while let Some(at) = self.candidate(&text.as_bytes()[from..]).map(|at| from + at) {
            match self.at(&text[at..]) {
                Match::Whole(marker) => return Seen { upto: at, marker: Some(marker) },
                Match::Begun if !last => return Seen { upto: at, marker: None },
                _ => from = at + 1,
            }
        }
        Seen { upto: text.len(), marker: None }
    }

    /// Does `text` begin with a marker?
    pub fn at(&self, text: &str) -> Match {
        let mut begun = false;
        for marker in &self.list {
            if text.starts_with(marker) {
                return Match::Whole(marker);
            }
            begun |= marker.starts_with(text);
        }
        if begun { Match::Begun } else { Match::Not }
    }

    fn candidate(&self, bytes: &[u8]) -> Option<usize> {
        match *self.firsts.as_slice() {
            [] => None,
            [a] => memchr::memchr(a, bytes),
            [a, b] => memchr::memchr2(a, b, bytes),
            [a, b, c] => memchr::memchr3(a, b, c, bytes),
            _ => bytes.iter().position(|byte| self.firsts.contains(byte)),
        }
    }
}

/// As much of a text as decides whether a marker comes within `bytes`: no marker is longer than 128 bytes.
pub fn window(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes + 128);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Whole(&'static str),
    /// All of the text is the beginning of a marker.
    Begun,
    Not,
}
