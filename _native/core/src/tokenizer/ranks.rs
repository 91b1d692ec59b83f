//! tiktoken's form of a vocabulary, lines of `base64(token) rank`, written as the `tokenizer.json` that
//! gives the same ids, so that nothing behind it knows the difference.
//!
//! tiktoken takes a piece that is a token at once, and merges in others the neighbours whose
//! concatenation has the lowest rank. As merges: every cut of a token into two tokens, in the order of
//! the whole's rank, then of the parts' (transformers converts such files the same way).

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::config::Config;
use super::declared::whole;
use super::families::{self, Family};
use super::vocab::ByteAlphabet;

type Result<T> = std::result::Result<T, String>;

/// Token → rank, and the tokens in the order of ranks.
struct Ranks {
    of: HashMap<Vec<u8>, u32>,
    tokens: Vec<(u32, Vec<u8>)>,
}

/// The `tokenizer.json` for the ranks in `bytes`, read from a file called `name`. What the model's own
/// code would assume, and no file says, is put into `config`.
///
/// Errors: what is wrong with the file, or unknown about it.
pub fn definition(bytes: &[u8], name: &str, config: &mut Config) -> Result<String> {
    let ranks = Ranks::read(bytes)?;
    let family = families::find(&config.tokenizer, name, ranks.tokens.len())?;
    let special = special_tokens(family, &ranks, &config.tokenizer)?;
    for (role, token) in family.roles {
        config.special_tokens.entry((*role).into()).or_insert_with(|| (*token).into());
    }
    if config.eos_token_ids.is_empty() {
        let id = |end: &&str| special.iter().find(|(_, token)| token["content"] == **end).map(|(id, _)| *id);
        config.eos_token_ids = family.ends.iter().filter_map(id).collect();
    }
    Ok(ranks.write(family, &special, &config.tokenizer))
}

impl Ranks {
    fn read(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|_| {
            "it is neither JSON nor a list of tiktoken ranks (SentencePiece models need their tokenizer.json)"
        })?;
        let mut of = HashMap::new();
        let mut tokens = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let number = number + 1;
            let mut words = line.split_ascii_whitespace();
            let entry = (words.next().and_then(base64), words.next().and_then(|rank| rank.parse().ok()));
            let (Some(token), Some(rank), None) = (entry.0, entry.1, words.next()) else {
                return Err(format!("line {number} is not a token in base64 and its rank"));
            };
            if of.insert(token.clone(), rank).is_some() {
                return Err(format!("line {number} repeats a token"));
            }
            tokens.push((rank, token));
        }
        tokens.sort_unstable();
        if let Some(pair) = tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("two of its tokens have the rank {}", pair[0].0));
        }
        if let Some(byte) = (0..=255u8).find(|&byte| !of.contains_key(&[byte][..])) {
            return Err(format!("it has no token for the byte {byte:#04X}"));
        }
        Ok(Self { of, tokens })
    }

    fn write(&self, family: &Family, special: &BTreeMap<u32, Value>, config: &Value) -> String {
        let added: Vec<&Value> = special.values().collect();
        let split = json!({"type": "Split", "pattern": {"Regex": family.pattern}, "behavior": "Isolated",
            "invert": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false});
        let rest = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": if family.nfc { json!({"type": "NFC"}) } else { Value::Null },
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes]},
            "post_processor": around(family, special, config),
            "decoder": bytes,
        });
        let alphabet = ByteAlphabet::new();
        let mut out = rest.to_string();
        out.pop();
        out.push_str(
            ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\
             \"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,\
             \"byte_fallback\":false,\"ignore_merges\":true,\"vocab\":{",
        );
        for (n, (rank, token)) in self.tokens.iter().enumerate() {
            write_token(&mut out, n > 0, token, &alphabet);
            out.push(':');
            out.push_str(&rank.to_string());
        }
        out.push_str("},\"merges\":[");
        let mut first = true;
        for (_, token) in &self.tokens {
            for (left, right) in self.cuts(token) {
                out.push_str(if std::mem::take(&mut first) { "[" } else { ",[" });
                write_token(&mut out, false, left, &alphabet);
                write_token(&mut out, true, right, &alphabet);
                out.push(']');
            }
        }
        out.push_str("]}}");
        out
    }

    /// Every way to cut `token` into two tokens, in the order of their ranks.
    fn cuts<'t>(&self, token: &'t [u8]) -> Vec<(&'t [u8], &'t [u8])> {
        let parts = (1..token.len()).map(|at| token.split_at(at));
        let mut cuts: Vec<_> = parts
            .filter_map(|(left, right)| Some((self.of.get(left)?, self.of.get(right)?, (left, right))))
            .collect();
        cuts.sort_unstable();
        cuts.into_iter().map(|(_, _, pair)| pair).collect()
    }
}

