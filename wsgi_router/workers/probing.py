"""Asks workers whether they are there; each is asked by one process (`WorkerPool`).

What a worker serves (GetModelInfo) is the cheapest question. A live front answers it though the engine behind
it stands still, so that one has to prove itself: by a request that begins or ends well, in any process, or
else by HealthCheck, which costs it a token and may take a second. That is asked of a worker that is to come
up again, and of one whose engine was not seen at work for ENGINE_CHECK_INTERVAL.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.message import DecodeError

from wsgi_router import observability, runtime
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.breaker import SEEN, Event, State
from wsgi_router.workers.transport import RpcFailure, Transport
from wsgi_router.workers.worker import Worker

_LOG = logging.getLogger(__name__)

_IDLE_INTERVALS: Final = 5
"""Health intervals after which a worker that is up, and was not heard of, is asked again."""


class _EngineLateError(Exception):
    """A worker answers, and its engine does not."""


class _EngineRefusedError(RpcFailure):
    """A worker answers, and asking its engine failed."""


class _UnhealthyError(Exception):
    """A worker says that it is not well."""


class Prober:
    """Begins probes when they are due, one of a worker at a time.

    `sees_to(worker)`: whether this process still does. `answered(worker, answer)` takes in a
    GetModelInfoResponse; `ended()` is called after each probe.
    """

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        sees_to: Callable[[Worker], bool],
        answered: Callable[[Worker, bytes], object],
        ended: Callable[[], object],
    ) -> None:
        self._transport = transport
        self._timeout = settings.health_timeout
        self._interval = settings.health_interval
        self._engine_interval = settings.engine_check_interval
        self._sees_to = sees_to
        self._answered = answered
        self._ended = ended
        self._due: dict[Worker, float] = {}  # those whose last probe failed; by time.monotonic
        self._suspects: set[Worker] = set()  # those whose suspicion has been acted on
        self.under_way: set[Worker] = set()
        """Workers that are being asked."""

    def look(self, workers: Iterable[Worker]) -> float:
        """Begins the probes that are due; returns the seconds until the next one may be."""
        now = time.monotonic()
        pause = math.inf
        for worker in workers:
            if worker in self.under_way:
                continue  # its end is told
            due = self._next(worker)
            if due > now:
                pause = min(pause, due - now)
            else:
                runtime.spawn_noted(self.under_way, worker, self._probe)
        return pause

    def forget(self, worker: Worker) -> None:
        """The worker is served no more."""
        self._due.pop(worker, None)
        self._suspects.discard(worker)

    def heard(self, worker: Worker) -> float:
        """When any process heard of it, by time.monotonic."""
        return max(worker.heard, self._transport.heard(worker), worker.record.heard)

    def _next(self, worker: Worker) -> float:
        state = worker.state
        if state is not State.SUSPECT:
            self._suspects.discard(worker)
        elif worker not in self._suspects:  # somebody's request has just failed
            self._suspects.add(worker)
            return -math.inf
        if state is State.UP:
            idle = self.heard(worker) + _IDLE_INTERVALS * self._interval
            return max(min(idle, self._proof_due(worker)), self._due.get(worker, -math.inf))
        return self._due.get(worker, -math.inf)

    def _proof_due(self, worker: Worker) -> float:
        return max(worker.proved, worker.record.proved) + self._engine_interval

    def _probe(self, worker: Worker) -> None:
        asked = time.monotonic()
        try:
            answer = self._transport.unary(worker, "GetModelInfo", _WHICH, self._timeout)
            self._prove(worker, asked)
            if self._sees_to(worker):  # else the one that does may know better by now
                self._well(worker, answer)
        except Exception as error:  # whatever it is, the worker is asked again
            if self._sees_to(worker):
                self._failed(worker, error, asked)
        finally:
            worker.record.set_asked()
            self.under_way.discard(worker)
            self._ended()

    def _prove(self, worker: Worker, now: float) -> None:
        """Has the engine prove itself, if it has to. Raises RpcFailure and what is said above."""
        state = worker.state
        if state is State.UNKNOWN or (state is State.UP and self._proof_due(worker) > now):
            return
        try:
            answer = self._transport.unary(worker, "HealthCheck", _HEALTHY, self._timeout)
        except RpcFailure as failure:
            if failure.code == "UNIMPLEMENTED":
                return
            if failure.code == "DEADLINE_EXCEEDED":
                raise _EngineLateError("its engine does nothing") from None
            raise _EngineRefusedError(failure.code, failure.details) from None
        health = pb.HealthCheckResponse.FromString(answer)
        if not health.healthy:
            raise _UnhealthyError(f"it says: {observability.printable(health.message, 200)}")

    def _well(self, worker: Worker, answer: bytes) -> None:
        self._answered(worker, answer)
        if worker.state is not State.UP or self._proof_due(worker) <= time.monotonic():
            worker.proved = time.monotonic()
            worker.record.publish(worker.proved, worker.proved)
        if worker.note(Event.PROBE_OK):
            name = "" if worker.card is None else worker.card.name
            _LOG.info("worker %s is up and serves %s", worker.url, observability.printable(name, 100))

    def _failed(self, worker: Worker, error: Exception, asked: float) -> None:
        self._due[worker] = time.monotonic() + self._interval
        code = error.code if isinstance(error, RpcFailure) else ""
        if code == "RESOURCE_EXHAUSTED":
            return  # too much to do, here or there, says nothing of whether it lives
        late = code == "DEADLINE_EXCEEDED"
        if late and self.heard(worker) > asked:
            worker.record.set_gone(False)
            return  # its streams flow
        worker.record.set_gone(code in SEEN and not isinstance(error, _EngineRefusedError))
        if isinstance(error, _EngineLateError):
            late = True
            if max(worker.proved, worker.record.proved) > asked:
                return
        first = not worker.record.asked
        if worker.note(Event.PROBE_LATE if late else Event.PROBE_FAILED) or first:
            self._suspects.add(worker)
            expected = isinstance(error, (RpcFailure, DecodeError, _EngineLateError, _UnhealthyError))
            trace = None if expected else error
            _LOG.warning("worker %s is %s: %s", worker.url, worker.state, error, exc_info=trace)

    def __repr__(self) -> str:
        return f"<Prober under_way={len(self.under_way)}>"


_WHICH: Final = pb.GetModelInfoRequest().SerializeToString()
_HEALTHY: Final = pb.HealthCheckRequest().SerializeToString()
