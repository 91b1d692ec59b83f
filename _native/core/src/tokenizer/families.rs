//! Models whose vocabulary is a file of tiktoken ranks. Such a file is only half of a tokenizer: how a
//! text is cut into pieces, and which tokens are special, stands in the Python class that the model
//! ships. What those classes say is data here, one row a class.

use serde_json::Value;

/// What the class of a tokenizer knows besides its ranks.
pub struct Family {
    /// Its name, as `tokenizer_config.json` gives it.
    pub class: &'static str,
    /// The regular expression whose matches are the pieces that are merged.
    pub pattern: &'static str,
    /// Whether the text is brought to NFC first, special tokens included.
    pub nfc: bool,
    /// The special tokens behind the ranks, in order; a name in `added_tokens_decoder` wins.
    pub special: &'static [&'static str],
    /// More of them, by number.
    pub numbered: Numbered,
    /// What a text begins and ends with where special tokens are asked for.
    pub around: Around,
    /// Tokens by role, where no file gives them.
    pub roles: &'static [(&'static str, &'static str)],
    /// The tokens that end an answer, where no file names any.
    pub ends: &'static [&'static str],
}

/// Tokens `{head}{number}|>`.
pub struct Numbered {
    pub head: &'static str,
    pub first: u32,
    /// How many there are; where the number is the token's id, how many ids there are behind the ranks.
    pub count: u32,
    pub number_is_id: bool,
    /// Whether `skip_special_tokens` hides them.
    pub special: bool,
}

/// Tokens around a text, each with the key of `tokenizer_config.json` that turns it off.
pub struct Around {
    pub before: &'static [(&'static str, &'static str)],
    pub after: &'static [(&'static str, &'static str)],
}

const NOTHING: Around = Around { before: &[], after: &[] };

/// cl100k's pattern, with numbers of up to three digits as one piece.
const THREE_DIGITS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The same with each digit a piece.
const ONE_DIGIT: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// o200k's, with runs of Chinese characters as pieces of their own.
const HAN_APART: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