/// The special tokens by id: what the config names, then what the class itself does.
fn special_tokens(family: &Family, ranks: &Ranks, config: &Value) -> Result<BTreeMap<u32, Value>> {
    let mut found = BTreeMap::new();
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let id: u32 = id.parse().map_err(|_| format!("added_tokens_decoder has the id {id:?}"))?;
        let mut token = whole(token).ok_or("added_tokens_decoder has a token without content")?;
        token["id"] = json!(id);
        found.insert(id, token);
    }
    let first = u32::try_from(ranks.tokens.len()).map_err(|e| e.to_string())?;
    let own = family.special.iter().map(|name| ((*name).to_string(), true));
    let numbered = &family.numbered;
    let numbers = (0..numbered.count).map(|n| {
        let number = if numbered.number_is_id { first + n } else { numbered.first + n };
        (format!("{}{number}|>", numbered.head), numbered.special)
    });
    let taken: Vec<Value> = found.values().map(|token| token["content"].clone()).collect();
    for (id, (name, special)) in (first..).zip(own.chain(numbers)) {
        // A class's own name for an id that the config moved elsewhere would be one text with two ids.
        if !found.contains_key(&id) && !taken.iter().any(|content| *content == *name) {
            found.insert(
                id,
                json!({"id": id, "content": name, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": family.nfc, "special": special}),
            );
        }
    }
    if let Some(id) =
        found.keys().find(|id| ranks.tokens.binary_search_by_key(*id, |(rank, _)| *rank).is_ok())
    {
        return Err(format!("the id {id} is both a rank and a special token"));
    }
    Ok(found)
}

/// The post-processor that puts the class's tokens around a text.
fn around(family: &Family, special: &BTreeMap<u32, Value>, config: &Value) -> Value {
    let mut ids = serde_json::Map::new();
    let mut pieces = |tokens: &[(&str, &str)]| -> Vec<Value> {
        let wanted = tokens.iter().filter(|(_, key)| config[*key] != false);
        wanted
            .filter_map(|(token, _)| {
                let (id, _) = special.iter().find(|(_, known)| known["content"] == **token)?;
                ids.insert((*token).into(), json!({"id": token, "ids": [id], "tokens": [token]}));
                Some(json!({"SpecialToken": {"id": token, "type_id": 0}}))
            })
            .collect()
    };
    let before = pieces(family.around.before);
    let after = pieces(family.around.after);
    if ids.is_empty() {
        return Value::Null;
    }
    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let single: Vec<Value> = [before, vec![text("A")], after].concat();
    let pair: Vec<Value> = [single.clone(), vec![text("B")]].concat();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": ids})
}

fn write_token(out: &mut String, comma: bool, token: &[u8], alphabet: &ByteAlphabet) {
    out.push_str(if comma { ",\"" } else { "\"" });
    for &byte in token {
        if matches!(byte, b'"' | b'\\') {
            out.push('\\');
        }
        out.push(alphabet.character(byte));
    }
    out.push('"');
}

/// The bytes behind `text`, with or without its padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut held) = (0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xFF) as u8);
        }
    }
    (!bytes.is_empty() && held < 6).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::Random;
    use super::super::{Code, Tokenizer};
    use super::*;

    fn encoded(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let group = |group: &[u8]| {
            let bits = (0..3).fold(0, |bits, n| bits << 8 | u32::from(*group.get(n).unwrap_or(&0)));
            let digit = |n: usize| {
                if n > group.len() { '=' } else { DIGITS[(bits >> (18 - 6 * n) & 63) as usize] as char }
            };
            (0..4).map(digit).collect::<String>()
        };
        bytes.chunks(3).map(group).collect()
    }

    fn file(tokens: &[Vec<u8>]) -> String {
        tokens.iter().enumerate().map(|(rank, token)| format!("{} {rank}\n", encoded(token))).collect()
    }

    fn config(tokenizer: Value) -> Config {
        Config { tokenizer, ..Config::default() }
    }

    fn load(file: &str, mut config: Config) -> Result<Tokenizer> {
        let text = definition(file.as_bytes(), "tiktoken.model", &mut config)?;
        Tokenizer::new(&text, config)
    }

    fn kimi() -> Config {
        config(json!({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {
            "256": {"content": "[BOS]", "special": true}, "258": {"content": "<|im_end|>", "special": true},
            "257": {"content": "[EOS]", "special": true}}}))
    }

    /// All bytes in a random order, then random strings over few letters: by far not all of them can be
    /// reached by merges, and many can be cut in several ways.
    fn random_tokens(random: &mut Random) -> Vec<Vec<u8>> {
        let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        for last in (1..tokens.len()).rev() {
            tokens.swap(last, random.below(last + 1));
        }
        let letters = ["a", "ab", "abc", "é日"];
        let letters: Vec<u8> = random.pick(&letters).bytes().collect();
        for _ in 0..random.below(60) {
            let token: Vec<u8> =
                (0..2 + random.below(5)).map(|_| letters[random.below(letters.len())]).collect();
            if !tokens.contains(&token) {
                tokens.push(token);
            }
        }
        tokens
    }

    /// What tiktoken does with one piece.
    fn merged(tokens: &[Vec<u8>], piece: &[u8]) -> Vec<u32> {
        let rank = |part: &[u8]| tokens.iter().position(|token| token == part);
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|&byte| vec![byte]).collect();
        if rank(piece).is_some() {
            parts = vec![piece.to_vec()];
        }
        loop {
            let ranks =
                parts.windows(2).enumerate().filter_map(|(at, pair)| Some((rank(&pair.concat())?, at)));
            let Some((_, at)) = ranks.min() else { break };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
        parts.iter().map(|part| rank(part).unwrap() as u32).collect()
    }

    #[test]
    fn any_ranks_merge_as_tiktoken_merges() {
        let mut random = Random::new(7);
        for _ in 0..60 {
            let tokens = random_tokens(&mut random);
            let tokenizer = load(&file(&tokens), kimi_behind(tokens.len())).unwrap();
            assert_eq!(tokenizer.backend(), "tokenizers-1.0");
            for _ in 0..12 {
                let letters = ["a", "b", "c", "ab", "aa", "é"];
                let piece: String = (0..1 + random.below(20)).map(|_| random.pick(&letters)).collect();
                let ids = tokenizer.encode(&piece, false).unwrap();
                assert_eq!(ids, merged(&tokens, piece.as_bytes()), "{piece}");
                assert_eq!(tokenizer.decode(&ids, true), piece);
            }
            for (id, token) in tokens.iter().enumerate() {
                assert_eq!(tokenizer.token_bytes(id as u32), Some(&token[..]));
            }
        }
    }

    fn kimi_behind(count: usize) -> Config {
        config(json!({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {
            count.to_string(): {"content": "[EOS]", "special": true}}}))
    }

    fn bytes() -> Vec<Vec<u8>> {
        (0..=255u8).map(|byte| vec![byte]).collect()
    }

    #[test]
    fn special_tokens_are_those_of_the_config_and_of_the_class() {
        let tokenizer = load(&file(&bytes()), kimi()).unwrap();
        assert_eq!(
            tokenizer.encode("a<|im_end|>[BOS]<|reserved_token_300|>", true).unwrap(),
            [97, 258, 256, 300]
        );
        assert_eq!(tokenizer.decode(&[256, 97, 258, 300], true), "a<|reserved_token_300|>");
        assert_eq!(tokenizer.eos_token_ids(), [257]);
        assert_eq!(tokenizer.special_tokens()["eos_token"], "[EOS]");
        assert_eq!(tokenizer.vocab_size(), 256 + 258);

        let qwen = config(json!({"tokenizer_class": "QWenTokenizer"}));
        let tokenizer = load(&file(&bytes()), qwen).unwrap();
        assert_eq!(
            tokenizer.encode("<|im_start|>e\u{301}<|extra_204|>", true).unwrap(),
            [257, 0xC3, 0xA9, 463]
        );
        assert_eq!(tokenizer.decode(&[257, 97, 463], true), "a");
        assert_eq!(tokenizer.eos_token_ids(), [256, 258]);
    }

    #[test]
    fn a_class_may_put_tokens_around_a_text() {
        let glm = load(&file(&bytes()), config(json!({"tokenizer_class": "ChatGLM4Tokenizer"}))).unwrap();
        assert_eq!(glm.encode("a", true).unwrap(), [258, 260, 97]);
        assert_eq!(glm.encode("a", false).unwrap(), [97]);
        let around = |extra: Value| {
            let mut hunyuan = json!({"tokenizer_class": "HYTokenizer"});
            hunyuan["add_eod_token"] = extra;
            load(&file(&bytes()), config(hunyuan)).unwrap().encode("a", true).unwrap()
        };
        assert_eq!(around(Value::Null), [257, 97, 256]);
        assert_eq!(around(json!(false)), [257, 97]);
    }

    #[test]
    fn a_bad_file_is_told_with_its_line() {
        let good = file(&bytes());
        let told = |file: &str| load(file, kimi()).unwrap_err();
        assert!(told(&format!("{good}?? 256\n")).contains("line 257"));
        assert!(told(&format!("{good}YWI=\n")).contains("line 257"));
        assert!(told(&format!("{good}YWI= x\n")).contains("line 257"));
        assert!(told(&format!("{good}YWI= 256 1\n")).contains("line 257"));
        assert!(told(&format!("{good}AA== 999\n")).contains("line 257 repeats"));
        assert!(told(&format!("{good}YWI= 7\n")).contains("the rank 7"));
        assert!(told(&format!("{good}YWI= 256\n")).contains("256 is both"));
        assert!(told("AA== 0\n").contains("byte 0x01"));
        let mut none = kimi();
        assert!(
            definition(b"\x0a\xff\xfe", "tokenizer.model", &mut none).unwrap_err().contains("neither JSON")
        );
    }

    #[test]
    fn a_folder_is_searched_and_a_file_is_read_by_what_is_in_it() {
        let folder = std::env::temp_dir().join(format!("wsgi-router-ranks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let class = json!({"auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", null]}});
        std::fs::write(folder.join("tokenizer_config.json"), class.to_string()).unwrap();
        std::fs::write(folder.join("qwen.tiktoken"), file(&bytes())).unwrap();
        let whole = Tokenizer::load(&folder).unwrap();
        assert_eq!(whole.encode("<|im_end|>", false).unwrap(), [258]);
        assert!(Tokenizer::load(&folder.join("qwen.tiktoken")).is_ok());
        std::fs::write(folder.join("tokenizer_config.json"), r#"{"tokenizer_class": "Foo"}"#).unwrap();
        let error = Tokenizer::load(&folder).unwrap_err();
        assert!(
            error.code == Code::Load
                && error.message.contains("qwen.tiktoken")
                && error.message.contains("Foo")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
