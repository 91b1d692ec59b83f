//! How a forced answer begins.
//!
//! A worker whose grammar does not wait for the end of the reasoning forces the calls from the first token on,
//! though the prompt has opened the reasoning. Nothing closes it then, and the calls would be taken for thoughts.

use super::reading::ReadAs;

/// The beginning of an answer, until it is clear whether that is the forced JSON.
pub struct Opening {
    array: bool,
    /// The first bracket has come.
    open: bool,
    text: String,
}

impl Opening {
    /// None: nothing is forced.
    pub fn new(read_as: ReadAs) -> Option<Self> {
        (read_as != ReadAs::Parser).then(|| Self {
            array: read_as == ReadAs::CallsArray,
            open: false,
            text: String::new(),
        })
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
        for c in text.chars().filter(|c| !c.is_whitespace()) {
            if self.open || c != first {
                return Some(self.open && next.contains(&c));
            }
            self.open = true;
        }
        None
    }

    /// The text so far.
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(read_as: ReadAs, pieces: &[&str]) -> Option<bool> {
        let mut opening = Opening::new(read_as)?;
        pieces.iter().find_map(|piece| opening.push(piece))
    }

    #[test]
    fn the_character_behind_the_bracket_tells() {
        for (text, want) in [
            (" [ {\"name\"", Some(true)),
            ("[1, 2] are", Some(false)),
            ("Well, [{", Some(false)),
            (" \n[\t", None),
            ("", None),
        ] {
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(told(ReadAs::CallsArray, &[text]), want, "{text}");
            assert_eq!(told(ReadAs::CallsArray, &letters), want, "{text}");
        }
        assert_eq!(told(ReadAs::NamedArguments, &["{", "}"]), Some(true));
        assert_eq!(told(ReadAs::NamedArguments, &["{a"]), Some(false));
        assert_eq!(told(ReadAs::Parser, &["{}"]), None);
    }

    #[test]
    fn blanks_without_end_are_read_once() {
        let blanks = vec!["   "; 300_000];
        assert_eq!(told(ReadAs::CallsArray, &[&["["], &blanks[..], &["{"]].concat()), Some(true));
    }
}