pub const FAMILIES: [Family; 5] = [
    // Kimi K2, Kimi Linear, Kimi VL, Moonlight. All names come from the config; the ids it leaves out
    // are ordinary text to `decode`.
    Family {
        class: "TikTokenTokenizer",
        pattern: HAN_APART,
        nfc: false,
        special: &[],
        numbered: Numbered {
            head: "<|reserved_token_",
            first: 0,
            count: 258,
            number_is_id: true,
            special: false,
        },
        around: NOTHING,
        roles: &[("bos_token", "[BOS]"), ("eos_token", "[EOS]")],
        ends: &["[EOS]"],
    },
    // The first Qwen models.
    Family {
        class: "QWenTokenizer",
        pattern: ONE_DIGIT,
        nfc: true,
        special: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        numbered: Numbered { head: "<|extra_", first: 0, count: 205, number_is_id: false, special: true },
        around: NOTHING,
        roles: &[],
        ends: &["<|endoftext|>", "<|im_end|>"],
    },
    // GLM 4.
    Family {
        class: "ChatGLM4Tokenizer",
        pattern: THREE_DIGITS,
        nfc: false,
        special: &[
            "<|endoftext|>",
            "[MASK]",
            "[gMASK]",
            "[sMASK]",
            "<sop>",
            "<eop>",
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|observation|>",
            "<|begin_of_image|>",
            "<|end_of_image|>",
            "<|begin_of_video|>",
            "<|end_of_video|>",
        ],
        numbered: Numbered { head: "", first: 0, count: 0, number_is_id: false, special: true },
        around: Around { before: &[("[gMASK]", ""), ("<sop>", "")], after: &[] },
        roles: &[("eos_token", "<|endoftext|>")],
        ends: &["<|endoftext|>", "<|user|>", "<|observation|>"],
    },
    // Hunyuan.
    Family {
        class: "HYTokenizer",
        pattern: ONE_DIGIT,
        nfc: true,
        special: &["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"],
        numbered: Numbered { head: "<|extra_", first: 0, count: 204, number_is_id: false, special: true },
        around: Around {
            before: &[("<|startoftext|>", "add_bod_token")],
            after: &[("<|endoftext|>", "add_eod_token")],
        },
        roles: &[("bos_token", "<|startoftext|>"), ("eos_token", "<|endoftext|>"), ("pad_token", "<|pad|>")],
        ends: &["<|eos|>", "<|endoftext|>"],
    },
    // Llama 3 as Meta ships it, under the names of 3.1: the file is the same in 3, and what was reserved
    // there is used by nobody.
    Family {
        class: LLAMA,
        pattern: THREE_DIGITS,
        nfc: false,
        special: &[
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|reserved_special_token_0|>",
            "<|reserved_special_token_1|>",
            "<|finetune_right_pad_id|>",
            "<|reserved_special_token_2|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
        ],
        numbered: Numbered {
            head: "<|reserved_special_token_",
            first: 3,
            count: 245,
            number_is_id: false,
            special: true,
        },
        around: Around { before: &[("<|begin_of_text|>", "add_bos_token")], after: &[] },
        roles: &[("bos_token", "<|begin_of_text|>"), ("eos_token", "<|end_of_text|>")],
        ends: &["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
    },
];

/// Llama's folder has no `tokenizer_config.json`: this name is ours.
const LLAMA: &str = "Llama3Tokenizer";
const LLAMA_FILE: &str = "tokenizer.model";
const LLAMA_RANKS: usize = 128_000;

/// Class names that say nothing: transformers writes them over any tokenizer.
const GENERIC: [&str; 4] =
    ["PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend", "LlamaTokenizerFast"];

/// The row for a file of `count` ranks, called `file`, beside `config` (`tokenizer_config.json`, null
/// for none).
///
/// Errors: what is unknown about it.
pub fn find(config: &Value, file: &str, count: usize) -> Result<&'static Family, String> {
    let classes = classes(config);
    let known = |class: &str| FAMILIES.iter().find(|family| family.class == class);
    if let Some(family) = classes.iter().find_map(|class| known(class)) {
        return Ok(family);
    }
    let says_nothing = classes.iter().all(|class| GENERIC.contains(class));
    if says_nothing && file == LLAMA_FILE && count == LLAMA_RANKS {
        return known(LLAMA).ok_or_else(|| "there is no row for Llama".into());
    }
    let names: Vec<&str> = FAMILIES.iter().map(|family| family.class).collect();
    let whose = match classes.first() {
        Some(class) => format!("tokenizer class {class:?} of tokenizer_config.json is unknown"),
        None => "tokenizer_config.json names no tokenizer class".into(),
    };
    Err(format!("it has tiktoken ranks, but {whose}; known are {}", names.join(", ")))
}

/// The classes that a config names, without their modules.
fn classes(config: &Value) -> Vec<&str> {
    let auto = &config["auto_map"]["AutoTokenizer"];
    let auto = auto.as_array().map_or(std::slice::from_ref(auto), Vec::as_slice);
    let names = std::iter::once(&config["tokenizer_class"]).chain(auto);
    names.filter_map(|name| name.as_str()?.rsplit('.').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_found_by_the_class_that_the_config_names() {
        let found = |config: Value| find(&config, "x.tiktoken", 9).map(|family| family.class);
        assert_eq!(found(json!({"tokenizer_class": "QWenTokenizer"})), Ok("QWenTokenizer"));
        let mapped = json!({"tokenizer_class": "PreTrainedTokenizerFast",
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]}});
        assert_eq!(found(mapped), Ok("TikTokenTokenizer"));
        let unknown = found(json!({"tokenizer_class": "FooTokenizer"})).unwrap_err();
        assert!(unknown.contains("\"FooTokenizer\"") && unknown.contains("QWenTokenizer"), "{unknown}");
        assert!(found(Value::Null).unwrap_err().contains("names no tokenizer class"));
    }

    #[test]
    fn llamas_file_is_known_by_its_name_and_size() {
        let found = |config: Value, file, count| find(&config, file, count).map(|family| family.class).ok();
        assert_eq!(found(Value::Null, LLAMA_FILE, LLAMA_RANKS), Some(LLAMA));
        let generic = json!({"tokenizer_class": "PreTrainedTokenizerFast"});
        assert_eq!(found(generic, LLAMA_FILE, LLAMA_RANKS), Some(LLAMA));
        assert_eq!(found(json!({"tokenizer_class": "Other"}), LLAMA_FILE, LLAMA_RANKS), None);
        assert_eq!(found(Value::Null, LLAMA_FILE, LLAMA_RANKS - 1), None);
        assert_eq!(found(Value::Null, "tiktoken.model", LLAMA_RANKS), None);
    }
}
