"""A reader's own cases, written from the contract and OpenAI's documentation alone: what is asked, what the worker
says, what the client must see, streamed and not, and what the worker must have been asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import script
from tests.support import models
from tests.support.processes import QWEN3, Router, Worker

MODEL = "qwen3-sim"
EOS = 151645
CONTEXT = 4096
SECONDS = 30

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
    """`answer`: of the simulator, to a prompt that holds the case's name. `message`, `finish`: the one choice's.

    `asked`: what the worker's sampling parameters must hold; a constraint is compared as JSON, `...` is absent.
    `request`: the same for the rest of its request. `usage`, `choice`: a part of them.
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
        {"content": None, "reasoning_content": "\nhm\n", "tool_calls": [call("go_to", '{"to": {"lat": 1.50}}')]},
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
        asked={"temperature": 0.625, "top_k": 20, "top_p": 1.0, "repetition_penalty": 1.0, "n": 1, **NO_CONSTRAINT},
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
                {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
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
    "breaks-midway": {"text": "one two three", "error": {"status": "INTERNAL", "message": "x", "after_tokens": 2}},
}


def rules() -> list[dict[str, Any]]:
    own = {case.name: case.answer for case in CASES} | OTHERS
    return [{"match": {"text": name}, "answer": answer} for name, answer in own.items()]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    path: Path = script.write(tmp_path_factory.mktemp("script") / "answers.json", {}, rules())
    flags = ["--tokenizer", str(QWEN3), "--model-name", MODEL, "--context-length", str(CONTEXT)]
    flags += ["--eos", str(EOS), "--default-sampling", '{"temperature": 0.625, "top_k": 20}']
    with Worker(*flags, "--script", str(path)) as worker:
        yield worker


@pytest.fixture(scope="module")
def client(worker: Worker) -> Iterator[httpx.Client]:
    with Router(worker.url) as router:
        router.wait_serving()
        with httpx.Client(base_url=router.url, timeout=SECONDS) as client:
            yield client


