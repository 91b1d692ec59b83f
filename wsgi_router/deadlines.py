"""Things that have to be over at a moment, with one timer for all of them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from wsgi_router import runtime

_LOG = logging.getLogger(__name__)

T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """Calls `late(thing)` for what was added and not discarded in time.

    If it returns seconds, `thing` is there still, and late again in so many. `late` runs under the lock, so
    that nothing is called late once `discard` has returned; it must not block, nor come back here.
    """

    def __init__(self, late: Callable[[T], float | None]) -> None:
        self._late = late
        self._due: dict[T, float] = {}
        self._timer_due = math.inf
        self._lock = threading.Lock()

    def add(self, thing: T, seconds: float) -> None:
        """`thing` is late in `seconds`."""
        due = time.monotonic() + seconds
        with self._lock:
            self._due[thing] = due
            sooner = due < self._timer_due
            if sooner:
                self._timer_due = due
        if sooner:
            self._look_in(seconds)

    def discard(self, thing: T) -> None:
        """`thing` is over. Also for what was never added, or is late already."""
        with self._lock:
            self._due.pop(thing, None)

    def __len__(self) -> int:
        return len(self._due)

    def _look(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._timer_due:  # a sooner one has looked in between, and has set the next
                return
            for thing in [thing for thing, due in self._due.items() if due <= now]:
                del self._due[thing]
                try:
                    again = self._late(thing)
                    if again is not None:
                        self._due[thing] = now + again
                except Exception:  # the others are to be over in time all the same
                    _LOG.exception("ending what was late failed")
            next_due = self._timer_due = min(self._due.values(), default=math.inf)
        if next_due < math.inf:
            self._look_in(next_due - now)

    def _look_in(self, seconds: float) -> None:
        try:
            runtime.call_later(seconds, self._look)
        except BaseException:  # no thread is to be had: the next one to be added tries again
            self._timer_due = math.inf
            raise

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self._due)}>"
