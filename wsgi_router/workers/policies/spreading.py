"""Policies that spread requests, whatever these are about."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from wsgi_router.settings import Settings
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.policies.policy import Policy
from wsgi_router.workers.worker import Worker


class Random(Policy):
    """Any, with equal chance."""

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        return random.choice(workers)


class RoundRobin(Policy):
    """One after the other."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._count = itertools.count()

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        return workers[next(self._count) % len(workers)]


class PowerOfTwo(Policy):
    """The less loaded of two that chance picks.

    Where several routers share workers and each knows its own requests alone, they do not all take the same
    one to be the idlest.
    """

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        if len(workers) == 1:
            return workers[0]
        one, other = random.sample(workers, 2)
        return one if one.load_with_others <= other.load_with_others else other


class LeastLoad(Policy):
    """The one with the fewest requests; among equals one after the other."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._count = itertools.count()

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        loads = [worker.load_with_others for worker in workers]  # once: they change under other threads
        least = min(loads)
        idlest = [worker for worker, load in zip(workers, loads, strict=True) if load == least]
        return idlest[next(self._count) % len(idlest)]
