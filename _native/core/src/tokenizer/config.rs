//! What lies beside a `tokenizer.json`: special tokens by role, end-of-sequence ids, chat templates.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::declared::Declared;
use crate::error::{Code, Error, Result};

/// Everything the siblings of a `tokenizer.json` say.
#[derive(Debug, Default)]
pub struct Config {
    /// `tokenizer_config.json`, null if there is none; dropped once the tokenizer is loaded.
    pub tokenizer: Value,
    /// Tokens that the tokenizer itself may lack; dropped as well.
    pub declared: Declared,
    /// `eos_token` → `</s>` and so on, under the names that templates see.
    pub special_tokens: BTreeMap<String, String>,
    /// End-of-sequence ids, from the first file that names any.
    pub eos_token_ids: Vec<u32>,
    /// The default chat template.
    pub chat_template: Option<String>,
    /// All templates by name, where there are several.
    pub named_templates: BTreeMap<String, String>,
    pub model_max_length: Option<u64>,
}

/// transformers writes 1e30 where it knows no length.
const LONGEST_SANE: f64 = 1e9;

impl Config {
    /// Reads what there is in `folder`. Errors: a file that is there and cannot be read.
    pub fn load(folder: &Path) -> Result<Self> {
        let tokenizer = json(&folder.join("tokenizer_config.json"))?;
        let map = json(&folder.join("special_tokens_map.json"))?;
        let declared = Declared::read(&tokenizer, &map, &json(&folder.join("added_tokens.json"))?);
        let mut config = Self { declared, ..Self::default() };
        for source in [&tokenizer, &map] {
            collect_special_tokens(source, &mut config.special_tokens);
        }
        config.eos_token_ids =
            [json(&folder.join("generation_config.json"))?, json(&folder.join("config.json"))?]
                .iter()
                .flat_map(|file| {
                    [eos_ids(&file["eos_token_id"]), eos_ids(&file["text_config"]["eos_token_id"])]
                })
                .find(|ids| !ids.is_empty())
                .unwrap_or_default();
        config.model_max_length = sane_length(&tokenizer["model_max_length"]);
        config.read_templates(folder, &tokenizer)?;
        config.tokenizer = tokenizer;
        Ok(config)
    }

    fn read_templates(&mut self, folder: &Path, tokenizer: &Value) -> Result<()> {
        let mut sources = vec![];
        if let Some(text) = text(&folder.join("chat_template.jinja"))? {
            sources.push(Value::String(text));
        }
        sources.push(json(&folder.join("chat_template.json"))?["chat_template"].clone());
        sources.push(tokenizer["chat_template"].clone());
        if let Some(found) = sources.iter().find(|source| !source.is_null()) {
            self.named_templates = templates(found);
        }
        for (name, template) in additional_templates(&folder.join("additional_chat_templates"))? {
            self.named_templates.entry(name).or_insert(template);
        }
        self.chat_template = self.named_templates.get("default").cloned();
        Ok(())
    }
}

/// A template alone is the one named `default`.
fn templates(source: &Value) -> BTreeMap<String, String> {
    let pair =
        |name: &Value, template: &Value| Some((name.as_str()?.to_string(), template.as_str()?.to_string()));
    match source {
        Value::String(template) => BTreeMap::from([("default".to_string(), template.clone())]),
        Value::Array(list) => {
            list.iter().filter_map(|entry| pair(&entry["name"], &entry["template"])).collect()
        }
        Value::Object(named) => {
            let text =
                |(name, template): (&String, &Value)| Some((name.clone(), template.as_str()?.to_string()));
            named.iter().filter_map(text).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// `additional_chat_templates/NAME.jinja`.
fn additional_templates(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(found) };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_stem().and_then(|name| name.to_str());
        if let (Some(name), Some("jinja")) = (name, path.extension().and_then(|end| end.to_str())) {
            found.extend(text(&path)?.map(|template| (name.to_string(), template)));
        }
    }
    Ok(found)
}

/// Every `*_token` that is text, and what models name of their own; the first file wins.
fn collect_special_tokens(source: &Value, into: &mut BTreeMap<String, String>) {
    let named = source.as_object().into_iter().flatten().filter(|(name, _)| name.ends_with("_token"));
    let own = ["extra_special_tokens", "model_specific_special_tokens"];
    let own = own.iter().filter_map(|key| source[key].as_object()).flatten();
    for (name, value) in named.chain(own) {
        if let Some(token) = value.as_str().or_else(|| value["content"].as_str()) {
            into.entry(name.clone()).or_insert_with(|| token.to_string());
        }
    }
}

fn eos_ids(value: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

fn sane_length(value: &Value) -> Option<u64> {
    let length = value.as_f64().filter(|length| (1.0..LONGEST_SANE).contains(length))?;
    Some(length as u64)
}

/// The JSON of a file, `null` if there is none.
fn json(path: &Path) -> Result<Value> {
    let Some(text) = text(path)? else { return Ok(Value::Null) };
    serde_json::from_str(&text).map_err(|e| unreadable(path, &e.to_string()))
}

/// The text of a file, None if there is none.
fn text(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unreadable(path, &e.to_string())),
    }
}

