"""Lends the client's socket to the native core, where gunicorn would only pass its bytes on.

A streamed answer is an iterable; gunicorn sends each piece as a chunk. Where nothing stands in between, the
core can send the chunks itself, from its own thread, and Python has nothing to do for a token. gunicorn still
writes the head, the first piece and the end. Nothing is lent under TLS, HTTP/2, HTTP/1.0 or HEAD, where
middleware has wrapped the answer, or when gunicorn's response does not look as expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from wsgi_router.postprocess import StreamResponse

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_EXPECTED: Final = ("chunked", "sent", "sock", "cfg", "headers_sent")
"""What is used of gunicorn's Response; all of it is as old as the class."""


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
            response = _lendable(start_response)
            if response is not None:
                answer.offer(SocketLoan(response))
        return answer

    return offer


def _lendable(start_response: Callable[..., Any]) -> Any:
    """gunicorn's response, if the rest of its body may be written past it."""
    from gunicorn.http.wsgi import Response

    response: Any = getattr(start_response, "__self__", None)
    if type(response) is not Response:  # HTTP/2 has a class of its own
        return None
    if not all(hasattr(response, name) for name in _EXPECTED):
        return None
    return response if response.chunked and response.sock.fileno() >= 0 else None
