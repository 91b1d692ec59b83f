//! Tokens that the files beside a `tokenizer.json` name. transformers adds those the tokenizer lacks,
//! and lets their flags win, so a folder means the same here.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// Roles in the order in which transformers adds their tokens; others follow as the file has them.
const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The tokens that a folder declares, in the order in which they get ids.
#[derive(Debug, Default)]
pub struct Declared {
    /// With all flags given: as `tokenizer.json` writes them, but for the id.
    flagged: Vec<Value>,
    /// Special by what they are for; flags count only where nothing else gives them.
    named: Vec<Value>,
    /// Special by their list.
    listed: Vec<Value>,
}

impl Declared {
    /// From `tokenizer_config.json`, and where that has no `added_tokens_decoder` from the older
    /// `special_tokens_map.json` and `added_tokens.json` too. Each null if there is none.
    pub fn read(config: &Value, map: &Value, added: &Value) -> Self {
        let mut declared = Self::default();
        let flagged = config["added_tokens_decoder"].as_object();
        let mut sources = vec![config];
        if flagged.is_none() {
            sources.insert(0, map);
        }
        let named = |role: &str| sources.iter().map(|source| &source[role]).find_map(special);
        let mut roles: Vec<&str> = ROLES.to_vec();
        for source in &sources {
            roles.extend(source.as_object().into_iter().flatten().map(|(role, _)| role.as_str()));
        }
        let mut seen = Vec::new();
        for role in roles.into_iter().filter(|role| role.ends_with("_token")) {
            if !seen.contains(&role) {
                seen.push(role);
                declared.named.extend(named(role));
            }
        }
        for source in &sources {
            for key in ["extra_special_tokens", "model_specific_special_tokens"] {
                declared
                    .named
                    .extend(source[key].as_object().into_iter().flatten().filter_map(|(_, v)| special(v)));
            }
        }
        let list = |key: &str| sources.iter().find_map(|source| source[key].as_array());
        let list = list("extra_special_tokens").or_else(|| list("additional_special_tokens"));
        declared.listed = list.into_iter().flatten().filter_map(special).collect();
        declared.flagged = match flagged {
            Some(tokens) => {
                by_id(tokens.iter().filter_map(|(id, token)| Some((id.parse().ok()?, whole(token)?))))
            }
            None => declared.unflagged(added),
        };
        declared
    }

    /// `added_tokens.json` knows ids only: what is named or listed is special.
    fn unflagged(&self, added: &Value) -> Vec<Value> {
        let names: Vec<&Value> =
            self.named.iter().chain(&self.listed).map(|token| &token["content"]).collect();
        by_id(added.as_object().into_iter().flatten().filter_map(|(content, id)| {
            let special = names.iter().any(|name| *name == content);
            Some((id.as_u64()?, whole(&json!({"content": content, "special": special}))?))
        }))
    }

    /// Every content that is declared.
    pub fn contents(&self) -> impl Iterator<Item = &str> {
        let all = self.flagged.iter().chain(&self.named).chain(&self.listed);
        all.filter_map(|token| token["content"].as_str())
    }

    /// Merges what is declared into `tokens`, the `added_tokens` of a file. `vocab` has the ids of
    /// declared contents that the model itself knows, `size` is how many tokens it has. True if
    /// anything changed.
    pub fn merge(&self, tokens: &mut Vec<Value>, vocab: &HashMap<String, u32>, size: u32) -> bool {
        let mut changed = false;
        let mut add = |tokens: &mut Vec<Value>, token: &Value, flags_win: bool| {
            let known = tokens.iter_mut().find(|known| known["content"] == token["content"]);
            if let Some(known) = known {
                if flags_win {
                    let mut token = with_id(token, known["id"].clone());
                    // The library never takes a token off its list of special ones.
                    token["special"] = json!(token["special"] == true || known["special"] == true);
                    changed |= token != *known;
                    *known = token;
                }
                return;
            }
            let content = token["content"].as_str().unwrap_or_default();
            let id = vocab.get(content).copied().unwrap_or_else(|| next_id(tokens, size));
            tokens.push(with_id(token, json!(id)));
            changed = true;
        };
        for token in &self.flagged {
            add(tokens, token, true);
        }
        for token in self.named.iter().chain(&self.listed) {
            add(tokens, token, false);
        }
        for known in tokens.iter_mut().filter(|known| known["special"] == false) {
            if self.named.iter().any(|token| token["content"] == known["content"]) {
                known["special"] = json!(true);
                changed = true;
            }
        }
        changed
    }
}

