//! What a file's `decoder` asks for, turned into what runs for each token.
//!
//! A decoder is a list of steps over tokens. Steps at the head that look at one token alone are run
//! once, at load, over the whole vocabulary. Then comes at most one step that goes by bytes, and the
//! rest become [`Stage`]s that work on text as it comes. A list that cannot be run that way exactly
//! (a regular expression over the joined text, say) is left to the library, over a window.

use std::sync::Arc;

use serde_json::Value;
use tokenizers_fallback::tokenizer::Decoder as _;
use tokenizers_fallback::{DecoderWrapper, normalizers::Replace, normalizers::replace::ReplacePattern};

use super::stage::{Edge, Stage};
use super::vocab::{ByteAlphabet, RAW_BYTE};

/// One step of a decoder, as `tokenizer.json` writes it.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    ByteLevel,
    ByteFallback,
    Fuse,
    Strip { content: char, start: usize, stop: usize },
    Replace { pattern: ReplacePattern, content: String },
    Metaspace { replacement: char, keep_first: bool },
    WordPiece { prefix: String, cleanup: bool },
    Bpe { suffix: String },
    Ctc { pad: String, delimiter: String, cleanup: bool },
}

/// How the bytes of a token enter the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Each token is text.
    Text,
    /// Each token is bytes; all of them together are UTF-8.
    ByteLevel,
    /// Tokens like `<0x0A>` are bytes, the others are text.
    ByteFallback,
}

pub enum Plan {
    Stream { head: Vec<PerToken>, lead: Lead, stages: Vec<Stage> },
    Window(Box<DecoderWrapper>),
}

/// A step that sees one token alone.
pub enum PerToken {
    Replace(Arc<Replace>),
    Strip(Edge),
}

impl PerToken {
    pub fn apply(&self, token: String) -> String {
        match self {
            // The library fails on its regular expression's own limits only; the token is kept then.
            Self::Replace(replace) => {
                replace.decode_chain(vec![token.clone()]).map_or(token, |tokens| tokens.concat())
            }
            Self::Strip(edge) => edge.strip(&token).to_string(),
        }
    }
}

impl Plan {
    /// `decoder` as the file has it, `null` for none. `byte_level` for a model whose file says that
    /// itself (version 2.0), whatever the decoder.
    pub fn new(decoder: &Value, byte_level: bool) -> Result<Self, String> {
        let mut steps = Vec::new();
        if byte_level {
            steps.push(Step::ByteLevel);
        } else if decoder.is_null() {
            // Without a decoder tokens are joined with spaces.
            return Ok(Self::Stream { head: vec![], lead: Lead::Text, stages: vec![Stage::join()] });
        } else {
            read_steps(decoder, &mut steps)?;
        }
        match compile(&steps)? {
            Some(plan) => Ok(plan),
            None => {
                let wrapper = serde_json::from_value(decoder.clone()).map_err(|e| e.to_string())?;
                Ok(Self::Window(Box::new(wrapper)))
            }
        }
    }

    /// What a token's string becomes in the table, and [`RAW_BYTE`] if that is one byte.
    pub fn fold(&self, token: &str, alphabet: &ByteAlphabet, added: bool) -> (Vec<u8>, u8) {
        let Self::Stream { head, lead, .. } = self else { return (token.into(), 0) };
        let token = head.iter().fold(token.to_string(), |token, step| step.apply(token));
        match lead {
            Lead::ByteLevel if !added => (alphabet.decode(&token), 0),
            Lead::ByteFallback => match fallback_byte(&token) {
                Some(byte) => (vec![byte], RAW_BYTE),
                None => (token.into(), 0),
            },
            Lead::ByteLevel | Lead::Text => (token.into(), 0),
        }
    }

    /// The text of a token within a text, where that is not what the table holds.
    pub fn displays(&self) -> bool {
        matches!(self, Self::Stream { stages, .. } if stages.iter().any(Stage::changes_tokens))
    }

    pub fn display(&self, token: &str) -> String {
        let Self::Stream { stages, .. } = self else { return token.to_string() };
        stages.iter().fold(token.to_string(), |token, stage| stage.within_text(token))
    }
}

/// The byte of a token like `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

