"""Calls that have said their last and have not ended yet."""

from __future__ import annotations

import time
from typing import Protocol

from wsgi_router import runtime
from wsgi_router.workers.transport import Call, MessageStream


class _Ending(Protocol):
    """What is looked at of a choice."""

    stream: MessageStream | Call | None


class Endings:
    """Choices whose RPC has to end by itself within `seconds`, or is cancelled; one timer for all of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[_Ending, float] = {}  # in the order of time
        self._timed = False
        self._lock = runtime.brief_lock()

    def watch(self, choice: _Ending) -> None:
        with self._lock:
            if choice.stream is None:
                return
            self._due[choice] = time.monotonic() + self._seconds
            start, self._timed = not self._timed, True
        if start:
            runtime.call_later(self._seconds, self._look)

    def forget(self, choice: _Ending) -> None:
        """The RPC of `choice` has ended: its stream is None."""
        with self._lock:
            self._due.pop(choice, None)

    def __len__(self) -> int:
        return len(self._due)

    def _look(self) -> None:
        late: list[MessageStream | Call] = []
        now, pause = time.monotonic(), 0.0
        with self._lock:
            for choice, due in list(self._due.items()):
                if due > now:
                    pause = due - now
                    break
                del self._due[choice]
                if choice.stream is not None:
                    late.append(choice.stream)
            self._timed = bool(self._due)
            timed = self._timed
        for stream in late:
            stream.close()
        if timed:
            runtime.call_later(pause, self._look)
