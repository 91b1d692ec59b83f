"""Bodies that are being read, and the end of those that take too long.

A server's read blocks until it has all it was asked for, and a socket's timeout bounds each wait alone: a
client that sends a byte a minute would hold on for ever. So the receiving half of such a connection is shut
down from outside; the read then ends as if the client had said no more, and the answer can still be sent.
(Not over TLS, which takes the connection for broken.)
"""

from __future__ import annotations

import socket
from typing import Any, Final

from wsgi_router.client_watch import shut_down
from wsgi_router.deadlines import Deadlines


class Reading:
    """A body on its way. `late`: it was cut off."""

    __slots__ = ("late", "sock")

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.late = False

    def cut(self) -> None:
        """Ends receiving."""
        self.late = True
        shut_down(self.sock, socket.SHUT_RD)


READINGS: Final = Deadlines(Reading.cut)
"""All of this process."""
