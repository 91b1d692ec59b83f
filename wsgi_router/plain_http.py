"""Under gunicorn's gevent worker: plain HTTP/1.1 requests, read and answered with the native core's help.

Half of what gunicorn takes for a short request is spent on parsing it, on its environ, and on the head of its
answer. Nearly all requests are of a plain kind, whose head the core reads in one call (`http1`, which says
what is plain). gunicorn goes on with a request, an environ and a response that are what its own would be;
all else, from keeping connections to its access log, is gunicorn's as ever. So are requests that are not
plain: their bytes go to gunicorn's parser, which alone decides what is refused.

Two functions of gunicorn's are replaced, `http.get_parser` and `http.wsgi.create`, in each process after the
fork; none where they, or what they make, are not as expected, or where a hook `pre_request` may change them.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import time
from typing import Any, Final

from gunicorn import http, util
from gunicorn.config import PreRequest
from gunicorn.http import wsgi
from gunicorn.http.body import Body, LengthReader
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser
from gunicorn.http.wsgi import Response

from wsgi_router import native

_GET_PARSER: Final = ("cfg", "source", "source_addr", "http2_connection")
_CREATE: Final = ("req", "sock", "client", "server", "cfg")
_USED: Final = (
    (Request, "_peer_is_trusted_proxy"),
    (util, "http_date"),
    (util, "is_hoppish"),
    (util, "write"),
    (wsgi, "STATUS_RE"),
    (wsgi, "_make_early_hints_callback"),
)
_KEYS: Final = frozenset(
    {
        "PATH_INFO",
        "QUERY_STRING",
        "RAW_URI",
        "REMOTE_ADDR",
        "REMOTE_PORT",
        "REQUEST_METHOD",
        "SCRIPT_NAME",
        "SERVER_NAME",
        "SERVER_PORT",
        "SERVER_PROTOCOL",
        "SERVER_SOFTWARE",
        "gunicorn.socket",
        "wsgi.early_hints",
        "wsgi.errors",
        "wsgi.file_wrapper",
        "wsgi.input",
        "wsgi.input_terminated",
        "wsgi.multiprocess",
        "wsgi.multithread",
        "wsgi.run_once",
        "wsgi.url_scheme",
        "wsgi.version",
    }
)
"""What gunicorn's environ has of a request without headers."""
_STATUSES: Final[dict[str, int]] = {}
"""Statuses that have a body."""
_MOST_STATUSES: Final = 100
_LONGEST_LINE: Final = 1 << 20
_PORTS: Final = {"http": "80", "https": "443"}


class PlainRequest(Request):  # type: ignore[misc]
    """gunicorn's request, as the core has read it."""

    fragment = ""
    version = (1, 1)
    trailers = ()
    must_close = False
    proxy_protocol_info: Any = None
    _expected_100_continue = False

    def __init__(
        self, parser: PlainParser, head: bytes, environ: dict[str, Any], body: Any, close: bool
    ) -> None:
        self.cfg = parser.cfg
        self.peer_addr = self.remote_addr = parser.source_addr
        self.req_number = parser.req_count
        self.method = environ["REQUEST_METHOD"]
        self.uri = environ["RAW_URI"]
        self.path = environ["PATH_INFO"]
        self.query = environ["QUERY_STRING"]
        self.scheme = environ["wsgi.url_scheme"]
        self._environ = environ
        self.body = body
        self._head = head
        self._close = close

    @property
    def headers(self) -> list[tuple[str, str]]:
        """As gunicorn has them; they are looked at by hooks and by its access log."""
        lines = self._head.decode("latin-1").split("\r\n")[1:-2]
        pairs = (line.split(":", 1) for line in lines)
        return [(name.upper(), value.strip(" \t")) for name, value in pairs]

    def should_close(self) -> bool:
        return self.must_close or self._close

    def take_environ(self) -> dict[str, Any]:
        """What the head says. To be taken once: with early hints it will hold the request."""
        environ, self._environ = self._environ, {}
        return environ


