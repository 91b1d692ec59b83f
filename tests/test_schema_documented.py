"""Every request that OpenAI describes, or that its SDK's types allow, is accepted or refused by name.

The requests are made from the published description and from the SDK's types: each field, each branch of a
choice and each word of an enum once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

from tests.support.description import document, schemas
from tests.support.processes import LLAMA3_1, QWEN3
from tests.support.variants import variants
from wsgi_router import native
from wsgi_router.errors import InvalidRequestError
from wsgi_router.schema import parse_chat, parse_completion, parse_embedding
from wsgi_router.settings import Settings

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "x"}
COMPANIONS: dict[str, dict[str, Any]] = {
    "tool_choice": {"tools": [{"type": "function", "function": FUNCTION}]},
    "function_call": {"functions": [FUNCTION]},
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "best_of": {"n": 1},
}
"""What a field is sent with, as it would be refused alone."""

CHAT_REFUSED = {
    # What would change the answer and cannot be had; the contract wants each named.
    "audio",
    "modalities",
    "moderation",
    "prediction",
    "verbosity",
    "web_search_options",
    "messages[0].audio",
    "messages[0].content[0].type",  # images, audio, files
    "messages[0].tool_calls[0].type",  # custom tools
    "tools[0].type",
    "tool_choice.type",
    # What says nothing.
    "messages",
    "messages[0].content",
    "tool_choice.allowed_tools.tools",
    "tool_choice.allowed_tools.tools[0].function",  # any object by its type
}
COMPLETION_REFUSED = {"suffix", "prompt", "prompt[0]"}
"""`prompt`: null or an empty list, for OpenAI `<|endoftext|>`, a token that other models have not."""


def described(name: str) -> Iterator[tuple[str, Any]]:
    """Fields of a request with values, from OpenAI's description."""
    found = schemas()
    yield from _fields(found[name], lambda ref: found[ref.rpartition("/")[2]])


def typed(kind: Any) -> Iterator[tuple[str, Any]]:
    """Likewise from a type of the SDK's."""
    schema = pydantic.TypeAdapter(kind).json_schema()
    yield from _fields(schema, lambda ref: schema["$defs"][ref.rpartition("/")[2]])


def _fields(schema: dict[str, Any], resolve: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    for request in variants(schema, resolve):
        for name in request:
            yield name, request[name]


def outcomes(
    parse: Callable[[bytes], Any], least: dict[str, Any], fields: Iterator[tuple[str, Any]]
) -> tuple[set[str], set[str]]:
    """Names of all fields tried, and the `param` of those refused. Each refusal must name its own field."""
    tried, refused = set(), set()
    seen: set[str] = set()
    for name, value in fields:
        body = json.dumps({**least, **COMPANIONS.get(name, {}), name: value})
        if body in seen:
            continue
        seen.add(body)
        tried.add(name)
        param = _refusal(parse, body)
        if param is not None:
            assert re.split(r"[\[.]", param)[0] == name, (body, param)
            refused.add(param)
    return tried, refused


def _refusal(parse: Callable[[bytes], Any], body: str) -> str | None:
    """The field that a refusal names; None if the request is accepted, and all of it known."""
    try:
        request = parse(body.encode())
    except InvalidRequestError as error:
        return error.param or "nothing"
    assert request.unknown == [], body
    return None


CHAT_LEAST = {"model": "m", "messages": [USER]}
CHAT_SOURCES: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
    "description": lambda: described("CreateChatCompletionRequest"),
    "sdk": lambda: typed(chat_create_params.CompletionCreateParamsNonStreaming),
    "sdk streaming": lambda: typed(chat_create_params.CompletionCreateParamsStreaming),
}


@pytest.mark.parametrize("source", CHAT_SOURCES)
def test_chat(source: str) -> None:
    tried, refused = outcomes(parse_chat, CHAT_LEAST, CHAT_SOURCES[source]())
    assert len(tried) > 30
    assert refused - CHAT_REFUSED == set()


def test_no_refusal_is_listed_in_vain() -> None:
    found = [outcomes(parse_chat, CHAT_LEAST, fields())[1] for fields in CHAT_SOURCES.values()]
    assert set().union(*found) == CHAT_REFUSED


@pytest.mark.parametrize("model", [LLAMA3_1, QWEN3], ids=lambda path: path.name)
def test_real_templates_render_every_kind_of_message(model: Path) -> None:
    tokenizer = native.load_tokenizer(Settings(tokenizer_path=str(model)))
    assert tokenizer is not None
    jobs = set()
    for source in CHAT_SOURCES.values():
        for name, messages in source():
            body = (
                json.dumps({"model": "m", "messages": [USER, *messages, USER]}) if name == "messages" else ""
            )
            if body and _refusal(parse_chat, body) is None:
                request = parse_chat(body.encode())
                jobs.add(json.dumps({"messages": request.raw_messages, "add_generation_prompt": True}))
    assert len(jobs) > 15
    for job in jobs:
        assert native.prepare(tokenizer, job.encode(), 1 << 20, "messages").token_ids(), job


@pytest.mark.parametrize(
    "fields",
    [
        lambda: described("CreateCompletionRequest"),
        lambda: typed(completion_create_params.CompletionCreateParamsNonStreaming),
        lambda: typed(completion_create_params.CompletionCreateParamsStreaming),
    ],
    ids=["description", "sdk", "sdk streaming"],
)
def test_completions(fields: Callable[[], Iterator[tuple[str, Any]]]) -> None:
    tried, refused = outcomes(parse_completion, {"model": "m", "prompt": "x"}, fields())
    assert len(tried) > 15
    assert refused - COMPLETION_REFUSED == set()


@pytest.mark.parametrize(
    "fields",
    [
        lambda: described("CreateEmbeddingRequest"),
        lambda: typed(embedding_create_params.EmbeddingCreateParams),
    ],
    ids=["description", "sdk"],
)
def test_embeddings(fields: Callable[[], Iterator[tuple[str, Any]]]) -> None:
    tried, refused = outcomes(parse_embedding, {"model": "m", "input": "x"}, fields())
    assert tried == {"input", "model", "encoding_format", "dimensions", "user"}
    assert refused <= {"input", "input[0]"}, "empty lists"


def _examples(path: str) -> dict[str, str]:
    """The bodies of the description's examples in curl, by their titles."""
    given = document()["paths"][path]["post"]["x-oaiMeta"]["examples"]
    found = {}
    for example in given if isinstance(given, list) else [given]:
        body = re.search(r"-d '(\{.*\})'", example["request"]["curl"], re.DOTALL)
        assert body is not None
        found[example.get("title", path)] = body[1]
    return found


@pytest.mark.parametrize(
    ("path", "parse", "refused"),
    [
        ("/chat/completions", parse_chat, {"Image input": "messages[0].content[1].type"}),
        ("/completions", parse_completion, {}),
        ("/embeddings", parse_embedding, {}),
    ],
)
def test_the_examples_of_the_description(
    path: str, parse: Callable[[bytes], Any], refused: dict[str, str]
) -> None:
    found = {title: _refusal(parse, body) for title, body in _examples(path).items()}
    assert found
    assert {title: param for title, param in found.items() if param} == refused
