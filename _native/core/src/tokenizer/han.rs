//! Kimi's pattern, whose first choice is a run of Chinese characters.
//!
//! The newer backend's matcher begins such a run at every Chinese character. The pattern does not:
//! where a piece of punctuation or of digits has begun, it goes on over the Chinese characters that
//! are no letters (radicals, `〇` and other numerals), and the matcher sorts a few old marks otherwise.
//! Texts where that can matter are rare; they go to the older backend, loaded when the first one comes.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::backend::{AddedToken, Around, Backend, Classic};

/// What a pattern has that puts Chinese characters first.
pub const FIRST_CHOICE: &str = r"[\p{Han}]+|";

pub struct HanApart<B> {
    pub newer: B,
    /// The `tokenizer.json`, for the day it is needed.
    pub definition: String,
    pub older: OnceLock<Result<Classic, String>>,
}

impl<B: Backend> Backend for HanApart<B> {
    fn name(&self) -> &'static str {
        self.newer.name()
    }

    fn encode(&self, text: &str, add_special_tokens: bool, ids: &mut Vec<u32>) -> Result<(), String> {
        if !runs_may_differ(text) {
            return self.newer.encode(text, add_special_tokens, ids);
        }
        let older = self.older.get_or_init(|| Classic::load(&self.definition));
        older.as_ref().map_err(Clone::clone)?.encode(text, add_special_tokens, ids)
    }

    fn around(&self) -> Option<&Around> {
        self.newer.around()
    }

    /// Where the whole text is not taken the slow way, no piece of it is.
    fn cuts(&self, text: &str) -> Vec<usize> {
        if runs_may_differ(text) { Vec::new() } else { self.newer.cuts(text) }
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        self.newer.added_tokens()
    }

    fn roles(&self) -> BTreeMap<String, String> {
        self.newer.roles()
    }
}

/// Whether a Chinese character that is no letter stands behind a character that is not Chinese.
fn runs_may_differ(text: &str) -> bool {
    // In UTF-8 they begin with one of these bytes; most texts have none of the characters.
    let bytes = text.as_bytes();
    memchr::memchr3_iter(0xE2, 0xE3, 0xF0, bytes).any(|at| {
        let Some(character) = text[at..].chars().next().filter(|&c| is_no_letter(c)) else { return false };
        is_old_mark(character) || text[..at].chars().next_back().is_some_and(|before| !is_chinese(before))
    })
}

fn is_no_letter(c: char) -> bool {
    matches!(c, '\u{2E80}'..='\u{2FD5}' | '〇' | '\u{3021}'..='\u{3029}' | '\u{3038}'..='\u{303B}')
        || is_old_mark(c)
}

fn is_old_mark(c: char) -> bool {
    matches!(c, '\u{16FE2}'..='\u{16FF1}')
}

/// A part of the Chinese characters is enough: what is left out is taken the slow way.
fn is_chinese(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{2E80}'..='\u{2E99}'
        | '\u{2F00}'..='\u{2FD5}' | '〇' | '\u{20000}'..='\u{2A6DF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_differ_is_taken_the_slow_way() {
        for text in ["", "〇", "二〇二四年", "⼀⼁⼂", "一〇〇", "a 中文, text…", "€ “x” 🎉 、。 かな"]
        {
            assert!(!runs_may_differ(text), "{text}");
        }
        for text in ["1〇", " ⼀", "x⺀", "!〡", "中\u{16FE2}", "文⼀!⼁"] {
            assert!(runs_may_differ(text), "{text}");
        }
    }
}
