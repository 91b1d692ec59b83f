"""What gunicorn refuses before the application sees it, in OpenAI's shape."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from tests.support.openapi import judge
from tests.support.processes import Router

GOOD = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
REFUSED = {
    "no HTTP": (b"hello there, who is this\r\n\r\n", 400, "bad_request"),
    "another version": (b"GET / HTTP/9.9\r\n\r\n", 400, "bad_request"),
    "a strange method": (b"ge(t / HTTP/1.1\r\n\r\n", 400, "bad_request"),
    "a long line": (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
    "many headers": (GOOD[:-2] + b"a: b\r\n" * 150 + b"\r\n", 431, "headers_too_large"),
    "a large header": (GOOD[:-2] + b"a: " + b"b" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
    "a broken header": (GOOD[:-2] + b"na me: x\r\n\r\n", 400, "bad_request"),
    "a strange coding": (GOOD[:-2] + b"Transfer-Encoding: br\r\n\r\n", 501, "not_implemented"),
}


@pytest.fixture(scope="module", params=["gevent", "gthread"])
def router(request: pytest.FixtureRequest) -> Iterator[Router]:
    with Router(flags=("-k", request.param)) as router:
        yield router


def answer(connection: socket.socket) -> tuple[http.client.HTTPResponse, bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response, response.read()


@pytest.mark.parametrize("after", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal(router: Router, name: str, after: int) -> None:
    """Also as the second request of a connection."""
    sent, status, code = REFUSED[name]
    with socket.create_connection(("127.0.0.1", router.port), timeout=30) as connection:
        for _ in range(after):
            connection.sendall(GOOD)
            assert answer(connection)[0].status == 200
        connection.sendall(sent)
        response, body = answer(connection)
        assert response.status == status
        assert response.getheader("Content-Type") == "application/json"
        judge("Error").validate(json.loads(body))
        assert json.loads(body)["error"]["code"] == code
        assert connection.recv(1) == b""
    assert router.status("/health") == 200
