//! The law of splits: however a text is cut, what comes out adds up to the same.

use super::super::formats::FORMATS;
use super::super::{ConstrainedParser, reasoning_format_names};
use super::grammar::{Random, object, text};
use super::{Answer, Parser, tools};

/// Texts for each format; more with PARSER_CASES.
fn cases() -> u64 {
    std::env::var("PARSER_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(1000)
}

fn cut<'a>(text: &'a str, random: &mut Random) -> Vec<&'a str> {
    let longest = [1, 3, 8, 40][random.below(4)];
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let count = random.below(longest + 1);
        let at = rest.char_indices().nth(count).map_or(rest.len(), |(at, _)| at);
        pieces.push(&rest[..at]);
        rest = &rest[at..];
    }
    pieces
}

fn holds(make: impl Fn() -> Parser, text: &str, random: &mut Random) -> Answer {
    let whole = make().read([text]);
    let single = make().read(text.split_inclusive(|_| true));
    assert_eq!(whole, single, "one by one: {text:?}");
    let pieces = cut(text, random);
    assert_eq!(whole, make().read(pieces.iter().copied()), "{pieces:?}");
    whole
}

#[test]
fn splits_of_tool_calls() {
    for format in FORMATS {
        let mut found = 0;
        for seed in 0..cases() {
            let random = &mut Random::new(seed);
            let text = text(format, random);
            let checked = || holds(|| Parser::tools(format.name), &text, &mut Random::new(seed));
            match std::panic::catch_unwind(checked) {
                Ok(answer) => found += u64::from(!answer.calls.is_empty()),
                Err(_) => panic!("format {} seed {seed} text {text:?}", format.name),
            }
        }
        assert!(
            found > cases() / 5 || format.name == "passthrough",
            "{}: calls in {found} texts",
            format.name
        );
    }
}

#[test]
fn splits_of_reasoning() {
    const PARTS: &[&str] = &[
        "<think>",
        "</think>",
        "<thi",
        "</thi",
        "◁think▷",
        "◁/think▷",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "\n",
        " ",
        "thought ",
        "answer ",
        "日本",
        "<",
        "<|START_ACTION|>[]",
        "<|tool_calls_section_begin|>",
        "◁",
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        "<tool_call>",
        "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>",
    ];
    for name in reasoning_format_names() {
        for seed in 0..cases() {
            let random = &mut Random::new(seed);
            let text: String = (0..random.below(8)).map(|_| random.pick(PARTS)).collect();
            let inside = random.below(2) == 0;
            holds(|| Parser::reasoning(name, inside), &text, random);
        }
    }
}

#[test]
fn splits_of_constrained_output() {
    for seed in 0..cases() {
        let random = &mut Random::new(seed);
        let json = super::super::tool_format("json").expect("json");
        let list = text(json, random);
        holds(|| Parser::Constrained(ConstrainedParser::array(tools(true))), &list, random);
        let arguments = object(random) + random.pick(&["", "\n", " and more", "}"]);
        holds(|| Parser::Constrained(ConstrainedParser::named("search", tools(true))), &arguments, random);
    }
}
