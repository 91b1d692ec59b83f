"""Under gunicorn's gevent worker: new connections go to the processes that have less in hand.

All processes accept from one listening socket, and a connection wakes them all; whoever the kernel lets run
first has it. With long streams that adds up: some processes end with twice as many as others. So a process
that has more than the mean leaves a connection to the others for a moment. If it is still there then, they
are busy or frozen, and the process takes it after all; so a client never waits for longer than that moment,
and no process ever stops accepting.

What is to be even is the number of connections with a request in hand: streams above all, as they last. One
that idles between two requests costs nothing; one that was just accepted counts, as its request is on the
way, else a burst of connections would be taken before the first of them is seen.

Nothing of this happens where gunicorn's or gevent's classes are not as expected.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from wsgi_router.peers import Field, Peers

LONGEST_PAUSE: Final = 0.01
"""Seconds for which a connection is left to the others at most."""
_LEAST_PAUSE: Final = 0.002
"""More than an idle process takes to wake up."""
_PAUSE_PER_EXCESS: Final = 0.1
"""Seconds more for one that has twice the mean: others may be slow to wake up, on a busy machine."""
FEW: Final = 8
"""A process with fewer requests than this takes whatever comes."""
_SLACK: Final = 2
_TOLERANCE: Final = 0.02
"""Above the mean, of it, that a process may be without giving way."""
_EXPECTED: Final = ("_do_read", "stop_accepting", "_start_accepting_if_started")
"""What is used of gevent's BaseServer."""


class InHand:
    """Connections of this process with a request in hand, or about to send their first one."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._fresh: set[Any] = set()
        self.count = 0

    def counting(
        self, handle: Callable[..., object], handle_request: Callable[..., object]
    ) -> tuple[Callable[..., object], Callable[..., object]]:
        """gunicorn's two methods, called for each connection and for each request on it, that count."""
        fresh = self._fresh

        def connection(listener: Any, client: Any, address: Any) -> object:
            fresh.add(client)
            self._add(1)
            try:
                return handle(listener, client, address)
            finally:
                if client in fresh:
                    fresh.discard(client)
                    self._add(-1)

        def request(listener: Any, message: Any, client: Any, address: Any) -> object:
            if client in fresh:  # it is counted already
                fresh.discard(client)
            else:
                self._add(1)
            try:
                return handle_request(listener, message, client, address)
            finally:
                self._add(-1)

        return connection, request

    def pause(self) -> float:
        """Seconds for which to leave connections to others, which have less in hand; 0 if they have not."""
        if self.count < FEW:
            return 0.0
        peers = self._peers
        accepts, busy = peers.column(Field.ACCEPTS), peers.column(Field.BUSY)
        rows = [row for row in peers.alive() if accepts[row]]
        if peers.row not in rows:
            return 0.0
        mean = sum(busy[row] for row in rows) / len(rows)
        excess = self.count - mean
        if excess <= max(_SLACK, _TOLERANCE * mean):
            return 0.0
        return min(_LEAST_PAUSE + _PAUSE_PER_EXCESS * excess / mean, LONGEST_PAUSE)

    def _add(self, count: int) -> None:
        self.count += count
        self._peers.add(Field.BUSY, count)

    def __repr__(self) -> str:
        return f"<InHand {self.count}>"


class Turns:
    """When to leave a connection to the others; `pause` says for how long."""

    def __init__(self, pause: Callable[[], float]) -> None:
        self._pause = pause
        self._until = -math.inf

    def give_way(self, now: float) -> float:
        """A connection is there: for how long to leave it, 0 to take it. After a pause the next is taken."""
        if now < self._until + LONGEST_PAUSE:
            self._until = -math.inf
            return 0.0
        pause = self._pause()
        if pause:
            self._until = now + pause
        return pause


def spread(worker: Any, peers: Peers) -> InHand | None:
    """From now on gunicorn's `worker`, which has not begun to accept, gives way; None if it cannot.

    It makes its server itself, of the class that its module names.
    """
    ggevent: Any = sys.modules.get("gunicorn.workers.ggevent")
    if peers.alone or peers.row is None or ggevent is None or not isinstance(worker, ggevent.GeventWorker):
        return None
    from gevent.server import StreamServer

    known = getattr(ggevent, "StreamServer", None) is StreamServer
    if not known or not all(hasattr(StreamServer, name) for name in _EXPECTED):
        return None
    mine = InHand(peers)
    worker.handle, worker.handle_request = mine.counting(worker.handle, worker.handle_request)
    ggevent.StreamServer = _server_class(StreamServer, mine)
    return mine


def _server_class(base: type[Any], mine: InHand) -> type[Any]:
    """gevent's server, which leaves connections to other processes while this one has more than they."""

    class SpreadingServer(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._turns = Turns(mine.pause)
            super().__init__(*args, **options)

        def _do_read(self) -> None:
            pause = self._turns.give_way(time.monotonic())
            if pause:
                self.stop_accepting()
                self._timer = self.loop.timer(pause)
                self._timer.start(self._start_accepting_if_started)
            else:
                super()._do_read()

    return SpreadingServer
