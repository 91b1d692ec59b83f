//! What the tests of this module share: a seeded generator and a byte-level vocabulary with its decoder.

use std::sync::Arc;

use crate::stream::{Decode, Vocabulary};

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`, 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next() % limit as u64) as usize }
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

pub const EOS: u32 = 400;
/// Special, and none of the model's eos ids.
pub const EOM: u32 = 401;

/// Ids below 256 are that byte; then words and pieces of characters; then the special tokens.
pub struct Bytes {
    /// By id; gaps are unknown ids.
    tokens: Vec<Vec<u8>>,
    size: u32,
}

impl Bytes {
    pub fn new() -> Arc<Self> {
        let pieces: Vec<&[u8]> = vec![
            "Hello".as_bytes(),
            " world".as_bytes(),
            "STOP".as_bytes(),
            "ST".as_bytes(),
            "OP".as_bytes(),
            "P now".as_bytes(),
            "日本".as_bytes(),
            "語\n".as_bytes(),
            b"\xe6\x97",
            b"\xa5\xe6\x9c\xac",
            b"\xf0\x9f\x98",
            b"\x80\xf0\x9f",
            b"\xe2\x80",
            b"\xa8",
            "\u{2028}\u{85}\0\"\\".as_bytes(),
        ];
        let size = 256 + pieces.len() as u32;
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        tokens.extend(pieces.iter().map(|piece| piece.to_vec()));
        tokens.resize(EOS as usize, Vec::new());
        tokens.extend([b"<|eos|>".to_vec(), b"<|eom|>".to_vec()]);
        Arc::new(Self { tokens, size })
    }

    /// All ids that are text.
    pub fn size(&self) -> u32 {
        self.size
    }

    pub fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |bytes| bytes)
    }

    pub fn decode(&self, ids: &[u32], skip: bool) -> String {
        let ids = ids.iter().filter(|&&id| !(skip && self.is_special(id)));
        String::from_utf8_lossy(&ids.flat_map(|&id| self.bytes(id)).copied().collect::<Vec<_>>()).into_owned()
    }
}

pub struct ByteDecoder {
    vocabulary: Arc<Bytes>,
    skip: bool,
    pending: Vec<u8>,
}

impl Vocabulary for Bytes {
    type Decoder = ByteDecoder;

    fn decoder(self: &Arc<Self>, skip: bool) -> ByteDecoder {
        ByteDecoder { vocabulary: self.clone(), skip, pending: Vec::new() }
    }

    fn is_special(&self, id: u32) -> bool {
        matches!(id, EOS | EOM)
    }

    fn eos_token_ids(&self) -> &[u32] {
        &[EOS]
    }

    fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        Some(self.bytes(id)).filter(|bytes| !bytes.is_empty())
    }
}

impl Decode for ByteDecoder {
    fn push(&mut self, id: u32, out: &mut String) {
        if self.skip && self.vocabulary.is_special(id) {
            return;
        }
        self.pending.extend(self.vocabulary.bytes(id));
        let mut rest = &self.pending[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (good, after) = rest.split_at(error.valid_up_to());
                    out.push_str(std::str::from_utf8(good).unwrap());
                    rest = after;
                    let Some(bad) = error.error_len() else { break };
                    out.push('\u{fffd}');
                    rest = &rest[bad..];
                }
            }
        }
        self.pending = rest.to_vec();
    }

    fn flush(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.pending)));
    }
}
