"""The workers' own loads: one process asks for them, all go by them.

Policies choose by them, and what is too much for all workers is refused before anything of it is sent.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Final

from google.protobuf.message import DecodeError

from wsgi_router import observability, runtime
from wsgi_router.errors import OverloadedError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers import reports
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.reports import Report, Reported
from wsgi_router.workers.roles import Role
from wsgi_router.workers.transport import RpcFailure, Transport
from wsgi_router.workers.worker import Worker

_LOG = logging.getLogger(__name__)
_UNABLE_SECONDS: Final = 60.0
"""A worker that does not know the question is asked again after so long: it may have been replaced."""
_LEAST_TIMEOUT: Final = 1.0
_ALONE: Final = (frozenset({Role.REGULAR}),)
_PAIR: Final = (frozenset({Role.PREFILL}), frozenset({Role.DECODE}))


class WorkerLoads:
    """Asks the workers every LOADS_INTERVAL seconds, if this process leads. One for each process."""

    def __init__(self, pool: WorkerPool, transport: Transport, settings: Settings) -> None:
        self._pool = pool
        self._transport = transport
        self._interval = settings.loads_interval
        self._timeout = min(max(self._interval, _LEAST_TIMEOUT), settings.health_timeout)
        self._most_waiting = settings.shed_waiting_requests
        self._most_tokens = settings.shed_token_usage
        self._reports = reports.current()
        self._written: set[int] = set()
        self._asking: set[Worker] = set()
        self._unable: dict[Worker, float] = {}  # until when
        self._asks = runtime.PeriodicTask("asking the workers for their loads", self.turn, self._interval)

    def start(self) -> None:
        """Begins to ask. Once, after the fork."""
        self._asks.start()

    def close(self) -> None:
        self._asks.stop()

    @property
    def sheds(self) -> bool:
        """Whether any load is too much."""
        return bool(self._most_waiting or self._most_tokens)

    def check(self, model: str) -> None:
        """Raises OverloadedError if all workers that may be asked for `model` are full; NoWorkerError.

        Of pairs it is enough that all of one half are. One that does not tell its load is never full.
        """
        sides = _PAIR if self._pool.apart(model) else _ALONE
        for side in sides:
            if all(self._full(worker) for worker in self._pool.candidates(model, roles=side)):
                observability.metrics().count_refusal(OverloadedError.code)
                raise OverloadedError(max(math.ceil(self._interval), 1))

    def _full(self, worker: Worker) -> bool:
        report = None if worker.reported is None else worker.reported.latest()
        if report is None:
            return False
        if self._most_tokens and report.token_usage >= self._most_tokens:
            return True
        if not self._most_waiting:
            return False
        # What was sent there since waits, too, but for what could begin at once.
        since = worker.load - report.ours - report.free
        return report.waiting + max(since, 0) >= self._most_waiting

    def turn(self) -> None:
        """Asks each worker that may be asked, but for those that still owe an answer."""
        workers = self._pool.workers
        for worker in workers:
            if worker.reported is None:
                worker.reported = Reported(self._reports, worker.column, self._interval)
        if not self._pool.leads():
            return
        for column in self._written - {worker.column for worker in workers}:  # others' are not ours to clear
            self._written.discard(column)
            self._reports.clear(column)
        now = time.monotonic()
        self._unable = {worker: until for worker, until in self._unable.items() if until > now}
        for worker in workers:
            if worker.usable() and worker not in self._asking and worker not in self._unable:
                runtime.spawn_noted(self._asking, worker, self._ask)

    def _ask(self, worker: Worker) -> None:
        before = worker.load
        try:
            answer = self._transport.unary(worker, "GetLoads", b"", self._timeout)
            found = pb.GetLoadsResponse.FromString(answer)
            if found.loads:
                self._written.add(worker.column)
                self._reports.put(worker.column, _report(found, max(before, worker.load)))
        except RpcFailure as failure:
            self._failed(worker, failure)
        except (DecodeError, ValueError, OverflowError) as error:
            _LOG.debug("worker %s has told no load: %r", worker.url, error)
        finally:
            self._asking.discard(worker)

    def _failed(self, worker: Worker, failure: RpcFailure) -> None:
        """Of its health others take care; figures that do not come grow old."""
        _LOG.debug("worker %s has told no load: %s", worker.url, failure)
        if failure.code == "UNIMPLEMENTED":
            self._unable[worker] = time.monotonic() + _UNABLE_SECONDS
            self._reports.clear(worker.column)

    def __repr__(self) -> str:
        return f"<WorkerLoads every {self._interval:g} s {self._reports!r}>"


_ANY: Final = 2**31


def _free(load: pb.SchedulerLoad) -> int:
    most = load.max_running_requests
    return max(most - load.num_running_reqs, 0) if most > 0 else _ANY


def _report(answer: pb.GetLoadsResponse, ours: int) -> Report:
    """The sum over a worker's data-parallel ranks; of `token_usage` the mean."""
    loads = answer.loads
    running = sum(load.num_running_reqs for load in loads)
    waiting = sum(load.num_waiting_reqs for load in loads)
    free = sum(_free(load) for load in loads)
    usage = sum(load.token_usage for load in loads) / len(loads)
    return Report(waiting, 0 if waiting else free, usage, ours, max(running + waiting - ours, 0))
