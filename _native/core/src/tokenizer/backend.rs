//! Text → ids. Two generations of the same library behind one trait: the newer one where it takes
//! the file and gives the same ids, the older one for what it refuses (byte-level vocabularies that
//! lack some bytes, regular expressions it has no matcher for …; see [`HanApart`] too) or is known to read otherwise
//! ([`File::differs`]). Neither starts a thread for a single text: the newer is built without its
//! thread pool, the older uses one for batches only, which nobody asks for here.
//!
//! One difference stays: their Unicode tables are of different years, so 65 combining marks (nearly
//! all younger than Unicode 12) sort differently under NFC when they follow another mark.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder, MatchKind};
use tokenizers::pipeline::{EncodeOptions, PipelinePatternMatcher, PipelineToken, PipelineTokenizer};
use tokenizers_fallback::{Encoding, ModelWrapper, Token};

use super::file::File;
use super::han::HanApart;

/// A token that is matched in the text before the model sees it.
pub struct AddedToken {
    pub id: u32,
    /// What it decodes to: normalized, if it is matched in normalized text.
    pub content: String,
    pub special: bool,
}

/// The special tokens that belong around a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Around {
    pub before: Vec<u32>,
    pub after: Vec<u32>,
}

pub trait Backend: Send + Sync {
    fn name(&self) -> &'static str;

    /// Appends the ids of `text`.
    fn encode(&self, text: &str, add_special_tokens: bool, ids: &mut Vec<u32>) -> Result<(), String>;

    /// What [`Self::encode`] with special tokens adds to the ids it gives without; None if it does anything else.
    fn around(&self) -> Option<&Around>;

    /// Where `text` can be cut, in order: each piece, encoded alone and without special tokens, has the ids that
    /// it has within the whole, as it begins with an added token that is matched in the raw text. (What stands
    /// before the first cut may be encoded otherwise elsewhere: it opens the text.) Empty where nothing is known.
    fn cuts(&self, text: &str) -> Vec<usize>;

    /// The added tokens with the ids this backend gives them.
    fn added_tokens(&self) -> Vec<AddedToken>;

