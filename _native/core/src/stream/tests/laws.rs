//! What holds for any ids, any cut into messages, any form of the closing message, streamed or not; and what
//! it costs.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::entries::{self, Token, expected};
use super::fixtures::{Bytes, EOM, EOS, Random};
use super::response::*;
use crate::stream::*;
use crate::wire::MatchedStop;

/// One choice as a worker would send it, and what must come of it.
struct Case {
    messages: Vec<Vec<u8>>,
    content: String,
    finish: &'static str,
    matched: Option<Value>,
    tokens: usize,
    /// All of them, in order, up to the last that counts.
    ids: Vec<u32>,
    entries: Vec<Value>,
    prompt: Vec<Value>,
}

/// The shortest text with a stop word in it, by the tokens: (tokens, bytes before the word, the word).
fn stopped(
    vocabulary: &Arc<Bytes>,
    shown: &[u32],
    skip: bool,
    words: &[String],
) -> Option<(usize, usize, String)> {
    let mut decoder = vocabulary.decoder(skip);
    let mut text = String::new();
    let mut from = 0;
    for count in 1..=shown.len() + 1 {
        match shown.get(count - 1) {
            Some(&id) => decoder.push(id, &mut text),
            None => decoder.flush(&mut text),
        }
        for end in (from..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = words.iter().filter(|word| text[..end].ends_with(word.as_str()));
            if let Some(word) = ending.max_by_key(|word| word.len()) {
                return Some((count.min(shown.len()), end - word.len(), word.clone()));
            }
        }
        from = text.len();
    }
    None
}

/// A prompt of whole characters, an end of text in it now and then.
fn prompt(random: &mut Random) -> Vec<u32> {
    let pieces: [&[u32]; 6] = [&[97], &[256], &[262], &[264, 265], &[EOS], &[270]];
    (0..1 + random.below(5)).flat_map(|_| random.pick(&pieces).to_vec()).collect()
}

fn case(random: &mut Random, vocabulary: &Arc<Bytes>, options: &Options, prompt: &[u32]) -> Case {
    let by_id = options.object == Object::Generate;
    let length = if random.chance(10) { 0 } else { random.below(30) };
    let mut all: Vec<u32> = (0..length)
        .map(|_| match random.below(10) {
            0 => random.below(256) as u32,
            1 => *random.pick(&[EOS, EOM, 46, 5000]),
            2..5 => *random.pick(&[97, 98]),
            _ => 256 + random.below(vocabulary.size() as usize - 256) as u32,
        })
        .collect();
    let (finish, end) =
        *random.pick(&[("stop", Some(EOS)), ("stop", Some(46)), ("length", None), ("stop", None)]);
    all.extend(end);
    // A stop of the worker's that it does not name is covered apart: here the last id must not look like one.
    if end.is_none() {
        all.push(97);
    }
    let matched_id = end.map(MatchedStop::TokenId);
    let cut = end.is_some() && !options.no_stop_trim;
    let shown = &all[..all.len() - usize::from(cut)];
    let skip = options.skip_special_tokens;
    let text = vocabulary.decode(shown, skip);
    let scored = options.logprobs.map(|_| prompt);
    let messages = messages(random, &all, finish, matched_id, scored);
    let (content, finish, matched, tokens, cut) = match stopped(vocabulary, shown, skip, &options.stop) {
        Some((tokens, at, word)) => {
            // A word that only the flush completed counts all tokens, the trimmed one too.
            let flushed = tokens == shown.len() && stopped_early(vocabulary, shown, skip, &options.stop);
            let tokens = if flushed { all.len() } else { tokens };
            let end = if options.no_stop_trim { at + word.len() } else { at };
            (text[..end].to_owned(), "stop", Some(json!(word)), tokens, Some(end))
        }
        None => {
            let matched = end.filter(|id| by_id || *id != EOS).map(|id| json!(id));
            (text, finish, matched, all.len(), None)
        }
    };
    let echo = options.echo(0).unwrap_or_default();
    let (mut own, mut before) = (Vec::new(), Vec::new());
    if options.logprobs.is_some() {
        let places = places(vocabulary, &all, shown.len(), skip);
        let shows = |start: usize| by_id || cut.is_none_or(|cut| start < cut);
        let kept = (0..tokens).filter(|&at| shows(places[at].0));
        own.extend(kept.map(|at| {
            let offset = echo.chars().count() + places[at].1;
            expected(vocabulary, options, &Token { at, id: all[at], offset, first: false })
        }));
        if by_id || options.echo(0).is_some() {
            let places = places_of_prompt(vocabulary, prompt);
            before.extend(prompt.iter().zip(places).enumerate().map(|(at, (&id, offset))| {
                expected(vocabulary, options, &Token { at, id, offset, first: at == 0 })
            }));
        }
    }
    if !by_id {
        own.splice(..0, before.drain(..));
    }
    all.truncate(if by_id { tokens } else { 0 });
    let content = format!("{echo}{content}");
    Case { messages, content, finish, matched, tokens, ids: all, entries: own, prompt: before }
}

