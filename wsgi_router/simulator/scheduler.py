"""Who runs and who waits: slots, cache room and the prefill line of the simulated engine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wsgi_router.simulator.cache import BlockCache, Lease

RATE_WINDOW = 5


@dataclass(slots=True)
class Waiter:
    """A request in the queue; ``granted`` is given its lease."""

    ids: Sequence[int]
    tokens: int
    limit: int
    granted: asyncio.Future[Lease]


class Scheduler:
    """Admits in order of arrival while a slot and room in the cache are free; prefills one at a time."""

    def __init__(self, cache: BlockCache, max_running: int) -> None:
        self.cache = cache
        self.max_running = max_running
        self.running = 0
        self._waiting: deque[Waiter] = deque()
        self._prefill = asyncio.Lock()
        self._rate = TokenRate()

    def __repr__(self) -> str:
        return f"<Scheduler running={self.running}/{self.max_running} waiting={self.waiting} {self.cache!r}>"

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def waiting_uncached(self) -> int:
        """Prompt tokens in the queue that are not cached."""
        size = self.cache.block_size
        return sum(len(w.ids) - size * len(self.cache.matched(w.ids, w.limit)) for w in self._waiting)

    @property
    def throughput(self) -> float:
        """Tokens a second, of late."""
        return self._rate.per_second()

    async def admit(self, ids: Sequence[int], tokens: int, limit: int) -> Lease:
        """Wait for a slot and room for ``tokens``; cancelled in the queue, the request leaves it."""
        waiter = Waiter(ids, tokens, limit, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._advance()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.release(waiter.granted.result())
            else:
                # It may have been the head, and what kept the others waiting.
                self._advance()
            raise

    def release(self, lease: Lease) -> None:
        """Give slot and room back; the next in line gets them."""
        self.running -= 1
        self.cache.release(lease)
        self._advance()

    async def prefill(self, seconds: Callable[[], float]) -> None:
        """Take the engine for a prompt's computation, after those before it; for how long is asked then."""
        async with self._prefill:
            await asyncio.sleep(seconds())

    def count(self, tokens: int) -> None:
        """Note tokens given."""
        self._rate.add(tokens)

    def _advance(self) -> None:
        # Who was cancelled is still in line until here, and may not be given anything.
        if any(waiter.granted.cancelled() for waiter in self._waiting):
            self._waiting = deque(waiter for waiter in self._waiting if not waiter.granted.cancelled())
        while self._waiting and self.running < self.max_running:
            waiter = self._waiting[0]
            lease = self.cache.lease(waiter.ids, waiter.tokens, waiter.limit)
            if lease is None:
                return
            self._waiting.popleft()
            self.running += 1
            waiter.granted.set_result(lease)


class TokenRate:
    """Tokens a second over the last whole seconds."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque(maxlen=RATE_WINDOW + 1)

    def add(self, tokens: int) -> None:
        """Count tokens of this moment."""
        second = int(time.monotonic())
        if self._buckets and self._buckets[-1][0] == second:
            tokens += self._buckets.pop()[1]
        self._buckets.append((second, tokens))

    def per_second(self) -> float:
        """Mean over the window."""
        oldest = int(time.monotonic()) - RATE_WINDOW
        return sum(tokens for second, tokens in self._buckets if second > oldest) / RATE_WINDOW
