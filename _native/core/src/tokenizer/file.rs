//! `tokenizer.json` as text: its parts found by position, and the canonical form that the newer
//! backend reads.
//!
//! Vocabulary and merges are nine tenths of such a file. They are never parsed into a tree: their
//! text is handed on as it stands, and only the small rest becomes a [`Value`]. That keeps the peak
//! of memory at start-up, and the fragments left in the heap after it, small.

use std::collections::HashMap;

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::declared::Declared;
use super::han::FIRST_CHOICE;

type Result<T> = std::result::Result<T, String>;

/// A `tokenizer.json` taken apart.
pub struct File<'a> {
    /// The whole file without `model.vocab` and `model.merges`, which are empty here.
    pub rest: Value,
    /// The text of `model.vocab`: an object token → id, or an array of `[token, score]`.
    pub vocab: &'a str,
    /// The text of `model.merges`, if the model has any.
    pub merges: Option<&'a str>,
}

impl<'a> File<'a> {
    pub fn read(text: &'a str) -> Result<Self> {
        let mut root = Map::new();
        let mut vocab = None;
        let mut merges = None;
        for (key, span) in members(text)? {
            if key != "model" {
                root.insert(key, parse(span)?);
                continue;
            }
            let mut model = Map::new();
            for (key, span) in members(span)? {
                let value = match key.as_str() {
                    "vocab" => {
                        vocab = Some(span);
                        if span.starts_with('[') { Value::Array(vec![]) } else { Value::Object(Map::new()) }
                    }
                    "merges" if span.starts_with('[') => {
                        merges = Some(span);
                        Value::Array(vec![])
                    }
                    _ => parse(span)?,
                };
                model.insert(key, value);
            }
            root.insert(key, Value::Object(model));
        }
        let vocab = vocab.ok_or("it has no model.vocab")?;
        Ok(Self { rest: Value::Object(root), vocab, merges })
    }

    /// The added tokens as the file writes them, with their ids.
    pub fn added_tokens(&self) -> impl Iterator<Item = (String, u32)> {
        let tokens = self.rest["added_tokens"].as_array().into_iter().flatten();
        tokens.filter_map(|token| {
            Some((token["content"].as_str()?.to_string(), u32::try_from(token["id"].as_u64()?).ok()?))
        })
    }

    /// Adds what `config` declares and the file lacks. `vocab` and `size`: see [`Declared::merge`].
    /// True if the file is no longer what its text says.
    pub fn add(&mut self, declared: &Declared, vocab: &HashMap<String, u32>, size: u32) -> bool {
        let tokens = &mut self.rest["added_tokens"];
        if !tokens.is_array() {
            *tokens = Value::Array(vec![]);
        }
        tokens.as_array_mut().is_some_and(|tokens| declared.merge(tokens, vocab, size))
    }

