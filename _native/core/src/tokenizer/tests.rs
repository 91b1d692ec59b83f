//! The tokenizer against the library itself, on small vocabularies and random input.

use serde_json::{Value, json};
use tokenizers_fallback::tokenizer::Decoder as _;

use super::fixtures::{Random, byte_fallback_file, byte_level_file, load};
use super::*;

const TEXTS: [&str; 12] = [
    "",
    " ",
    "hello hello",
    "hello<|im_end|> <tool_call>x",
    "你好 𠮷 e\u{301}",
    "👨‍👩‍👧‍👦 \u{200d}",
    "a  b\n\n\t c\r\n",
    "مرحبا שלום",
    "<|im_start|><|im_end|><|im_",
    "<0x0A> <s>",
    "\u{0}\u{1f}\u{7f}\u{fffd}",
    "I'll 12345 don't",
];

fn oracle(file: &Value) -> tokenizers_fallback::Tokenizer {
    let mut file = file.clone();
    file["truncation"] = Value::Null;
    tokenizers_fallback::Tokenizer::from_bytes(file.to_string()).expect("the library reads it")
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip: bool) -> String {
    let mut decoder = tokenizer.decoder(skip);
    let mut text = String::new();
    for &id in ids {
        decoder.push(id, &mut text);
    }
    decoder.flush(&mut text);
    text
}

#[test]
fn is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Tokenizer>();
    sent::<TextDecoder>();
}

#[test]
fn encodes_as_the_library() {
    for file in [byte_level_file(), byte_fallback_file()] {
        let (tokenizer, oracle) = (load(&file), oracle(&file));
        for text in TEXTS {
            for special in [true, false] {
                let want = oracle.encode(text, special).unwrap();
                assert_eq!(tokenizer.encode(text, special).unwrap(), want.get_ids(), "{text:?} {special}");
            }
        }
    }
}

#[test]
fn decodes_random_ids_as_the_library_in_one_and_in_parts() {
    for file in [byte_level_file(), byte_fallback_file()] {
        let (tokenizer, oracle) = (Arc::new(load(&file)), oracle(&file));
        let most = tokenizer.table.iter().last().unwrap().0 as usize;
        let mut random = Random::new(1);
        for _ in 0..3000 {
            // Pieces of real text, so that whole characters come up, with some ids replaced.
            let mut ids = tokenizer.encode(random.pick(&TEXTS), false).unwrap();
            for _ in 0..random.below(12) {
                let at = random.below(ids.len() + 1);
                ids.insert(at, random.below(most + 3) as u32);
            }
            let skip = random.below(2) == 0;
            let want = oracle.decode(&ids, skip).unwrap();
            assert_eq!(tokenizer.decode(&ids, skip), want, "{ids:?}");
            assert_eq!(streamed(&tokenizer, &ids, skip), want, "{ids:?}");
        }
    }
}

#[test]
fn a_text_survives_its_ids() {
    let tokenizer = load(&byte_level_file());
    for text in TEXTS {
        assert_eq!(
            tokenizer.decode(&tokenizer.encode(text, true).unwrap(), false),
            format!("<|im_start|>{text}")
        );
    }
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let mut file = byte_level_file();
    file["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
                             "pad_id": 0, "pad_type_id": 0, "pad_token": "x"});
    assert_eq!(load(&file).encode("abcdefgh", false).unwrap().len(), 8);
    file["model"]["vocab"].as_object_mut().unwrap().remove("Ā");
    let classic = load(&file);
    assert_eq!(classic.backend(), "tokenizers-0.23");
    assert_eq!(classic.encode("abcdefgh", false).unwrap().len(), 8);
}

#[test]
fn a_vocabulary_that_lacks_bytes_goes_to_the_older_backend() {
    let mut file = byte_level_file();
    assert_eq!(load(&file).backend(), "tokenizers-1.0");
    file["model"]["vocab"].as_object_mut().unwrap().remove("Ā");
    let tokenizer = load(&file);
    assert_eq!(tokenizer.backend(), "tokenizers-0.23");
    assert_eq!(tokenizer.decode(&tokenizer.encode("hello\0!", false).unwrap(), false), "hello!");
    assert_eq!((tokenizer.token_bytes(0), tokenizer.token_bytes(1)), (None, Some(&[1][..])));
}