    /// What the file itself says about roles (`eos_token` → `</s>`); only version 2.0 files do.
    fn roles(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// Loads `file` with the first backend that takes it. `text` is the whole of it, None if it is to be
/// put together.
///
/// Errors: what both had against it.
pub fn load(text: Option<&str>, file: &File) -> Result<Box<dyn Backend>, String> {
    let newer = match Pipeline::load(file) {
        Ok(newer) if file.puts_han_first() => {
            let definition = text.map_or_else(|| file.whole(&file.rest), |text| Ok(text.to_string()))?;
            return Ok(Box::new(HanApart { newer, definition, older: OnceLock::new() }));
        }
        Ok(backend) => return Ok(Box::new(backend)),
        Err(why) => why,
    };
    let older = match text {
        Some(text) => Classic::load(text),
        None => file.whole(&file.rest).and_then(|text| Classic::load(&text)),
    };
    match older {
        Ok(backend) => Ok(Box::new(backend)),
        Err(older) => Err(format!("{newer}; {older}")),
    }
}

struct Pipeline {
    inner: PipelineTokenizer,
    around: Around,
    cuttable: bool,
}

impl Pipeline {
    fn load(file: &File) -> Result<Self, String> {
        if let Some(why) = file.differs() {
            return Err(why.into());
        }
        let canonical = file.canonical()?;
        // It panics where a vocabulary has too many pairs of one kind for its tables.
        let read = catch_unwind(AssertUnwindSafe(|| tokenizers::from_json(&canonical)));
        let pipeline = read.map_err(|_| "its vocabulary is beyond the newer backend")?;
        let pipeline = pipeline.map_err(|e| e.to_string())?;
        // Some faults of a vocabulary show at the first use only.
        let added = pipeline.get_added_vocabulary().get_added_tokens_decoder();
        // Such a token is matched by what stands around it, on the other side of a cut too.
        let cuttable = !added.values().any(|token| token.single_word && !token.normalized);
        let template = &pipeline.get_post_processor().single;
        let [before, after] = [&template.prefix, &template.suffix]
            .map(|tokens| tokens.iter().map(|(token, _)| token.id()).collect());
        let around = Around { before, after };
        let backend = Self { inner: pipeline, around, cuttable };
        backend.encode("a b\n", true, &mut Vec::new())?;
        Ok(backend)
    }
}

impl Backend for Pipeline {
    fn name(&self) -> &'static str {
        "tokenizers-1.0"
    }

    fn encode(&self, text: &str, add_special_tokens: bool, ids: &mut Vec<u32>) -> Result<(), String> {
        // The library would copy the text if it had to add them.
        let options = EncodeOptions { add_special_tokens: false, ..EncodeOptions::default() };
        let mut tokens: Vec<PipelineToken> = Vec::with_capacity(text.len() / 3 + 8);
        self.inner.encode_into(text, &options, &mut tokens).map_err(|e| e.to_string())?;
        if add_special_tokens {
            ids.extend_from_slice(&self.around.before);
        }
        ids.extend_from_slice(PipelineToken::cast_slice(&tokens));
        if add_special_tokens {
            ids.extend_from_slice(&self.around.after);
        }
        Ok(())
    }

    fn around(&self) -> Option<&Around> {
        Some(&self.around)
    }

    /// Found as the library finds them. It normalizes, cuts and merges what stands between two such tokens by
    /// itself, and begins to search anew behind each.
    fn cuts(&self, text: &str) -> Vec<usize> {
        let mut cuts = Vec::new();
        if !self.cuttable {
            return cuts;
        }
        let added = self.inner.get_added_vocabulary();
        let mut from = 0;
        while let Some(((start, end), _)) = added.extract_next(text.as_bytes(), from, false, false) {
            cuts.push(start);
            from = end;
        }
        cuts
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        let vocabulary = self.inner.get_added_vocabulary();
        let token = |id| {
            let content = vocabulary.simple_id_to_token(id)?;
            Some(AddedToken { id, special: vocabulary.is_special_token(&content), content })
        };
        vocabulary.get_added_tokens_decoder().into_keys().filter_map(token).collect()
    }

    fn roles(&self) -> BTreeMap<String, String> {
        self.inner.get_role_to_token().clone()
    }
}

pub struct Classic {
    inner: tokenizers_fallback::Tokenizer,
    around: Option<Around>,
    /// What cuts a text; None if that is not known.
    cutter: Option<DoubleArrayAhoCorasick<u32>>,
}

impl Classic {
    pub fn load(text: &str) -> Result<Self, String> {
        let mut inner = tokenizers_fallback::Tokenizer::from_bytes(text).map_err(|e| e.to_string())?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        let (around, cutter) = (around(&inner), cutter(&inner));
        Ok(Self { inner, around, cutter })
    }
}

/// What `tokenizer` puts around a text: what it puts around a token that no vocabulary has, as its last step looks
/// at no ids.
fn around(tokenizer: &tokenizers_fallback::Tokenizer) -> Option<Around> {
    let text = Token::new(u32::MAX, "a".into(), (0, 1));
    let alone = Encoding::from_tokens(vec![text], 0);
    let whole = tokenizer.post_process(alone, None, true).ok()?;
    let mut parts = whole.get_ids().split(|&id| id == u32::MAX).map(<[u32]>::to_vec);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(before), Some(after), None) => Some(Around { before, after }),
        // A template may name the text twice, or never.
        _ => None,
    }
}

/// Finds the tokens that `tokenizer` matches in raw text, as it does: with the same automaton. Tokens with flags
/// are matched by what stands around them too, and dropout gives the same text other ids each time.
fn cutter(tokenizer: &tokenizers_fallback::Tokenizer) -> Option<DoubleArrayAhoCorasick<u32>> {
    let tokens = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    let raw: Vec<_> = tokens.iter().filter(|(_, token)| !token.normalized).collect();
    let flagged = raw.iter().any(|(_, token)| token.single_word || token.lstrip || token.rstrip);
    let random = matches!(tokenizer.get_model(), ModelWrapper::BPE(model) if model.dropout.is_some());
    if flagged || random || raw.is_empty() {
        return None;
    }
    let patterns = raw.into_iter().map(|(id, token)| (token.content.as_str(), *id));
    let builder = DoubleArrayAhoCorasickBuilder::new().match_kind(MatchKind::LeftmostLongest);
    builder.build_with_values(patterns).ok()
}

impl Backend for Classic {
    fn name(&self) -> &'static str {
        "tokenizers-0.23"
    }

    fn encode(&self, text: &str, add_special_tokens: bool, ids: &mut Vec<u32>) -> Result<(), String> {
        let encoding = self.inner.encode_fast(text, add_special_tokens).map_err(|e| e.to_string())?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn around(&self) -> Option<&Around> {
        self.around.as_ref()
    }

    fn cuts(&self, text: &str) -> Vec<usize> {
        let found = self.cutter.iter().flat_map(|cutter| cutter.leftmost_find_iter(text));
        found.map(|token| token.start()).collect()
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        let vocabulary = self.inner.get_added_vocabulary();
        let token = |&id| {
            let content = vocabulary.simple_id_to_token(id)?;
            Some(AddedToken { id, special: vocabulary.is_special_token(&content), content })
        };
        vocabulary.get_added_tokens_decoder().keys().filter_map(token).collect()
    }
}