    /// Why the newer backend must not read this file although it would: cases where its ids are
    /// known not to be those of the released library. Files of version 2.0 are its own.
    pub fn differs(&self) -> Option<&'static str> {
        let model = &self.rest["model"];
        if self.rest["version"] == "2.0" {
            None
        } else if model["end_of_word_suffix"].as_str().is_some_and(|suffix| !suffix.is_empty()) {
            Some("words with a suffix are merged otherwise")
        } else if model["dropout"].as_f64().is_some_and(|chance| chance > 0.0) {
            Some("dropout is unknown to it")
        } else if names(&self.rest["pre_tokenizer"], &["Metaspace"]) && self.normalizes_added_tokens() {
            Some("added tokens are looked for behind Metaspace instead of before it")
        } else if names(&self.rest["pre_tokenizer"], &["BertPreTokenizer", "Punctuation"]) {
            Some("punctuation is that of a later Unicode version")
        } else if names(&self.rest["normalizer"], &["NFD", "NFKC", "NFKD"]) {
            Some("its decompositions are those of a later Unicode version")
        } else {
            None
        }
    }

    /// Whether texts are cut by a pattern that [`super::han`] has to look after.
    pub fn puts_han_first(&self) -> bool {
        let cuts = &self.rest["pre_tokenizer"];
        let members = cuts["pretokenizers"].as_array().map_or(std::slice::from_ref(cuts), Vec::as_slice);
        let patterns = members.iter().filter_map(|member| member["pattern"]["Regex"].as_str());
        patterns.into_iter().any(|pattern| pattern.starts_with(FIRST_CHOICE))
    }

    fn normalizes_added_tokens(&self) -> bool {
        let added = self.rest["added_tokens"].as_array().into_iter().flatten();
        added.into_iter().any(|token| token["normalized"] == true)
    }

    /// The file in the form of version 2.0. Padding and truncation are left out: a prompt is
    /// neither padded nor silently cut, as transformers' tokenizers do by default too.
    pub fn canonical(&self) -> Result<String> {
        let mut rest = self.rest.clone();
        rest["padding"] = Value::Null;
        rest["truncation"] = Value::Null;
        tokenizers::canonicalize_value(&mut rest).map_err(|e| e.to_string())?;
        self.whole(&rest)
    }

    /// `rest` with vocabulary and merges put back: a whole `tokenizer.json`.
    pub fn whole(&self, rest: &Value) -> Result<String> {
        let Value::Object(root) = rest else { return Err("it is not a JSON object".into()) };

        let mut out =
            String::with_capacity(self.vocab.len() + self.merges.map_or(0, str::len) * 5 / 4 + 65536);
        write_members(&mut out, root.iter(), |out, key, value| match value {
            Value::Object(model) if key == "model" => {
                write_members(out, model.iter(), |out, key, value| match (key, self.merges) {
                    ("vocab", _) => {
                        out.push_str(self.vocab);
                        Ok(())
                    }
                    ("merges", Some(merges)) => write_merges(out, merges),
                    _ => write_value(out, value),
                })
            }
            _ => write_value(out, value),
        })?;
        Ok(out)
    }
}

/// Whether `component` or a member of it is of one of `kinds`.
fn names(component: &Value, kinds: &[&str]) -> bool {
    let members = [&component["pretokenizers"], &component["normalizers"]];
    component["type"].as_str().is_some_and(|kind| kinds.contains(&kind))
        || members.iter().filter_map(|list| list.as_array()).flatten().any(|member| names(member, kinds))
}

fn parse(span: &str) -> Result<Value> {
    serde_json::from_str(span).map_err(|e| e.to_string())
}

fn write_value(out: &mut String, value: &Value) -> Result<()> {
    out.push_str(&serde_json::to_string(value).map_err(|e| e.to_string())?);
    Ok(())
}

fn write_string(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).expect("a string is always JSON"));
}

fn write_members<'v>(
    out: &mut String,
    members: impl Iterator<Item = (&'v String, &'v Value)>,
    mut write: impl FnMut(&mut String, &str, &Value) -> Result<()>,
) -> Result<()> {
    out.push('{');
    for (n, (key, value)) in members.enumerate() {
        if n > 0 {
            out.push(',');
        }
        write_string(out, key);
        out.push(':');
        write(out, key, value)?;
    }
    out.push('}');
    Ok(())
}

/// Merges as pairs: they are written as `["a","b"]` or, in older files, as `"a b"`.
fn write_merges(out: &mut String, merges: &str) -> Result<()> {
    let first = merges[1..].trim_start();
    if first.starts_with('[') {
        out.push_str(merges);
        return Ok(());
    }
    let mut reader = serde_json::Deserializer::from_str(merges);
    reader.deserialize_seq(Merges { out }).map_err(|e| e.to_string())
}

struct Merges<'o> {
    out: &'o mut String,
}

impl<'de> Visitor<'de> for Merges<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        self.out.push('[');
        let mut first = true;
        while let Some(merge) = seq.next_element::<String>()? {
            if merge.starts_with("#version") {
                continue;
            }
            let pair = merge.split_once(' ').filter(|(_, right)| !right.contains(' '));
            let (left, right) =
                pair.ok_or_else(|| serde::de::Error::custom(format!("merge {merge:?} is not two tokens")))?;
            self.out.push_str(if first { "[" } else { ",[" });
            first = false;
            write_string(self.out, left);
            self.out.push(',');
            write_string(self.out, right);
            self.out.push(']');
        }
        self.out.push(']');
        Ok(())
    }
}

