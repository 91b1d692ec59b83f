//! How a forced answer begins.
//!
//! A worker whose grammar does not wait for the end of the reasoning forces the calls from the first token on,
//! though the prompt has opened the reasoning. Nothing closes it then, and the calls would be taken for thoughts.

use super::reading::ReadAs;

/// The beginning of an answer, until it is clear whether that is the forced JSON.
pub struct Opening {
    array: bool,
    text: String,
}

impl Opening {
    /// None: nothing is forced.
    pub fn new(read_as: ReadAs) -> Option<Self> {
        (read_as != ReadAs::Parser)
            .then(|| Self { array: read_as == ReadAs::CallsArray, text: String::new() })
    }

    /// Bytes that are held back.
    pub fn held(&self) -> usize {
        self.text.len()
    }

    /// Whether the answer begins with the JSON, or None if more text has to tell. Thoughts may begin with a
    /// bracket, so the character behind it has to fit too.
    pub fn push(&mut self, text: &str) -> Option<bool> {
        self.text.push_str(text);
        let (first, next): (_, &[char]) = if self.array { ('[', &['{']) } else { ('{', &['"', '}']) };
        let text = self.text.trim_start();
        match text.strip_prefix(first).map(str::trim_start) {
            None if text.is_empty() => None,
            None => Some(false),
            Some("") => None,
            Some(rest) => Some(rest.starts_with(next)),
        }
    }

    /// The text so far.
    pub fn into_text(self) -> String {
        self.text
    }
}
