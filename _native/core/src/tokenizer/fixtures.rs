//! Small tokenizers for tests, made in memory.

use serde_json::{Value, json};

use super::config::Config;
use super::vocab::ByteAlphabet;
use super::*;

pub fn load(file: &Value) -> Tokenizer {
    Tokenizer::new(&file.to_string(), Config::default()).expect("the file is a tokenizer")
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": special})
}

/// A byte-level BPE like Qwen's: ids 0–255 are the bytes, then a few merges, then added tokens.
pub fn byte_level_file() -> Value {
    let alphabet = ByteAlphabet::new();
    let mut vocab: Vec<String> = (0..=255u8).map(|byte| alphabet.character(byte).to_string()).collect();
    let merges =
        [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("ä", "½"), ("ä½", "ł")];
    vocab.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    let size = vocab.len();
    let ids: serde_json::Map<String, Value> = vocab.into_iter().zip((0..).map(|id: u32| json!(id))).collect();
    json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "normalizer": null,
        "added_tokens": [added(size, "<|im_start|>", true), added(size + 1, "<|im_end|>", true),
                         added(size + 2, "<tool_call>", false)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [size], "tokens": ["<|im_start|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": ids,
                  "merges": merges.map(|(left, right)| format!("{left} {right}"))},
    })
}

/// A byte-fallback BPE like Llama 2's: `<unk>`, `<s>`, `</s>`, the bytes as ids 3–258, then text.
pub fn byte_fallback_file() -> Value {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_string).to_vec();
    vocab.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    vocab.extend(["▁", "a", "b", "▁a", "ab", "▁ab", "你", "▁▁"].map(str::to_string));
    let ids: serde_json::Map<String, Value> = vocab.into_iter().zip((0..).map(|id: u32| json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": ids,
                  "merges": [["▁", "a"], ["a", "b"], ["▁", "ab"], ["▁", "▁"]]},
    })
}

/// Reproducible numbers for random tests.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    pub fn pick<'l, T: ?Sized>(&mut self, list: &[&'l T]) -> &'l T {
        list[self.below(list.len())]
    }
}
