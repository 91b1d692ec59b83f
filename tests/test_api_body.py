"""Bodies: what is no request, what is too large, and what happens to one that is not read to its end."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.support.app import CHAT, App, ask, error_of, whole
from tests.support.flow import tcp_pair
from wsgi_router.api import body
from wsgi_router.api.body import LastWords, much_unread, read_body
from wsgi_router.api.reading import READINGS
from wsgi_router.errors import InvalidRequestError, RequestTimeoutError
from wsgi_router.schema import chat
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


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "chunked, chunked"])
def test_a_body_that_was_packed_for_its_way_is_refused_by_that_name(coding: str) -> None:
    """gunicorn takes the chunks apart, and unpacks nothing."""
    environ = {"wsgi.input": io.BytesIO(b"null"), "wsgi.input_terminated": True}
    with pytest.raises(InvalidRequestError, match=coding) as refused:
        read_body({**environ, "HTTP_TRANSFER_ENCODING": coding}, SETTINGS)
    assert refused.value.code == "unsupported_transfer_encoding"
    assert read_body({**environ, "HTTP_TRANSFER_ENCODING": "Chunked"}, SETTINGS) == b"null"


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


# Through the application


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"null",
        b"[]",
        b"3",
        b'"text"',
        b"\x80",
        b'{"model":"\x80"}',
        b'\xff\xfe{\x00"\x00',
        b'{"model":"\\ud800","messages":[]}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}",
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"[" * 1_000_000,
        b'{"model":"org/tiny","messages":[{"role":"user","content":"x"}]} trailing',
    ],
)
def test_bodies_that_are_no_request(app: App, body: bytes) -> None:
    error_of(app.post(body), 400)


@pytest.mark.parametrize("depth", [50, 100, 500, 900])
@pytest.mark.parametrize("field", ["unknown", "chat_template_kwargs"])
def test_deep_values_never_crash(make: Callable[..., App], depth: int, field: str) -> None:
    app = make(whole("x"))
    value = b'{"a":' * depth + b"1" + b"}" * depth
    body = json.dumps(ask()).encode()[:-1] + b',"%s":%s}' % (field.encode(), value)
    answer = app.post(body)
    if field == "unknown" or depth == 50:
        assert answer.status_code == 200
    else:
        assert error_of(answer, 400)["param"] == field


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_the_content_type_does_not_matter(make: Callable[..., App], content_type: str | None) -> None:
    app = make(whole("x"))
    assert app.post(ask(), content_type=content_type).status_code == 200


def test_of_a_key_that_comes_twice_the_last_counts(make: Callable[..., App]) -> None:
    app = make(whole("x"))
    body = json.dumps(ask()).replace('"model": "org/tiny"', '"model": "other", "model": "org/tiny"')
    assert app.post(body.encode()).status_code == 200


class Unread(io.RawIOBase):
    """A body that must not be touched."""

    def read(self, size: int = -1) -> bytes:
        raise AssertionError("the body was read")


def test_a_body_over_the_limit_is_refused_unread(app: App) -> None:
    environ = {"wsgi.input": Unread(), "CONTENT_LENGTH": str(65 << 20)}
    answer = app.client.post(CHAT, environ_overrides=environ)
    assert error_of(answer, 413)["code"] == "request_too_large"


def test_a_chunked_body_is_read_to_the_limit_only(make: Callable[..., App]) -> None:
    app = make(whole("x"), max_body_bytes=10_000)
    chunked = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    endless = io.BytesIO(b" " * 10_000_000)
    answer = app.client.post(CHAT, environ_overrides={**chunked, "wsgi.input": endless, "CONTENT_LENGTH": ""})
    error_of(answer, 413)
    assert endless.tell() == 10_001
    body = io.BytesIO(json.dumps(ask()).encode())
    answer = app.client.post(CHAT, environ_overrides={**chunked, "wsgi.input": body, "CONTENT_LENGTH": ""})
    assert answer.status_code == 200


def test_a_body_that_ends_early(app: App) -> None:
    environ = {"wsgi.input": io.BytesIO(json.dumps(ask()).encode()), "CONTENT_LENGTH": "5000"}
    assert error_of(app.client.post(CHAT, environ_overrides=environ), 400)["code"] == "incomplete_body"


class Broken(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise ConnectionResetError


@pytest.mark.parametrize("length", ["10", "x", "-1", "1" * 30])
def test_a_body_that_cannot_be_read(app: App, length: str) -> None:
    environ = {"wsgi.input": Broken(), "CONTENT_LENGTH": length}
    error_of(app.client.post(CHAT, environ_overrides=environ), 400)


def test_a_body_of_too_many_values_is_refused_undecoded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(_body: bytes) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(chat, "decode_object", decode)
    message = b'{"role":"user","content":"hi"}'
    for many in (b",".join([message] * 1_000_000), b"[]," * 150_000, b"1," * 3_000_000):
        error = error_of(app.post(b'{"model":"m","messages":[' + many + b"]}"), 400)
        assert error["code"] == "too_many_values"


@pytest.mark.parametrize("many", ["[]," * 150_000, "1," * 2_000_000, '"",' * 150_000])
def test_nor_is_a_text_within_it_that_holds_too_many(app: App, many: str) -> None:
    """A structural tag may be JSON within a string, where nobody has counted the values."""
    tag = '{"type": "structural_tag", "format": {"type": "x", "a": [' + many + "1]}}"
    error = error_of(app.chat(structural_tag=tag), 400)
    assert (error["param"], error["code"]) == ("structural_tag", "too_many_values")
