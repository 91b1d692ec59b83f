"""Requests and answers that the core helps with are what gunicorn's own would be; gunicorn is the oracle."""

from __future__ import annotations

import gc
import io
import re
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from gunicorn import http, util
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.wsgi import Response
from hypothesis import example, given
from hypothesis import strategies as st

from wsgi_router import gunicorn_conf, plain_http
from wsgi_router.plain_http import Front, PlainRequest, PlainResponse

TCP, CLIENT = ("127.0.0.1", 8080), ("10.0.0.7", 4711)
SDK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:8080\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 1.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Async: false\r\n"
    b"Authorization: Bearer key\r\nX-Forwarded-For: 1.2.3.4\r\nContent-Length: 2\r\n\r\n{}"
)
CURL = b"GET /health?a=b&c= HTTP/1.1\r\nHost: h\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n"


class Wire:
    """A client's socket: what it sends, piece by piece, and what it gets."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.sent = b""

    def recv(self, size: int) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > size:
            self._pieces.insert(0, piece[size:])
        return piece[:size]

    def sendall(self, data: bytes) -> None:
        self.sent += data

    send = sendall

    def gettimeout(self) -> None: ...

    def settimeout(self, seconds: float | None) -> None: ...


def configuration(**changes: Any) -> Config:
    made = Config()
    for name, value in changes.items():
        made.set(name, value)
    return made


def made(cfg: Config) -> Front:
    front = plain_http.front(cfg)
    assert front is not None
    return front


_VALUES = (str, int, bool, tuple)


def told(request: Any, wire: Wire, client: Any, server: Any, create: Any, cfg: Config) -> dict[str, Any]:
    """All that can be compared of a request and its environ, its body included."""
    _, environ = create(request, wire, client, server, cfg)
    names = ("method", "uri", "path", "query", "fragment", "version", "headers", "scheme", "peer_addr")
    said: dict[str, Any] = {name: getattr(request, name) for name in names}
    said["environ"] = {key: value for key, value in environ.items() if isinstance(value, _VALUES)}
    said["keys"] = set(environ)
    said["body"] = environ["wsgi.input"].read()
    said["close"] = request.should_close()
    said["interim"] = wire.sent
    return said


def conversation(
    pieces: tuple[bytes, ...], cfg: Config, get_parser: Any, create: Any, client: Any, server: Any
) -> Iterator[Any]:
    """What a connection's requests are, until it ends, or how it fails."""
    wire = Wire(*pieces)
    parser = get_parser(cfg, wire, client)
    try:
        for request in parser:
            yield told(request, wire, client, server, create, cfg)
    except Exception as error:
        yield type(error), str(error)


def both(
    *pieces: bytes, client: Any = CLIENT, server: Any = TCP, **changes: Any
) -> tuple[list[Any], list[Any]]:
    cfg = configuration(**changes)
    front = made(cfg)
    ours = list(conversation(pieces, cfg, front.get_parser, front.create, client, server))
    theirs = list(conversation(pieces, cfg, http.get_parser, wsgi.create, client, server))
    return ours, theirs


def read(*pieces: bytes, client: Any = CLIENT, **changes: Any) -> Any:
    return next(made(cfg := configuration(**changes)).get_parser(cfg, Wire(*pieces), client))


@pytest.mark.parametrize("data", [SDK, CURL, SDK + CURL + SDK])
def test_what_clients_send_is_plain(data: bytes) -> None:
    ours, theirs = both(data)
    assert ours == theirs
    assert len(ours) == data.count(b" HTTP/1.1")
    assert type(read(data)) is PlainRequest


@pytest.mark.parametrize("at", range(1, len(SDK), 7))
def test_a_request_may_come_in_pieces(at: int) -> None:
    ours, theirs = both(SDK[:at], SDK[at:] + CURL)
    assert ours == theirs
    assert len(ours) == 2


