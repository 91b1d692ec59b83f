"""How many calls may run at once, and who waits for one of them to end."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from wsgi_router import runtime
from wsgi_router.workers.transport import Cancel, RpcFailure

_MOST_OF_IT: Final = 0.9


def _too_many() -> RpcFailure:
    return RpcFailure("RESOURCE_EXHAUSTED", "too many calls to workers at once")


class _Turn:
    """Somebody's, who waits."""

    __slots__ = ("come", "wakeup")

    def __init__(self) -> None:
        self.come = False
        self.wakeup = runtime.wakeup()


class Slots:
    """So many calls at once. Those that wait get the free ones in the order in which they came."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[_Turn] = deque()
        self._lock = runtime.brief_lock()

    @contextlib.contextmanager
    def held(self, timeout: float, cancel: Cancel | None = None) -> Iterator[float]:
        """Within, a slot is held; gives what is left of `timeout`, in seconds, after the wait for one.

        Raises RpcFailure: RESOURCE_EXHAUSTED if none was free in time, or the wait has left the call too
        little; CANCELLED once `cancel` was called.
        """
        due = time.monotonic() + timeout
        self._take(timeout, cancel or Cancel())
        left = max(due - time.monotonic(), 0.0)
        try:
            yield left
        except RpcFailure as failure:
            if failure.code == "DEADLINE_EXCEEDED" and left < _MOST_OF_IT * timeout:
                raise _too_many() from None  # which says nothing of the worker
            raise
        finally:
            self._give_back()

    def _take(self, timeout: float, cancel: Cancel) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = _Turn()
            self._waiting.append(turn)
        try:
            with cancel.calling(turn.wakeup.set):
                turn.wakeup.wait(timeout)
        except BaseException:
            if not self._leave(turn):
                self._give_back()
            raise
        if self._leave(turn):
            if cancel.called:
                raise RpcFailure("CANCELLED", "nobody waits for the answer")
            raise _too_many()

    def _leave(self, turn: _Turn) -> bool:
        """Ends a wait; False if a slot was given to it."""
        with self._lock:
            if not turn.come:
                self._waiting.remove(turn)
            return not turn.come

    def _give_back(self) -> None:
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            turn = self._waiting.popleft()
            turn.come = True
        turn.wakeup.set()

    def __repr__(self) -> str:
        return f"<Slots free={self._free} waiting={len(self._waiting)}>"
