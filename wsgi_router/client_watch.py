"""The client's connection, watched for its end while a request is answered."""

from __future__ import annotations

import _socket
import contextlib
import struct
from collections.abc import Mapping
from typing import Any, Final

from wsgi_router import runtime

_POLL_SECONDS: Final = 0.5
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""A struct linger: what is not sent when the socket is closed is dropped."""


class ClientWatch:
    """Notices that the client of a WSGI request has closed its connection.

    Works where the server lends its socket (`gunicorn.socket`). Under gevent the hub tells at once;
    elsewhere, and once bytes of a next request have come, `poll_seconds` says how often to call `poll`.
    """

    __slots__ = (
        "_lent",
        "_multiplexed",
        "_next_look",
        "_socket",
        "_subscriber",
        "_watcher",
        "gone",
        "poll_seconds",
    )

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self.gone = False
        self.poll_seconds: float | None = None
        self._next_look = 0.0
        self._subscriber: runtime.Wakeup | None = None
        self._watcher: Any = None
        self._socket: _socket.socket | None = None
        self._lent: Any = None
        self._multiplexed = environ.get("HTTP_VERSION") == "2"
        lent = environ.get("gunicorn.socket")
        if lent is None or lent.fileno() < 0:
            return
        self._lent = lent
        if runtime.patched():
            import gevent

            self._watcher = gevent.get_hub().loop.io(lent.fileno(), 1)
            self._watcher.start(self._readable)
        else:
            self.poll_seconds = _POLL_SECONDS

    @property
    def connection(self) -> Any:
        """The server's socket, if it lends that and no other request has it too; None once this is closed."""
        return None if self._multiplexed else self._lent

    def subscribe(self, subscriber: runtime.Wakeup | None) -> None:
        """`subscriber` is set when the client goes; one at a time."""
        self._subscriber = subscriber
        if self.gone and subscriber is not None:
            subscriber.set()

    def check(self) -> bool:
        """Looks at the socket now; returns `gone`. Never blocks."""
        own = self._own_socket()
        if own is not None and not self.gone:
            state = _peek(own)
            if state == _EOF or (state == _BYTES and _peer_has_closed(own)):
                self._set_gone()
        return self.gone

    def _own_socket(self) -> _socket.socket | None:
        """On the same descriptor: peeks below TLS, is never patched, and never closes it.

        Made when it is first needed, which it mostly never is: that takes three calls of the system.
        """
        lent = self._lent
        if self._socket is None and lent is not None and (descriptor := lent.fileno()) >= 0:
            self._socket = _socket.socket(lent.family, lent.type, lent.proto, fileno=descriptor)
        return self._socket

    def poll(self, now: float) -> None:
        """`check()`, but only if the last look is `poll_seconds` old; `now` by time.monotonic."""
        if now >= self._next_look:
            self._next_look = now + _POLL_SECONDS
            self.check()

    def close(self) -> None:
        """Stops watching; to be called before the server closes the socket. Idempotent."""
        self._subscriber = None
        self._stop_watcher()
        self._lent = None
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def _readable(self) -> None:
        self.check()
        own = self._own_socket()
        if not self.gone and own is not None and _peek(own) == _BYTES:
            # A level-triggered watcher would fire for ever over bytes nobody reads yet.
            self._stop_watcher()
            self.poll_seconds = _POLL_SECONDS
            if self._subscriber is not None:
                self._subscriber.set()

    def _set_gone(self) -> None:
        self.gone = True
        self._stop_watcher()
        if self._subscriber is not None:
            self._subscriber.set()

    def _stop_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "gone" if self.gone else "watched" if self._lent is not None else "unwatched"
        return f"<ClientWatch {state}>"


def cut(connection: Any) -> None:
    """Ends a client's connection under whoever is sending, who fails by that. What was not sent is lost."""
    shut_down(connection, _socket.SHUT_RDWR, drop=True)


def shut_down(connection: Any, how: int, *, drop: bool = False) -> None:
    """Shuts a connection of the server's down, `how` as for `socket.shutdown`, under whoever uses it.

    Below TLS, which would wait or end its encryption, and below gevent, which would have a reader fail where
    it is to see the end. `drop`: what was not sent is lost. To be called before the server closes the socket;
    takes no lock, as it may be in a signal's handler, and neither blocks nor raises.
    """
    descriptor = connection.fileno()
    if descriptor < 0:
        return
    with contextlib.suppress(OSError):  # it is broken already
        own = _socket.socket(fileno=descriptor)
        try:
            if drop:
                own.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, _AT_ONCE)
            own.shutdown(how)
        finally:
            own.detach()


_EOF: Final = "eof"
_BYTES: Final = "bytes"
_NOTHING: Final = "nothing"
_TCP_ESTABLISHED: Final = 1


def _peek(sock: _socket.socket) -> str:
    try:
        data = sock.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return _NOTHING
    except OSError:
        return _EOF
    return _BYTES if data else _EOF


def _peer_has_closed(sock: _socket.socket) -> bool:
    """Behind unread bytes a FIN cannot be peeked; the kernel's state of the connection tells."""
    try:
        return sock.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, 1)[0] != _TCP_ESTABLISHED
    except (OSError, AttributeError):
        return False