#[test]
fn what_the_newer_backend_reads_otherwise_goes_to_the_older() {
    let mut metaspace = byte_fallback_file();
    metaspace["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    assert_eq!(load(&metaspace).backend(), "tokenizers-1.0");
    metaspace["added_tokens"][1]["normalized"] = json!(true);
    let mut suffix = byte_fallback_file();
    suffix["model"]["end_of_word_suffix"] = json!("</w>");
    let mut punctuation = byte_fallback_file();
    punctuation["pre_tokenizer"] =
        json!({"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}]});
    let mut compatibility = byte_fallback_file();
    compatibility["normalizer"]["normalizers"][0] = json!({"type": "NFKC"});
    for file in [metaspace, suffix, punctuation, compatibility] {
        assert_eq!(load(&file).backend(), "tokenizers-0.23");
    }
}

#[test]
fn an_added_token_decodes_as_it_is_matched() {
    let mut file = byte_level_file();
    file["added_tokens"][2]["normalized"] = json!(true);
    file["added_tokens"][2]["content"] = json!("<Й>");
    for (normalizer, backend) in [("Lowercase", "tokenizers-1.0"), ("NFD", "tokenizers-0.23")] {
        file["normalizer"] = json!({"type": normalizer});
        let (tokenizer, oracle) = (load(&file), oracle(&file));
        assert_eq!(tokenizer.backend(), backend);
        let id = tokenizer.token_id("<Й>").unwrap();
        assert_eq!(
            tokenizer.encode("a<Й>b", false).unwrap(),
            oracle.encode("a<Й>b", false).unwrap().get_ids()
        );
        assert_eq!(tokenizer.decode(&[id, 65], true), oracle.decode(&[id, 65], true).unwrap());
    }
}

/// The released library reads such a token in the alphabet of bytes, which leaves a broken character.
#[test]
fn an_added_token_spelled_in_the_alphabet_of_bytes_is_its_content() {
    let mut file = byte_level_file();
    file["added_tokens"][2]["content"] = json!("«é»");
    let tokenizer = load(&file);
    assert_eq!(tokenizer.decode(&tokenizer.encode("a«é»", false).unwrap(), true), "a«é»");
}

#[test]
fn token_bytes_are_those_of_the_text() {
    let tokenizer = load(&byte_level_file());
    let id = tokenizer.token_id("Ġhello").unwrap();
    assert_eq!(tokenizer.token_bytes(id), Some(&b" hello"[..]));
    assert_eq!(tokenizer.token_bytes(tokenizer.token_id("ä½").unwrap()), Some(&b"\xe4\xbd"[..]));
    let special = tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!(tokenizer.token_bytes(special), Some(&b"<|im_end|>"[..]));
    assert!(tokenizer.is_special(special) && !tokenizer.is_special(id));
    assert!(!tokenizer.is_special(tokenizer.token_id("<tool_call>").unwrap()));
    assert_eq!(tokenizer.token_bytes(u32::MAX), None);
    assert_eq!(tokenizer.token_id("no such token"), None);
    assert_eq!(tokenizer.vocab_size(), 256 + 7 + 3);

    let tokenizer = load(&byte_fallback_file());
    assert_eq!(tokenizer.token_bytes(tokenizer.token_id("▁ab").unwrap()), Some(&b" ab"[..]));
    assert_eq!(tokenizer.token_bytes(3 + 0xE4), Some(&b"\xe4"[..]));
}

#[test]
fn tokens_read_with_their_space_where_the_decoder_adds_it() {
    let mut file = byte_fallback_file();
    file["decoder"] = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"});
    let tokenizer = load(&file);
    let id = tokenizer.token_id("▁ab").unwrap();
    assert_eq!(tokenizer.token_bytes(id), Some(&b" ab"[..]));
    assert_eq!(tokenizer.decode(&[id, id], false), "ab ab");
}

#[test]
fn characters_come_out_as_soon_as_they_are_whole() {
    let tokenizer = Arc::new(load(&byte_level_file()));
    let mut decoder = tokenizer.decoder(true);
    let mut text = String::new();
    let mut grown = vec![];
    for id in tokenizer.encode("é𠮷!", false).unwrap() {
        decoder.push(id, &mut text);
        grown.push(text.clone());
    }
    assert_eq!(grown, ["", "é", "é", "é", "é", "é𠮷", "é𠮷!"]);
}

#[test]
fn a_run_of_fallback_bytes_is_text_as_a_whole_or_not_at_all() {
    let tokenizer = Arc::new(load(&byte_fallback_file()));
    let bytes = |text: &[u8]| text.iter().map(|&byte| 3 + u32::from(byte)).collect::<Vec<u32>>();
    let run = bytes("好".as_bytes());
    assert_eq!(streamed(&tokenizer, &run, true), "好");
    assert_eq!(streamed(&tokenizer, &[&run[..], &bytes(b"\xe5")].concat(), true), "\u{fffd}".repeat(4));
    assert_eq!(streamed(&tokenizer, &[&bytes(b"\xff"), &run[..]].concat(), true), "\u{fffd}".repeat(4));
    // A hidden token does not end a run.
    assert_eq!(streamed(&tokenizer, &[run[0], 2, run[1], run[2]], true), "好");

    let mut decoder = tokenizer.decoder(true);
    let mut text = String::new();
    for id in bytes("好".repeat(400).as_bytes()) {
        decoder.push(id, &mut text);
    }
    assert!(text.chars().count() >= 341, "a very long run is let out before it ends");
    decoder.flush(&mut text);
    assert_eq!(text, "好".repeat(400));
}

/// Gives `tokenizer` another decoder and `tokens` as its vocabulary.
fn use_decoder(tokenizer: &mut Tokenizer, plan: Plan, tokens: &[&str]) {
    tokenizer.table = Table::default();
    for (id, token) in (0..).zip(tokens) {
        let (bytes, flags) = plan.fold(token, &tokenizer.alphabet, false);
        tokenizer.table.set(id, &bytes, flags).unwrap();
    }
    tokenizer.plan = plan;
}

/// Every kind of decoder, alone and in sequence, over random tokens.
#[test]
fn any_decoder_gives_what_the_library_gives() {
    let steps = [
        json!({"type": "Fuse"}),
        json!({"type": "ByteFallback"}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "Replace", "pattern": {"String": "ab"}, "content": "x"}),
        json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "<0x41>"}),
        json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        json!({"type": "Strip", "content": "a", "start": 2, "stop": 0}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": false}),
        json!({"type": "BPEDecoder", "suffix": "</w>"}),
        json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
    ];
    let tokens = [
        "a", "b", "ab", "aab", "ba", " ", "  a", "▁", "▁a", "▁▁", "##b", "b</w>", "</w>", "<pad>", "|",
        "<0x41>", "<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "你", " .", "n't", "Ġa", "ä", "½",
    ];
    let mut random = Random::new(7);
    let mut windows = 0;
    let mut tokenizer = Arc::new(load(&byte_fallback_file()));
    for _ in 0..2000 {
        let chosen: Vec<&Value> =
            (0..1 + random.below(4)).map(|_| &steps[random.below(steps.len())]).collect();
        let decoder = json!({"type": "Sequence", "decoders": chosen});
        let library: tokenizers_fallback::DecoderWrapper = serde_json::from_value(decoder.clone()).unwrap();
        let plan = Plan::new(&decoder, false).unwrap();
        windows += usize::from(matches!(plan, Plan::Window(_)));
        // The library's BPE decoder does not take the empty list that CTC may leave.
        let kinds = decoder.to_string();
        if matches!(plan, Plan::Window(_)) || (kinds.contains("CTC") && kinds.contains("BPE")) {
            continue;
        }
        use_decoder(Arc::get_mut(&mut tokenizer).unwrap(), plan, &tokens);
        for _ in 0..20 {
            let ids: Vec<u32> = (0..1 + random.below(9)).map(|_| random.below(tokens.len()) as u32).collect();
            let strings: Vec<String> = ids.iter().map(|&id| tokens[id as usize].to_string()).collect();
            let want = library.decode(strings.clone()).unwrap();
            assert_eq!(tokenizer.decode(&ids, true), want, "{decoder} {strings:?}");
            assert_eq!(streamed(&tokenizer, &ids, true), want, "{decoder} {strings:?}");
        }
    }
    assert!((1..1500).contains(&windows), "{windows} of 2000 went to the window");
}

#[test]
fn both_ends_are_stripped_over_the_whole_text() {
    let mut file = byte_fallback_file();
    let decoder = |start, stop| {
        json!({"type": "Sequence", "decoders": [{"type": "Fuse"},
        {"type": "Strip", "content": "b", "start": start, "stop": stop}]})
    };
    let letter = |tokenizer: &Tokenizer, text: &str| {
        let id = |c: char| tokenizer.token_id(&c.to_string()).unwrap();
        text.chars().map(id).collect::<Vec<u32>>()
    };
    for (start, stop) in [(0, 1), (1, 2), (2, 1), (0, 3)] {
        file["decoder"] = decoder(start, stop);
        let (tokenizer, oracle) = (Arc::new(load(&file)), oracle(&file));
        for text in ["abbbb", "bbbbab", "abbabbb", "bbbaabbbaab", "aaa", "abbbbbba"] {
            let ids = letter(&tokenizer, text);
            assert_eq!(
                streamed(&tokenizer, &ids, true),
                oracle.decode(&ids, true).unwrap(),
                "{text} {start} {stop}"
            );
        }
    }
}

#[test]
fn without_a_decoder_tokens_are_joined_with_spaces() {
    let mut file = byte_fallback_file();
    file["decoder"] = Value::Null;
    let (tokenizer, oracle) = (Arc::new(load(&file)), oracle(&file));
    for ids in [vec![], vec![260], vec![260, 2, 261, 3]] {
        assert_eq!(streamed(&tokenizer, &ids, true), oracle.decode(&ids, true).unwrap());
    }
}

#[test]
fn a_decoder_left_to_the_library_streams_too() {
    let mut file = byte_fallback_file();
    file["decoder"] = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": "_"}]});
    let (tokenizer, oracle) = (Arc::new(load(&file)), oracle(&file));
    assert!(matches!(tokenizer.plan, Plan::Window(_)));
    for text in TEXTS {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, true), oracle.decode(&ids, true).unwrap());
        assert_eq!(streamed(&tokenizer, &ids, true), oracle.decode(&ids, true).unwrap());
    }
}