/// The members of the JSON object `text`: keys, and the text of the values.
fn members(text: &str) -> Result<Vec<(String, &str)>> {
    let mut at = Cursor { text, at: 0 };
    let mut found = Vec::new();
    at.expect(b'{')?;
    if at.peek()? == b'}' {
        return Ok(found);
    }
    loop {
        let key = at.value()?;
        let key = serde_json::from_str(key).map_err(|e| e.to_string())?;
        at.expect(b':')?;
        found.push((key, at.value()?));
        if at.peek()? == b'}' {
            return Ok(found);
        }
        at.expect(b',')?;
    }
}

/// Finds where values end. It trusts their insides, which are parsed by others.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte that is no white space.
    fn peek(&mut self) -> Result<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied().ok_or_else(|| "it ends in the middle of the JSON".to_string())
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.peek()? != byte {
            return Err(format!("it is not the JSON expected: no {:?} at byte {}", byte as char, self.at));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<&'a str> {
        self.peek()?;
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut depth = 0usize;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' | b'}' | b']' if depth == 0 => break,
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            if depth == 0 {
                break;
            }
        }
        Ok(self.text[start..self.at].trim_end())
    }

    /// From an opening quote to behind the closing one.
    fn skip_string(&mut self) -> Result<()> {
        let bytes = self.text.as_bytes();
        self.at += 1;
        loop {
            match memchr::memchr2(b'"', b'\\', &bytes[self.at.min(bytes.len())..]) {
                Some(n) if bytes[self.at + n] == b'"' => {
                    self.at += n + 1;
                    return Ok(());
                }
                Some(n) => self.at += n + 2,
                None => return Err("it ends in the middle of a JSON string".into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str = r#" { "version": "1.0", "padding": {"pad_id": 0}, "x\"y": [1, {"a": "]}\\"}],
        "model": { "type": "BPE", "vocab": {"a\"b": 0, "}": 1} , "merges": ["a b", "} {"], "unk_token": null },
        "decoder": null } "#;

    #[test]
    fn a_file_is_taken_apart_by_position() {
        let file = File::read(TEXT).unwrap();
        assert_eq!(file.vocab, r#"{"a\"b": 0, "}": 1}"#);
        assert_eq!(file.merges, Some(r#"["a b", "} {"]"#));
        assert_eq!(file.rest["x\"y"], json!([1, {"a": "]}\\"}]));
        assert_eq!(file.rest["model"]["vocab"], json!({}));
        assert_eq!(file.rest["decoder"], Value::Null);
    }

    #[test]
    fn the_canonical_form_has_all_of_it() {
        let canonical: Value = serde_json::from_str(&File::read(TEXT).unwrap().canonical().unwrap()).unwrap();
        assert_eq!(canonical["version"], "2.0");
        assert_eq!(canonical["padding"], Value::Null);
        assert_eq!(canonical["model"]["vocab"], json!({"a\"b": 0, "}": 1}));
        assert_eq!(canonical["model"]["merges"], json!([["a", "b"], ["}", "{"]]));
    }

    #[test]
    fn it_is_what_the_library_makes_of_the_whole_file() {
        let text = crate::tokenizer::fixtures::byte_level_file().to_string();
        let mut want: Value = serde_json::from_str(&tokenizers::canonicalize_str(&text).unwrap()).unwrap();
        want["truncation"] = Value::Null;
        let canonical = File::read(&text).unwrap().canonical().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&canonical).unwrap(), want);
    }

    #[test]
    fn broken_text_is_an_error() {
        for end in 0..TEXT.trim_end().len() {
            if TEXT.is_char_boundary(end) {
                assert!(File::read(&TEXT[..end]).is_err(), "{}", &TEXT[..end]);
            }
        }
        let file = File::read(r#"{"model": {"vocab": {}, "merges": ["abc"]}}"#).unwrap();
        assert!(file.canonical().unwrap_err().contains("abc"));
    }
}