/// One clear line about a file.
pub fn unreadable(path: &Path, why: &str) -> Error {
    Error::new(Code::Load, format!("cannot read {}: {}", path.display(), why.replace('\n', " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for one test, removed at its end.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("wsgi-router-config-{name}-{}", std::process::id()));
            std::fs::create_dir_all(path.join("additional_chat_templates")).unwrap();
            for (name, text) in files {
                std::fs::write(path.join(name), text).unwrap();
            }
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn load(name: &str, files: &[(&str, &str)]) -> Config {
        Config::load(&Folder::new(name, files).0).unwrap()
    }

    #[test]
    fn nothing_there_is_nothing_known() {
        let config = load("empty", &[]);
        assert!(config.special_tokens.is_empty() && config.eos_token_ids.is_empty());
        assert_eq!((config.chat_template, config.model_max_length), (None, None));
    }

    #[test]
    fn special_tokens_are_text_or_objects_and_the_config_wins() {
        let config = load(
            "special",
            &[
                (
                    "tokenizer_config.json",
                    r#"{"bos_token": null, "eos_token": {"content": "</s>"}, "add_bos_token": true,
                        "image_token": "<img>", "extra_special_tokens": {"boi": "<boi>"}, "model_max_length": 1e30}"#,
                ),
                ("special_tokens_map.json", r#"{"bos_token": "<s>", "eos_token": "<other>"}"#),
            ],
        );
        let found: Vec<(&str, &str)> =
            config.special_tokens.iter().map(|(name, token)| (name.as_str(), token.as_str())).collect();
        let want = [("boi", "<boi>"), ("bos_token", "<s>"), ("eos_token", "</s>"), ("image_token", "<img>")];
        assert_eq!(found, want);
        assert_eq!(config.model_max_length, None);
    }

    #[test]
    fn eos_ids_come_from_the_first_file_that_has_them() {
        let both = [
            ("generation_config.json", r#"{"eos_token_id": [7, 8]}"#),
            ("config.json", r#"{"eos_token_id": 9}"#),
        ];
        assert_eq!(load("eos-both", &both).eos_token_ids, [7, 8]);
        assert_eq!(load("eos-one", &both[1..]).eos_token_ids, [9]);
        let nested =
            [("generation_config.json", "{}"), ("config.json", r#"{"text_config": {"eos_token_id": 1}}"#)];
        assert_eq!(load("eos-nested", &nested).eos_token_ids, [1]);
    }

    #[test]
    fn templates_come_from_the_first_place_that_has_them() {
        let files = [
            ("chat_template.jinja", "A"),
            ("chat_template.json", r#"{"chat_template": "B"}"#),
            ("tokenizer_config.json", r#"{"chat_template": "C", "model_max_length": 4096}"#),
        ];
        for (n, want) in ["A", "B", "C"].into_iter().enumerate() {
            let config = load(&format!("template-{n}"), &files[n..]);
            assert_eq!(config.chat_template.as_deref(), Some(want));
            assert_eq!(config.model_max_length, Some(4096));
        }
        let several = r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}"#;
        let more = ("additional_chat_templates/rag.jinja", "R");
        let config = load("template-named", &[("tokenizer_config.json", several), more]);
        assert_eq!(config.chat_template.as_deref(), Some("D"));
        assert_eq!(config.named_templates.keys().collect::<Vec<_>>(), ["default", "rag", "tool_use"]);
    }

    #[test]
    fn a_broken_file_is_named() {
        let folder = Folder::new("broken", &[("generation_config.json", "{")]);
        let error = Config::load(&folder.0).unwrap_err();
        assert_eq!(error.code, Code::Load);
        assert!(error.message.contains("generation_config.json"));
    }
}
