"""A client over a bare socket that does as it is told, and a judge of what it gets."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from dataclasses import dataclass
from typing import Any, Final

from jsonschema import Draft202012Validator

from tests.soak.requests import Sent
from tests.support.openapi import described, judge

WAIT_SECONDS: Final = 60.0
"""For the next bytes of an answer. Only a hang takes so long."""
_PATIENCE_SECONDS: Final = 0.3
"""After which a client leaves, or says that what it has sent was all."""
_OWN_WORDS: Final = frozenset({400, 408, 411, 413, 414, 417, 431, 501, 505})
"""Statuses with which gunicorn refuses what is no HTTP."""
FAULT_CODES: Final = frozenset(
    {"worker_error", "worker_aborted", "worker_protocol_error", "rate_limit_exceeded", "invalid_value"}
)


@dataclass(frozen=True)
class Got:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.status} {self.headers} {self.body[:2000]!r}"


def ask(port: int, sent: Sent) -> Got | None:
    """The answer; None if the client left, or if it sent no HTTP and was cut off."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as connection:
        try:
            connection.sendall(sent.wire)
            if sent.leaves_after is not None:
                _leave(connection, sent.leaves_after)
                return None
            if sent.odd:
                _finish_odd(connection)
            return _read(connection, sent.method)
        except (ConnectionError, http.client.HTTPException):
            if sent.odd:
                return None
            raise


def _leave(connection: socket.socket, after: int) -> None:
    connection.settimeout(_PATIENCE_SECONDS)  # the answer may be shorter, or never come
    with contextlib.suppress(TimeoutError):
        while after > 0 and (data := connection.recv(after)):
            after -= len(data)


def _finish_odd(connection: socket.socket) -> None:
    """Waits a moment for the answer, then ends the sending half: a body may not be what it was said to be."""
    connection.settimeout(_PATIENCE_SECONDS)
    begun = b""
    with contextlib.suppress(TimeoutError):
        begun = connection.recv(12, socket.MSG_PEEK)
    if not begun or begun == b"HTTP/1.1 100":
        connection.shutdown(socket.SHUT_WR)
    connection.settimeout(WAIT_SECONDS)


def _read(connection: socket.socket, method: str) -> Got:
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    body = response.read()
    headers = {name.lower(): value for name, value in response.getheaders()}
    response.close()
    return Got(response.status, headers, body)


# The judge


def check(sent: Sent, got: Got) -> None:
    """Fails for an answer that no request may get."""
    if "x-request-id" not in got.headers:  # not the router's
        assert sent.odd or sent.method not in ("POST", "GET"), "an answer that is not the router's"
        assert got.status in _OWN_WORDS, "gunicorn's own answer"
        if sent.method != "HEAD":
            assert got.headers["content-type"] == "application/json"
            judge("Error").validate(json.loads(got.body))
        return
    assert got.status != 500 or sent.faults, "an internal error"
    kind = got.headers["content-type"]
    if sent.method == "HEAD":
        assert got.body == b""
    elif kind.startswith("text/event-stream"):
        _check_events(sent, got)
    elif got.status != 200:
        assert kind == "application/json"
        _check_error(json.loads(got.body), sent, got.status)
    elif kind == "application/json":
        _check_answer(sent, json.loads(got.body))
    if got.status in (429, 503):
        assert int(got.headers["retry-after"]) > 0


def _check_error(value: Any, sent: Sent, status: int) -> None:
    assert isinstance(value, dict)
    judge("Error").validate({"error": value["error"]})
    error = value["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] != "internal_error", "an internal error"
    if sent.odd and error["code"] == "client_gone":
        return  # it has ended its sending half while the answer was on the way
    if status >= 500 and error["code"] in FAULT_CODES:
        assert sent.faults, "a fault of a worker that has none"
    operation = operation_of(sent)
    if operation is not None:
        assert str(status) in operation["responses"], f"{status} is not described"


def _check_answer(sent: Sent, value: Any) -> None:
    operation = operation_of(sent)
    if operation is not None:
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": described()["components"]}).validate(value)


def _check_events(sent: Sent, got: Got) -> None:
    assert got.status == 200
    lines = got.body.decode("utf-8").split("\n\n")
    assert lines.pop() == "", "the last event has no end"
    events = [line for line in lines if not line.startswith(":")]
    assert events.pop() == "data: [DONE]"
    operation = operation_of(sent)
    assert operation is not None
    text = operation["responses"]["200"]["content"]["text/event-stream"]["schema"]["description"]
    (name,) = re.findall(r"data: (\w+)`", text)
    assert events, "no event but [DONE]"
    for number, event in enumerate(events):
        assert event.startswith("data: "), event
        value = json.loads(event.removeprefix("data: "))
        if "error" in value:
            assert number == len(events) - 1, "something after the error"
            _check_error(value, sent, 0 if operation is None else 500)
        else:
            judge(name).validate(value)


def operation_of(sent: Sent) -> dict[str, Any] | None:
    """What the description says of the request's route."""
    path = sent.path.partition("?")[0]
    path = path if path == "/" else path.rstrip("/")
    if path.startswith("/v1/models/"):
        path = "/v1/models/{model}"
    operation: dict[str, Any] | None = described()["paths"].get(path, {}).get(sent.method.lower())
    return operation
