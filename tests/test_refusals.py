"""What gunicorn would send as a page."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from gunicorn import util

from tests.support.openapi import judge
from wsgi_router import refusals


def read(data: bytes) -> tuple[str, dict[str, str], dict[str, Any]]:
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["Content-Length"]) == len(body)
    judge("Error").validate(json.loads(body))
    return status, headers, json.loads(body)["error"]


@pytest.mark.parametrize(
    ("status", "reason", "code", "kind"),
    [
        (400, "Bad Request", "bad_request", "invalid_request_error"),
        (403, "Forbidden", "permission_denied", "invalid_request_error"),
        (414, "URI Too Long", "url_too_long", "invalid_request_error"),
        (417, "Expectation Failed", "expectation_failed", "invalid_request_error"),
        (431, "Request Header Fields Too Large", "headers_too_large", "invalid_request_error"),
        (501, "Bad Request", "not_implemented", "server_error"),
    ],
)
def test_a_refusal(status: int, reason: str, code: str, kind: str) -> None:
    line, headers, error = read(refusals.answer(status, reason, "Invalid 'x\r\n\xff\ud800'"))
    assert line == f"HTTP/1.1 {status} {reason}"
    assert headers["Connection"] == "close"
    assert headers["Content-Type"] == "application/json"
    assert ("x-should-retry" in headers) == (status == 501)
    assert (error["type"], error["param"], error["code"]) == (kind, None, code)
    assert error["message"].startswith("Invalid 'x")


def test_a_fault_of_ours_tells_nothing() -> None:
    _, headers, error = read(refusals.answer(500, "Internal Server Error", ""))
    assert error["code"] == "internal_error"
    assert headers["x-should-retry"] == "false"


def test_without_a_message_the_reason_is_told() -> None:
    assert read(refusals.answer(403, "Forbidden", ""))[2]["message"] == "Forbidden"


def test_gunicorn_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(sock: Any, status_int: int, reason: str, mesg: str) -> None:
        raise AssertionError("the page")

    monkeypatch.setattr(util, "write_error", given)
    refusals.answer_in_json()
    refusals.answer_in_json()
    near, far = socket.socketpair()
    with near, far:
        util.write_error(near, 400, "Bad Request", "Invalid Method 'x'")
        assert read(far.recv(65536))[2]["message"] == "Invalid Method 'x'"


def test_another_gunicorn_sends_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(sock: Any, status_int: int, reason: str, mesg: str, more: Any) -> None: ...

    monkeypatch.setattr(util, "write_error", another)
    refusals.answer_in_json()
    assert util.write_error is another
    monkeypatch.delattr(util, "write_error")
    refusals.answer_in_json()
    assert not hasattr(util, "write_error")
