"""How one worker is chosen among those that may be asked."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from wsgi_router.workers.worker import Worker

Hints = Mapping[str, str]
"""What a policy may steer by (prompt_cache_key, session id …); none of the policies here looks at it."""


class Policy(Protocol):
    """One method; `workers` is never empty."""

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker: ...


class Random:
    """Any, with equal chance."""

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        return random.choice(workers)


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        return workers[next(self._count) % len(workers)]


class LeastLoad:
    """The one with the fewest requests in flight, of all processes; among equals one after the other."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        loads = [worker.load for worker in workers]
        least = min(loads)
        idlest = [worker for worker, load in zip(workers, loads, strict=True) if load == least]
        return idlest[next(self._count) % len(idlest)]


POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "random": Random,
    "round_robin": RoundRobin,
    "least_load": LeastLoad,
}
