//! Random texts of every format: prose, calls, broken calls, any characters.

use super::super::formats::FORMATS;
use super::super::harmony;
use super::super::syntax::{Body, Frame, Head, Syntax, ToolFormat};

/// A small generator with a seed (xorshift), the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % bound as u64).expect("small")
    }

    pub fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

const PROSE: &[&str] = &[
    "Let me look. ",
    "\n",
    " ",
    "\n\n",
    "日本語",
    "é",
    "🦀",
    "<",
    "<|",
    "<｜",
    "</",
    "{",
    "}",
    "[",
    "]",
    "(x)",
    "a < b ",
    "{\"a\": 1}",
    "[1, 2]",
    "`code` ",
    "```json\n",
    "```",
    "\"",
    "'",
    ", ",
    ";",
    "<b>bold</b>",
    "[link](url)",
    "◁",
    "tool_call",
    "functions.",
    "name",
    "{\"name\": \"other\", \"arguments\": {}}",
    "\u{a0}",
    "\t",
];
const NAMES: &[&str] = &["search", "get_weather", "ping", "unknown_tool", "search", "get_weather"];
const KEYS: &[&str] =
    &["query", "limit", "exact", "score", "tags", "where", "city", "unit", "days", "stadt_ö", "x\"y"];
const VALUES: &[&str] = &[
    "\"plain\"",
    "\"with } and \\\" and {\"",
    "\"日本 🦀\"",
    "\"<tool_call>\"",
    "\"\"",
    "42",
    "-1.5e3",
    "true",
    "false",
    "null",
    "[]",
    "[1, \"a]\", {\"b\": []}]",
    "{}",
    "{\"deep\": {\"er\": [true, null]}}",
    "\"</parameter\"",
    "\"line\\nbreak\"",
    "\" blanks \"",
    "\"\\u00e9\\\\\"",
    "12345678901234567890",
];
const BROKEN: &[&str] =
    &["{", "}", "\"", "{\"name\": ", "\\", "nul", "\"arguments\": ", "))", "]", "=", ">", "\u{0}", "]]"];