/// Behind the model's tokens, and behind those added before.
fn next_id(tokens: &[Value], size: u32) -> u32 {
    let last = tokens.iter().filter_map(|token| u32::try_from(token["id"].as_u64()?).ok()).max();
    last.map_or(size, |last| size.max(last.saturating_add(1)))
}

fn with_id(token: &Value, id: Value) -> Value {
    let mut members = Map::from_iter([("id".to_string(), id)]);
    members.extend(token.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    Value::Object(members)
}

fn by_id(tokens: impl Iterator<Item = (u64, Value)>) -> Vec<Value> {
    let mut tokens: Vec<(u64, Value)> = tokens.collect();
    tokens.sort_by_key(|(id, _)| *id);
    tokens.into_iter().map(|(_, token)| token).collect()
}

/// A special token, written as text or with its flags.
fn special(token: &Value) -> Option<Value> {
    let mut token = match token {
        Value::String(content) => whole(&json!({"content": content, "special": true}))?,
        token => whole(token)?,
    };
    token["special"] = json!(true);
    Some(token)
}

/// `token` with every flag, transformers' defaults for those it lacks. None without content.
pub fn whole(token: &Value) -> Option<Value> {
    let content = token["content"].as_str().filter(|content| !content.is_empty())?;
    let flag = |key: &str, default: bool| token[key].as_bool().unwrap_or(default);
    let special = flag("special", false);
    Some(json!({"content": content, "single_word": flag("single_word", false),
        "lstrip": flag("lstrip", false), "rstrip": flag("rstrip", false),
        "normalized": flag("normalized", !special), "special": special}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(id: u32, content: &str, special: bool) -> Value {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special})
    }

    fn merged(declared: &Declared, mut tokens: Vec<Value>) -> Vec<(u64, String, bool)> {
        let vocab = HashMap::from([("a".to_string(), 7)]);
        declared.merge(&mut tokens, &vocab, 10);
        let token = |token: &Value| {
            (
                token["id"].as_u64().unwrap(),
                token["content"].as_str().unwrap().into(),
                token["special"] == true,
            )
        };
        tokens.iter().map(token).collect()
    }

    #[test]
    fn ids_follow_those_there_in_the_order_of_the_config() {
        let config = json!({
            "pad_token": "<pad>", "image_token": "<img>", "bos_token": {"content": "<s>"}, "eos_token": "a",
            "extra_special_tokens": {"boi": "<boi>"}, "additional_special_tokens": ["<x>", "<s>"],
            "added_tokens_decoder": {"90": added(0, "<late>", false), "12": added(0, "<early>", true)},
        });
        let declared = Declared::read(&config, &json!({"sep_token": "<unseen>"}), &Value::Null);
        let found = merged(&declared, vec![added(10, "<s>", true)]);
        let found: Vec<(u64, &str, bool)> = found.iter().map(|(id, t, s)| (*id, t.as_str(), *s)).collect();
        let want = [
            (10, "<s>", true),
            (11, "<early>", true),
            (12, "<late>", false),
            (7, "a", true),
            (13, "<pad>", true),
            (14, "<img>", true),
            (15, "<boi>", true),
            (16, "<x>", true),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn a_token_once_special_stays_so_and_a_role_makes_special() {
        let config = json!({"eos_token": "<end>", "added_tokens_decoder": {
            "10": added(0, "<call>", false), "11": added(11, "<end>", false)}});
        let declared = Declared::read(&config, &Value::Null, &Value::Null);
        let found = merged(&declared, vec![added(10, "<call>", true), added(11, "<end>", false)]);
        assert_eq!(found, [(10, "<call>".into(), true), (11, "<end>".into(), true)]);
    }

    #[test]
    fn nothing_new_changes_nothing() {
        let config = json!({"eos_token": "<end>", "added_tokens_decoder": {"10": added(10, "<end>", true)}});
        let declared = Declared::read(&config, &Value::Null, &Value::Null);
        assert!(!declared.merge(&mut vec![added(10, "<end>", true)], &HashMap::new(), 10));
    }

    #[test]
    fn older_files_count_where_the_config_has_no_decoder() {
        let map = json!({"bos_token": "<s>", "additional_special_tokens": ["<x>"]});
        let declared = Declared::read(&Value::Null, &map, &json!({"<y>": 11, "<x>": 10}));
        let found = merged(&declared, vec![]);
        let want = [(10, "<x>".to_string(), true), (11, "<y>".into(), false), (12, "<s>".into(), true)];
        assert_eq!(found, want);
    }
}
