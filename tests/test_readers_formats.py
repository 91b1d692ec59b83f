"""A reader's own answers in the models' formats: what the worker says, and what the client must see of it,
whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import answers, deltas, tiny
from tests.support.app import App

WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER_SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
KÖLN = {"city": "Köln", "days": 3, "zip": "007"}
TEXT = json.dumps(KÖLN, ensure_ascii=False)
SIZES = (1, 2, 3, 7, 19, 10_000)
"""Of the worker's chunks, in bytes, which are the tokens of this tokenizer."""


@dataclass(frozen=True)
class Case:
    """`calls`: names and decoded arguments."""

    name: str
    tools: str
    text: str
    calls: list[tuple[str, Any]]
    content: str | None = None
    thought: str = ""
    reasoning: str = "none"
    finish: str = "tool_calls"
    body: dict[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()


CASES = (
    Case(
        "mistral-two",
        "mistral",
        f'Sure.[TOOL_CALLS] [{{"name": "weather", "arguments": {TEXT}}}, '
        '{"name": "now", "arguments": {}}]',
        [("weather", KÖLN), ("now", {})],
        "Sure.",
    ),
    Case(
        "mistral-brackets-in-a-string",
        "mistral",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "]}, {\\"name\\": [", "days": 1}}]',
        [("weather", {"city": ']}, {"name": [', "days": 1})],
    ),
    Case(
        "kimi-counts-on",
        "kimi_k2",
        "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>"
        f"{TEXT}<|tool_call_end|><|tool_call_begin|>functions.now:2<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        [("weather", KÖLN), ("now", {})],
        "Ok.",
        body={
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {
                            "id": "functions.now:0",
                            "type": "function",
                            "function": {"name": "now", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "functions.now:0", "content": "12:00"},
            ]
        },
        ids=("functions.weather:1", "functions.now:2"),
    ),
    Case(
        "deepseek-31-two",
        "deepseek_v31",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{TEXT}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("weather", KÖLN), ("now", {})],
    ),
    Case(
        "deepseek-3-fenced",
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{TEXT}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("weather", KÖLN)],
    ),
    Case(
        "qwen-coder-typed-by-the-schema",
        "qwen_coder",
        "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=zip>\n007\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [("weather", KÖLN), ("now", {})],
        "I look.\n",
    ),
    Case(
        "glm-45-typed-by-the-schema",
        "glm45",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n<arg_key>zip</arg_key>\n<arg_value>007</arg_value>\n</tool_call>",
        [("weather", KÖLN)],
    ),
    Case(
        "minimax-typed-by-the-schema",
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Köln</parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="zip">007</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        [("weather", KÖLN), ("now", {})],
    ),
    Case(
        "pythonic-list",
        "pythonic",
        "[weather(city='Kö\"ln, [x](y)', days=3), now()]",
        [("weather", {"city": 'Kö"ln, [x](y)', "days": 3}), ("now", {})],
    ),
    Case(
        "llama-python-tag",
        "llama",
        f'<|python_tag|>{{"name": "weather", "parameters": {TEXT}}}',
        [("weather", KÖLN)],
    ),
    Case("llama-bare", "llama", f'{{"name": "weather", "parameters": {TEXT}}}', [("weather", KÖLN)]),
    Case("json-no-call", "json", '{"answer": [1, 2], "name', [], '{"answer": [1, 2], "name', finish="stop"),
    Case(
        "gpt-oss-thinks-then-calls",
        "gpt-oss",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.weather <|constrain|>json<|message|>{TEXT}<|call|>",
        [("weather", KÖLN)],
        thought="Need the weather.",
        reasoning="gpt-oss",
    ),
    Case(
        "gpt-oss-answers",
        "gpt-oss",
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hällo <b>!<|return|>",
        [],
        "Hällo <b>!",
        thought="Hm.",
        reasoning="gpt-oss",
        finish="stop",
    ),
    Case(
        "think-and-call-touch",
        "qwen",
        f'<think>a <b</think><tool_call>{{"name": "weather", "arguments": {TEXT}}}</tool_call>',
        [("weather", KÖLN)],
        thought="a <b",
        reasoning="qwen3",
    ),
    Case(
        "a-call-inside-the-thinking-is-thought",
        "qwen",
        '<think>maybe <tool_call>{"name": "now", "arguments": {}}</tool_call>?</think>No.',
        [],
        "No.",
        thought='maybe <tool_call>{"name": "now", "arguments": {}}</tool_call>?',
        reasoning="qwen3",
        finish="stop",
    ),
    Case(
        "begins-inside-the-thinking",
        "qwen",
        "so it is</think>\n\nYes.",
        [],
        "Yes.",
        thought="so it is",
        reasoning="deepseek_r1",
        finish="stop",
    ),
    Case(
        "cut-in-the-arguments",
        "qwen",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Kö',
        [("weather", None)],
        finish="length",
    ),
    Case(
        "cut-in-a-later-calls-name",
        "mistral",
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "weat',
        [("now", {})],
        finish="length",
    ),
    Case(
        "forced-and-cut-in-a-later-calls-name",
        "qwen",
        '[{"name": "now", "parameters": {}}, {"name": "weat',
        [("now", {})],
        finish="length",
        body={"tool_choice": "required"},
    ),
    Case("pythonic-cut-in-a-later-calls-name", "pythonic", "[now(), weat", [("now", {})], finish="length"),
)


def seen(case: Case, message: dict[str, Any], finish: str) -> None:
    calls = message.get("tool_calls", [])
    assert [made["function"]["name"] for made in calls] == [name for name, _ in case.calls]
    for made, (_, arguments) in zip(calls, case.calls, strict=True):
        if arguments is not None:
            assert json.loads(made["function"]["arguments"]) == arguments
    if case.ids:
        assert [made["id"] for made in calls] == list(case.ids)
    assert message["content"] == (case.content if case.content or calls else "")
    assert message.get("reasoning_content", "") == case.thought
    assert finish == case.finish


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_format(make: Callable[..., App], case: Case) -> None:
    body = {"tools": TOOLS, **case.body}
    reason = "length" if case.finish == "length" else "stop"
    ids = [*case.text.encode(), *([tiny.END] if reason == "stop" else [])]
    cuts = [(closing, size) for closing in answers.CLOSINGS for size in SIZES]
    app = make(
        (answers.complete(ids, len(ids), reason), None),
        *((*answers.messages(ids, [size] * len(ids), closing, reason), None) for closing, size in cuts),
        tool_call_parser=case.tools,
        reasoning_parser=case.reasoning,
    )
    answer = app.chat(**body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.get_json()["choices"]
    seen(case, choice["message"], choice["finish_reason"])
    for _ in cuts:
        streamed, last, _ = deltas.gather(deltas.chunks(app.chat(**body, stream=True).text))
        if "tool_calls" in streamed:
            streamed["content"] = streamed["content"] or None
        seen(case, streamed, last["finish_reason"])
        assert written(streamed) == written(choice["message"])


def written(message: dict[str, Any]) -> list[str]:
    """The arguments of its calls, byte for byte."""
    return [made["function"]["arguments"] for made in message.get("tool_calls", [])]
