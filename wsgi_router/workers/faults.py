"""The failures of a request: at each worker they are one, however many of its calls fail there."""

from __future__ import annotations

from typing import Final

from wsgi_router import runtime
from wsgi_router.workers.breaker import FAULTS
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.worker import Lease, Worker

_LOCK: Final = runtime.brief_lock()
"""Of all requests, as few fail."""


class Faults:
    """Those of one request."""

    __slots__ = ("_pool", "_workers")

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._workers: tuple[Worker, ...] = ()

    def add(self, lease: Lease, code: str = "INTERNAL") -> None:
        """A call has failed with this status of gRPC; as `WorkerPool.blame`, the first time at a worker."""
        if code not in FAULTS:
            return
        with _LOCK:
            if lease.worker in self._workers:
                return
            self._workers += (lease.worker,)
        self._pool.blame(lease, code)

    def __repr__(self) -> str:
        return f"<Faults at {[worker.url for worker in self._workers]}>"
