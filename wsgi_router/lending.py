"""Under gunicorn: what can be spared of its way to the client's socket.

A streamed answer is an iterable; gunicorn sends each piece as a chunk. Where nothing stands in between, its
socket is lent to the core, which sends the chunks itself, from its own thread, and Python has nothing to do
for a token. gunicorn still writes the head, the first piece and the end. Nothing is lent under TLS, HTTP/2,
HTTP/1.0 or HEAD, where middleware has wrapped the answer, or when gunicorn's response does not look as
expected.

A whole answer, and the first piece of a streamed one, is sent together with its head, which gunicorn sends
apart: one call of the system, and one packet, in place of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from wsgi_router.plain_http import PlainResponse
from wsgi_router.postprocess import StreamResponse

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_EXPECTED: Final = ("chunked", "sent", "sock", "cfg", "headers_sent", "response_length")
"""What is used of gunicorn's Response; all of it is as old as the class."""

_JOINED_BYTES: Final = 64 << 10
"""More would cost more to copy than a call of the system does."""

_WITH_BODY: Final = frozenset({"POST", "PUT"})


class SocketLoan:
    """The socket of one answer; see `postprocess.Loan`."""

    __slots__ = ("_response", "_socket", "descriptor")

    def __init__(self, response: Any) -> None:
        self._response = response
        self._socket = response.sock
        self.descriptor: int = response.sock.fileno()

    def send(self, data: bytes) -> None:
        if data:
            self._socket.sendall(data)

    def count(self, written: int) -> None:
        self._response.sent += written  # for the access log


class _Joining:
    """A socket for a response whose head and first piece, which follows at once, are sent together."""

    __slots__ = ("_head", "_socket")

    def __init__(self, sock: Any) -> None:
        self._socket = sock
        self._head: bytes | None = None

    def sendall(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
        else:
            _send(self._socket, self._head + data)
            self._head = b""


def _send(sock: Any, data: bytes) -> None:
    """As `sendall`, which gevent begins with a look at the socket's buffer; all of it nearly always fits."""
    sent = sock.send(data)
    if sent < len(data):
        sock.sendall(data[sent:])


def keep_settings(configuration: Any) -> None:
    """Makes gunicorn's settings attributes: it looks for each by two calls, a score of times a request.

    To be called once they are what they will be.
    """
    settings = getattr(configuration, "settings", {})
    vars(configuration).update({name: setting.get() for name, setting in settings.items()})


class _ErrorStream:
    """`wsgi.errors`, for all requests: looks for where errors go when there is one."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def write(self, text: str) -> None:
        self._find().write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Each line is written at once."""


def share_error_stream(configuration: Any) -> None:
    """One `wsgi.errors` for all requests; gunicorn makes one for each, and asks `logging` under its lock."""
    from gunicorn.http import wsgi

    make = getattr(wsgi, "WSGIErrorsWrapper", None)
    if make is not None:
        stream = _ErrorStream(lambda: make(configuration))
        wsgi.WSGIErrorsWrapper = lambda _configuration: stream


def lend_sockets(worker: Any) -> None:
    """From now on streamed answers of gunicorn's `worker` may write to their sockets themselves."""
    from gunicorn.workers.base_async import AsyncWorker

    if isinstance(worker, AsyncWorker) and not worker.cfg.is_ssl:
        worker.wsgi = offering(worker.wsgi)


def offering(application: Application) -> Application:
    """`application`, whose streamed answers are offered the socket of gunicorn's response."""

    def offer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = application(environ, start_response)
        if type(answer) is StreamResponse:
            response = _response(start_response)
            if response is not None and response.chunked:
                answer.offer(SocketLoan(response))
                response.sock = _Joining(response.sock)
        elif type(answer) is list and len(answer) == 1 and len(answer[0]) <= _JOINED_BYTES:
            response = _response(start_response)
            if response is not None and _is_whole(response, answer[0]):
                response.sock = _Joining(response.sock)
        return answer

    return offer


def _response(start_response: Callable[..., Any]) -> Any:
    """gunicorn's response, if its body may be written past it."""
    from gunicorn.http.wsgi import Response

    response: Any = getattr(start_response, "__self__", None)
    if type(response) not in (PlainResponse, Response):  # HTTP/2 has a class of its own
        return None
    if not all(hasattr(response, name) for name in _EXPECTED):
        return None
    return response if response.sock.fileno() >= 0 else None


def _is_whole(response: Any, body: bytes) -> bool:
    """Whether gunicorn will send exactly a head and then `body`."""
    return bool(body) and response.response_length == len(body) and response.req.method in _WITH_BODY
