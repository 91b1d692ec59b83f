//! Cost stays linear on text made to hurt: whole megabytes with `cargo test --release`, less without.

use std::time::Instant;

use super::super::formats::FORMATS;
use super::super::{reasoning_format, reasoning_format_names};
use super::Parser;
use super::grammar::markers;

const SIZE: usize = 1 << 20;

/// Texts that begin much and end nothing.
fn hostile(markers: &[&str]) -> Vec<String> {
    let mut units: Vec<String> = [
        "{",
        "[",
        "[{",
        "{\"name\": \"search\", \"arguments\": {\"a\": ",
        "{\"a\":\"",
        "\\\"",
        "<",
        "<|",
        " ",
        "\n",
        "[search(query=",
        "[search(query='",
        "[other(a='",
        "[other(a=1), ",
        "[{\"name\": \"other\", \"arguments\": {\"a\": ",
        "[{\"name\": \"other\", \"arguments\": {}}, ",
        "{\"name\": \"ping\", \"arguments\": {}}",
        "{\"name\": \"ping\", \"arguments\": \"{",
        "}",
        "]",
        "\"",
        "'",
        "\\",
        "(",
        "to=",
        " to=functions.ping ",
        "\u{0}",
        "日",
    ]
    .map(str::to_owned)
    .to_vec();
    for marker in markers {
        units.push((*marker).to_owned());
        units.push(format!("{marker} "));
        units.push(format!("{marker}search"));
        units.push(format!("{marker}{{\"a\":\""));
        let cut = marker.char_indices().last().map_or(0, |(at, _)| at);
        units.push(marker[..cut].to_owned());
    }
    if let [open, ..] = markers {
        units.push(markers.concat());
        let long = format!("{open}{{\"name\": \"search\", \"arguments\": {{\"a\": \"");
        units.push(long.clone() + &" x".repeat(SIZE / 4));
        units.push(format!("{open}{{\"arguments\": {{\"a\": \"{}", open.repeat(SIZE / 2 / open.len())));
    }
    units.retain(|unit| !unit.is_empty());
    units.iter().map(|unit| unit.repeat(SIZE / unit.len() + 1)).collect()
}

fn timed(what: &str, make: impl Fn() -> Parser, text: &str) {
    for single in [false, true] {
        let bound = match (cfg!(debug_assertions), single) {
            (false, _) => SIZE,
            (true, false) => SIZE / 32,
            (true, true) => SIZE / 512,
        };
        let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= bound).last().unwrap_or(0);
        let text = &text[..end];
        let begin = Instant::now();
        let answer = if single { make().read(text.split_inclusive(|_| true)) } else { make().read([text]) };
        let took = begin.elapsed();
        let shown: String = text.chars().take(60).collect();
        assert!(took.as_millis() < 1000, "{what} took {took:?}, one by one: {single}: {shown:?}");
        drop(answer);
    }
}

#[test]
fn a_megabyte_takes_less_than_a_second() {
    for format in FORMATS {
        for text in hostile(&markers(format)) {
            timed(format.name, || Parser::tools(format.name), &text);
        }
    }
    for name in reasoning_format_names() {
        let format = reasoning_format(name).expect("format");
        for text in hostile(format.tokens) {
            for inside in [true, false] {
                timed(name, || Parser::reasoning(name, inside), &text);
            }
        }
    }
}
