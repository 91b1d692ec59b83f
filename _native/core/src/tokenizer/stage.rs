//! The steps of a decoder over text that comes in parts. Each stage hands on what can no longer
//! change, so that any way of cutting gives the text that the step gives over the whole.

use std::sync::Arc;

use super::plan::PerToken;

#[derive(Clone)]
pub enum Stage {
    // One token at a time.
    Each(Arc<PerToken>),
    /// The replacement character is a space, in the first token nothing.
    Metaspace {
        replacement: char,
        first: bool,
    },
    /// A space before each token but the first and those that continue a word.
    WordPiece {
        prefix: String,
        cleanup: bool,
        first: bool,
    },
    /// The suffix is a space, in the last token nothing: a token that has it waits for the next.
    Bpe {
        suffix: String,
        held: Option<String>,
    },
    /// Repeated tokens count once; padding is dropped.
    Ctc {
        pad: String,
        delimiter: String,
        cleanup: bool,
        last: Option<String>,
    },
    /// No decoder: tokens joined with spaces.
    Join {
        first: bool,
    },
    // The text in parts.
    /// Drops up to `left` of `content` at the very start.
    Start {
        content: char,
        left: usize,
    },
    /// Drops up to `most` of `content` at the very end: so many are held back.
    Stop {
        content: char,
        most: usize,
        held: usize,
    },
    /// Replaces a string; the beginning of a match is held back in `tail`.
    Find {
        pattern: String,
        content: String,
        tail: String,
    },
}

impl Stage {
    pub fn join() -> Self {
        Self::Join { first: true }
    }

    pub fn start(content: char, left: usize) -> Self {
        Self::Start { content, left }
    }

    pub fn stop(content: char, most: usize) -> Self {
        Self::Stop { content, most, held: 0 }
    }

    pub fn find(pattern: String, content: String) -> Self {
        Self::Find { pattern, content, tail: String::new() }
    }

    /// Whether a single token reads otherwise than it is written in the table.
    pub fn changes_tokens(&self) -> bool {
        matches!(self, Self::Each(_) | Self::Metaspace { .. } | Self::WordPiece { .. } | Self::Bpe { .. })
    }

    /// A token behind this stage when it is neither the first nor the last.
    pub fn within_text(&self, token: String) -> String {
        match self {
            Self::Each(step) => step.apply(token),
            Self::Metaspace { replacement, .. } => token.replace(*replacement, " "),
            Self::WordPiece { prefix, cleanup, .. } => cleaned(continue_word(prefix, &token), *cleanup),
            Self::Bpe { suffix, .. } => token.replace(suffix.as_str(), " "),
            _ => token,
        }
    }
}

fn continue_word(prefix: &str, token: &str) -> String {
    token.strip_prefix(prefix).map_or_else(|| format!(" {token}"), str::to_string)
}

/// Sends one token, or one part of the text, through `stages`.
pub fn push(stages: &mut [Stage], token: &str, out: &mut String) {
    let Some((stage, rest)) = stages.split_first_mut() else {
        out.push_str(token);
        return;
    };
    match stage {
        Stage::Each(step) => push(rest, &step.apply(token.to_string()), out),
        Stage::Metaspace { replacement, first } => {
            let space = if std::mem::take(first) { "" } else { " " };
            push(rest, &token.replace(*replacement, space), out);
        }
        Stage::WordPiece { prefix, cleanup, first } => {
            let token = if std::mem::take(first) { token.to_string() } else { continue_word(prefix, token) };
            push(rest, &cleaned(token, *cleanup), out);
        }
        Stage::Bpe { suffix, held } => {
            if let Some(before) = held.take() {
                push(rest, &before.replace(suffix.as_str(), " "), out);
            }
            if token.contains(suffix.as_str()) {
                *held = Some(token.to_string());
            } else {
                push(rest, token, out);
            }
        }
        Stage::Ctc { pad, delimiter, cleanup, last } => {
            if last.as_deref() == Some(token) {
                return;
            }
            *last = Some(token.to_string());
            let token = token.replace(pad.as_str(), "");
            let token = if *cleanup { cleaned(token, true).replace(delimiter.as_str(), " ") } else { token };
            if !token.is_empty() {
                push(rest, &token, out);
            }
        }
        Stage::Join { first } => {
            if !std::mem::take(first) {
                push(rest, " ", out);
            }
            push(rest, token, out);
        }
        Stage::Start { content, left } => {
            let mut text = token;
            while *left > 0 && !text.is_empty() {
                match text.strip_prefix(*content) {
                    Some(behind) => (text, *left) = (behind, *left - 1),
                    None => *left = 0,
                }
            }
            push(rest, text, out);
        }
        Stage::Stop { content, most, held } => {
            let body = token.trim_end_matches(*content);
            let mut ended = *held + token[body.len()..].chars().filter(|c| c == content).count();
            if !body.is_empty() {
                push_repeated(rest, *content, *held, out);
                push(rest, body, out);
                ended -= *held;
            }
            push_repeated(rest, *content, ended.saturating_sub(*most), out);
            *held = ended.min(*most);
        }
        Stage::Find { pattern, content, tail } => {
            tail.push_str(token);
            let mut done = 0;
            while let Some(at) = tail[done..].find(pattern.as_str()) {
                push(rest, &tail[done..done + at], out);
                push(rest, content, out);
                done += at + pattern.len();
            }
            let keep = begun(&tail[done..], pattern);
            push(rest, &tail[done..tail.len() - keep], out);
            tail.drain(..tail.len() - keep);
        }
    }
}

/// The end of the text: what was held back goes on, stage by stage.
pub fn finish(stages: &mut [Stage], out: &mut String) {
    let Some((stage, rest)) = stages.split_first_mut() else { return };
    match stage {
        Stage::Bpe { suffix, held } => {
            if let Some(last) = held.take() {
                push(rest, &last.replace(suffix.as_str(), ""), out);
            }
        }
        Stage::Find { tail, .. } => {
            let tail = std::mem::take(tail);
            push(rest, &tail, out);
        }
        _ => {}
    }
    finish(rest, out);
}

fn push_repeated(stages: &mut [Stage], content: char, times: usize, out: &mut String) {
    let mut utf8 = [0; 4];
    let content: &str = content.encode_utf8(&mut utf8);
    for _ in 0..times {
        push(stages, content, out);
    }
}

/// How many bytes at the end of `text` begin `pattern` (and are not all of it).
fn begun(text: &str, pattern: &str) -> usize {
    let most = text.len().min(pattern.len().saturating_sub(1));
    (1..=most).rev().find(|&n| text.as_bytes().ends_with(&pattern.as_bytes()[..n])).unwrap_or(0)
}

/// Strips a token's two ends: up to `start` of `content` in front, up to `stop` behind.
pub struct Edge {
    pub content: char,
    pub start: usize,
    pub stop: usize,
}

impl Edge {
    pub fn strip<'t>(&self, token: &'t str) -> &'t str {
        let mut text = token;
        for _ in 0..self.start {
            text = text.strip_prefix(self.content).unwrap_or(text);
        }
        for _ in 0..self.stop {
            text = text.strip_suffix(self.content).unwrap_or(text);
        }
        text
    }
}

/// English put together again if `on`, as the WordPiece and CTC decoders do it to each token.
fn cleaned(token: String, on: bool) -> String {
    const PAIRS: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    if !on {
        return token;
    }
    PAIRS.iter().fold(token, |text, (from, to)| text.replace(from, to))
}