def test_a_long_body_is_read_as_it_comes() -> None:
    body = b"x" * 300_000
    head = SDK[: SDK.index(b"Content-Length")] + b"Content-Length: %d\r\n\r\n" % len(body)
    ours, theirs = both(head + body[:100], body[100:] + CURL)
    assert ours == theirs
    assert ours[0]["body"] == body
    assert type(read(head + body)) is PlainRequest


def test_a_body_that_nobody_reads_is_not_the_next_request() -> None:
    cfg = configuration()
    long = SDK.replace(b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 20\r\n\r\n" + b"{" * 10)
    parser = made(cfg).get_parser(cfg, Wire(long, b"}" * 10 + CURL), CLIENT)
    assert [next(parser).path, next(parser).path] == ["/v1/chat/completions", "/health"]


HEADERS = [
    b"A: b",
    b"X-Empty:",
    b"Cookie: a=b\r\nCookie: c=d",
    b"X_Y: z",
    b"Connection: close",
    b"connection: Keep-Alive",
    b"Connection: upgrade",
    b"Connection: close, x",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Content-Length: -5",
    b"Content-Length: 5\r\nContent-Length: 5",
    b"Content-Length: 5, 5",
    "Content-Length: \u0665".encode(),
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    b"Expect: 100-continue",
    b"Expect: more",
    b"Host: other",
    b"Content-Type: text/plain",
    b"Content-Type: a\r\ncontent-type: b",
    b"SCRIPT_NAME: /x",
    b"X-Forwarded-Proto: https",
    b"X-Forwarded-Proto: http",
    b"X-Forwarded-Proto: https\r\nX-Forwarded-Ssl: on",
    b"X-Forwarded-Proto: https\r\nX-Forwarded-Ssl: off",
    b"X: a\r\n folded",
    b"X : a",
    b"X: \xe9",
    b"X: \x00",
    b"X: a\nY: b",
    b"X: a\rb",
    b"nothing",
    b": x",
    b"X:" + b"y" * 9000,
    b"X:" + b" " * 60 + b"y",
    b"\r\n".join(b"H%d: x" % number for number in range(120)),
]
LINES = [
    b"GET /x HTTP/1.1",
    b"POST /x?y HTTP/1.1",
    b"POST /x? HTTP/1.1",
    b"GET /%41%2f?%41 HTTP/1.1",
    b"GET //x HTTP/1.1",
    b"GET /x#y HTTP/1.1",
    b"GET http://h/x HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT h:1 HTTP/1.1",
    b"get /x HTTP/1.1",
    b"PATCH /x HTTP/1.1",
    b"HEAD /x HTTP/1.1",
    b"GET /x HTTP/1.0",
    b"GET /x HTTP/1.2",
    b"GET /x HTTP/2.0",
    b"GET /x",
    b"GET  /x HTTP/1.1",
    b"GET /\xc3\xa9 HTTP/1.1",
    b"\r\nGET /x HTTP/1.1",
    b"\r\n\r\nGET /x HTTP/1.1",
    b"\nGET /x HTTP/1.1",
    b"GET /" + b"x" * 5000 + b" HTTP/1.1",
    b"\x16\x03\x01",
    b"PRI * HTTP/2.0",
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("line", LINES[:2])
def test_headers_of_every_kind(line: bytes, header: bytes) -> None:
    for client in (CLIENT, ("127.0.0.1", 1)):  # the second may speak for others
        ours, theirs = both(line + b"\r\nHost: h\r\n" + header + b"\r\n\r\nhello", CURL, client=client)
        assert ours == theirs


@pytest.mark.parametrize("line", LINES)
def test_request_lines_of_every_kind(line: bytes) -> None:
    ours, theirs = both(line + b"\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", CURL)
    assert ours == theirs


@pytest.mark.parametrize(
    "changes",
    [
        {"limit_request_line": 20},
        {"limit_request_fields": 5},
        {"limit_request_field_size": 40},
        {"header_map": "dangerous"},
        {"strip_header_spaces": True},
        {"permit_obsolete_folding": True},
        {"casefold_http_method": True},
        {"permit_unconventional_http_version": True},
        {"forwarded_allow_ips": "*"},
        {"secure_scheme_headers": {"X-SCHEME": "tls"}, "forwarded_allow_ips": "*"},
        {"secure_scheme_headers": {"X_SCHEME": "tls"}, "forwarded_allow_ips": "*"},
        {"limit_request_line": 0, "limit_request_field_size": 0, "limit_request_fields": 0},
    ],
)
def test_settings_of_gunicorn_s_hold(changes: dict[str, Any]) -> None:
    headers = (*HEADERS, b"X-Scheme: tls")
    for line, header in [
        *((line, headers[0]) for line in LINES),
        *((LINES[0], header) for header in headers),
    ]:
        ours, theirs = both(line + b"\r\nHost: h\r\n" + header + b"\r\n\r\n", **changes)
        assert ours == theirs, (line, header)


@pytest.mark.parametrize("server", ["/run/x.sock", "", "name:80", b"\x00abstract"])
@pytest.mark.parametrize("host", [b"Host: h", b"Host: h:81", b"Host: [::1]:81", b"Host:", b"A: b"])
@pytest.mark.parametrize("client", ["", b""])
def test_unix_sockets(server: str, host: bytes, client: Any) -> None:
    data = b"GET /x HTTP/1.1\r\n" + host + b"\r\nX-Forwarded-Proto: https\r\n\r\n"
    ours, theirs = both(data, client=client, server=server)
    assert ours == theirs
    assert len(ours) == 1


_PIECES = st.sampled_from([*LINES, *HEADERS, b"\r\n", b"\r\n\r\n", b"\n", b" ", b"hello", SDK, CURL])


@given(st.lists(_PIECES, max_size=8), st.data())
@example([LINES[0], b"\r\n", HEADERS[0], b"\r\n\r\n"], None)
def test_whatever_is_sent_is_what_it_is_to_gunicorn(pieces: list[bytes], data: Any) -> None:
    sent = b"".join(pieces)
    at = data.draw(st.integers(0, len(sent))) if data is not None else 0
    ours, theirs = both(*(piece for piece in (sent[:at], sent[at:]) if piece))
    assert ours == theirs


_DATE = re.compile(rb"^Date: \w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT$")


def answer(kind: type[Response], request: Any, status: Any, headers: Any, pieces: list[bytes]) -> Any:
    """The bytes of an answer, but for its time, or how it fails."""
    wire = Wire()
    response = kind(request, wire, request.cfg)
    try:
        response.start_response(status, headers)
        for piece in pieces:
            response.write(piece)
        response.close()
    except Exception as error:
        return type(error), str(error)
    lines = [_DATE.sub(b"Date: now", line) for line in wire.sent.split(b"\r\n")]
    return lines, response.headers, response.sent, response.status_code, response.should_close()


_NAMES = ["Content-Type", "X-A", "content-length", "X Y", "", "é", "X:Y", b"X", *sorted(util.hop_headers)]
_TEXTS = ["text/plain", "5", "-5", "0", "", " padded ", "a\r\nb", "a\tb", "é", "€", "\x7f", "close", 5, b"x"]
_STATUSES = [
    "200 OK",
    "204 No Content",
    "304 Not Modified",
    "404 Not Found",
    "100 Continue",
    "200",
    "OK",
    200,
]


@given(
    st.sampled_from(_STATUSES),
    st.lists(st.tuples(st.sampled_from(_NAMES), st.sampled_from(_TEXTS)), max_size=4),
    st.lists(st.sampled_from([b"hello", b"", b"hello, world"]), max_size=3),
    st.sampled_from([SDK, SDK.replace(b"keep-alive", b"close"), CURL, CURL.replace(b"GET", b"HEAD")]),
)
@example("200 OK", [("Content-Type", "text/plain"), ("content-length", "5")], [b"hello"], SDK)
@example("200 OK", [("Content-Type", "text/plain")], [b"hello"], SDK)
def test_answers_have_the_same_bytes(status: Any, headers: Any, pieces: list[bytes], request: bytes) -> None:
    asked = read(request)
    assert type(asked) is PlainRequest
    ours, theirs = (answer(kind, asked, status, headers, pieces) for kind in (PlainResponse, Response))
    assert ours == theirs


def test_an_answer_s_headers_are_checked_once_alone() -> None:
    """Names are remembered; values are looked at each time."""
    asked = read(SDK)
    for value in ("good", "bad\r\nX: y", "good"):
        ours, theirs = (
            answer(kind, asked, "200 OK", [("X-Once", value)], [b"x"]) for kind in (PlainResponse, Response)
        )
        assert ours == theirs


@pytest.mark.parametrize("status", ["500 Oops", "204 No Content", "304 Not Modified"])
def test_an_answer_that_is_begun_anew(status: str) -> None:
    """What the first one said of its body is not said of the second."""
    wire = Wire()
    asked = read(SDK)
    response = PlainResponse(asked, wire, asked.cfg)
    response.start_response("200 OK", [("X-First", "1"), ("Content-Length", "5")])
    response.headers.clear()
    response.start_response(status, [("X-Second", "2"), ("Content-Length", "11")], (None, None, None))
    response.write(b"hello error")
    assert b"X-First" not in wire.sent
    assert b"X-Second: 2" in wire.sent
    assert wire.sent.count(b"Content-Length: 5") == 0


def test_a_request_that_is_over_is_gone_at_once() -> None:
    """Nothing waits for the garbage collector, which seldom looks."""
    cfg = configuration()
    front, wire = made(cfg), Wire(SDK)
    parser = front.get_parser(cfg, wire, CLIENT)
    request = next(parser)
    response, environ = front.create(request, wire, CLIENT, TCP, cfg)
    alive = [weakref.ref(one) for one in (request, response)]
    parser.mesg = None
    gc.disable()
    try:
        del request, response, environ
        assert [one() for one in alive] == [None, None]
    finally:
        gc.enable()


def test_early_hints() -> None:
    cfg = configuration()
    front, wire = made(cfg), Wire(SDK)
    request = next(front.get_parser(cfg, wire, CLIENT))
    _, environ = front.create(request, wire, CLIENT, TCP, cfg)
    environ["wsgi.early_hints"]([("Link", "</x>; rel=preload")])
    assert wire.sent == b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n"


def test_whole_bodies_are_in_memory() -> None:
    assert type(read(SDK).body) is io.BytesIO


def test_where_gunicorn_has_more_to_do_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain_http.front(configuration(proxy_protocol="auto")) is None
    assert plain_http.front(configuration(protocol="uwsgi")) is None
    assert plain_http.front(configuration(pre_request=lambda worker, request: None)) is None
    with monkeypatch.context() as patch:
        patch.setenv("SCRIPT_NAME", "/prefix")
        assert plain_http.front(configuration()) is None
    with monkeypatch.context() as patch:
        patch.setattr(http, "get_parser", lambda cfg, source: None)
        assert plain_http.front(configuration()) is None
    with monkeypatch.context() as patch:
        patch.setattr(wsgi, "create", lambda req, sock: None)
        assert plain_http.front(configuration()) is None
    assert plain_http.front(configuration()) is not None


def test_the_router_s_own_configuration_is_as_expected() -> None:
    ours = {name: value for name, value in vars(gunicorn_conf).items() if name in Config().settings}
    assert "worker_class" in ours
    assert plain_http.front(configuration(**ours)) is not None


def test_other_connections_are_gunicorn_s_own() -> None:
    cfg = configuration()
    other = made(cfg).get_parser(configuration(), Wire(SDK), CLIENT)
    assert type(next(other)) is not PlainRequest