/// Where the text of each token begins, in bytes and characters; only `shown` tokens have one.
fn places(vocabulary: &Arc<Bytes>, all: &[u32], shown: usize, skip: bool) -> Vec<(usize, usize)> {
    let mut decoder = vocabulary.decoder(skip);
    let mut text = String::new();
    let place = |(at, &id): (usize, &u32)| {
        let place = (text.len(), text.chars().count());
        if at < shown {
            decoder.push(id, &mut text);
        }
        place
    };
    all.iter().enumerate().map(place).collect()
}

fn places_of_prompt(vocabulary: &Arc<Bytes>, prompt: &[u32]) -> Vec<usize> {
    places(vocabulary, prompt, prompt.len(), true).into_iter().map(|(_, chars)| chars).collect()
}

/// Is the stop word complete only once the decoder was flushed?
fn stopped_early(vocabulary: &Arc<Bytes>, shown: &[u32], skip: bool, words: &[String]) -> bool {
    let mut decoder = vocabulary.decoder(skip);
    let mut text = String::new();
    shown.iter().for_each(|&id| decoder.push(id, &mut text));
    !words.iter().any(|word| text.contains(word.as_str()))
}

/// The ids in some worker's messages: any cut, any of the forms, chunks repeated now and then. `scored`: with
/// log probabilities, and those of this prompt.
pub fn messages(
    random: &mut Random,
    all: &[u32],
    finish: &str,
    matched: Option<MatchedStop>,
    scored: Option<&[u32]>,
) -> Vec<Vec<u8>> {
    let whole = random.chance(30);
    let input = || scored.and_then(entries::prompt);
    let close = |ids: std::ops::Range<usize>| {
        let scores = if whole { 0..all.len() } else { ids.clone() };
        encode(GenerateComplete {
            output_logprobs: scored.and_then(|_| entries::output(&all[scores.clone()], scores.start)),
            input_logprobs: input(),
            ..complete_of(&all[ids], all.len() as u32, finish, matched.clone())
        })
    };
    let part = |ids: std::ops::Range<usize>| {
        let output = scored.and_then(|_| entries::output(&all[ids.clone()], ids.start));
        let input = input().filter(|_| ids.start == 0);
        scored_chunk(&all[ids.clone()], ids.end as u32, output, input)
    };
    if random.chance(15) {
        return vec![close(0..all.len())];
    }
    let mut messages = Vec::new();
    let (mut at, mut last) = (0, 0..0);
    while at < all.len() {
        let end = (at + 1 + if random.chance(60) { 0 } else { random.below(8) }).min(all.len());
        last = at..end;
        messages.push(part(last.clone()));
        at = end;
    }
    if random.chance(30) {
        let copy = random.below(messages.len());
        messages.insert(copy, messages[copy].clone());
    }
    match random.below(5) {
        0 => messages.push(close(last)),
        1 => messages.push(close(0..0)),
        2 => messages.push(close(0..all.len())),
        form => {
            messages.retain(|message| *message != part(last.clone()));
            messages.push(close(if form == 3 { last } else { 0..all.len() }));
        }
    }
    messages
}