class PlainParser(RequestParser):  # type: ignore[misc]
    """gunicorn's parser of one connection, which has the core read what it can."""

    def __init__(self, front: Front, source: Any, source_addr: Any) -> None:
        super().__init__(front.cfg, source, source_addr)
        self.mesg: Any = None
        self._front = front

    def __next__(self) -> Any:
        if self.mesg is not None:
            if self.mesg.should_close():
                raise StopIteration
            if type(self.mesg.body) is not io.BytesIO and not self.finish_body():
                raise StopIteration
        data = self.unreader.read()
        if not data:
            raise StopIteration
        self.req_count += 1
        self.mesg = self._plain(data) or self._other(data)
        return self.mesg

    next = __next__

    def _plain(self, data: bytes) -> PlainRequest | None:
        front = self._front
        environ = front.environ.copy()
        read = native.plain_head(data, environ, *front.bounds)
        if read is None:
            return None
        end, length, close = read
        named = [] if front.schemes.keys().isdisjoint(environ) else front.named_schemes(environ)
        if len(named) > 1:
            return None
        request = PlainRequest(self, data[:end], environ, self._body(data, end, length), close)
        if named and request._peer_is_trusted_proxy():
            request.scheme = environ["wsgi.url_scheme"] = named[0]
        return request

    def _body(self, data: bytes, start: int, length: int) -> Any:
        end = start + length
        if end <= len(data):
            if end < len(data):
                self.unreader.unread(data[end:])
            return io.BytesIO(data[start:end])
        self.unreader.unread(data[start:])
        return Body(LengthReader(self.unreader, length))

    def _other(self, data: bytes) -> Any:
        self.unreader.unread(data)
        return Request(self.cfg, self.unreader, self.source_addr, self.req_count)


class PlainResponse(Response):  # type: ignore[misc]
    """gunicorn's response; the head of a plain one is put together at once."""

    _lines: str | None = None
    status: str | None
    headers_sent: bool

    def start_response(self, status: Any, headers: Any, exc_info: Any = None) -> Any:
        code = _STATUSES.get(status) or _status_code(status)
        plain = exc_info is None and self.status is None and code and self.req.method != "HEAD"
        lines = native.header_lines(headers, util.is_hoppish) if plain and type(headers) is list else None
        if lines is None:
            self._lines = None
            return super().start_response(status, headers, exc_info)
        self.status, self.status_code = status, code
        self.headers = headers.copy()
        self._lines, self.response_length = lines
        self.chunked = self.response_length is None
        return self.write

    def send_headers(self) -> None:
        if self._lines is None:
            super().send_headers()
        elif not self.headers_sent:
            connection = "close" if self.should_close() else "keep-alive"
            chunked = "Transfer-Encoding: chunked\r\n" if self.chunked else ""
            head = (
                f"HTTP/1.1 {self.status}\r\nServer: {self.version}\r\nDate: {_date(int(time.time()))}\r\n"
                f"Connection: {connection}\r\n{chunked}{self._lines}\r\n"
            )
            util.write(self.sock, head.encode("latin-1"))
            self.headers_sent = True


def _status_code(status: Any) -> int | None:
    """The code of a status whose answer has a body; None for others."""
    if type(status) is not str or not wsgi.STATUS_RE.fullmatch(status):
        return None
    code = int(status[:3])
    if code < 200 or code in (204, 304):
        return None
    if len(_STATUSES) < _MOST_STATUSES:
        _STATUSES[status] = code
    return code


@functools.lru_cache(maxsize=1)
def _date(second: int) -> str:
    return util.http_date(second)  # type: ignore[no-any-return]


