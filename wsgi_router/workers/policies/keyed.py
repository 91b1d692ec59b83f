"""Policies that bring requests with something in common to one worker, whose cache has their prefix."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from wsgi_router.settings import Settings
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.policies import rendezvous
from wsgi_router.workers.policies.policy import Policy
from wsgi_router.workers.policies.spreading import LeastLoad
from wsgi_router.workers.worker import Worker

MOST_KEYS: Final = 100_000
"""Keys that a process remembers, of about 300 bytes each; those unused for the longest time go first."""


def key_of(text: str) -> bytes:
    return rendezvous.digest(text.encode("utf-8", "surrogatepass"))


class ConsistentHashing(Policy):
    """The worker that the key prefers of those that are there; without a key the least loaded one."""

    reads_key = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._keyless = LeastLoad(settings)

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        if not hints.key:
            return self._keyless.select(workers, hints)
        return rendezvous.first(key_of(hints.key), workers)


class Sticky(Policy):
    """The worker that the key had last, as long as it is there; without a key the least loaded one.

    A new key goes where `ConsistentHashing` would send it, so that processes, which remember keys each for
    itself, agree on it while the workers are the same. When one joins, a process that has not seen a key yet
    may send it there, while another one keeps it where it was.
    """

    reads_key = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._keyless = LeastLoad(settings)
        self._kept: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """A key's worker, by URL, and when it was asked for; the latest last."""
        self._lock = threading.Lock()

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        if not hints.key:
            return self._keyless.select(workers, hints)
        key, now = key_of(hints.key), time.monotonic()
        with self._lock:
            self._forget(now - self._settings.sticky_idle_timeout)
            url, _ = self._kept.get(key, ("", now))
            worker = next((one for one in workers if one.url == url), None)
            worker = worker or rendezvous.first(key, workers)
            self._kept[key] = worker.url, now
            self._kept.move_to_end(key)
            if len(self._kept) > MOST_KEYS:
                self._kept.popitem(last=False)
        return worker

    def _forget(self, before: float) -> None:
        """Drops the keys that nobody has asked for since `before`."""
        while self._kept and next(iter(self._kept.values()))[1] < before:
            self._kept.popitem(last=False)

    def __repr__(self) -> str:
        return f"<Sticky keys={len(self._kept)}>"


class PrefixHash(Policy):
    """The worker that the prompt's first tokens prefer, or the next in their order that has room.

    Bounded loads: with the request, none has more than PREFIX_HASH_LOAD_FACTOR times the mean, rounded up.
    """

    reads_prefix = True
    bounded = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._tokenless = LeastLoad(settings)

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        if not hints.prefix:
            return self._tokenless.select(workers, hints)
        loads = {worker: worker.load for worker in workers}  # once: they change under other threads
        mean = (sum(loads.values()) + 1) / len(workers)
        most = math.ceil(mean * self._settings.prefix_hash_load_factor)
        # As the factor is 1 at least, the least loaded one always has room.
        key = rendezvous.digest(hints.prefix)
        return next(worker for worker in rendezvous.ordered(key, workers) if loads[worker] < most)
