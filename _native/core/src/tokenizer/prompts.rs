//! The ids of parts of prompts, kept for the next prompt that has them: a system prompt that many share, the
//! earlier turns of a conversation.
//!
//! Exact, because a part begins and ends where the tokenizer itself cuts: in front of an added token that is
//! matched in the raw text ([`Backend::cuts`]). From there on it neither looks back nor carries anything over,
//! but for whether a text opens the prompt: what stands before the first cut is no part.
//!
//! So a raw text is in it as a chat is if special tokens stand in it, as where a client renders the template itself;
//! those that the tokenizer puts around a text ([`Backend::around`]) are no part either. Plain text is not: where it
//! is cut depends on pattern, normalizer and merges, and on what stands around.
//!
//! The key is the text, not a digest of it: no client can craft a text that is given another's ids. (The table's
//! hash has a random key of the process; who guessed it would win collisions, which cost time only.)

use std::hash::RandomState;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use super::backend::Backend;

/// In bytes: encoding less costs little more than looking it up.
pub const LEAST: usize = 256;

/// A part that takes more than this share of the cache would drive out too many others.
const LARGEST_SHARE: usize = 8;

/// In bytes: what an entry takes beside its text and its ids (its node, the counts of the shared ids, the heap's own
/// headers, its place in the table, which is up to half empty).
const ENTRY: usize = 192;

type Ids = Arc<[u32]>;

/// Bounded by bytes; what was not asked for the longest time goes first. The lock is held for look-ups, never while
/// encoding: two threads may encode the same text.
pub struct PromptCache {
    kept: Mutex<Kept>,
    most: usize,
}

struct Kept {
    ids: LruCache<Box<str>, Ids, RandomState>,
    bytes: usize,
}

fn weight(text: &str, ids: usize) -> usize {
    text.len() + ids * size_of::<u32>() + ENTRY
}

impl PromptCache {
    /// `bytes`: what it may take at most. Memory is taken as it fills.
    pub fn new(bytes: usize) -> Self {
        let ids = LruCache::unbounded_with_hasher(RandomState::new());
        Self { kept: Mutex::new(Kept { ids, bytes: 0 }), most: bytes }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, text: &str) -> Option<Ids> {
        self.kept().ids.get(text).cloned()
    }

    fn keep(&self, text: &str, ids: &[u32]) {
        let size = weight(text, ids.len());
        if size > self.most / LARGEST_SHARE {
            return;
        }
        let (text, ids) = (text.into(), ids.into());
        let mut gone = Vec::new();
        let mut kept = self.kept();
        if let Some((text, ids)) = kept.ids.push(text, ids) {
            kept.bytes -= weight(&text, ids.len());
            gone.push((text, ids));
        }
        kept.bytes += size;
        while kept.bytes > self.most
            && let Some((text, ids)) = kept.ids.pop_lru()
        {
            kept.bytes -= weight(&text, ids.len());
            gone.push((text, ids));
        }
        // Freed behind the lock.
        drop(kept);
    }

    /// Appends the ids of `text`, those of [`Backend::encode`] without special tokens; returns how many of them
    /// were here already.
    pub fn encode(&self, backend: &dyn Backend, text: &str, ids: &mut Vec<u32>) -> Result<usize, String> {
        let mut reused = 0;
        let mut done = 0;
        for part in parts(&backend.cuts(text)) {
            let found = self.find(&text[part.clone()]);
            if done < part.start {
                backend.encode(&text[done..part.start], false, ids)?;
            }
            done = part.end;
            match found {
                Some(found) => {
                    reused += found.len();
                    ids.extend_from_slice(&found);
                }
                None => {
                    let before = ids.len();
                    backend.encode(&text[part.clone()], false, ids)?;
                    self.keep(&text[part], &ids[before..]);
                }
            }
        }
        if done < text.len() {
            backend.encode(&text[done..], false, ids)?;
        }
        Ok(reused)
    }

    /// Bytes taken, as they are counted against the limit, and how many entries take them.
    #[cfg(test)]
    pub fn size(&self) -> (usize, usize) {
        let kept = self.kept();
        (kept.bytes, kept.ids.len())
    }
}

