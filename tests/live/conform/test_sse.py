"""Streams as bytes: by the rules of the HTML standard, and as looser clients cut them into lines."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.live.conform.kinds import CHAT, KEY, MODEL, ODD, SAID, TEXT
from tests.support import sse
from tests.support.processes import Router
from tests.support.sse_standard import Event, interpret

HEADERS = {"Authorization": f"Bearer {KEY}"}


def body(path: str, word: str, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": word} if path == TEXT else {"messages": [{"role": "user", "content": word}]}
    return {"model": MODEL, "stream": True, "max_tokens": 200, **asked, **fields}


def raw(router: Router, path: str, word: str, **fields: Any) -> bytes:
    answer = httpx.post(router.url + path, json=body(path, word, **fields), headers=HEADERS, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    return answer.content


def text_of(events: list[Event], path: str) -> str:
    choices = [json.loads(event.data)["choices"][0] for event in events[:-1]]
    return "".join(one["text"] if path == TEXT else one["delta"].get("content", "") for one in choices)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("word", "said"), [("just-say", SAID), ("odd-lines", ODD)])
def test_by_the_standard(router: Router, path: str, word: str, said: str) -> None:
    found = interpret(raw(router, path, word))
    assert found.events[-1] == Event("[DONE]")
    assert all((event.type, event.last_id) == ("message", "") for event in found.events)
    assert all("\n" not in event.data for event in found.events)
    assert (found.comments, found.retry) == ([], None)
    assert text_of(found.events, path) == said


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_no_line_ends_but_those_of_the_stream(router: Router, path: str) -> None:
    """httpx cuts lines as Python's `splitlines` does: at ten kinds of characters."""
    stream = raw(router, path, "odd-lines").decode()
    assert stream.splitlines() == stream.split("\n")[:-1]
    events = list(sse.events(stream.splitlines()))
    assert events[-1] == "[DONE]"
    with httpx.stream("POST", router.url + path, json=body(path, "odd-lines"), headers=HEADERS) as answer:
        lines = list(sse.events(answer.iter_lines()))
    assert len(lines) == len(events)


def test_the_sdk_reads_odd_line_ends(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "odd-lines"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages)
    assert whole.choices[0].message.content == ODD
    stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ODD


def test_pings_are_no_events(pinging_router: Router) -> None:
    stream = raw(pinging_router, CHAT, "say-slowly")
    found = interpret(stream)
    assert set(found.comments) == {"ping"}
    assert text_of(found.events, CHAT) == "one two three"
    assert found.retry is None
    with openai.OpenAI(base_url=f"{pinging_router.url}/v1", api_key=KEY, max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "say-slowly"}]
        chunks = list(client.chat.completions.create(model=MODEL, messages=messages, stream=True))
        assert all(chunk.choices for chunk in chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"


@pytest.mark.parametrize("word", ["break-midway", "abort-midway"])
def test_an_error_is_an_event_like_others(router: Router, word: str) -> None:
    *events, error, done = interpret(raw(router, CHAT, word)).events
    assert done == Event("[DONE]")
    assert json.loads(error.data).keys() == {"error"}
    assert error.type == "message"
    assert events
