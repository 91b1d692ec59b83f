"""Under gunicorn's gthread worker, where each request under way holds a thread of its process's pool.

A process whose threads are all taken takes no more connections: they are for the others, which may have free
ones. gunicorn's own would take some thousands, and each would wait for one of the long streams there to end.

And a client that reads nothing keeps its thread in the middle of a write. Python ends no process before its
threads have ended, so such connections are cut in the end.

Nothing of this happens where gunicorn's classes are not as expected.
"""

from __future__ import annotations

import socket
import sys
from typing import Any, Final

from wsgi_router.client_watch import shut_down

_EXPECTED: Final = ("accept", "nr_conns", "keepalived_conns", "pending_conns", "worker_connections")
"""What is used of gunicorn's worker."""


class Connections:
    """Those whose requests are under way, each in a thread."""

    def __init__(self) -> None:
        self._open: set[Any] = set()

    def follow(self, worker: Any) -> None:
        """From now on those of `worker`, which has not begun to accept, are known, and bounded."""
        gthread: Any = sys.modules.get("gunicorn.workers.gthread")
        if gthread is None or not isinstance(worker, gthread.ThreadWorker):
            return
        handle = worker.handle

        def followed(connection: Any) -> object:
            self._open.add(connection)
            try:
                return handle(connection)
            finally:
                self._open.discard(connection)

        worker.handle = followed
        if all(hasattr(worker, name) for name in _EXPECTED):
            worker.__class__ = _bounded(type(worker))

    def cut(self) -> None:
        """Whatever reads or writes there fails at once."""
        for connection in tuple(self._open):
            shut_down(connection.sock, socket.SHUT_RDWR)

    def __repr__(self) -> str:
        return f"<Connections {len(self._open)}>"


def _bounded(base: type[Any]) -> type[Any]:
    """gunicorn's class, which takes connections only while a thread is free for them."""

    class BoundedWorker(base):  # type: ignore[misc]
        @property
        def worker_connections(self) -> int:
            """Of all connections; looked at before each turn that may take one. Idle ones hold no thread."""
            idle = len(self.keepalived_conns) + len(self.pending_conns)
            return int(min(self.cfg.worker_connections, idle + self.cfg.threads))

        def accept(self, listener: Any) -> None:
            """Looks once more: what else was ready in this turn may have taken the last thread."""
            if self.nr_conns < self.worker_connections:
                super().accept(listener)

    return BoundedWorker