fn read_steps(decoder: &Value, steps: &mut Vec<Step>) -> Result<(), String> {
    let kind = decoder["type"].as_str().ok_or("its decoder has no type")?;
    let text = |key: &str| {
        decoder[key].as_str().map(str::to_string).ok_or(format!("its {kind} decoder has no {key}"))
    };
    let flag = |key: &str, default| decoder[key].as_bool().unwrap_or(default);
    let count = |key: &str| decoder[key].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let character = |key: &str| -> Result<char, String> {
        let text = text(key)?;
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => Ok(c),
            _ => Err(format!("its {kind} decoder's {key} is not one character")),
        }
    };
    steps.push(match kind {
        "Sequence" => {
            let members = decoder["decoders"].as_array().ok_or("its Sequence decoder has no decoders")?;
            return members.iter().try_for_each(|member| read_steps(member, steps));
        }
        "ByteLevel" => Step::ByteLevel,
        "ByteFallback" => Step::ByteFallback,
        "Fuse" => Step::Fuse,
        "Strip" => Step::Strip { content: character("content")?, start: count("start"), stop: count("stop") },
        "Replace" => Step::Replace {
            pattern: serde_json::from_value(decoder["pattern"].clone()).map_err(|e| e.to_string())?,
            content: text("content")?,
        },
        "Metaspace" => Step::Metaspace {
            replacement: character("replacement")?,
            keep_first: decoder["prepend_scheme"].as_str() == Some("never"),
        },
        "WordPiece" => Step::WordPiece { prefix: text("prefix")?, cleanup: flag("cleanup", true) },
        "BPEDecoder" => Step::Bpe { suffix: text("suffix")? },
        "CTC" => Step::Ctc {
            pad: text("pad_token")?,
            delimiter: text("word_delimiter_token")?,
            cleanup: flag("cleanup", true),
        },
        _ => return Err(format!("its decoder {kind:?} is unknown")),
    });
    Ok(())
}

/// The plan for `steps`, or None where only the library runs them exactly.
fn compile(steps: &[Step]) -> Result<Option<Plan>, String> {
    let mut steps = steps.iter().peekable();
    let mut head = Vec::new();
    while let Some(step) = steps.next_if(|step| matches!(step, Step::Replace { .. } | Step::Strip { .. })) {
        head.push(per_token(step)?);
    }
    let lead = match steps.peek() {
        Some(Step::ByteLevel) => Lead::ByteLevel,
        Some(Step::ByteFallback) => Lead::ByteFallback,
        _ => Lead::Text,
    };
    // From the byte-level step on there is one token: the whole text.
    let mut fused = lead == Lead::ByteLevel;
    if lead != Lead::Text {
        steps.next();
    }
    let mut stages = Vec::new();
    for step in steps {
        if *step == Step::Fuse {
            fused = true;
        } else if fused {
            match over_text(step) {
                Some(stage) => stages.extend(stage),
                None => return Ok(None),
            }
        } else {
            match over_tokens(step)? {
                Some(stage) => stages.push(stage),
                None => return Ok(None),
            }
        }
    }
    Ok(Some(Plan::Stream { head, lead, stages }))
}

fn per_token(step: &Step) -> Result<PerToken, String> {
    match step {
        Step::Replace { pattern, content } => {
            let replace = Replace::new(pattern.clone(), content).map_err(|e| e.to_string())?;
            Ok(PerToken::Replace(Arc::new(replace)))
        }
        Step::Strip { content, start, stop } => {
            Ok(PerToken::Strip(Edge { content: *content, start: *start, stop: *stop }))
        }
        _ => Err("not a step that sees one token alone".into()),
    }
}

/// A step before the tokens are fused: it sees them one by one.
fn over_tokens(step: &Step) -> Result<Option<Stage>, String> {
    Ok(match step.clone() {
        Step::ByteLevel | Step::ByteFallback | Step::Fuse => None,
        Step::Replace { .. } | Step::Strip { .. } => Some(Stage::Each(Arc::new(per_token(step)?))),
        Step::Metaspace { replacement, keep_first } => {
            Some(Stage::Metaspace { replacement, first: !keep_first })
        }
        Step::WordPiece { prefix, cleanup } => Some(Stage::WordPiece { prefix, cleanup, first: true }),
        Step::Bpe { suffix } => Some(Stage::Bpe { suffix, held: None }),
        Step::Ctc { pad, delimiter, cleanup } => Some(Stage::Ctc { pad, delimiter, cleanup, last: None }),
    })
}

/// A step behind the fusing: it sees the whole text as one token, which comes in parts here.
fn over_text(step: &Step) -> Option<Vec<Stage>> {
    match step.clone() {
        Step::Fuse => Some(vec![]),
        Step::Strip { content, start, stop } => {
            Some(vec![Stage::start(content, start), Stage::stop(content, stop)])
        }
        Step::Replace { pattern: ReplacePattern::String(pattern), content } if !pattern.is_empty() => {
            Some(vec![Stage::find(pattern, content)])
        }
        Step::Metaspace { replacement, keep_first } => {
            let content = if keep_first { " " } else { "" };
            Some(vec![Stage::find(replacement.to_string(), content.into())])
        }
        Step::Bpe { suffix } if !suffix.is_empty() => Some(vec![Stage::find(suffix, String::new())]),
        Step::WordPiece { cleanup: false, .. } => Some(vec![]),
        _ => None,
    }
}