/// Feeds the choices' messages in turn; what comes after a CANCEL is sent on now and then.
fn run(random: &mut Random, options: &Options, vocabulary: &Arc<Bytes>, cases: &[Case]) -> Answer {
    let mut stream = Stream::new(vocabulary.clone(), options.clone()).unwrap();
    let mut queues: Vec<_> = cases.iter().map(|case| case.messages.iter().peekable()).collect();
    let mut out = Vec::new();
    let mut flags = 0;
    loop {
        let open: Vec<_> = (0..queues.len()).filter(|&n| queues[n].peek().is_some()).collect();
        if open.is_empty() {
            break;
        }
        let choice = *random.pick(&open);
        let message = queues[choice].next().unwrap();
        flags = stream.feed(choice as u32, message).unwrap();
        assert_eq!(flags & OUTPUT != 0, !stream.buffer().is_empty());
        if flags & CANCEL != 0 && random.chance(50) {
            queues[choice].by_ref().for_each(drop);
        }
        if random.chance(50) {
            out.extend(stream.take());
        }
    }
    assert_eq!(flags & (ALL_DONE | FAILED), ALL_DONE);
    out.extend(stream.take());
    let tokens: usize = cases.iter().map(|case| case.tokens).sum();
    assert_eq!(stream.stats().usage.completion, tokens as u64);
    if options.streaming { read(options, &out) } else { read_whole(options, &stream.result()) }
}

#[test]
fn any_ids_any_cut_any_form_make_the_same_answer() {
    let vocabulary = Bytes::new();
    let mut random = Random::new(11);
    for round in 0..4_000 {
        let words =
            ["STOP", "ST", "P n", "ab", "aab", "本語", "日本", "\u{fffd}", "<|eom", "😀", "\u{2028}", "bb"];
        let stop: Vec<_> = (0..random.below(4)).map(|_| *random.pick(&words)).collect();
        let object = *random.pick(&["chat.completion", "text_completion", "generate"]);
        let choices = if random.chance(70) { 1 } else { 3 };
        let prompts = if random.chance(50) { 1 } else { choices };
        let prompt = prompt(&mut random);
        let echo = random.chance(40).then(|| vocabulary.decode(&prompt, true));
        let mut all = json!({
            "object": object, "stop": stop, "choices": choices, "stop_token_ids": [46],
            "no_stop_trim": random.chance(30), "skip_special_tokens": random.chance(70),
            "include_usage": random.chance(50), "continuous_usage": random.chance(20), "id": "q\"\\\u{2028}",
            "logprobs": random.pick(&[None, Some(0), Some(2)]), "logprobs_text": random.chance(50),
            "prompts": vec![json!({"tokens": 5, "echo": echo}); prompts], "batch": random.chance(20),
        });
        if random.chance(50) {
            all["system_fingerprint"] = json!("é\u{1}");
        }
        let mut options = options(all);
        let cases: Vec<_> =
            (0..options.choices).map(|_| case(&mut random, &vocabulary, &options, &prompt)).collect();
        for streaming in [true, false] {
            options.streaming = streaming;
            let all = run(&mut random, &options, &vocabulary, &cases);
            for (read, case) in all.choices.values().zip(&cases) {
                assert_eq!(read.content, case.content, "round {round}");
                assert_eq!(read.finish.as_deref(), Some(case.finish), "round {round}");
                assert_eq!(read.matched, case.matched, "round {round}");
                assert_eq!(read.entries, case.entries, "round {round}");
                assert_eq!(read.prompt, case.prompt, "round {round}");
                assert_eq!(read.ids, case.ids, "round {round}");
                if let Some(usage) = &read.usage {
                    assert_eq!(usage["completion_tokens"], json!(case.tokens), "round {round}");
                }
            }
            if let Some(usage) = all.usage {
                let tokens: usize = cases.iter().map(|case| case.tokens).sum();
                assert_eq!(usage["completion_tokens"], json!(tokens), "round {round}");
                assert_eq!(usage["total_tokens"], json!(tokens + 7 * prompts));
                assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], json!(3 * prompts));
            }
        }
    }
}