#[test]
fn a_bad_file_is_one_line_that_names_it() {
    let folder = std::env::temp_dir().join(format!("wsgi-router-tokenizer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("tokenizer.json");
    let fails = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let error = Tokenizer::load(&folder).unwrap_err();
        assert_eq!(error.code, Code::Load);
        assert!(
            error.message.contains("tokenizer.json") && !error.message.contains('\n'),
            "{}",
            error.message
        );
    };
    for text in [
        "",
        "{",
        "[]",
        "{}",
        "{\"model\": {\"vocab\": {\"a\"",
        "{\"model\": 3}",
        "{\"model\": {\"vocab\": 3}}",
    ] {
        fails(text);
    }
    let mut file = byte_level_file();
    file["model"]["vocab"]["far"] = json!(4_000_000_000u32);
    fails(&file.to_string());
    file = byte_level_file();
    file["decoder"] = json!({"type": "Nonsense"});
    fails(&file.to_string());

    std::fs::write(&path, byte_level_file().to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), r#"{"eos_token": {"content": "<|im_end|>"}}"#)
        .unwrap();
    let tokenizer = Tokenizer::load(&path).unwrap();
    assert_eq!(tokenizer.eos_token_ids(), [tokenizer.token_id("<|im_end|>").unwrap()]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(Tokenizer::load(&folder).unwrap_err().message.contains("cannot read"));
}