/// A random text in a format; most of it well formed.
pub fn text(format: &'static ToolFormat, random: &mut Random) -> String {
    let mut out = String::new();
    for _ in 0..random.below(6) {
        match random.below(8) {
            0..=2 => prose(random, &mut out),
            3..=5 => out.push_str(&block(format, random)),
            6 => {
                let whole = block(format, random);
                let cut = random.below(whole.len() + 1);
                out.push_str(&whole[..floor(&whole, cut)]);
            }
            _ => damaged(format, random, &mut out),
        }
    }
    if random.below(5) == 0 {
        let cut = random.below(out.len() + 1);
        out.truncate(floor(&out, cut));
    }
    out
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn prose(random: &mut Random, out: &mut String) {
    for _ in 0..=random.below(4) {
        out.push_str(random.pick(PROSE));
    }
}

/// A block with a piece replaced, or a loose marker.
fn damaged(format: &'static ToolFormat, random: &mut Random, out: &mut String) {
    let markers = markers(format);
    if random.below(3) == 0 && !markers.is_empty() {
        let marker = random.pick(&markers);
        let cut = random.below(marker.len() + 1);
        out.push_str(&marker[..floor(marker, cut)]);
        return;
    }
    let whole = block(format, random);
    let at = floor(&whole, random.below(whole.len() + 1));
    let behind = floor(&whole, (at + random.below(12)).min(whole.len())).max(at);
    out.push_str(&whole[..at]);
    out.push_str(if random.below(3) == 0 && !markers.is_empty() {
        random.pick(&markers)
    } else {
        random.pick(BROKEN)
    });
    out.push_str(&whole[behind..]);
}

fn frames(format: &'static ToolFormat) -> &'static [Frame] {
    match &format.syntax {
        Syntax::Frames(frames) => frames.frames,
        _ => &[],
    }
}

/// All that means something in a format.
pub fn markers(format: &'static ToolFormat) -> Vec<&'static str> {
    let mut all = format.tokens.to_vec();
    for frame in frames(format) {
        for list in [frame.open, frame.call, frame.end, frame.close] {
            all.extend(list);
        }
        if let Head::Name(name) | Head::Either(name) = &frame.head {
            all.extend(name.ends.iter().chain(name.stops));
        }
        if let Body::Parameters(syntax) = &frame.body {
            for list in [syntax.open, syntax.key_end, syntax.value_open, syntax.close] {
                all.extend(list);
            }
        }
    }
    all
}

pub fn object(random: &mut Random) -> String {
    let count = random.below(4);
    let pairs: Vec<_> = (0..count)
        .map(|_| {
            format!("{}:{}{}", json(random.pick(KEYS)), random.pick(&["", " ", "\n"]), random.pick(VALUES))
        })
        .collect();
    format!("{{{}}}", pairs.join(random.pick(&[",", ", ", " ,\n"])))
}

fn json(text: &str) -> String {
    serde_json::to_string(text).expect("text")
}

/// `{"name": …, "arguments": …}` in the ways that models write it.
fn call_object(random: &mut Random) -> String {
    let name = json(random.pick(NAMES));
    let key = random.pick(&["arguments", "parameters", "arguments"]);
    let arguments = match random.below(10) {
        0 => json(&object(random)),
        1 => "null".to_owned(),
        _ => object(random),
    };
    match random.below(8) {
        0 => format!("{{\"{key}\": {arguments}, \"name\": {name}}}"),
        1 => format!("{{\"name\": {name}}}"),
        2 => format!("{{\"id\": \"0\", \"name\": {name}, \"{key}\": {arguments}}}"),
        3 => format!("{{\"tool_name\":{name},\"{key}\":{arguments},\"type\":\"function\"}}"),
        _ => format!("{{\"name\": {name}, \"{key}\": {arguments}}}"),
    }
}

fn call_objects(random: &mut Random) -> String {
    let count = random.below(3);
    if count == 0 {
        return call_object(random);
    }
    let calls: Vec<_> = (0..count).map(|_| call_object(random)).collect();
    format!("[{}]", calls.join(random.pick(&[",", ", ", ",\n"])))
}

/// A block of calls, well formed.
pub fn block(format: &'static ToolFormat, random: &mut Random) -> String {
    match &format.syntax {
        Syntax::None => call_object(random),
        Syntax::Harmony => harmony_message(random),
        Syntax::Frames(_) if format.name == "pythonic" => python(random),
        Syntax::Frames(syntax) if syntax.frames.is_empty() => call_objects(random),
        Syntax::Frames(syntax)
            if format.name == "llama" && random.below(2) == 0 || syntax.frames.is_empty() =>
        {
            call_objects(random)
        }
        Syntax::Frames(syntax) => framed(&syntax.frames[random.below(syntax.frames.len())], random),
    }
}

fn framed(frame: &'static Frame, random: &mut Random) -> String {
    let blank = |random: &mut Random| random.pick(&["", "\n", ""]).to_owned();
    let mut out = random.pick(frame.open).to_owned() + &blank(random);
    let calls = if frame.call.is_empty() { 1 } else { random.below(3) };
    for _ in 0..calls {
        if !frame.call.is_empty() {
            out.push_str(random.pick(frame.call));
        }
        match &frame.head {
            Head::Json => out.push_str(&call_objects(random)),
            Head::Either(_) if random.below(2) == 0 => out.push_str(&call_objects(random)),
            Head::Name(name) | Head::Either(name) => {
                out.push_str(random.pick(NAMES));
                if frame.close.contains(&"<|tool_calls_section_end|>") {
                    out.push_str(random.pick(&[":0", ":12", ""]));
                }
                out.push_str(random.pick(name.ends));
                body(frame, random, &mut out);
            }
        }
        for end in frame.end.iter().take(2) {
            out.push_str(end);
            out.push_str(&blank(random));
        }
    }
    out.push_str(frame.close.first().copied().unwrap_or_default());
    out
}

fn body(frame: &'static Frame, random: &mut Random, out: &mut String) {
    let Body::Parameters(syntax) = &frame.body else {
        out.push_str(&object(random));
        return;
    };
    if syntax.json && random.below(4) == 0 {
        out.push_str(&object(random));
        return;
    }
    for _ in 0..random.below(4) {
        out.push_str(random.pick(&["", "\n"]));
        out.push_str(random.pick(syntax.open));
        out.push_str(random.pick(KEYS));
        out.push_str(random.pick(syntax.key_end));
        if syntax.attributes {
            out.push_str(random.pick(&[">", " string=\"true\">", " string=\"false\">"]));
        }
        out.push_str(syntax.value_open.first().copied().unwrap_or_default());
        let value = random.pick(VALUES);
        out.push_str(random.pick(&["", "\n", " ", ""]));
        match serde_json::from_str::<String>(value) {
            Ok(text) if random.below(3) > 0 => out.push_str(&text),
            _ => out.push_str(value),
        }
        out.push_str(random.pick(&["", "\n", " \n", "\n\n"]));
        out.push_str(random.pick(syntax.close));
    }
    out.push_str(random.pick(&["", "\n"]));
}

fn python(random: &mut Random) -> String {
    const LITERALS: &[&str] = &[
        "'it\\'s'",
        "\"a) b\"",
        "True",
        "None",
        "[1, 2.5, 'x']",
        "{'k': (1, False)}",
        "-3",
        "bare",
        "'日本'",
        "''",
        "'\\u00e9\\n'",
        "",
        "1_000",
    ];
    let calls: Vec<_> = (0..=random.below(2))
        .map(|_| {
            let pairs: Vec<_> = (0..random.below(3))
                .map(|_| {
                    format!(
                        "{}{}{}",
                        random.pick(&["query", "limit", "ö"]),
                        random.pick(&["=", " = "]),
                        random.pick(LITERALS)
                    )
                })
                .collect();
            format!("{}({})", random.pick(NAMES), pairs.join(", "))
        })
        .collect();
    format!("{}[{}]", random.pick(&["", "<|python_start|>", ""]), calls.join(random.pick(&[", ", ","])))
}

fn harmony_message(random: &mut Random) -> String {
    let start = random.pick(&["<|start|>assistant", "", "<|start|>assistant"]);
    let end = random.pick(&["<|end|>", "<|return|>", "<|call|>", "<|end|>"]);
    let name = random.pick(NAMES);
    match random.below(5) {
        0 => format!("{start}<|channel|>analysis<|message|>thinking {}{end}", random.pick(PROSE)),
        1 => format!("{start}<|channel|>final<|message|>answer {}{end}", random.pick(PROSE)),
        2 => format!(
            "{start} to=functions.{name}<|channel|>commentary json<|message|>{}<|call|>",
            object(random)
        ),
        3 => format!("{start}<|channel|>commentary<|message|>preamble{end}"),
        _ => {
            let arguments = object(random);
            format!(
                "{start}<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}{}<|call|>",
                random.pick(&["", "\n"])
            )
        }
    }
}

#[test]
fn every_marker_set_is_free_of_prefixes() {
    for format in FORMATS {
        let all = markers(format);
        for frame in frames(format) {
            let sets = [[frame.open, frame.call].concat(), [frame.call, frame.end, frame.close].concat()];
            for set in sets {
                for marker in &set {
                    let longer = set.iter().find(|other| other != &marker && other.starts_with(marker));
                    assert_eq!(longer, None, "{}: {marker}", format.name);
                }
            }
        }
        assert!(all.iter().all(|marker| !marker.is_empty() && marker.len() <= 128));
    }
    assert!(harmony::TOKENS.len() > 5);
}
