"""A reader's own cases, written from the contract and OpenAI's documentation alone: what is asked, what the
worker says, what the client must see, and what the worker must have been asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MODEL = "qwen3-sim"
EOS = 151645
CONTEXT = 4096

WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER_SCHEMA},
}
NOW = {"type": "function", "function": {"name": "now"}}
EMPTY = {"type": "object", "properties": {}}
"""What OpenAI's documentation says of a function without parameters."""
PLACE = {"type": "object", "properties": {"lat": {"type": "number"}}}
GOTO = {
    "type": "function",
    "function": {
        "name": "go_to",
        "parameters": {
            "type": "object",
            "properties": {"to": {"$ref": "#/$defs/Place"}},
            "$defs": {"Place": PLACE},
        },
    },
}
ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "strict": True, "schema": ANSWER_SCHEMA},
}
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}


def call(name: str, arguments: str) -> dict[str, Any]:
    """A call as the client sees it, without its id."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def qwen_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def any_of(*tools: tuple[str, Any]) -> dict[str, Any]:
    """The constraint of required calls, as the contract tells it."""
    rows = [
        {
            "properties": {"name": {"type": "string", "enum": [name]}, "parameters": schema},
            "required": ["name", "parameters"],
        }
        for name, schema in tools
    ]
    return {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": rows}}


@dataclass(frozen=True)
class Case:
    """`answer`: of the simulator, to a prompt that holds the case's name. `message`, `finish`: of the choice.

    `asked`: what the worker's sampling parameters must hold; a constraint is compared as JSON, `...` is
    absent. `request`: the same for the rest of its request. `usage`, `choice`: a part of them.
    """

    name: str
    answer: dict[str, Any]
    message: dict[str, Any]
    finish: str = "stop"
    body: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    warning: str | None = None


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


NO_CONSTRAINT = {"json_schema": ..., "structural_tag": ..., "regex": ..., "ebnf_grammar": ...}

CASES = (
    Case(
        "two-calls-after-thinking-and-prose",
        {
            "text": "<think>\nWhich city?\n</think>\n\nLet me look.\n"
            + qwen_call("weather", '{"city": "Köln {}\\""}')
            + "\n"
            + qwen_call("now", "{}"),
            "chunks": [2],
        },
        {
            "content": "Let me look.\n",
            "reasoning_content": "\nWhich city?\n",
            "tool_calls": [call("weather", '{"city": "Köln {}\\""}'), call("now", "{}")],
        },
        "tool_calls",
        {"tools": [WEATHER, NOW]},
        NO_CONSTRAINT,
        {"require_reasoning": True},
    ),
    Case(
        "required-with-defs",
        {"text": '<think>\nhm\n</think>\n\n[{"name": "go_to", "parameters": {"to": {"lat": 1.50}}}]'},
        {
            "content": None,
            "reasoning_content": "\nhm\n",
            "tool_calls": [call("go_to", '{"to": {"lat": 1.50}}')],
        },
        "tool_calls",
        {"tools": [GOTO, NOW], "tool_choice": "required"},
        {
            "json_schema": {
                **any_of(
                    ("go_to", {"type": "object", "properties": {"to": {"$ref": "#/$defs/Place"}}}),
                    ("now", EMPTY),
                ),
                "$defs": {"Place": PLACE},
            }
        },
        {"require_reasoning": True},
    ),
    Case(
        "named-without-thinking",
        {"text": '{"city": "Ulm"}', "chunks": [1]},
        {"content": None, "tool_calls": [call("weather", '{"city": "Ulm"}')]},
        "tool_calls",
        {
            "tools": [WEATHER, NOW],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            **QUIET,
        },
        {"json_schema": WEATHER_SCHEMA},
        {"require_reasoning": ...},
    ),
    Case(
        "required-cut-by-length",
        {"text": '[{"name": "weather", "parameters": {"city": "Bo', "finish_reason": "length"},
        {"content": None, "tool_calls": [call("weather", '{"city": "Bo')]},
        "length",
        {"tools": [WEATHER], "tool_choice": "required", **QUIET},
    ),
    Case(
        "allowed-tools-required",
        {"text": '[{"name": "weather", "parameters": {"city": "x"}}, {"name": "now", "parameters": {}}]'},
        {"content": None, "tool_calls": [call("now", "{}")]},
        "tool_calls",
        {
            "tools": [WEATHER, NOW],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "now"}}],
                },
            },
            **QUIET,
        },
        {"json_schema": any_of(("now", EMPTY))},
    ),
    Case(
        "no-tools-chosen",
        {"text": "I would " + qwen_call("now", "{}") + "!"},
        {"content": "I would " + qwen_call("now", "{}") + "!"},
        body={"tools": [NOW], "tool_choice": "none", **QUIET},
        asked=NO_CONSTRAINT,
    ),
    Case(
        "one-call-at-a-time",
        {"text": qwen_call("now", "{}") + "\n" + qwen_call("weather", '{"city": "x"}'), "chunks": [3]},
        {"content": None, "tool_calls": [call("now", "{}")]},
        "tool_calls",
        {"tools": [WEATHER, NOW], "parallel_tool_calls": False, **QUIET},
    ),
    Case(
        "old-functions-named",
        {"text": '{"city": "Bern"}'},
        {"content": None, "function_call": {"name": "weather", "arguments": '{"city": "Bern"}'}},
        "function_call",
        {"functions": [WEATHER["function"]], "function_call": {"name": "weather"}, **QUIET},
        {"json_schema": WEATHER_SCHEMA},
    ),
    Case(
        "old-functions-auto",
        {"text": qwen_call("weather", '{"city": "Bern"}')},
        {"content": None, "function_call": {"name": "weather", "arguments": '{"city": "Bern"}'}},
        "function_call",
        {"functions": [WEATHER["function"]], **QUIET},
        NO_CONSTRAINT,
    ),
    Case(
        "call-of-an-unknown-tool-is-text",
        {"text": '{"name": "x"} is how a call {looks'},
        {"content": '{"name": "x"} is how a call {looks'},
        body={"tools": [NOW], **QUIET},
    ),
    Case(
        "stop-word-in-thinking-too",
        {"text": "<think>\nno END here\n</think>\n\nfirst E then END last", "chunks": [1]},
        {"content": "first E then ", "reasoning_content": "\nno END here\n"},
        body={"stop": ["END", "never"]},
        asked={"stop": ...},
        choice={"matched_stop": "END"},
    ),
    Case(
        "stop-word-kept",
        {"text": "one two STOP three", "chunks": [1]},
        {"content": "one two STOP"},
        body={"stop": "two STOP", "no_stop_trim": True, **QUIET},
        asked={"stop": ...},
        choice={"matched_stop": "two STOP"},
    ),
    Case(
        "half-a-stop-word-at-the-end",
        {"text": "wait for STO", "chunks": [1]},
        {"content": "wait for STO"},
        body={"stop": "STOP", **QUIET},
    ),
    Case(
        "thinking-stays-in-the-content",
        {"text": "<think>\na\n</think>\n\nb"},
        {"content": "<think>\na\n</think>\n\nb"},
        body={"separate_reasoning": False},
        request={"require_reasoning": True},
    ),
    Case(
        "thinking-cut-by-length",
        {"text": "<think>\nI was about to </thi", "finish_reason": "length", "chunks": [1]},
        {"content": "", "reasoning_content": "\nI was about to </thi"},
        "length",
        usage={"completion_tokens": 9},
    ),
    Case(
        "cut-by-max-completion-tokens",
        {"text": "one two three four five six seven eight nine"},
        {"content": "one two three"},
        "length",
        {"max_tokens": 7, "max_completion_tokens": 3, **QUIET},
        {"max_new_tokens": 3},
        usage={"completion_tokens": 3},
    ),
    Case(
        "continue-the-assistant",
        {"text": " 42 — said it."},
        {"content": " 42 — said it."},
        body={
            "messages": [
                user("continue-the-assistant"),
                {"role": "assistant", "content": "The answer is"},
            ],
            "continue_final_message": True,
            **QUIET,
        },
        prompt="<|im_start|>user\ncontinue-the-assistant<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n\n</think>\n\nThe answer is",
    ),
    Case(
        "every-sampling-parameter",
        {"text": "ok"},
        {"content": "ok"},
        body={
            "temperature": 0.0,
            "top_p": 0.5,
            "top_k": 7,
            "min_p": 0.25,
            "frequency_penalty": -2,
            "presence_penalty": 1.5,
            "repetition_penalty": 1.25,
            "min_tokens": 1,
            "max_tokens": 99,
            "stop_token_ids": [9, 8],
            "logit_bias": {"15": -100, "16": 2.5},
            "ignore_eos": False,
            "custom_params": {"a": {"b": [1, None]}},
            "seed": 11,
            "user": "u",
            "metadata": {"k": "v"},
            "store": False,
            "service_tier": "auto",
            "safety_identifier": "s",
            "verbosity": None,
            "ünknown\n": 1,
            **QUIET,
        },
        asked={
            "temperature": ...,
            "top_p": 0.5,
            "top_k": 7,
            "min_p": 0.25,
            "frequency_penalty": -2.0,
            "presence_penalty": 1.5,
            "repetition_penalty": 1.25,
            "min_new_tokens": 1,
            "max_new_tokens": 99,
            "stop_token_ids": [9, 8],
            "logit_bias": {"15": -100.0, "16": 2.5},
            "custom_params": {"a": {"b": [1.0, None]}, "seed": 11.0},
            "n": 1,
        },
        warning="seed",
    ),
    Case(
        "nothing-said-nothing-lost",
        {"text": "ok"},
        {"content": "ok"},
        body=QUIET,
        asked={
            "temperature": 0.625,
            "top_k": 20,
            "top_p": 1.0,
            "repetition_penalty": 1.0,
            "n": 1,
            **NO_CONSTRAINT,
        },
    ),
    Case(
        "schema-after-thinking",
        {"text": '<think>\n6*7\n</think>\n\n{"answer": 42}'},
        {"content": '{"answer": 42}', "reasoning_content": "\n6*7\n"},
        body={"response_format": FORMAT},
        asked={"json_schema": ANSWER_SCHEMA},
        request={"require_reasoning": True},
    ),
    Case(
        "schema-or-call",
        {"text": '{"answer": 42}'},
        {"content": '{"answer": 42}'},
        body={"response_format": FORMAT, "tools": [WEATHER], **QUIET},
        asked={"json_schema": ...},
    ),
    Case(
        "any-object",
        {"text": '{"a": []}'},
        {"content": '{"a": []}'},
        body={"response_format": {"type": "json_object"}, **QUIET},
        asked={"json_schema": {"type": "object"}},
    ),
    Case(
        "grammar",
        {"text": "yes"},
        {"content": "yes"},
        body={"ebnf": 'root ::= "yes" | "no"', **QUIET},
        asked={"ebnf_grammar": 'root ::= "yes" | "no"'},
    ),
    Case(
        "format-inert-under-a-forced-tool",
        {"text": '[{"name": "now", "parameters": {}}]'},
        {"content": None, "tool_calls": [call("now", "{}")]},
        "tool_calls",
        {"response_format": FORMAT, "tools": [NOW], "tool_choice": "required", **QUIET},
        {"json_schema": any_of(("now", EMPTY))},
    ),
    Case(
        "developer-and-parts",
        {"text": "Ja – 好 👩‍👩‍👧", "chunks": [1]},
        {"content": "Ja – 好 👩‍👩‍👧"},
        body={
            "messages": [
                {
                    "role": "developer",
                    "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
                },
                {"role": "user", "name": "eva", "content": [{"type": "text", "text": "developer-and-parts"}]},
            ],
            **QUIET,
        },
        prompt="<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\ndeveloper-and-parts<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    Case(
        "a-tool-was-called-before",
        {"text": "It rains."},
        {"content": "It rains."},
        body={
            "messages": [
                user("a-tool-was-called-before"),
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "look",
                    "tool_calls": [{"id": "call_1", **call("weather", '{"city": "Köln"}')}],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
            ],
            **QUIET,
        },
        prompt="<|im_start|>user\na-tool-was-called-before<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nlook\n</think>\n\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
)


OTHERS: dict[str, dict[str, Any]] = {
    "scored-emoji": {"text": "<think>\né\n</think>\n\n👩‍👩‍👧 好 🫠 END of it", "chunks": [1, 4]},
    "three-choices": {"text": "a b c", "chunks": [1]},
    "echo-é-completion": {"text": " ünd 好", "chunks": [1]},
    "worker-full": {"error": {"status": "RESOURCE_EXHAUSTED", "message": "full"}},
    "worker-cannot": {"error": {"status": "UNIMPLEMENTED", "message": "cannot"}},
    "worker-refuses": {"error": {"status": "INVALID_ARGUMENT", "message": "no"}},
    "worker-breaks": {"error": {"status": "INTERNAL", "message": "broke"}},
    "breaks-midway": {
        "text": "one two three",
        "error": {"status": "INTERNAL", "message": "x", "after_tokens": 2},
    },
}


SEEN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
ERRORS: tuple[tuple[str, dict[str, Any], int, str | None, str | None], ...] = (
    ("wrong model", {"model": "gpt-9"}, 404, "model", "model_not_found"),
    ("no messages", {"messages": []}, 400, "messages", None),
    ("unknown role", {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role", None),
    ("top without logprobs", {"top_logprobs": 2}, 400, "top_logprobs", None),
    ("options without stream", {"stream_options": {"include_usage": True}}, 400, "stream_options", None),
    ("choice without tools", {"tool_choice": "required"}, 400, "tool_choice", None),
    ("choice with no tools", {"tools": [], "tool_choice": "required"}, 400, "tool_choice", None),
    (
        "choice of no tool",
        {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "then"}}},
        400,
        "tool_choice.function.name",
        None,
    ),
    ("two grammars", {"regex": "a", "ebnf": 'root ::= "a"'}, 400, "ebnf", None),
    ("regex and schema", {"regex": "a", "response_format": FORMAT}, 400, None, None),
    ("too hot", {"temperature": 2.01}, 400, "temperature", None),
    ("a bool is no number", {"temperature": True}, 400, "temperature", None),
    ("a string is no number", {"max_tokens": "7"}, 400, "max_tokens", None),
    ("more than the context", {"max_tokens": CONTEXT}, 400, None, "context_length_exceeded"),
    (
        "prompt too long",
        {"messages": [user("a b " * CONTEXT)], "stream": True},
        400,
        "messages",
        "context_length_exceeded",
    ),
    ("an image", {"messages": [SEEN]}, 400, "messages[0].content[0].type", None),
    ("audio wanted", {"modalities": ["text", "audio"]}, 400, "modalities", None),
    ("a custom tool", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, 400, "tools[0].type", None),
    ("its own template", {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, 400, None, None),
    ("empty stop word", {"stop": [""]}, 400, "stop[0]", None),
    ("continue the user", {"continue_final_message": True}, 400, "continue_final_message", None),
    ("a bias of no token", {"logit_bias": {"x": 1}}, 400, "logit_bias", None),
    ("a bias beyond the vocabulary", {"logit_bias": {"3000000000": 1}}, 400, "logit_bias.3000000000", None),
    ("a surrogate", {"messages": [user("\ud800")]}, 400, None, None),
)  # fmt: skip


def rules() -> list[dict[str, Any]]:
    own = {case.name: case.answer for case in CASES} | OTHERS
    return [{"match": {"text": name}, "answer": answer} for name, answer in own.items()]