#[test]
fn a_megabyte_with_sixteen_stop_words_costs_linear_time() {
    let stop: Vec<_> = (0..16).map(|n| format!("{}{}", "ab".repeat(1 << (n % 12)), n + 1)).collect();
    let mut stream = stream(json!({"stop": stop}));
    let text = ids(&"ab".repeat(1 << 19));
    let clock = Instant::now();
    let (mut count, mut out) = (0, 0);
    for piece in text.chunks(16) {
        count += piece.len() as u32;
        stream.feed(0, &chunk(piece, count)).unwrap();
        out += stream.buffer().len();
        stream.clear();
    }
    stream.feed(0, &complete(&[], count)).unwrap();
    assert!(out > 1 << 20);
    assert_eq!(stream.stats().usage.completion, 1 << 20);
    assert!(clock.elapsed() < Duration::from_secs(60), "{:?}", clock.elapsed());
}

/// The cost of one message with one token. Meant for an optimised build; prints what it measures.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_message() {
    let tokenizer = tokenizer();
    let text = tokenizer.encode("An answer with 日本語, and a STAR in it.\n", false).unwrap();
    let messages: Vec<_> = (0..1_000_000).map(|n| chunk(&[text[n % text.len()]], n as u32 + 1)).collect();
    for (name, more) in [
        ("plain", json!({})),
        ("4 stop words", json!({"stop": ["STOP", "\n\n", "Observation:", "<|end|>"]})),
        ("continuous usage", json!({"continuous_usage": true})),
        ("not streamed", json!({"streaming": false})),
    ] {
        let mut stream: Stream = Stream::new(tokenizer.clone(), options(more)).unwrap();
        let clock = Instant::now();
        let mut bytes = 0;
        for message in &messages {
            stream.feed(0, message).unwrap();
            bytes += stream.buffer().len();
            stream.clear();
        }
        let each = clock.elapsed().as_secs_f64() * 1e9 / messages.len() as f64;
        println!("{name}: {each:.0} ns a message, {} bytes each", bytes / messages.len());
    }
}

/// A tokenizer of our own making: a token for each byte, one merge, and an end of text.
pub fn tokenizer() -> Arc<Tokenizer> {
    static ONE: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    ONE.get_or_init(make_tokenizer).clone()
}

fn make_tokenizer() -> Arc<Tokenizer> {
    let plain = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut shifted = 256..;
    let letter = |byte: u8| if plain(&byte) { byte.into() } else { shifted.next().unwrap() };
    let letters: Vec<_> =
        (0..=255).map(letter).map(|code| char::from_u32(code).unwrap().to_string()).collect();
    let mut vocab: serde_json::Map<_, _> = letters.iter().cloned().zip((0..).map(|id| json!(id))).collect();
    vocab.insert("ST".to_owned(), json!(256));
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let end = json!({"id": 257, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                     "normalized": false, "special": true});
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": [["S", "T"]]},
    });
    let folder = std::env::temp_dir().join(format!("wsgi-router-stream-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tokenizer.json"), file.to_string()).unwrap();
    std::fs::write(folder.join("generation_config.json"), r#"{"eos_token_id": 257}"#).unwrap();
    let tokenizer = Tokenizer::load(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    Arc::new(tokenizer)
}

#[test]
fn a_real_tokenizer_streams_what_it_decodes() {
    let tokenizer = tokenizer();
    let mut random = Random::new(3);
    let words = ["Hi ", "STAR ", "日本語", "👩‍👩‍👧", "e\u{301}", "𠮷", "\n", "\u{2028}", "<|end|>", "\""];
    for round in 0..300 {
        let text: String = (0..random.below(20)).map(|_| *random.pick(&words)).collect();
        let all = tokenizer.encode(&text, false).unwrap();
        let skip = random.chance(50);
        let stop: &[&str] = if random.chance(50) { &["STOP", "👩‍👦"] } else { &[] };
        let options = options(json!({"skip_special_tokens": skip, "stop": stop}));
        let mut stream: Stream = Stream::new(tokenizer.clone(), options.clone()).unwrap();
        let (mut count, mut rest) = (0, &all[..]);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + random.below(rest.len().min(4)));
            count += piece.len();
            assert_eq!(stream.feed(0, &chunk(piece, count as u32)).unwrap(), OUTPUT);
            rest = after;
        }
        stream.feed(0, &closing(&all, count as u32, "length", None)).unwrap();
        let read = read(&options, stream.buffer());
        assert_eq!(read.choices[&0].content, tokenizer.decode(&all, skip), "round {round}");
        if !skip {
            assert_eq!(read.choices[&0].content, text, "round {round}");
        }
    }
}
