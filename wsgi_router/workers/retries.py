"""Whether another worker is asked after a failure, and when: attempts, pauses, and a budget for all of them.

Without a budget an outage would be multiplied: where every request fails, every one is sent several times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence, Sized
from typing import Final

from wsgi_router import observability
from wsgi_router.errors import RouterError, UpstreamError
from wsgi_router.settings import Settings
from wsgi_router.workers.worker import Worker

FIRST_PAUSE: Final = 0.05
PAUSE_GROWTH: Final = 1.5
_WINDOW_SECONDS: Final = 10.0
_FREE: Final = 100.0
"""Retries in the window that need no requests to pay for them, so that a worker's end costs few answers."""
_GRAIN_SECONDS: Final = 0.1


def found_down() -> UpstreamError:
    """How a request has failed that waited for a worker which was found down."""
    return UpstreamError.from_grpc("UNAVAILABLE", "")


class Retries:
    """The rules of a process. Times by time.monotonic."""

    def __init__(self, settings: Settings) -> None:
        self.attempts = settings.retry_attempts
        self._share = settings.retry_budget
        self._requests = 0.0  # both of about the last ten seconds, older ones weigh less
        self._retries = 0.0
        self._at = 0.0

    def count(self, requests: int, now: float) -> None:
        """Takes new requests in."""
        self._age(now)
        self._requests += requests

    def allow(self, error: RouterError, tried: Sized, now: float) -> bool:
        """Whether one more worker may be asked after those that were `tried`; counts it then."""
        if not self.attempts_left(error, tried):
            return False
        allowed = self.spend(now)
        if not allowed:
            observability.metrics().retry_budget_exhausted.inc()
        return allowed

    def attempts_left(self, error: RouterError, tried: Sized) -> bool:
        """Whether one more worker may be asked, but for the budget."""
        return self._share > 0 and error.failover and len(tried) < self.attempts

    def spend(self, now: float) -> bool:
        """Whether the budget has room for one more attempt; counts it then."""
        self._age(now)
        if self._retries + 1 > self._share * self._requests + _FREE:
            return False
        self._retries += 1
        return True

    def leave(self, tried: Sequence[Worker], other: bool, now: float) -> bool | None:
        """What becomes of a request that waits for the last of those that were `tried`, which was found down.

        `other`: somebody else is there. True: it goes there, and is counted; False: it fails; None: it stays.

        Where the worker's front answers the engine may have too much to do for a check, with this very prompt
        perhaps; so a request stays if nobody else may be asked. Without a budget it stays, too, and is to be
        asked about again.
        """
        if other and self.attempts_left(found_down(), tried):
            return True if self.spend(now) else None
        return False if tried[-1].gone else None

    @staticmethod
    def pause(tried: Sized) -> float:
        """Seconds to wait before the next attempt: those that failed at once do not come back at once."""
        longest = FIRST_PAUSE * PAUSE_GROWTH ** (len(tried) - 1)
        return longest * random.uniform(0.5, 1)

    def _age(self, now: float) -> None:
        passed = now - self._at
        if passed >= _GRAIN_SECONDS:
            rest = math.exp(-passed / _WINDOW_SECONDS)
            self._requests *= rest
            self._retries *= rest
            self._at = now

    def __repr__(self) -> str:
        return f"<Retries {self._retries:.0f} of {self._requests:.0f} requests>"