def last_request(worker: Worker) -> dict[str, Any]:
    calls: Any = worker.server_info()["last_requests"]
    request: dict[str, Any] = dict(calls[-1]["request"])
    return request


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The stream's events, held against the contract's rules of form."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    blocks = answer.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    assert all(block.startswith("data: {") and "\n" not in block for block in blocks[:-2])
    return [json.loads(block[6:]) for block in blocks[:-2]]


def add(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Adds a delta to the message so far, as a client does; ids and names are checked to come once."""
    for key, value in delta.items():
        assert value is not None
        if key == "tool_calls":
            calls = whole.setdefault(key, [])
            for part in value:
                if part["index"] == len(calls):
                    assert part["id"] and part["type"] == "function" and part["function"]["name"]
                    calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
                    calls[-1]["function"].setdefault("arguments", "")
                else:
                    assert part["index"] == len(calls) - 1 and part.keys() == {"index", "function"}
                    assert part["function"].keys() == {"arguments"} and part["function"]["arguments"]
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        elif key == "function_call":
            function = whole.setdefault(key, {"name": "", "arguments": ""})
            assert not (function["name"] and "name" in value)
            function["name"] += value.get("name", "")
            function["arguments"] += value.get("arguments", "")
        else:
            whole[key] = whole.get(key, "") + value


def gather(chunks: list[dict[str, Any]], index: int = 0) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Message, last choice and logprobs of a choice."""
    own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    assert own[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] is None for choice in own] == [True] * (len(own) - 1) + [False]
    assert own[-1]["delta"] == {}
    assert all(choice["delta"] and "role" not in choice["delta"] for choice in own[1:-1])
    message: dict[str, Any] = {}
    scores: list[Any] = []
    for choice in own:
        add(message, choice["delta"])
        if choice.get("logprobs"):
            assert choice["logprobs"]["refusal"] is None and choice["logprobs"]["content"]
            scores += choice["logprobs"]["content"]
    return message, own[-1], scores


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    for made in message.get("tool_calls", []):
        made_id = made.pop("id")
        assert made_id.startswith("call_") and len(made_id) == 29 and int(made_id[5:], 16) >= 0
    return message


def check_asked(case: Case, worker: Worker) -> None:
    request = last_request(worker)
    for given, expected in ((request["sampling_params"], case.asked), (request, case.request)):
        for name, value in expected.items():
            if value is ...:
                assert name not in given or given[name] in (0, [], False, ""), (name, given[name])
            else:
                found = given[name]
                assert (json.loads(found) if name in ("json_schema", "structural_tag") else found) == value, name
    if case.prompt is not None:
        ids = [int(token) for token in request["tokenized"]["input_ids"]]
        assert models.wheel("qwen3").decode(ids, skip_special_tokens=False) == case.prompt


def body_of(case: Case, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [user(case.name)], **case.body, **more}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chat(client: httpx.Client, worker: Worker, case: Case) -> None:
    answer = client.post("/v1/chat/completions", json=body_of(case))
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    check_asked(case, worker)
    (choice,) = whole["choices"]
    message = without_ids(choice["message"])
    assert message.pop("role") == "assistant"
    assert message.pop("refusal") is None
    assert message == case.message
    assert choice["finish_reason"] == case.finish and choice["logprobs"] is None
    assert case.choice.items() <= choice.items()
    assert case.usage.items() <= whole["usage"].items()
    assert {"prompt_tokens_details", "completion_tokens_details"} <= whole["usage"].keys()
    assert (case.warning or "") in answer.headers.get("x-router-warning", "")

    asked = body_of(case, stream=True, stream_options={"include_usage": True})
    chunks = events(client.post("/v1/chat/completions", json=asked))
    check_asked(case, worker)
    last = chunks.pop()
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    streamed, finish, _ = gather(chunks)
    assert streamed.pop("role") == "assistant"
    if "tool_calls" in streamed or "function_call" in streamed:
        streamed["content"] = streamed["content"] or None
    assert without_ids(streamed) == case.message
    assert finish["finish_reason"] == case.finish
    assert finish.get("matched_stop") == choice.get("matched_stop")


# What goes beyond one choice's message.


def test_logprobs(client: httpx.Client, worker: Worker) -> None:
    """Each token once, in order; their bytes are the text's, thinking included, a stop word's not."""
    name = "scored-emoji"
    body = {"model": MODEL, "messages": [user(name)], "logprobs": True, "top_logprobs": 2, "stop": "END"}
    text = "<think>\né\n</think>\n\n👩‍👩‍👧 好 🫠 "
    whole = client.post("/v1/chat/completions", json=body).json()["choices"][0]
    request = last_request(worker)
    assert request["return_logprob"] is True and request["top_logprobs_num"] == 2
    assert request["logprob_start_len"] == -1
    entries = whole["logprobs"]["content"]
    spoken = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert spoken == text.removesuffix(" ").encode() + b" END", "the stop word's token brought the space"
    for entry in entries:
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 2 and entry["top_logprobs"][0]["logprob"] == entry["logprob"]
    chunks = events(client.post("/v1/chat/completions", json={**body, "stream": True}))
    message, finish, scores = gather(chunks)
    assert scores == entries
    assert message["content"] == whole["message"]["content"] == "👩‍👩‍👧 好 🫠 "
    assert finish["matched_stop"] == "END"


def test_logprobs_without_alternatives(client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [user("any-object")], "logprobs": True, **QUIET}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert "".join(tokens) == '{"a": []}<|im_end|>', "the end of text is a token of the answer, too"


def test_three_choices(client: httpx.Client, worker: Worker) -> None:
    """The usage is the prompt once and all answers; a stop word ends its own choice."""
    body = {"model": MODEL, "messages": [user("three-choices")], "n": 3, "stop": ["b "], **QUIET}
    before = worker.server_info()["generate_calls"]
    whole = client.post("/v1/chat/completions", json=body).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["a "] * 3
    assert worker.server_info()["generate_calls"] == before + 3  # type: ignore[operator]
    one = client.post("/v1/chat/completions", json={**body, "n": 1}).json()["usage"]
    assert whole["usage"]["completion_tokens"] == 3 * one["completion_tokens"]
    assert whole["usage"]["prompt_tokens"] == one["prompt_tokens"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(client.post("/v1/chat/completions", json={**body, "stream": True, "stream_options": options}))
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == {
        **whole["usage"],
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"],
    }
    assert all(chunk["usage"]["prompt_tokens"] for chunk in chunks[1:])
    for index in range(3):
        message, finish, _ = gather(chunks[:-1], index)
        assert (message["content"], finish["finish_reason"], finish["matched_stop"]) == ("a ", "stop", "b ")


def test_stream_reasoning_whole(client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [user("schema-after-thinking")], "stream_reasoning": False, "stream": True}
    deltas = [chunk["choices"][0]["delta"] for chunk in events(client.post("/v1/chat/completions", json=body))]
    assert [delta for delta in deltas if "reasoning_content" in delta] == [{"reasoning_content": "\n6*7\n"}]


def test_exact_bytes_of_a_stream(client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [user("grammar")], "stream": True, **QUIET}
    answer = client.post("/v1/chat/completions", json=body)
    first = json.loads(answer.text.split("\n\n", 1)[0][6:])
    head = (
        f'{{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},'
        f'"model":"{MODEL}","system_fingerprint":"{first["system_fingerprint"]}","choices":[{{"index":0,"delta":'
    )
    assert answer.text == (
        f'data: {head}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"content":"yes"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{}},"finish_reason":"stop"}}]}}\n\n'
        "data: [DONE]\n\n"
    )
    assert first["id"].startswith("chatcmpl-")


def test_unknown_fields_are_named(client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [user("any-object")], "wat": 1, "ünknown\r\nX-Evil: 1": 2, **QUIET}
    answer = client.post("/v1/chat/completions", json=body)
    warning = answer.headers["x-router-warning"]
    assert answer.status_code == 200 and "wat" in warning and warning.isascii() and warning.isprintable()
    assert "x-evil" not in answer.headers


def test_completion_echo_and_logprobs(client: httpx.Client, worker: Worker) -> None:
    """OpenAI's old form: the prompt is in the text and in the scores, the first token has none."""
    prompt = "echo-é-completion"
    body = {"model": MODEL, "prompt": prompt, "echo": True, "logprobs": 1, "n": 2, "max_tokens": 50}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    assert last_request(worker).get("logprob_start_len", 0) == 0
    assert whole["object"] == "text_completion"
    for choice in whole["choices"]:
        assert choice["text"] == prompt + " ünd 好"
        scores = choice["logprobs"]
        assert scores["token_logprobs"][0] is None and all(score < 0 for score in scores["token_logprobs"][1:])
        assert scores["tokens"][-4:] == ["bytes:\\x20\\xe5", "bytes:\\xa5", "bytes:\\xbd", "<|im_end|>"]
        length = len(choice["text"])
        assert scores["text_offset"][-4:] == [length - 2, length - 1, length - 1, length]
    chunks = events(client.post("/v1/completions", json={**body, "stream": True}))
    for index in range(2):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == prompt + " ünd 好"
        tokens = [token for choice in own if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
        assert tokens == whole["choices"][index]["logprobs"]["tokens"]
        offsets = [at for choice in own if choice["logprobs"] for at in choice["logprobs"]["text_offset"]]
        assert offsets == whole["choices"][index]["logprobs"]["text_offset"]
        assert [choice["finish_reason"] for choice in own][-1] == "stop"


def test_completions_of_two_prompts(client: httpx.Client) -> None:
    """Choices are prompt by prompt; a batch's usage is the sum."""
    body = {"model": MODEL, "prompt": ["any-object", "grammar"], "stop": "e", "max_tokens": 40}
    whole = client.post("/v1/completions", json=body).json()
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(0, '{"a": []}'), (1, "y")]
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(client.post("/v1/completions", json=asked))
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    texts = ["", ""]
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == ['{"a": []}', "y"]


def test_scoring_a_prompt_alone(client: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": "score me", "echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == "score me" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["score", " me"]


def test_generate(client: httpx.Client, worker: Worker) -> None:
    """SGLang's own: a batch is a list; a stream's text is all so far; the prompt goes as it is."""
    body = {"text": ["any-object", "grammar"], "sampling_params": {"max_new_tokens": 30, "temperature": 0}}
    first, second = client.post("/generate", json=body).json()
    assert (first["text"], second["text"]) == ('{"a": []}', "yes")
    assert first["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
    assert first["meta_info"]["completion_tokens"] == len(first["output_ids"])
    ids = [int(token) for token in last_request(worker)["tokenized"]["input_ids"]]
    assert models.wheel("qwen3").decode(ids, skip_special_tokens=False) in body["text"]
    answer = client.post("/generate", json={**body, "text": "any-object", "stream": True})
    blocks = [block for block in answer.text.split("\n\n") if block]
    assert blocks.pop() == "data: [DONE]"
    texts = [json.loads(block[6:])["text"] for block in blocks]
    assert texts[-1] == '{"a": []}' and all(b.startswith(a) for a, b in zip(texts, texts[1:], strict=False))


def test_there_and_back(client: httpx.Client) -> None:
    text = "a 👩‍👩‍👧 好\n<|im_end|>"
    made = client.post("/v1/tokenize", json={"model": MODEL, "prompt": [text, "b"]}).json()
    back = client.post("/v1/detokenize", json={"model": MODEL, "tokens": made["tokens"], "skip_special_tokens": False})
    assert back.status_code == 200, back.text
    assert back.json()["text"] == [text, "b"]


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
    ("prompt too long", {"messages": [user("a b " * CONTEXT)], "stream": True}, 400, "messages", "context_length_exceeded"),
    ("an image", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400, "messages[0].content[0].type", None),
    ("audio wanted", {"modalities": ["text", "audio"]}, 400, "modalities", None),
    ("a custom tool", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, 400, "tools[0].type", None),
    ("its own template", {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, 400, None, None),
    ("empty stop word", {"stop": [""]}, 400, "stop[0]", None),
    ("continue the user", {"continue_final_message": True}, 400, "continue_final_message", None),
    ("a bias of no token", {"logit_bias": {"x": 1}}, 400, "logit_bias", None),
    ("a surrogate", {"messages": [user("\ud800")]}, 400, None, None),
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS]
)
def test_refused(
    client: httpx.Client, worker: Worker, fields: dict[str, Any], status: int, param: str | None, code: str | None
) -> None:
    before = worker.server_info()["generate_calls"]
    body = json.dumps({"model": MODEL, "messages": [user("hi")], **fields})
    answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert worker.server_info()["generate_calls"] == before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("word", "status", "kind"),
    [
        ("worker-full", 429, "rate_limit_error"),
        ("worker-cannot", 501, "server_error"),
        ("worker-refuses", 400, "invalid_request_error"),
        ("worker-breaks", 500, "server_error"),
    ],
)
def test_the_workers_error_is_a_status(
    client: httpx.Client, word: str, status: int, kind: str, stream: bool
) -> None:
    body = {"model": MODEL, "messages": [user(word)], "stream": stream}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == kind
    assert ("retry-after" in answer.headers) == (status == 429)
    assert (answer.headers.get("x-should-retry") == "false") == (status == 501)


def test_an_error_midway(client: httpx.Client) -> None:
    """Streamed: what came, one error event, the end. Not streamed: a status."""
    body = {"model": MODEL, "messages": [user("breaks-midway")], **QUIET}
    assert client.post("/v1/chat/completions", json=body).status_code == 500
    chunks = events(client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert chunks[-1].keys() == {"error"} and chunks[-1]["error"].keys() == {"message", "type", "param", "code"}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "one two"


def test_roads_that_lead_nowhere(client: httpx.Client) -> None:
    assert client.get("/v1/chat/completions").status_code == 405
    assert client.post("/v1/nothing").status_code == 404
    for raw in (b"{", b"[]", b"\xff", b'{"model": NaN}', b""):
        answer = client.post("/v1/chat/completions", content=raw)
        assert answer.status_code == 400 and answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert client.post("/flush_cache").status_code == 403
