"""The judge of answers is strict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.soak.client import Got, check
from tests.soak.requests import Sent
from tests.support.app import CHAT, MODEL

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
CHUNK = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": MODEL,
    "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}],
}


def error(code: str, kind: str = "invalid_request_error", **fields: Any) -> dict[str, Any]:
    return {"error": {"message": "m", "type": kind, "param": None, "code": code, **fields}}


def event(value: Any) -> str:
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n"


def judged(status: int, body: Any, kind: str = JSON, path: str = CHAT, **headers: str) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    known = {"x-request-id": "r", "content-type": kind, **headers}
    check(Sent("POST", path, b"{}"), Got(status, known, text.encode()))


FAILED = error("worker_error", "server_error")


def test_what_is_right_passes() -> None:
    judged(400, error("invalid_value"))
    judged(503, error("no_worker_available", "server_error"), **{"retry-after": "1"})
    judged(200, event(CHUNK) + ": ping\n\n" + event("[DONE]"), EVENTS)
    judged(404, error("not_found"), path="/nowhere")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, error("internal_error", "server_error"), JSON),
        (500, FAILED, JSON),
        (418, error("teapot"), JSON),
        (400, {"error": {"message": "m"}}, JSON),
        (400, "<html>", "text/html"),
        (400, "<html>", JSON),
        (429, error("rate_limit_exceeded", "rate_limit_error"), JSON),
        (200, {"object": "chat.completion"}, JSON),
        (200, event(CHUNK), EVENTS),
        (200, event("[DONE]"), EVENTS),
        (200, event(CHUNK) + "data: [DONE]", EVENTS),
        (200, event(CHUNK) + event("[DONE]") + event(CHUNK), EVENTS),
        (200, event(FAILED) + event(CHUNK) + event("[DONE]"), EVENTS),
        (200, event(CHUNK) + event(FAILED) + event("[DONE]"), EVENTS),
        (200, event({**CHUNK, "choices": None}) + event("[DONE]"), EVENTS),
        (200, "id: 1\n\n" + event("[DONE]"), EVENTS),
    ],
)
def test_what_is_wrong_fails(status: int, body: Any, kind: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        judged(status, body, kind)
    assert not isinstance(caught.value, (TypeError, NameError, AttributeError))


def test_an_answer_without_an_id_is_not_the_routers() -> None:
    refused = Got(400, {"content-type": JSON}, json.dumps(error("bad_request")).encode())
    with pytest.raises(AssertionError):
        check(Sent("POST", CHAT, b""), refused)
    check(Sent("POST", CHAT, b"", odd=True), refused)
    with pytest.raises(AssertionError):
        check(Sent("POST", CHAT, b"", odd=True), Got(400, {"content-type": "text/html"}, b"<html>"))
