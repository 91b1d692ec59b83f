"""What is spared of gunicorn's way to the socket, with gunicorn's own response. The lent socket itself:
live/test_transports.py and live/test_lent_sockets.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.wsgi import Response

from wsgi_router.lending import Application, _Joining, keep_settings, offering, share_error_stream
from wsgi_router.postprocess import StreamResponse


class Sink:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> int:
        self.sent.append(data)
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)

    def fileno(self) -> int:
        return 99


def answering(body: list[bytes], length: int | None, status: str = "200 OK") -> Application:
    def application(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response(status, [("Content-Length", str(length))] if length is not None else [])
        return body

    return application


def sent(application: Application, method: str = "POST", kind: type[Any] = Response) -> list[bytes]:
    """The pieces that gunicorn's response sends; it is used as gunicorn uses it."""
    sink = Sink()
    request = SimpleNamespace(method=method, version=(1, 1), should_close=lambda: False)
    response = kind(request, sink, Config())
    for piece in application({}, response.start_response):
        response.write(piece)
    response.close()
    return [b"\r\n".join(_steady(piece)) for piece in sink.sent]


def _steady(piece: bytes) -> list[bytes]:
    return [line for line in piece.split(b"\r\n") if not line.startswith(b"Date: ")]


def test_a_whole_answer_is_sent_at_once() -> None:
    application = answering([b"body"], 4)
    apart, joined = sent(application), sent(offering(application))
    assert len(apart) == 2
    assert joined == [b"".join(apart)]


def test_a_streams_first_piece_is_sent_with_the_head() -> None:
    answer: Any = SimpleNamespace(
        generation=SimpleNamespace(fed=True, over=True),
        stream=SimpleNamespace(take=bytes),
        done=False,
        ended=True,
    )
    answer.loan = answer.lent = None
    answer.lend = lambda: setattr(answer, "done", True)
    answer.reclaim = lambda: None
    settings: Any = SimpleNamespace(lend_sockets=True, ping_interval=1.0)

    def application(_environ: dict[str, Any], start_response: Callable[..., Any]) -> StreamResponse:
        start_response("200 OK", [])
        return StreamResponse(answer, b"first", settings)

    head, end = sent(offering(application))
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n5\r\nfirst\r\n")
    assert end == b"0\r\n\r\n"
    assert answer.loan.descriptor == 99


class Other(Response):  # type: ignore[misc]
    """Who knows what it does."""


@pytest.mark.parametrize(
    ("application", "method", "kind"),
    [
        (answering([b"bo", b"dy"], 4), "POST", Response),
        (answering([b"body"], None), "POST", Response),
        (answering([b"body"], 3), "POST", Response),
        (answering([b"body"], 9), "POST", Response),
        (answering([b""], 0), "POST", Response),
        (answering([], 0), "POST", Response),
        (answering([b"body"], 4, "204 No Content"), "POST", Response),
        (answering([b"body"], 4), "HEAD", Response),
        (answering([b"x" * 100_000], 100_000), "POST", Response),
        (answering([b"body"], 4), "POST", Other),
    ],
)
def test_everything_else_is_left_to_gunicorn(application: Application, method: str, kind: type[Any]) -> None:
    pieces = sent(application, method, kind)
    assert pieces
    assert sent(offering(application), method, kind) == pieces


def test_a_server_that_is_not_gunicorn() -> None:
    started: list[str] = []
    answer = offering(answering([b"body"], 4))({}, lambda status, _headers: started.append(status))
    assert (list(answer), started) == ([b"body"], ["200 OK"])


def test_requests_share_what_they_complain_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wsgi, "WSGIErrorsWrapper", wsgi.WSGIErrorsWrapper)  # as it was, in the end
    share_error_stream(Config())
    first, second = (wsgi.base_environ(Config())["wsgi.errors"] for _ in range(2))
    assert first is second
    print("words", file=first, flush=True)
    first.writelines(["more\n", "lines\n"])
    assert capsys.readouterr().err == "words\nmore\nlines\n"


def test_settings_become_attributes() -> None:
    config = Config()
    config.set("keepalive", 7)
    before = {name: getattr(config, name) for name in config.settings}
    keep_settings(config)
    assert {name: getattr(config, name) for name in config.settings} == before
    assert vars(config)["keepalive"] == 7


def test_what_a_socket_does_not_take_at_once_is_sent_after_it() -> None:
    class Narrow(Sink):
        def send(self, data: bytes) -> int:
            return super().send(data[:10])

    sock = Narrow()
    joining = _Joining(sock)
    for piece in (b"head of it, ", b"first, ", b"second"):
        joining.sendall(piece)
    assert sock.sent == [b"head of it", b", first, ", b"second"]
