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

/// Markers that are special tokens, behind those.
const MARKERS: [&str; 24] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|python_start|>",
    "<|python_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
];

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
        tokens.extend(MARKERS.map(|marker| marker.as_bytes().to_vec()));
        Arc::new(Self { tokens, size })
    }

    /// All ids that are text.
    pub fn size(&self) -> u32 {
        self.size
    }

    pub fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |bytes| bytes)
    }

    /// The ids of a text, cut at random; `markers` come as special tokens, now and then as text.
    pub fn cut(&self, random: &mut Random, text: &str, markers: &[&str]) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text.as_bytes());
        while let Some(&byte) = rest.first() {
            let marker = markers.iter().find(|marker| rest.starts_with(marker.as_bytes()));
            let marker = marker.filter(|_| random.chance(90)).and_then(|marker| self.token_id(marker));
            let piece = (256..self.size).find(|&id| rest.starts_with(self.bytes(id)));
            let id = marker.or(piece.filter(|_| random.chance(50))).unwrap_or(byte.into());
            rest = &rest[self.bytes(id).len()..];
            ids.push(id);
        }
        ids
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
        (EOS..self.tokens.len() as u32).contains(&id)
    }

    fn eos_token_ids(&self) -> &[u32] {
        &[EOS]
    }

    fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        Some(self.bytes(id)).filter(|bytes| !bytes.is_empty())
    }

    fn token_id(&self, token: &str) -> Option<u32> {
        (0..self.tokens.len() as u32).find(|&id| self.bytes(id) == token.as_bytes())
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
