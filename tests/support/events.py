"""A sink that keeps what a transport pushes."""

from __future__ import annotations

import time
from typing import Any

from wsgi_router import runtime
from wsgi_router.workers.transport import RpcFailure


class Events:
    """See `transport.Sink`. `items`: messages, and flags as ints."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.broken: list[bytes] = []
        self.blocks = 0
        self.ends: list[RpcFailure | None] = []
        self.silent = False
        self._wakeup = runtime.wakeup()

    def fed(self, flags: int, message: bytes | None) -> None:
        self.items.append(flags)
        if message is not None:
            self.broken.append(message)
        self._wakeup.set()

    def message(self, message: bytes) -> None:
        self.items.append(message)
        self._wakeup.set()

    def blocked(self) -> None:
        self.blocks += 1
        self._wakeup.set()

    def ended(self, failure: RpcFailure | None, silent: bool) -> None:
        self.ends.append(failure)
        self.silent = silent
        self._wakeup.set()

    def end(self, seconds: float = 20) -> RpcFailure | None:
        """Waits for the end."""
        deadline = time.monotonic() + seconds
        while not self.ends:
            assert self._wakeup.wait(deadline - time.monotonic()), "no end"
        assert len(self.ends) == 1
        return self.ends[0]

    def wait_for(self, count: int, seconds: float = 20) -> None:
        """Waits for so many items."""
        deadline = time.monotonic() + seconds
        while len(self.items) < count:
            assert self._wakeup.wait(deadline - time.monotonic()), f"nothing more came: {self.ends}"
