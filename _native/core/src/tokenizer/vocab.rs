//! Id → bytes, in one block of memory: what every decoder and `token_bytes` look into.

use std::collections::HashMap;

use serde::de::{Deserializer as _, MapAccess, SeqAccess, Visitor};

/// Token ids and their bytes. Ids without a token are holes.
#[derive(Default)]
pub struct Table {
    /// Where a token lies in `bytes`; `HOLE` for none. Indexed by id.
    spans: Vec<(u32, u32)>,
    /// What a token is besides text: [`SPECIAL`], [`RAW_BYTE`]. Indexed by id.
    flags: Vec<u8>,
    bytes: Vec<u8>,
    tokens: usize,
    /// The most bytes that one token has, replaced ones included.
    longest: usize,
}

/// Skipped by `skip_special_tokens`.
pub const SPECIAL: u8 = 1;
/// One byte of a byte-fallback vocabulary.
pub const RAW_BYTE: u8 = 2;

const HOLE: (u32, u32) = (u32::MAX, 0);

/// Ids come from a file: one absurd id must not ask for gigabytes.
const MAX_ID: u32 = 1 << 24;

impl Table {
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let &(start, end) = self.spans.get(id as usize)?;
        self.bytes.get(start as usize..end as usize)
    }

    /// How many ids have a token.
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// A bound on the bytes that one token has; each prompt is measured by it, so it is kept.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Whether the token `id` has `flag`.
    pub fn is(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & flag != 0)
    }

    /// Sets the bytes of `id`; what was there before is forgotten.
    pub fn set(&mut self, id: u32, token: &[u8], flags: u8) -> Result<(), String> {
        if id >= MAX_ID {
            return Err(format!("token id {id} is beyond {MAX_ID}"));
        }
        let slot = id as usize;
        if slot >= self.spans.len() {
            self.spans.resize(slot + 1, HOLE);
            self.flags.resize(slot + 1, 0);
        }
        self.tokens += usize::from(self.spans[slot] == HOLE);
        self.longest = self.longest.max(token.len());
        let start = self.bytes.len();
        self.bytes.extend_from_slice(token);
        self.spans[slot] = (offset(start)?, offset(self.bytes.len())?);
        self.flags[slot] = flags;
        Ok(())
    }

    /// The lowest id whose bytes are `token`.
    pub fn find(&self, token: &[u8]) -> Option<u32> {
        (0..self.spans.len() as u32).find(|&id| self.get(id) == Some(token))
    }

    /// Every token, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.spans.len() as u32).filter_map(|id| Some((id, self.get(id)?)))
    }

    pub fn shrink(&mut self) {
        self.spans.shrink_to_fit();
        self.flags.shrink_to_fit();
        self.bytes.shrink_to_fit();
    }
}

fn offset(at: usize) -> Result<u32, String> {
    u32::try_from(at).ok().filter(|&at| at != u32::MAX).ok_or_else(|| "its vocabulary is over 4 GB".into())
}

/// Reads `model.vocab`: `{"token": id}`, or `[["token", score]]` whose ids are the positions.
pub fn read(json: &str, token: impl FnMut(u32, &str) -> Result<(), String>) -> Result<(), String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    reader.deserialize_any(Entries { token }).map_err(|e| format!("model.vocab: {e}"))
}

struct Entries<F> {
    token: F,
}

impl<'de, F: FnMut(u32, &str) -> Result<(), String>> Visitor<'de> for Entries<F> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of tokens and ids, or a list of tokens and scores")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((token, id)) = map.next_entry::<String, u32>()? {
            (self.token)(id, &token).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut id = 0;
        while let Some((token, _score)) = seq.next_element::<(String, f64)>()? {
            (self.token)(id, &token).map_err(serde::de::Error::custom)?;
            id += 1;
        }
        Ok(())
    }
}

/// The printable alphabet that byte-level vocabularies are written in (GPT-2's `bytes_to_unicode`):
/// printable Latin-1 stands for itself, every other byte for a character from U+0100 on.
pub struct ByteAlphabet {
    bytes: HashMap<char, u8>,
    characters: [char; 256],
}

impl ByteAlphabet {
    pub fn new() -> Self {
        let mut bytes = HashMap::with_capacity(256);
        let mut characters = ['\0'; 256];
        let mut next = 0x100u32;
        for byte in 0..=255u8 {
            let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if printable { u32::from(byte) } else { next };
            next += u32::from(!printable);
            let character = char::from_u32(code).expect("below the surrogates");
            bytes.insert(character, byte);
            characters[usize::from(byte)] = character;
        }
        Self { bytes, characters }
    }

    /// The bytes that `token` spells, or its own UTF-8 if any character is not of the alphabet.
    pub fn decode(&self, token: &str) -> Vec<u8> {
        let bytes: Option<Vec<u8>> = token.chars().map(|c| self.bytes.get(&c).copied()).collect();
        bytes.unwrap_or_else(|| token.as_bytes().to_vec())
    }

    pub fn character(&self, byte: u8) -> char {
        self.characters[usize::from(byte)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_that_of_byte_level_vocabularies() {
        let alphabet = ByteAlphabet::new();
        assert_eq!(alphabet.decode("Ġhello"), b" hello");
        assert_eq!(alphabet.decode("Ċ"), b"\n");
        assert_eq!(alphabet.decode("ĀłŃ"), [0, 0xA0, 0xAD]);
        // Not all of the alphabet: taken as it is.
        assert_eq!(alphabet.decode("a b"), b"a b");
        let all: String = (0..=255u8).map(|byte| alphabet.character(byte)).collect();
        assert_eq!(alphabet.decode(&all), (0..=255u8).collect::<Vec<u8>>());
    }

    #[test]
    fn a_table_has_holes_and_forgets_what_it_replaces() {
        let mut table = Table::default();
        table.set(3, b"three", 0).unwrap();
        table.set(1, b"", RAW_BYTE).unwrap();
        table.set(3, b"3", SPECIAL).unwrap();
        assert_eq!(
            (table.get(0), table.get(1), table.get(3), table.get(9)),
            (None, Some(&b""[..]), Some(&b"3"[..]), None)
        );
        assert_eq!((table.len(), table.find(b"3"), table.find(b"three")), (2, Some(3), None));
        assert_eq!(table.longest(), 5);
        assert!(
            table.is(1, RAW_BYTE) && table.is(3, SPECIAL) && !table.is(3, RAW_BYTE) && !table.is(9, SPECIAL)
        );
        assert!(table.set(u32::MAX, b"x", 0).is_err());
    }

    #[test]
    fn a_vocabulary_is_an_object_or_a_list() {
        let mut found = vec![];
        let mut token = |id: u32, token: &str| {
            found.push((id, token.to_string()));
            Ok(())
        };
        read(r#"{"a": 5, "\u00e9": 2}"#, &mut token).unwrap();
        read(r#"[["x", -1.5], ["y", 0]]"#, &mut token).unwrap();
        assert!(read("3", &mut token).is_err());
        assert!(read(r#"{"a": -1}"#, &mut token).is_err());
        let want = [(5, "a"), (2, "é"), (0, "x"), (1, "y")].map(|(id, text)| (id, text.to_string()));
        assert_eq!(found, want);
    }
}
