//! Each tool call format, in the ways its models write it.

use std::sync::Arc;

use serde_json::Value;

use super::super::formats::FORMATS;
use super::super::{ConstrainedParser, ToolParser, Tools, tool_format};
use super::{Answer, Parser, calls, read, tools};

/// What a text must come to: content, and calls with arguments as JSON.
fn check(format: &str, text: &str, content: &str, expected: &[(&str, &str)]) -> Answer {
    let answer = calls(format, text);
    let names: Vec<_> = answer.calls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, expected.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "{format}: {text}");
    for ((_, arguments), (_, wanted)) in answer.calls.iter().zip(expected) {
        let parsed: Value =
            serde_json::from_str(arguments).unwrap_or_else(|_| panic!("{format}: {arguments}"));
        assert_eq!(parsed, serde_json::from_str::<Value>(wanted).expect("wanted"), "{format}: {text}");
    }
    assert_eq!(answer.content, content, "{format}: {text}");
    answer
}

const SEARCH: (&str, &str) = ("search", r#"{"query":"a } \" {\" 日本","limit":3}"#);
const PING: (&str, &str) = ("ping", "{}");

/// Two calls with prose before and behind them, in each format.
const TEXTS: &[(&str, &str)] = &[
    (
        "json",
        r#"Look. [{"name": "search", "arguments": {"query":"a } \" {\" 日本","limit":3}}, {"name": "ping", "parameters": {}}] Done."#,
    ),
    (
        "mistral",
        r#"Look. [TOOL_CALLS] [{"name": "search", "arguments": {"query":"a } \" {\" 日本","limit":3}}, {"name": "ping", "arguments": {}}] Done."#,
    ),
    (
        "mistral",
        r#"Look. [TOOL_CALLS]search[ARGS]{"query":"a } \" {\" 日本","limit":3}[TOOL_CALLS]ping[CALL_ID]abcdefghi[ARGS]{} Done."#,
    ),
    (
        "qwen",
        "Look. <tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call> Done.",
    ),
    (
        "qwen_coder",
        "Look. <tool_call>\n<function=search>\n<parameter=query>\na } \" {\" 日本\n</parameter>\n<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call> Done.",
    ),
    (
        "nemotron",
        "Look. <TOOLCALL>[{\"name\": \"search\", \"arguments\": {\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}}]</TOOLCALL><tool_call>\n<function=ping>\n</function>\n</tool_call> Done.",
    ),
    (
        "pythonic",
        "Look. <|python_start|>[search(query='a } \" {\" 日本', limit=3), ping()]<|python_end|> Done.",
    ),
    (
        "llama",
        "Look. <|python_tag|>{\"name\": \"search\", \"parameters\": {\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}}; {\"name\": \"ping\", \"parameters\": {}} Done.",
    ),
    (
        "deepseek_v3",
        "Look. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n{\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜> Done.",
    ),
    (
        "deepseek_v31",
        "Look. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜> Done.",
    ),
    (
        "deepseek_v32",
        "Look. <｜DSML｜function_calls>\n<｜DSML｜invoke name=\"search\">\n<｜DSML｜parameter name=\"query\" string=\"true\">a } \" {\" 日本</｜DSML｜parameter>\n<｜DSML｜parameter name=\"limit\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls> Done.",
    ),
    (
        "deepseek_v32",
        "Look. <function_calls>\n<invoke name=\"search\">\n{\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}\n</invoke><invoke name=\"ping\">{}</invoke></function_calls> Done.",
    ),
    (
        "glm45",
        "Look. <tool_call>search\n<arg_key>query</arg_key>\n<arg_value>a } \" {\" 日本</arg_value>\n<arg_key>limit</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call> Done.",
    ),
    (
        "glm47",
        "Look. <tool_call>search<arg_key>query</arg_key><arg_value>a } \" {\" 日本</arg_value><arg_key>limit</arg_key><arg_value>3</arg_value></tool_call><tool_call>ping</tool_call> Done.",
    ),
    (
        "kimi_k2",
        "Look. <|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|> Done.",
    ),
    (
        "minimax_m2",
        "Look. <minimax:tool_call>\n<invoke name=\"search\"><parameter name=\"query\">a } \" {\" 日本</parameter>\n<parameter name=\"limit\">3</parameter>\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call> Done.",
    ),
    (
        "step3",
        "Look. <｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"search\">\n<steptml:parameter name=\"query\"> a } \" {\" 日本\n</steptml:parameter>\n<steptml:parameter name=\"limit\">3</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"ping\"></steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜> Done.",
    ),
    (
        "cohere",
        "<|START_RESPONSE|>Look. <|END_RESPONSE|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"search\", \"parameters\": {\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"ping\", \"parameters\": {}}\n]<|END_ACTION|> Done.",
    ),
    (
        "gpt-oss",
        "<|channel|>commentary<|message|>Look. <|end|><|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>{\"query\":\"a } \\\" {\\\" 日本\",\"limit\":3}<|call|><|start|>assistant to=functions.ping<|channel|>commentary json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|> Done.<|return|>",
    ),
];

#[test]
fn prose_and_two_calls_in_every_format() {
    for (format, text) in TEXTS {
        check(format, text, "Look.  Done.", &[SEARCH, PING]);
    }
    for format in FORMATS {
        let covered = TEXTS.iter().any(|(name, _)| *name == format.name);
        assert!(covered || format.name == "passthrough", "{} has no text", format.name);
    }
}

#[test]
fn one_call_at_most_without_parallel_calls() {
    for (format, text) in TEXTS {
        let parser = || Parser::Tools(ToolParser::new(tool_format(format).expect(format), tools(false)));
        let answer = read(parser, text);
        assert_eq!(answer.calls.len(), 1, "{format}");
        assert_eq!(answer.content, "Look.  Done.", "{format}");
    }
}

#[test]
fn a_text_that_ends_anywhere_gives_what_is_known() {
    for (format, text) in TEXTS {
        let whole = calls(format, text);
        for (at, _) in text.char_indices() {
            let part = calls(format, &text[..at]);
            assert!(part.calls.len() <= whole.calls.len(), "{format}: {}", &text[..at]);
            for ((name, arguments), (wanted, all)) in part.calls.iter().zip(&whole.calls) {
                assert_eq!(name, wanted, "{format}");
                let common = all.bytes().zip(arguments.bytes()).take_while(|(a, b)| a == b).count();
                // At most the beginning of a marker too much.
                assert!(arguments.len() - common < 30, "{format}: {arguments}");
            }
        }
    }
}

#[test]
fn no_call_is_content() {
    for text in [
        "",
        "Hello.",
        "{",
        "{}",
        "{\"a\": 1} and [1, 2]",
        "[link](http://x) a[0](b)",
        "{\"name\": \"other\", \"arguments\": {}}",
        "[{\"name\": \"Anna\", \"age\": 3}]",
        " \n",
        "a < b <| c </ d",
        "[TOOL",
        "<tool",
        "<func",
        "[TOOL_CALLS] no",
        "{\"name\": 5}",
        "<tool_call>no call</tool_call>",
        "<tool_call>\n</tool_call>",
        "<function=other>",
        "[foo(x=1)]",
        "functions.search:0",
        "<|tool_calls_section_begin|>nothing",
        "<minimax:tool_call>\nnothing",
        "◁think▷",
        "\u{a0}日本",
        "[search(the docs)]",
    ] {
        for format in FORMATS {
            let stays = !text.contains("[TOOL_CALLS]")
                || format.name == "mistral"
                || !format.tokens.contains(&"[TOOL_CALLS]");
            let dropped = format.name == "qwen" && text.contains("\"other\"");
            if stays && !dropped {
                check(format.name, text, text, &[]);
            }
        }
    }
}

#[test]
fn unknown_tools_are_dropped_in_markers_or_forwarded() {
    let text = "A <tool_call>\n{\"name\": \"other\", \"arguments\": {\"a\": 1}}\n</tool_call> B";
    check("qwen", text, "A  B", &[]);
    check("glm47", "<tool_call>other<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", "", &[]);
    // Beside a known one it is no answer, whatever the format.
    let answer = "[{\"name\": \"other\", \"arguments\": {}}, {\"name\": \"Anna\"}]";
    for format in ["json", "llama"] {
        check(format, answer, answer, &[]);
        for list in [
            "[{\"name\": \"other\", \"arguments\": {\"a\": 1}}, {\"name\": \"ping\"}]",
            "[{\"name\": \"ping\"}, {\"name\": \"other\", \"arguments\": {\"a\": 1}}]",
        ] {
            check(format, list, "", &[PING]);
        }
    }
    check("pythonic", "A [other(a=1), ping(), other()] B", "A  B", &[PING]);
    check("pythonic", "[other(a=1), other()]", "[other(a=1), other()]", &[]);
    let long = format!("[other(a='{}'), ping()]", "x".repeat(5000));
    check("pythonic", &long, &long, &[]);
    let mut known = Tools::new([], true);
    known.forward_unknown = true;
    let known = Arc::new(known);
    let parser = || Parser::Tools(ToolParser::new(tool_format("qwen").expect("qwen"), Arc::clone(&known)));
    assert_eq!(read(parser, text).calls, [("other".to_owned(), "{\"a\": 1}".to_owned())]);
}

#[test]
fn slips_that_models_make() {
    let one: &[(&str, &str)] = &[("search", r#"{"limit": 1}"#)];
    let call = "{\"name\": \"search\", \"arguments\": {\"limit\": 1}";
    check("qwen", &format!("<tool_call>\n{call}\n</tool_call>"), "", one);
    check("qwen", &format!("<tool_call>\n{call}}}}}\n</tool_call>"), "", one);
    check("qwen", "<tool_call>{\"arguments\": {\"limit\": 1}, \"name\": \"search\"}</tool_call>", "", one);
    check(
        "qwen",
        "<tool_call>{\"name\": \"search\", \"arguments\": \"{\\\"limit\\\": 1}\"}</tool_call>",
        "",
        one,
    );
    check("qwen", "<tool_call>{\"name\": \"ping\", \"arguments\": null}</tool_call>", "", &[PING]);
    check("qwen", "<tool_call>{\"name\": \"ping\"}</tool_call>", "", &[PING]);
    check("qwen", "<tool_call><tool_call>{\"name\": \"ping\"}</tool_call>", "", &[PING]);
    check("qwen", "<tool_call><tool_call> is it", "<tool_call><tool_call> is it", &[]);
    check("qwen_coder", "<function=search>\n<parameter=limit>1</function>", "", one);
    check(
        "qwen_coder",
        "<tool_call><function=search><parameter=query>x<parameter=limit>1</function></tool_call>",
        "",
        &[("search", r#"{"query": "x", "limit": 1}"#)],
    );
    let newline = "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"a\nb\\d\"}}</tool_call>";
    check("qwen", newline, "", &[("search", r#"{"query": "a\nb\\d"}"#)]);
    check("llama", &format!(" {call}}}"), "", one);
    check("mistral", "[TOOL_CALLS]search{\"limit\": 1}", "", one);
    check(
        "kimi_k2",
        "<|tool_call_begin|>search<|tool_call_argument_begin|>{\"limit\": 1}<|tool_call_end|>",
        "",
        one,
    );
    check("pythonic", "[search(limit=1]", "", one);
    check("deepseek_v31", "<｜tool▁call▁begin｜>ping<｜tool▁sep｜><｜tool▁call▁end｜>", "", &[PING]);
}

#[test]
fn broken_arguments_come_out_as_they_are() {
    let answer =
        calls("qwen", "<tool_call>{\"name\": \"search\", \"arguments\": {\"limit\": 1,, }}</tool_call> on");
    assert_eq!(answer.calls, [("search".to_owned(), "{\"limit\": 1,, }}".to_owned())]);
    assert_eq!(answer.content, " on");
    let answer = calls("json", "{\"name\": \"search\", \"arguments\": {\"limit\": oops}} on");
    assert_eq!(answer.calls.len(), 1);
    assert!(answer.content.ends_with(" on"));
    for (format, text) in [
        ("json", "[{\"name\": \"search\", \"arguments\": {\"limit\": }}]"),
        ("mistral", "[TOOL_CALLS] [{\"name\": \"search\", \"arguments\": {\"limit\": }}]"),
    ] {
        let answer = calls(format, text);
        assert_eq!(answer.calls, [("search".to_owned(), "{\"limit\": ".to_owned())]);
        assert_eq!(answer.content, "");
    }
}

#[test]
fn values_have_the_types_of_the_schema() {
    let value = |key: &str, text: &str| {
        let text =
            format!("<tool_call>search<arg_key>{key}</arg_key><arg_value>{text}</arg_value></tool_call>");
        let answer = calls("glm47", &text);
        let parsed: Value = serde_json::from_str(&answer.calls[0].1).expect("JSON");
        parsed[key].to_string()
    };
    for (key, text, wanted) in [
        ("query", "42", "\"42\""),
        ("query", "true", "\"true\""),
        ("query", "", "\"\""),
        ("query", " a ", "\" a \""),
        ("limit", "42", "42"),
        ("limit", " -7 ", "-7"),
        ("limit", "many", "\"many\""),
        ("exact", "True", "true"),
        ("exact", "false", "false"),
        ("score", "1.5", "1.5"),
        ("score", "null", "null"),
        ("score", "+.5", "0.5"),
        ("tags", "[\"a\", \"b\"]", "[\"a\",\"b\"]"),
        ("tags", "['a', 'b']", "[\"a\",\"b\"]"),
        ("where", "{\"a\": 1}", "{\"a\":1}"),
        ("where", "{'a': True}", "{\"a\":true}"),
        ("other", "42", "42"),
        ("other", "text", "\"text\""),
        ("other", "007", "\"007\""),
        ("limit", "12345678901234567890", "12345678901234567890"),
    ] {
        assert_eq!(value(key, text), wanted, "{key} = {text}");
    }
}

#[test]
fn arguments_stream_as_soon_as_they_are_certain() {
    let mut parser = ToolParser::new(tool_format("qwen_coder").expect("format"), tools(true));
    let mut answer = Answer::default();
    let mut seen = |text: &str| {
        parser.push(text, &mut answer);
        answer.calls.first().map_or(String::new(), |(_, arguments)| arguments.clone())
    };
    assert_eq!(seen("<tool_call>\n<function=search>\n<parameter=query>\nab"), "{\"query\": \"ab");
    assert_eq!(seen("c\n</para"), "{\"query\": \"abc");
    assert_eq!(seen("meter>\n<parameter=limit>\n1"), "{\"query\": \"abc\"");
    assert_eq!(seen("2\n</parameter>"), "{\"query\": \"abc\", \"limit\": 12");
    assert_eq!(seen("\n</function>"), "{\"query\": \"abc\", \"limit\": 12}");
}

#[test]
fn constrained_output_is_calls() {
    let array = || Parser::Constrained(ConstrainedParser::array(tools(true)));
    let text = "[{\"name\": \"ping\", \"parameters\": {}}, {\"name\": \"search\", \"parameters\": {\"limit\": 1}}]\n";
    let answer = read(array, text);
    assert_eq!(answer.calls.len(), 2);
    assert_eq!(answer.content, "");
    let other =
        read(array, "[{\"name\": \"other\", \"parameters\": {}}, {\"name\": \"ping\", \"parameters\": {}}]");
    assert_eq!((other.content.as_str(), other.calls.len()), ("", 1));
    assert_eq!(read(array, "[1, 2]").content, "[1, 2]");
    let named = || Parser::Constrained(ConstrainedParser::named("search", tools(true)));
    let answer = read(named, " {\"limit\": 1}\n");
    assert_eq!(answer.calls, [("search".to_owned(), "{\"limit\": 1}".to_owned())]);
    assert_eq!(answer.content, "");
    assert_eq!(read(named, "{\"query\": \"cut").calls[0].1, "{\"query\": \"cut");
    assert_eq!(read(named, "sorry").content, "sorry");
}

#[test]
fn a_nameless_call_behind_another_says_nothing() {
    let array = || Parser::Constrained(ConstrainedParser::array(tools(true)));
    for cut in ["", ",", ", {", ", {\"na", ", {\"name\": \"sea", ", {\"name\": \"search\", \"parameters\": "]
    {
        let answer = read(array, &format!("[{{\"name\": \"ping\", \"parameters\": {{}}}}{cut}"));
        assert_eq!((answer.content.as_str(), answer.calls.len()), ("", 1), "{cut}");
    }
    let listed = [
        ("mistral", "[TOOL_CALLS] [{\"name\": \"ping\", \"arguments\": {}}, {\"name\": \"sea"),
        ("pythonic", "[ping(), sea"),
        ("pythonic", "[ping(), search("),
        (
            "deepseek_v31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>sea",
        ),
    ];
    for (format, text) in listed {
        let answer = calls(format, text);
        assert_eq!((answer.content.as_str(), answer.calls.len()), ("", 1), "{format}: {text}");
    }
    assert_eq!(read(array, "[{\"name\": \"pi").content, "[{\"name\": \"pi");
    assert_eq!(calls("pythonic", "[ping(), 5 more").content, " 5 more");
}

#[test]
fn formats_are_known_by_name() {
    assert_eq!(tool_format("hermes").map(|format| format.name), Some("qwen"));
    assert!(tool_format("nonsense").is_none());
}
