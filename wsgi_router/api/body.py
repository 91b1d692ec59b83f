"""Reading a request's body: bounded, whole, and never through form parsing."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wsgi_router import native, runtime
from wsgi_router.api.reading import READINGS, Reading
from wsgi_router.errors import BodyTooLargeError, InvalidRequestError, RequestTimeoutError, shown
from wsgi_router.settings import Settings

_LOG = logging.getLogger(__name__)
_READ: Final = "wsgi_router.body_read"
_STALLED: Final = "wsgi_router.body_stalled"
_SILENCE_SECONDS: Final = 60.0
"""Longest wait for the next bytes of a body."""
_SMALL: Final = 64 << 10
_PIECE: Final = 1 << 20
_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 256 << 20


def read_body(environ: dict[str, Any], settings: Settings) -> bytes:
    """The whole body, of a bounded size, of JSON that can be decoded without holding up other requests.

    Raises BodyTooLargeError (413), RequestTimeoutError (408) or InvalidRequestError (400).
    """
    _check_coding(environ)
    limit, seconds = settings.max_body_bytes, settings.body_timeout
    length = _content_length(environ)
    if length is None:
        body = _read(environ, limit + 1, seconds) if environ.get("wsgi.input_terminated") else b""
        if len(body) > limit:
            raise _too_large(limit)
    else:
        if length > limit:
            raise _too_large(limit)
        body = _read(environ, length, seconds)
        if len(body) < length:
            raise InvalidRequestError("The request body ended early.", code="incomplete_body")
    environ[_READ] = True
    native.check_work(body)
    return body


def rest_after(body: bytes) -> None:
    """Lets the other requests run once a large body is decoded: to encode it takes as long again."""
    if len(body) > _SMALL:
        runtime.breathe()


def _check_coding(environ: Mapping[str, Any]) -> None:
    """Nothing is unpacked: a few bytes may become gigabytes."""
    coding = environ.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if coding not in ("", "identity"):
        raise InvalidRequestError(
            f"A request body of Content-Encoding '{shown(coding)}' is not supported; send it plain.",
            code="unsupported_content_encoding",
        )
    transfer = environ.get("HTTP_TRANSFER_ENCODING", "").strip().lower()
    if transfer not in ("", "identity", "chunked"):
        raise InvalidRequestError(
            f"A request body of Transfer-Encoding '{shown(transfer)}' is not supported; send it plain.",
            code="unsupported_transfer_encoding",
        )


def much_unread(environ: Mapping[str, Any]) -> bool:
    """Whether a large body, one of unknown size, or one that does not come, is still to come."""
    if environ.get(_READ):
        return False
    if environ.get(_STALLED):
        return True
    if "HTTP_TRANSFER_ENCODING" in environ:
        return True
    length = environ.get("CONTENT_LENGTH") or "0"
    return not length.isdecimal() or int(length) > _SMALL


def _content_length(environ: Mapping[str, Any]) -> int | None:
    if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower():
        return None
    text = environ.get("CONTENT_LENGTH") or ""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidRequestError("The header Content-Length is no number.", code="invalid_content_length")
    return int(text)


def _read(environ: dict[str, Any], size: int, seconds: float) -> bytes:
    stream, sock = environ["wsgi.input"], environ.get("gunicorn.socket")
    try:
        # It is all there, or the server lends no socket and has bounds of its own.
        if sock is None or type(stream) is io.BytesIO:
            return _read_pieces(stream, size)
        return _read_in_time(stream, sock, size, seconds)
    except TimeoutError:
        environ[_STALLED] = True
        raise RequestTimeoutError from None
    except Exception as error:  # each server has its own kind for a broken chunk or a lost client
        _LOG.debug("reading a body failed: %r", error)
        raise InvalidRequestError("The request body could not be read.", code="incomplete_body") from None


def _read_in_time(stream: Any, sock: Any, size: int, seconds: float) -> bytes:
    """Raises TimeoutError when nothing comes from the client's socket, or not all of it in `seconds`."""
    before = sock.gettimeout()
    sock.settimeout(min(_SILENCE_SECONDS, seconds))
    reading = Reading(sock)
    READINGS.add(reading, seconds)
    try:
        body = _read_pieces(stream, size)
    finally:
        READINGS.discard(reading)
        sock.settimeout(before)
        if reading.late:
            raise TimeoutError
    return body


def _read_pieces(stream: Any, size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0:
        piece = stream.read(min(size, _PIECE))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
        if len(piece) == _PIECE:
            runtime.breathe()  # a fast client's bytes are always there, so that reading never waits
    return b"".join(pieces)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than {limit} bytes.")


class LastWords:
    """The body of an answer that is given before the request was read to its end.

    Closing a socket with unread bytes resets the connection, and the client may lose the answer. So what it
    still sends is read and dropped for a moment, and then gunicorn is kept from reading on: the connection
    ends here, where it would take in all the rest to find the next request.
    """

    def __init__(self, body: bytes, environ: Mapping[str, Any]) -> None:
        self._body = body
        self._environ = environ

    def __iter__(self) -> Iterator[bytes]:
        yield self._body
        self.close()

    def close(self) -> None:
        stream, sock = self._environ["wsgi.input"], self._environ.get("gunicorn.socket")
        if sock is None or not hasattr(stream, "failed") or stream.failed:
            return
        stream.failed = True
        _drop(sock)


def _drop(sock: Any) -> None:
    end = time.monotonic() + _LINGER_SECONDS
    dropped = 0
    try:
        while dropped < _LINGER_BYTES and (left := end - time.monotonic()) > 0:
            sock.settimeout(left)
            data = sock.recv(1 << 18)
            if not data:
                return
            dropped += len(data)
    except OSError:
        return