/// The parts between `cuts` that are worth an entry. A short one is joined with what follows, counted from the
/// start: so prompts that begin alike have the same parts.
fn parts(cuts: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let mut start = cuts.first().copied().unwrap_or(0);
    cuts.iter().filter_map(move |&cut| {
        if cut - start < LEAST {
            return None;
        }
        Some(std::mem::replace(&mut start, cut)..cut)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tokenizer::Tokenizer;
    use crate::tokenizer::fixtures::{Random, byte_fallback_file, byte_level_file, load};

    /// What may stand around a cut.
    const PIECES: [&str; 22] = [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>\n<|im_start|>",
        "<tool_call>",
        "<s>",
        "</s>",
        " <s> ",
        "<|im_",
        "<|im_start|",
        " ",
        "\n\n",
        "\u{301}",
        "\u{200d}",
        "你好 𠮷",
        "hello hello",
        "Hello, ab ba!",
        "user\n",
        "I'll 12345 don't",
        "_",
        "▁a",
        "〇1〇",
        "",
    ];

    fn flagged(mut file: Value, flag: &str) -> Value {
        file["added_tokens"].as_array_mut().unwrap().iter_mut().for_each(|token| token[flag] = json!(true));
        file
    }

    fn with(mut file: Value, key: &str, value: Value) -> Value {
        file[key] = value;
        file
    }

    fn metaspace(scheme: &str) -> Value {
        let step = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
        with(with(byte_fallback_file(), "normalizer", Value::Null), "pre_tokenizer", step)
    }

    fn word_piece() -> Value {
        let vocab = ["[UNK]", "hello", "##lo", "hel", "a", "b", "##b", "user", ",", "!", "<", "|", "你"];
        let vocab: serde_json::Map<String, Value> =
            vocab.iter().zip(0..).map(|(token, id)| (token.to_string(), json!(id))).collect();
        let token = |id: usize, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        json!({
            "version": "1.0", "truncation": null, "padding": null, "post_processor": null,
            "added_tokens": [token(0, "[UNK]"), token(13, "<|im_start|>"), token(14, "<|im_end|>")],
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                           "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": vocab},
        })
    }

    fn unigram() -> Value {
        let pieces = ["<unk>", "▁", "a", "b", "▁a", "ab", "hello", "▁hello", "<", "|", "你"];
        let vocab: Vec<Value> =
            pieces.iter().zip(0..).map(|(piece, n)| json!([piece, -f64::from(n)])).collect();
        let mut file = metaspace("first");
        file["model"] = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": vocab});
        let tokens = file["added_tokens"].as_array_mut().unwrap();
        tokens.iter_mut().zip([0, 11, 12]).for_each(|(token, id)| token["id"] = json!(id));
        file
    }

    /// Each kind of tokenizer that is read, and whether it can be cut.
    fn kinds() -> Vec<(&'static str, Value, bool)> {
        let punctuation = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Punctuation", "behavior": "Isolated"}, byte_level_file()["pre_tokenizer"]]});
        let classic = with(byte_level_file(), "pre_tokenizer", punctuation);
        let mut dropout = byte_level_file();
        dropout["model"]["dropout"] = json!(0.5);
        vec![
            ("byte-level", byte_level_file(), true),
            ("NFC", with(byte_level_file(), "normalizer", json!({"type": "NFC"})), true),
            ("byte fallback", byte_fallback_file(), true),
            ("Metaspace, first", metaspace("first"), true),
            ("Metaspace, always", metaspace("always"), true),
            ("Metaspace, never", metaspace("never"), true),
            ("Unigram", unigram(), true),
            ("rstrip", flagged(byte_level_file(), "rstrip"), true),
            ("lstrip", flagged(byte_level_file(), "lstrip"), true),
            ("both", flagged(flagged(byte_level_file(), "rstrip"), "lstrip"), true),
            ("single word", flagged(byte_level_file(), "single_word"), false),
            ("normalized", flagged(byte_level_file(), "normalized"), false),
            ("WordPiece", word_piece(), true),
            ("older", classic.clone(), true),
            ("older, rstrip", flagged(classic.clone(), "rstrip"), false),
            ("older, single word", flagged(classic, "single_word"), false),
            ("dropout", dropout, false),
        ]
    }

    /// Tokens put around a text in each way that is known, and whether its ids can be told apart from them.
    fn wrappings() -> Vec<(&'static str, Value, bool)> {
        let around = |file: Value, sequence: &[&str]| {
            let [s, e] = [1, 2].map(|token| file["added_tokens"][token]["content"].clone());
            let piece = |name: &&str| match *name {
                "text" => json!({"Sequence": {"id": "A", "type_id": 0}}),
                name => json!({"SpecialToken": {"id": if name == "s" { &s } else { &e }, "type_id": 0}}),
            };
            let single: Vec<Value> = sequence.iter().map(piece).collect();
            let pair =
                json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]);
            let mut known = json!({});
            for (name, token) in [(&s, &file["added_tokens"][1]), (&e, &file["added_tokens"][2])] {
                known[name.as_str().unwrap()] = json!({"id": name, "ids": [token["id"]], "tokens": [name]});
            }
            let step = json!({"type": "TemplateProcessing", "single": single, "pair": pair,
                              "special_tokens": known});
            with(file, "post_processor", step)
        };
        let classic = kinds().into_iter().find(|(kind, ..)| *kind == "older").unwrap().1;
        let id = |token: usize| {
            json!([classic["added_tokens"][token]["content"], classic["added_tokens"][token]["id"]])
        };
        let bert = json!({"type": "BertProcessing", "sep": id(1), "cls": id(0)});
        let roberta = json!({"type": "RobertaProcessing", "sep": id(1), "cls": id(0), "trim_offsets": true,
                             "add_prefix_space": false});
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        let template = around(classic.clone(), &["s", "text"])["post_processor"].clone();
        let several = json!({"type": "Sequence", "processors": [bytes, template]});
        vec![
            ("before", around(byte_fallback_file(), &["s", "text"]), true),
            ("both", around(byte_level_file(), &["s", "e", "text", "e"]), true),
            ("Unigram, behind", around(unigram(), &["text", "e"]), true),
            ("WordPiece, both", around(word_piece(), &["s", "text", "e"]), true),
            ("older, both", around(classic.clone(), &["s", "text", "e", "e"]), true),
            ("older, Bert's", with(classic.clone(), "post_processor", bert), true),
            ("older, RoBERTa's", with(classic.clone(), "post_processor", roberta), true),
            ("older, several", with(classic.clone(), "post_processor", several), true),
            ("older, none", with(classic.clone(), "post_processor", Value::Null), true),
            ("twice", around(classic, &["text", "s", "text"]), false),
        ]
    }

    fn cached(file: &Value, bytes: usize) -> Tokenizer {
        let mut tokenizer = load(file);
        tokenizer.cache_prompts(bytes);
        tokenizer
    }

    /// A prompt of a few turns out of `turns` that others have too.
    fn prompt(random: &mut Random, turns: &[String]) -> String {
        let mut text = random.pick(&PIECES).to_string();
        for _ in 0..random.below(5) {
            text += &turns[random.below(turns.len())];
            text += random.pick(&PIECES);
        }
        text
    }

    fn turns(random: &mut Random) -> Vec<String> {
        let turn = |random: &mut Random| {
            let pieces = 1 + random.below(60);
            let text: String = (0..pieces).map(|_| random.pick(&PIECES)).collect();
            let head = random.pick(&["<|im_start|>", "<s>", "<|im_start|> ", ""]);
            format!("{head}{}{text}", "hello ab ".repeat(random.below(60)))
        };
        (0..12).map(|_| turn(random)).collect()
    }

    #[test]
    fn cached_ids_are_those_of_the_whole_text() {
        for (kind, file, cuttable) in kinds() {
            let mut random = Random::new(3);
            let turns = turns(&mut random);
            let (tokenizer, plain) = (cached(&file, 1 << 20), load(&file));
            let mut reused = 0;
            for _ in 0..120 {
                let text = prompt(&mut random, &turns);
                let (ids, known) = tokenizer.encode_prompt(&text, false).unwrap();
                if kind != "dropout" {
                    assert_eq!(ids, plain.encode(&text, false).unwrap(), "{kind}: {text:?}");
                }
                reused += known;
            }
            assert_eq!(reused > 0, cuttable, "{kind}");
        }
    }

    #[test]
    fn special_tokens_stand_around_cached_ids_too() {
        for (kind, file, known) in wrappings() {
            let mut random = Random::new(4);
            let turns = turns(&mut random);
            let (tokenizer, plain) = (cached(&file, 1 << 20), load(&file));
            let mut reused = 0;
            for _ in 0..60 {
                let text = prompt(&mut random, &turns);
                let (ids, found) = tokenizer.encode_prompt(&text, true).unwrap();
                assert_eq!(ids, plain.encode(&text, true).unwrap(), "{kind}: {text:?}");
                reused += found;
            }
            assert_eq!(reused > 0, known, "{kind}");
        }
    }

    #[test]
    fn a_cut_token_is_not_joined_with_what_follows_it_elsewhere() {
        let mut file = byte_level_file();
        let mut longer = file["added_tokens"][0].clone();
        (longer["id"], longer["content"]) = (json!(266), json!("<|im_start|>b"));
        file["added_tokens"].as_array_mut().unwrap().push(longer);
        let (tokenizer, plain) = (cached(&file, 1 << 20), load(&file));
        let body = "a".repeat(2 * LEAST);
        for text in [
            format!("<|im_end|>{body}<|im_start|>c"),
            format!("<|im_end|>{body}<|im_start|>b"),
            format!("<|im_end|>{body}<|im_start|>bc{body}<|im_end|>"),
            format!("<|im_end|>{body}"),
        ] {
            let found = tokenizer.encode_prompt(&text, false).unwrap().0;
            assert_eq!(found, plain.encode(&text, false).unwrap(), "{text}");
        }
    }

    #[test]
    fn a_growing_conversation_reuses_all_but_its_last_turn() {
        let tokenizer = cached(&byte_level_file(), 1 << 20);
        let mut text = format!("<|im_start|>{}<|im_end|>", "hello ".repeat(100));
        for turn in 0..8 {
            let before = tokenizer.encode(&text, false).unwrap().len();
            text += &format!("<|im_start|>{turn}{}<|im_end|>", "ab ".repeat(100));
            let (_, reused) = tokenizer.encode_prompt(&text, false).unwrap();
            assert!(turn == 0 || reused + 1 >= before, "{turn}: {reused} of {before}");
        }
    }

    #[test]
    fn the_oldest_go_when_it_is_full() {
        let most = 64 << 10;
        let tokenizer = cached(&byte_level_file(), most);
        let text = |n: usize| format!("<|im_start|>{n} {}<|im_end|>", "hello ".repeat(100));
        let known = |n: usize| tokenizer.encode_prompt(&text(n), false).unwrap().1 > 0;
        for n in 0..500 {
            assert!(!known(n));
            // Asked for again and again, it stays.
            assert!(known(0), "{n}");
            let (bytes, entries) = tokenizer.prompts.as_ref().unwrap().size();
            assert!(bytes <= most && entries * weight(&text(0), 0) <= most, "{bytes} {entries}");
        }
        assert!(known(499) && !known(1));
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let tokenizer = cached(&byte_level_file(), 8 << 10);
        let text = format!("<|im_start|>{}<|im_end|>", "hello ".repeat(1000));
        for _ in 0..2 {
            let (ids, reused) = tokenizer.encode_prompt(&text, false).unwrap();
            assert_eq!((ids, reused), (tokenizer.encode(&text, false).unwrap(), 0));
        }
        assert_eq!(tokenizer.prompts.as_ref().unwrap().size(), (0, 0));
    }

    #[test]
    fn without_room_there_is_no_cache() {
        let tokenizer = cached(&byte_level_file(), 0);
        let text = format!("<|im_start|>{}<|im_end|>", "hello ".repeat(100));
        for _ in 0..2 {
            assert_eq!(tokenizer.encode_prompt(&text, false).unwrap().1, 0);
        }
    }

    #[test]
    fn threads_share_it() {
        let mut random = Random::new(5);
        let turns = turns(&mut random);
        // Small, so that entries come and go.
        let (tokenizer, plain) = (cached(&byte_level_file(), 16 << 10), load(&byte_level_file()));
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let (tokenizer, plain, turns) = (&tokenizer, &plain, &turns);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..60 {
                        let text = prompt(&mut random, turns);
                        let ids = tokenizer.encode_prompt(&text, false).unwrap().0;
                        assert_eq!(ids, plain.encode(&text, false).unwrap(), "{text:?}");
                    }
                });
            }
        });
        assert!(tokenizer.prompts.as_ref().unwrap().size().0 <= 16 << 10);
    }

    #[test]
    fn parts_are_whole_stretches_between_cuts() {
        let found = |cuts: &[usize]| parts(cuts).collect::<Vec<_>>();
        assert!(found(&[]).is_empty());
        assert!(found(&[3]).is_empty());
        assert!(found(&[3, 3 + LEAST - 1]).is_empty());
        assert_eq!(found(&[3, 3 + LEAST]), std::slice::from_ref(&(3..3 + LEAST)));
        assert_eq!(found(&[0, 10, 300, 310, 900, 1000]), [0..300, 300..900]);
    }
}
