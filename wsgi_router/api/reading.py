"""Bodies that are being read, and the end of those that take too long.

A server's read blocks until it has all it was asked for, and a socket's timeout bounds each wait alone: a
client that sends a byte a minute would hold on for ever. So the receiving half of such a connection is shut
down from outside; the read then ends as if the client had said no more, and the answer can still be sent.
(Not over TLS, which takes the connection for broken.)
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from wsgi_router import runtime


class Reading:
    """A body on its way. `late`: it was cut off."""

    __slots__ = ("due", "late", "sock")

    def __init__(self, sock: Any, due: float) -> None:
        self.sock = sock
        self.due = due
        self.late = False


class Readings:
    """All of this process, by when they are due; one timer for all of them."""

    def __init__(self) -> None:
        self._open: dict[Reading, None] = {}
        self._timer_due = float("inf")
        self._lock = runtime.brief_lock()

    def begin(self, sock: Any, seconds: float) -> Reading:
        """To be ended by `end`, once the body is there."""
        now = time.monotonic()
        reading = Reading(sock, now + seconds)
        with self._lock:
            self._open[reading] = None
            sooner = reading.due < self._timer_due
            if sooner:
                self._timer_due = reading.due
        if sooner:
            runtime.call_later(seconds, self._cut_late)
        return reading

    def end(self, reading: Reading) -> None:
        with self._lock:
            self._open.pop(reading, None)

    def __len__(self) -> int:
        return len(self._open)

    def _cut_late(self) -> None:
        with self._lock:
            now = time.monotonic()
            for reading in [one for one in self._open if one.due <= now]:
                del self._open[reading]
                reading.late = True
                _shut(reading.sock)
            self._timer_due = min((one.due for one in self._open), default=float("inf"))
            pause = self._timer_due - now
        if self._open:
            runtime.call_later(pause, self._cut_late)


def _shut(sock: Any) -> None:
    """Ends receiving. By a copy, since `shutdown` of a TLS socket would end its encryption."""
    with contextlib.suppress(OSError), socket.socket(fileno=socket.dup(sock.fileno())) as copy:
        copy.shutdown(socket.SHUT_RD)


READINGS = Readings()