class Front:
    """Makes parsers, and environs with their responses, for one process's settings of gunicorn."""

    def __init__(self, cfg: Any, environ: dict[str, Any], bounds: tuple[int, int, int]) -> None:
        """`environ`: what all requests have. `bounds`: as `native.plain_head` takes them."""
        self.cfg = cfg
        self.environ = environ
        self.bounds = bounds
        self.schemes = {
            f"HTTP_{name.replace('-', '_')}": secure
            for name, secure in cfg.secure_scheme_headers.items()
            if "_" not in name
        }
        self._get_parser = http.get_parser
        self._create = wsgi.create

    def named_schemes(self, environ: dict[str, Any]) -> list[str]:
        """What a proxy's headers say: https or http, each."""
        headers = ((environ[key], secure) for key, secure in self.schemes.items() if key in environ)
        return ["https" if value == secure else "http" for value, secure in headers]

    def get_parser(self, cfg: Any, source: Any, source_addr: Any, http2_connection: bool = False) -> Any:
        if http2_connection or cfg is not self.cfg:
            return self._get_parser(cfg, source, source_addr, http2_connection)
        return PlainParser(self, source, source_addr)

    def create(
        self, req: Any, sock: Any, client: Any, server: Any, cfg: Any, *args: Any, **options: Any
    ) -> Any:
        if type(req) is not PlainRequest:
            return self._create(req, sock, client, server, cfg, *args, **options)
        response, environ = PlainResponse(req, sock, cfg), req.take_environ()
        if isinstance(client, tuple):
            environ["REMOTE_ADDR"] = client[0]
            environ["REMOTE_PORT"] = str(client[1])
        else:
            environ["REMOTE_ADDR"] = client if isinstance(client, str) else client.decode()
        environ["SERVER_NAME"], environ["SERVER_PORT"] = _server(server, environ)
        environ["gunicorn.socket"] = sock
        environ["wsgi.input"] = req.body
        environ["wsgi.early_hints"] = functools.partial(_send_early_hints, req, sock, response)
        return response, environ


def _server(server: Any, environ: dict[str, Any]) -> tuple[str, str]:
    """Name and port of the listener; of a Unix socket, those that the client has named."""
    if not isinstance(server, str):
        return server[0], str(server[1])
    host = environ.get("HTTP_HOST")
    name, *ports = server.split(":")
    if not ports and host:
        name, *ports = host.split(":")
        ports.append(_PORTS[environ["wsgi.url_scheme"]])
    return name, ports[0] if ports else ""


def _send_early_hints(req: Any, sock: Any, response: Any, headers: Any) -> None:
    wsgi._make_early_hints_callback(req, sock, response)(headers)


def install(worker: Any) -> None:
    """From now on gunicorn's `worker` reads plain requests by the core."""
    from gunicorn.workers.base_async import AsyncWorker

    made = front(worker.cfg) if isinstance(worker, AsyncWorker) else None
    if made is not None:
        http.get_parser, wsgi.create = made.get_parser, made.create


def front(cfg: Any) -> Front | None:
    """What takes the place of gunicorn's two functions; None where it cannot."""
    if not _as_expected(cfg):
        return None
    sample = next(RequestParser(cfg, iter([b"GET / HTTP/1.1\r\n\r\n"]), ("", 0)))
    _, environ = wsgi.create(sample, None, ("", 0), ("", 0), cfg)
    if environ.keys() != _KEYS:
        return None
    del environ["REMOTE_PORT"]  # a Unix socket has none
    line = sample.limit_request_line or _LONGEST_LINE
    return Front(cfg, environ, (line, sample.limit_request_fields, sample.limit_request_field_size))


def _as_expected(cfg: Any) -> bool:
    """Whether connections begin with HTTP/1.1 itself, and gunicorn's functions are those that are known."""
    plain = {"protocol": "http", "proxy_protocol": "off", "pre_request": PreRequest.default}
    if os.environ.get("SCRIPT_NAME") or any(
        getattr(cfg, name, None) != value for name, value in plain.items()
    ):
        return False
    if not all(hasattr(owner, name) for owner, name in _USED):
        return False
    return _parameters(http.get_parser) == _GET_PARSER and _parameters(wsgi.create)[: len(_CREATE)] == _CREATE


def _parameters(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)
