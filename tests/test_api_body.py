"""What happens to a body that is not read to its end."""

from __future__ import annotations

import io
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from tests.support.flow import tcp_pair
from wsgi_router.api import body
from wsgi_router.api.body import LastWords, much_unread, read_body
from wsgi_router.api.reading import READINGS
from wsgi_router.errors import InvalidRequestError, RequestTimeoutError
from wsgi_router.settings import Settings

SETTINGS = Settings(max_body_bytes=200_000)


@pytest.mark.parametrize(
    ("environ", "much"),
    [
        ({}, False),
        ({"CONTENT_LENGTH": ""}, False),
        ({"CONTENT_LENGTH": "10"}, False),
        ({"CONTENT_LENGTH": "1000000"}, True),
        ({"CONTENT_LENGTH": "odd"}, True),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, True),
    ],
)
def test_what_is_much(environ: dict[str, str], much: bool) -> None:
    assert much_unread(environ) is much


def test_a_body_that_was_read_is_not_unread() -> None:
    environ = {"CONTENT_LENGTH": "100000", "wsgi.input": io.BytesIO(b"x" * 100_000)}
    assert read_body(environ, SETTINGS) == b"x" * 100_000
    assert not much_unread(environ)


def test_without_a_length_nothing_is_read_from_a_stream_that_may_not_end() -> None:
    assert read_body({"wsgi.input": io.BytesIO(b"next request")}, SETTINGS) == b""


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br, gzip"])
def test_a_packed_body_is_refused_by_the_name_of_its_packing(coding: str) -> None:
    environ = {"CONTENT_LENGTH": "4", "wsgi.input": io.BytesIO(b"null"), "HTTP_CONTENT_ENCODING": coding}
    with pytest.raises(InvalidRequestError, match=coding.lower()) as refused:
        read_body(environ, SETTINGS)
    assert (refused.value.status, refused.value.code) == (400, "unsupported_content_encoding")


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
def test_a_plain_body_may_say_so(coding: str) -> None:
    environ = {"CONTENT_LENGTH": "4", "wsgi.input": io.BytesIO(b"null"), "HTTP_CONTENT_ENCODING": coding}
    assert read_body(environ, SETTINGS) == b"null"


def test_a_body_that_stops_coming_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = tcp_pair()
    monkeypatch.setattr(body, "_SILENCE_SECONDS", 0.2)
    theirs.sendall(b"abc")
    with ours.makefile("rb") as stream:
        environ = {"CONTENT_LENGTH": "10", "wsgi.input": stream, "gunicorn.socket": ours}
        with pytest.raises(RequestTimeoutError):
            read_body(environ, SETTINGS)
    assert ours.gettimeout() is None
    assert much_unread(environ), "its connection must not be used again"
    ours.close()
    theirs.close()


def test_a_body_that_trickles_has_to_end() -> None:
    ours, theirs = tcp_pair()
    ended = threading.Event()

    def trickle() -> None:
        while not ended.wait(0.05):
            theirs.sendall(b"x")

    client = threading.Thread(target=trickle)
    client.start()
    start = time.monotonic()
    with ours.makefile("rb") as stream:
        environ = {"CONTENT_LENGTH": "100000", "wsgi.input": stream, "gunicorn.socket": ours}
        with pytest.raises(RequestTimeoutError):
            read_body(environ, Settings(body_timeout=0.5))
    assert 0.5 <= time.monotonic() - start < 20
    ended.set()
    client.join(10)
    assert ours.gettimeout() is None
    assert much_unread(environ), "its connection must not be used again"
    ours.sendall(b"408")  # it can be told
    assert theirs.recv(10) == b"408"
    ours.close()
    theirs.close()
    assert len(READINGS) == 0


def test_bodies_that_are_there_are_not_kept() -> None:
    ours, theirs = tcp_pair()
    for _ in range(100):
        environ = {"CONTENT_LENGTH": "4", "wsgi.input": io.BytesIO(b"null"), "gunicorn.socket": ours}
        assert read_body(environ, SETTINGS) == b"null"
    assert len(READINGS) == 0
    ours.close()
    theirs.close()


def test_a_client_that_still_sends_gets_the_answer() -> None:
    """The answer goes out first, then what comes is dropped, then the connection is not used again."""
    ours, theirs = tcp_pair()
    unread = SimpleNamespace(failed=False)
    words = LastWords(b"too large", {"wsgi.input": unread, "gunicorn.socket": ours})
    answer: list[bytes] = []

    def send_then_read() -> None:
        theirs.sendall(b"x" * 20_000_000)
        theirs.shutdown(socket.SHUT_WR)
        answer.append(theirs.recv(100))

    client = threading.Thread(target=send_then_read)
    client.start()
    for piece in words:
        ours.sendall(piece)
    words.close()
    ours.close()
    client.join(10)
    theirs.close()
    assert answer == [b"too large"]
    assert unread.failed


def test_a_client_that_waits_is_not_waited_for_long() -> None:
    ours, theirs = tcp_pair()
    unread = SimpleNamespace(failed=False)
    start = time.monotonic()
    assert list(LastWords(b"x", {"wsgi.input": unread, "gunicorn.socket": ours})) == [b"x"]
    assert time.monotonic() - start < 10
    assert unread.failed
    ours.close()
    theirs.close()


def test_other_servers_are_left_alone() -> None:
    assert list(LastWords(b"x", {"wsgi.input": io.BytesIO()})) == [b"x"]
