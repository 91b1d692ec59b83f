"""The kinds of answers: what is asked, and what the worker answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support import sse
from tests.support.processes import Router

MODEL = "qwen3-8b"
EMBEDDER = "qwen3-embedding"
DIMENSIONS = 16
KEY = "sk-conform"

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"

SAID = "It rains in Zürich 🏔, 你好."
ODD = "a\u2028b\u2029c\x85d\r\ne\x0bf\x0cg\x1ch\x1di\x1ej\rk\n\nl: data: x"
"""What some take for the end of a line."""
THOUGHT = "<think>\nThe user wants weather.\n</think>\n\n"
ARGUMENTS: dict[str, Any] = {"city": "Zürich 🏔", "days": 2}


def call(name: str = "get_weather", **arguments: Any) -> str:
    """A call as Qwen 3 writes it."""
    body = json.dumps({"name": name, "arguments": arguments or ARGUMENTS}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


ANSWERS: dict[str, dict[str, Any]] = {
    "just-say": {"text": SAID},
    "odd-lines": {"text": ODD},
    "say-slowly": {"text": "one two three", "delays_ms": [0, 400]},
    "say-nothing": {"text": ""},
    "think-only": {"text": "<think>\nThe user wants weather, so", "finish_reason": "length"},
    "think-say": {"text": f"{THOUGHT}{SAID}"},
    "call-one": {"text": call(), "chunks": [1, 3]},
    "call-two": {"text": f"{call()}\n{call('add', a=1, b=-2.5)}"},
    "think-call": {"text": f"{THOUGHT}Let me look.\n{call()}\n{call('add', a=1, b=2)}", "chunks": [1, 2]},
    "force-one": {"text": json.dumps([{"name": "get_weather", "parameters": ARGUMENTS}])},
    "force-two": {
        "text": json.dumps(
            [
                {"name": "get_weather", "parameters": ARGUMENTS},
                {"name": "add", "parameters": {"a": 1, "b": 2}},
            ]
        )
    },
    "force-named": {"text": json.dumps(ARGUMENTS)},
    "as-json": {"text": json.dumps(ARGUMENTS), "chunks": [2]},
    "stop-here": {"text": "one two STOP three"},
    "busy-once": {"text": SAID},
    "bad-input": {"error": {"status": "INVALID_ARGUMENT", "message": "no such thing"}},
    "in-conflict": {"error": {"status": "ABORTED", "message": "in conflict"}},
    "too-busy": {"error": {"status": "RESOURCE_EXHAUSTED", "message": "too busy"}},
    "break-first": {"error": {"status": "INTERNAL", "message": "engine broke"}},
    "not-built": {"error": {"status": "UNIMPLEMENTED", "message": "not built"}},
    "too-late": {"error": {"status": "DEADLINE_EXCEEDED", "message": "too late"}},
    "not-there": {"error": {"status": "UNAVAILABLE", "message": "not there"}},
    "garbage-first": {"garbage": {"hex": "ffffffff", "after_tokens": 0}},
    "abort-first": {"abort": {"after_tokens": 0}},
    "break-midway": {"text": SAID, "error": {"status": "INTERNAL", "message": "broke", "after_tokens": 3}},
    "abort-midway": {"text": SAID, "abort": {"after_tokens": 3}},
}


RULES: list[dict[str, Any]] = [
    # Choices that race: two of those after the first begin late.
    {"match": {"text": "race-on"}, "times": 1, "answer": {"text": "the first"}},
    {"match": {"text": "race-on"}, "times": 2, "answer": {"text": "a slow one", "ttft_ms": 200}},
    {"match": {"text": "race-on"}, "answer": {"text": "a quick one"}},
    {
        "match": {"text": "busy-once"},
        "times": 1,
        "answer": {"error": {"status": "RESOURCE_EXHAUSTED", "message": "too busy"}},
    },
]
"""Rules that come before those of `ANSWERS`."""


def function(name: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {field: {"type": kind} for field, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"name": name, "description": f"What {name} does.", "parameters": parameters}


FUNCTIONS = [
    function("get_weather", city="string", days="integer"),
    function("add", a="number", b="number"),
]
TOOLS = [{"type": "function", "function": one} for one in FUNCTIONS]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "place", "strict": True, "schema": FUNCTIONS[0]["parameters"]},
}
NO_THINKING: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


def allowed(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}


@dataclass(frozen=True)
class Kind:
    """A request and what its answer must have, so that it surely is of its kind."""

    name: str
    path: str
    body: Any = None
    status: int = 200
    finish: str | None = None
    """The finish reason of every choice."""
    keys: tuple[str, ...] = ()
    """What a chat message has besides role, content and refusal."""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {KEY}"})
    embeds: bool = False

    @property
    def streams(self) -> bool:
        return isinstance(self.body, dict) and bool(self.body.get("stream"))


@dataclass(frozen=True)
class Recording:
    """What came: of a stream the events, else the one body."""

    kind: Kind
    status: int
    headers: httpx.Headers
    body: Any = None
    events: tuple[Any, ...] = ()


def record(http: httpx.Client, router: Router, kind: Kind) -> Recording:
    content = kind.body if isinstance(kind.body, bytes) or kind.body is None else json.dumps(kind.body)
    with http.stream(kind.method, router.url + kind.path, content=content, headers=kind.headers) as answer:
        if answer.headers["content-type"].startswith("text/event-stream"):
            events = tuple(sse.events(answer.iter_lines()))
            return Recording(kind, answer.status_code, answer.headers, events=events)
        answer.read()
        return Recording(kind, answer.status_code, answer.headers, body=answer.json())


def _both(kind: Kind) -> list[Kind]:
    """Whole, streamed, and streamed with usage."""
    made = [kind]
    for suffix, options in (
        ("streamed", None),
        ("streamed with usage", {"include_usage": True}),
        ("streamed with usage in each", {"include_usage": True, "continuous_usage_stats": True}),
    ):
        body = {**kind.body, "stream": True, **({"stream_options": options} if options else {})}
        made.append(Kind(f"{kind.name}, {suffix}", kind.path, body, kind.status, kind.finish, kind.keys))
    return made


def _chat(name: str, word: str, *end: str, **fields: Any) -> list[Kind]:
    """`end`: the finish reason, "stop" by default, then the keys."""
    finish, *keys = end or ("stop",)
    body = {"model": MODEL, "messages": [{"role": "user", "content": word}], **fields}
    return _both(Kind(f"chat {name}", CHAT, body, 200, finish, tuple(keys)))


def _text(name: str, prompt: Any, finish: str = "stop", **fields: Any) -> list[Kind]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 99, **fields}
    return _both(Kind(f"completion {name}", TEXT, body, 200, finish))


def _refused(name: str, status: int, word: str = "just-say", **fields: Any) -> list[Kind]:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": word}], **fields}
    text = {"model": MODEL, "prompt": word, **fields}
    return [
        Kind(f"{name}, chat", CHAT, chat, status),
        Kind(f"{name}, chat streamed", CHAT, {**chat, "stream": True}, status),
        Kind(f"{name}, completion", TEXT, text, status),
        Kind(f"{name}, completion streamed", TEXT, {**text, "stream": True}, status),
    ]


def _embed(name: str, text: Any, **fields: Any) -> Kind:
    return Kind(f"embedding {name}", EMBED, {"model": EMBEDDER, "input": text, **fields}, embeds=True)


def _get(name: str, path: str, status: int = 200) -> Kind:
    return Kind(name, path, None, status, method="GET")


_CALLED = ("tool_calls", "tool_calls")
_THOUGHT_CALLED = ("tool_calls", "reasoning_content", "tool_calls")
_BOTH_TOOLS: dict[str, Any] = {"tools": TOOLS}

KINDS: tuple[Kind, ...] = (
    *_chat("plain", "just-say"),
    *_chat("empty", "say-nothing"),
    *_chat("of three choices", "just-say", n=3),
    *_chat("with a tool that is not called", "just-say", **_BOTH_TOOLS),
    *_chat("with a call", "call-one", *_CALLED, **_BOTH_TOOLS),
    *_chat("with two calls", "call-two", *_CALLED, **_BOTH_TOOLS),
    *_chat("with two calls in two choices", "call-two", *_CALLED, n=2, **_BOTH_TOOLS),
    *_chat("with one call at most", "call-two", *_CALLED, parallel_tool_calls=False, **_BOTH_TOOLS),
    *_chat(
        "with required calls", "force-two", *_CALLED, tool_choice="required", **_BOTH_TOOLS, **NO_THINKING
    ),
    *_chat("with a named call", "force-named", *_CALLED, tool_choice=NAMED, **_BOTH_TOOLS, **NO_THINKING),
    *_chat("with allowed tools", "call-one", *_CALLED, tool_choice=allowed("auto"), **_BOTH_TOOLS),
    *_chat(
        "with required allowed tools",
        "force-one",
        *_CALLED,
        tool_choice=allowed("required"),
        **_BOTH_TOOLS,
        **NO_THINKING,
    ),
    *_chat("with tools forbidden", "just-say", tool_choice="none", **_BOTH_TOOLS),
    *_chat("with a function call", "call-one", "function_call", "function_call", functions=FUNCTIONS),
    *_chat(
        "with a named function call",
        "force-named",
        "function_call",
        "function_call",
        functions=FUNCTIONS,
        function_call={"name": "get_weather"},
        **NO_THINKING,
    ),
    *_chat("with reasoning", "think-say", "stop", "reasoning_content"),
    *_chat("with reasoning at once", "think-say", "stop", "reasoning_content", stream_reasoning=False),
    *_chat("with reasoning in the text", "think-say", separate_reasoning=False),
    *_chat("cut in its reasoning", "think-only", "length", "reasoning_content"),
    *_chat("with reasoning and calls", "think-call", *_THOUGHT_CALLED, **_BOTH_TOOLS),
    *_chat(
        "with reasoning, calls and logprobs",
        "think-call",
        *_THOUGHT_CALLED,
        logprobs=True,
        top_logprobs=1,
        **_BOTH_TOOLS,
    ),
    *_chat("by a schema", "as-json", response_format=SCHEMA),
    *_chat("of any JSON", "as-json", response_format={"type": "json_object"}),
    *_chat("with logprobs", "just-say", logprobs=True),
    *_chat("with top logprobs", "just-say", logprobs=True, top_logprobs=3, n=2),
    *_chat("ended by a stop word", "stop-here", stop=["STOP"]),
    *_chat("ended by a stop token", "stop-here", stop_token_ids=[1378]),
    *_chat("cut off", "just-say", "length", max_completion_tokens=3),
    *_chat("with a seed", "just-say", seed=7),
    *_text("plain", "just-say"),
    *_text("of two choices", "just-say", n=2),
    *_text("of a list", ["just-say", "stop-here"]),
    *_text("of ids", [4250, 35842, 1378], "length"),
    *_text("with an echo", "just-say", echo=True),
    *_text("with logprobs", "just-say", logprobs=2),
    *_text("with an echo and logprobs", "just-say", echo=True, logprobs=2),
    *_text("of a list with an echo and logprobs", ["just-say", "stop-here"], echo=True, logprobs=1, n=2),
    *_text("of nothing but an echo", "just-say", "length", echo=True, logprobs=1, max_tokens=0),
    *_text("ended by a stop word", "stop-here", stop=" STOP"),
    *_text("cut off", "just-say", "length", max_tokens=2),
    _embed("of a text", "one"),
    _embed("of texts", ["one", "two"], encoding_format="float"),
    _embed("of ids", [[1, 2], [3]]),
    _embed("in base64", ["one", "two"], encoding_format="base64"),
    _embed("of its own size", "one", dimensions=DIMENSIONS),
    _get("models", "/v1/models"),
    _get("a model", f"/v1/models/{MODEL}"),
    _get("no such model", "/v1/models/other", 404),
    _get("no such path", "/v1/nothing", 404),
    _get("a wrong method", CHAT, 405),
    Kind("no key", CHAT, {"model": MODEL}, 401, headers={}),
    Kind("a wrong key", "/v1/models", None, 401, method="GET", headers={"Authorization": "Bearer x"}),
    Kind("an operator's route", "/flush_cache", {}, 403),
    Kind("no JSON", CHAT, b"{", 400),
    Kind("a body too large", CHAT, b" " * 65537, 413),
    Kind(
        "embedding of a dimension that is not had",
        EMBED,
        {"model": EMBEDDER, "input": "x", "dimensions": 3},
        400,
        embeds=True,
    ),
    Kind("embedding by a model without", EMBED, {"model": MODEL, "input": "x"}, 501),
    *_refused("a bad field", 400, temperature=3),
    *_refused("an unknown model", 404, model="other"),
    *_refused("too long", 400, "word " * 5000),
    *_refused("bad input", 400, "bad-input"),
    *_refused("a conflict", 409, "in-conflict"),
    *_refused("too busy", 429, "too-busy"),
    *_refused("broken", 500, "break-first"),
    *_refused("aborted", 500, "abort-first"),
    *_refused("not built", 501, "not-built"),
    *_refused("garbage", 502, "garbage-first"),
    *_refused("too late", 504, "too-late"),
    *_refused("broken midway", 500, "break-midway")[::2],
    *_refused("aborted midway", 500, "abort-midway")[::2],
    *_refused("broken in the stream", 200, "break-midway")[1::2],
    *_refused("aborted in the stream", 200, "abort-midway")[1::2],
    *_refused("not there", 503, "not-there"),  # last: the router then leaves the worker alone for a while
)
