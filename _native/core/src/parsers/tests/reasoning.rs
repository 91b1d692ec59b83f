//! Reasoning formats.

use super::{Answer, Parser, calls, read};

fn check(format: &str, inside: bool, text: &str, reasoning: &str, content: &str) {
    let answer = read(|| Parser::reasoning(format, inside), text);
    assert_eq!(
        (answer.reasoning.as_str(), answer.content.as_str()),
        (reasoning, content),
        "{format}: {text:?}"
    );
}

#[test]
fn thinking_in_tags() {
    for format in ["base", "qwen3", "glm45", "nemotron"] {
        check(format, false, "<think>why\n</think>\n\nso", "why\n", "so");
        check(format, false, "\n<think>why</think>so", "why", "so");
        check(format, false, "no thinking", "", "no thinking");
        check(format, false, "about <think> tags", "", "about <think> tags");
        check(format, false, " \n", "", " \n");
        check(format, true, "why</think>so </think> <think>", "why", "so </think> <think>");
    }
    for format in ["deepseek_r1", "qwen3_thinking", "step3", "minimax", "kimi_k2"] {
        check(format, false, "why</think>so", "why", "so");
        check(format, true, "<think>\n<think>why</think>so", "why", "so");
        check(format, true, "<think>\nwhy</think>so", "\nwhy", "so");
    }
    check("mistral", false, "[THINK]why[/THINK]so", "why", "so");
    check("kimi", false, "◁think▷why◁/think▷so", "why", "so");
    check("cohere", false, "<|START_THINKING|>why<|END_THINKING|>so", "why", "so");
    check("passthrough", true, "<think>why</think>so", "", "<think>why</think>so");
}

#[test]
fn what_waits_comes_out_at_the_end() {
    check("base", true, "why </thi", "why </thi", "");
    check("base", true, "a <my-tag> b", "a <my-tag> b", "");
    check("base", false, "<thi", "", "<thi");
    check("base", true, " \n", " \n", "");
}

#[test]
fn a_call_ends_thinking_where_its_marker_is_a_token_or_a_line() {
    check("kimi_k2", true, "why<|tool_calls_section_begin|>x", "why", "<|tool_calls_section_begin|>x");
    check("mistral", true, "why[TOOL_CALLS]ping[ARGS]{}", "why", "[TOOL_CALLS]ping[ARGS]{}");
    check("base", true, "why</think><tool_call>{}", "why", "<tool_call>{}");
    for format in ["qwen3", "qwen3_thinking", "nemotron"] {
        check(format, true, "why\n\n<tool_call>\n{}", "why\n", "<tool_call>\n{}");
        check(
            format,
            true,
            "the <tool_call>\n tag\n<tool_call> is\n",
            "the <tool_call>\n tag\n<tool_call> is\n",
            "",
        );
    }
    check("glm45", true, "why\n<tool_call>ping\n", "why", "<tool_call>ping\n");
    check("glm45", true, "why <tool_call>", "why <tool_call>", "");
}

#[test]
fn harmony_messages() {
    let call =
        "<|start|>assistant<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>";
    let text = format!("<|channel|>analysis<|message|>why<|end|>{call}");
    check("gpt-oss", false, &text, "why", call);
    check(
        "gpt-oss",
        false,
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so<|return|>",
        "why",
        "so",
    );
    check("gpt-oss", false, "<|channel|>final<|message|>{\"a\": 1}", "", "{\"a\": 1}");
    check("gpt-oss", true, "why<|end|>so", "why", "so");
    assert_eq!(calls("gpt-oss", call).calls, [("ping".to_owned(), "{}".to_owned())]);
    assert_eq!(calls("gpt-oss", &text).reasoning, "why");
    // The prompt's `<|start|>assistant` goes on with a recipient.
    let ping = [("ping".to_owned(), "{}".to_owned())];
    for first in [" to=functions.ping<|channel|>commentary json", "to=functions.ping<|channel|>commentary "] {
        assert_eq!(calls("gpt-oss", &format!("{first}<|message|>{{}}<|call|>")).calls, ping);
    }
    check("gpt-oss", false, " to=b", "", " to=b");
    // A marker is no header, in thoughts neither.
    check("gpt-oss", true, "a <|channel|> b<|end|>so", "a <|channel|> b", "so");
    // One that was cut off says nothing.
    for cut in ["<|channel|>", "<|channel|>ana", "<|start|>assistant<|channel|>final", " to=functions.pi"] {
        assert_eq!(calls("gpt-oss", cut), Answer::default());
    }
    assert_eq!(calls("gpt-oss", "plain <| text").content, "plain <| text");
}
