"""Unary calls to workers: one that any of them may answer, several at once, or one to each."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from wsgi_router import observability, runtime
from wsgi_router.client_watch import ClientWatch
from wsgi_router.errors import (
    ClientGone,
    DeadlineError,
    DrainingError,
    InternalError,
    NoWorkerError,
    RouterError,
    UpstreamError,
)
from wsgi_router.workers.breaker import FAULTS, Event
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.roles import EVERY_ROLE, PROMPT_ROLES, Role
from wsgi_router.workers.transport import Cancel, RpcFailure, Transport
from wsgi_router.workers.worker import Lease, Worker

_LOG = logging.getLogger(__name__)
_A = TypeVar("_A")
_R = TypeVar("_R")

_GENERATING: Final = frozenset({"Embed"})
"""Methods that engines work on; how the others go says nothing of requests."""
_AT_ONCE: Final = 8
"""Calls of one request; the transport bounds those of the process."""


class Call(NamedTuple):
    """What is asked of one worker, whichever it is."""

    method: str
    timeout: float
    """Seconds, for each attempt."""
    model: str
    hints: Hints = NO_HINTS
    deadline: float = math.inf
    """When all is over, by time.monotonic."""

    @property
    def roles(self) -> Collection[Role]:
        """Those of workers that can answer."""
        return PROMPT_ROLES if self.method == "Embed" else EVERY_ROLE


class _Request:
    """What the calls of one request share."""

    def __init__(self, call: Call, pool: WorkerPool) -> None:
        self.call = call
        self.cancel = Cancel()
        """Ends them all."""
        self._pool = pool
        self._blamed: dict[Worker, Lease] = {}
        self._reached: list[Worker] = []
        self._lock = runtime.brief_lock()

    def select(self, tried: Collection[Worker]) -> Lease:
        """The pool's choice; or another lease where one of the calls went, as breakers stop requests only.

        Raises RouterError.
        """
        with self._lock:  # whoever finds no room on trial sees who has taken it
            try:
                lease = self._pool.select(self.call.model, self.call.hints, tried, roles=self.call.roles)
            except NoWorkerError:
                for worker in self._reached:
                    if worker.may_go_on() and worker not in tried:
                        return worker.lease()
                raise
            if lease.worker not in self._reached:
                self._reached.append(lease.worker)
            return lease

    def first_failure(self, lease: Lease) -> bool:
        """Whether a failure is the first one at its worker; all others are one with it."""
        return self._blamed.setdefault(lease.worker, lease) is lease


class Calls:
    """Makes calls with the pool's leases. Requests and answers are serialised messages."""

    def __init__(self, pool: WorkerPool, transport: Transport) -> None:
        self._pool = pool
        self._transport = transport

    def ask(self, call: Call, request: bytes) -> bytes:
        """The answer of one worker; of another one where the first fails and that may help.

        Raises RouterError.
        """
        return self._ask(_Request(call, self._pool), request)

    def _ask(self, shared: _Request, request: bytes) -> bytes:
        retries, tried = self._pool.retries, list[Worker]()
        retries.count(1, time.monotonic())
        while True:
            lease = shared.select(tried)
            tried.append(lease.worker)
            try:
                return self._call(shared, lease, request)
            except UpstreamError as failure:
                error = failure.with_traceback(None)
            finally:
                lease.release()
            self._wait_for_another(shared, tried, error)
            observability.metrics().retries.inc()

    def _wait_for_another(self, shared: _Request, tried: list[Worker], error: RouterError) -> None:
        """Returns when another worker is to be asked. Raises `error` where that would not help."""
        call = shared.call
        try:
            self._pool.candidates(call.model, tried, roles=call.roles)
        except NoWorkerError:  # the failure says more than that nobody else is there
            raise error from None
        if call.hints.target or not self._pool.retries.allow(error, tried, time.monotonic()):
            raise error
        left = runtime.wakeup()
        with shared.cancel.calling(left.set):
            if left.wait(self._pool.retries.pause(tried)):
                raise error

    def ask_for_each(
        self, call: Call, requests: Sequence[bytes], client: ClientWatch | None = None
    ) -> list[bytes]:
        """`ask` for each of `requests`, some at once. One that fails ends all. Takes `client` over."""
        shared = _Request(call, self._pool)

        def one(request: bytes) -> bytes:
            return self._ask(shared, request)

        try:
            return _Batch(one, requests).run(client)
        finally:
            shared.cancel()

    def ask_all(
        self, method: str, request: bytes, timeout: float
    ) -> list[tuple[Worker, bytes | RouterError]]:
        """Each worker's answer or failure, in the order of the settings. Raises NoWorkerError."""

        def one(worker: Worker) -> tuple[Worker, bytes | RouterError]:
            try:
                answer = self._transport.unary(worker, method, request, timeout)
            except RpcFailure as failure:
                self._pool.report_failure(worker, failure)
                return worker, UpstreamError.from_grpc(failure.code, failure.details)
            return worker, answer

        workers = self._pool.workers
        if not workers:
            raise NoWorkerError
        return _Batch(one, workers, at_once=len(workers)).run(None)

    def _call(self, shared: _Request, lease: Lease, request: bytes) -> bytes:
        worker, pool = lease.worker, self._pool
        method, timeout, deadline = shared.call.method, shared.call.timeout, shared.call.deadline
        left = deadline - time.monotonic()
        if left <= 0:
            raise _late()
        try:
            answer = self._transport.unary(worker, method, request, min(timeout, left), shared.cancel)
        except RpcFailure as failure:
            if failure.code == "DEADLINE_EXCEEDED" and left < timeout:  # the worker was given too little time
                raise _late() from None
            pool.report_failure(worker, failure)
            if method in _GENERATING and failure.code in FAULTS and shared.first_failure(lease):
                pool.blame(lease, failure.code)
            raise UpstreamError.from_grpc(failure.code, failure.details) from None
        if method in _GENERATING:
            pool.report(worker, Event.CALL_OK)
            pool.credit(worker)
        return answer


def _late() -> DeadlineError:
    return DeadlineError("The request was not answered in time.")


class _Batch(Generic[_A, _R]):
    """Runs a function for each argument, some at once, until all are done or one has failed."""

    def __init__(
        self, function: Callable[[_A], _R], arguments: Sequence[_A], at_once: int = _AT_ONCE
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._at_once = min(at_once, len(arguments))
        self._todo = list(range(len(arguments) - 1, -1, -1))
        self._results: dict[int, _R] = {}
        self._error: RouterError | None = None
        self._wakeup = runtime.wakeup()

    def run(self, client: ClientWatch | None) -> list[_R]:
        """The results in order. Raises the first RouterError; ClientGone, DrainingError."""
        runtime.drain.subscribe(self._wakeup)
        if client is not None:
            client.subscribe(self._wakeup)
        try:
            for _ in range(self._at_once):
                runtime.spawn(self._work)
            self._wait(client)
        finally:
            self._todo.clear()
            runtime.drain.unsubscribe(self._wakeup)
            if client is not None:
                client.close()
        return [self._results[index] for index in range(len(self._arguments))]

    def _wait(self, client: ClientWatch | None) -> None:
        while len(self._results) < len(self._arguments):
            if self._error is not None:
                raise self._error
            if client is not None and client.gone:
                raise ClientGone
            if runtime.drain.due():
                raise DrainingError
            pause = None
            if client is not None and client.poll_seconds is not None:
                client.poll(time.monotonic())
                pause = client.poll_seconds
            self._wakeup.wait(pause)

    def _work(self) -> None:
        try:
            while self._error is None:
                try:
                    index = self._todo.pop()
                except IndexError:
                    return
                self._results[index] = self._function(self._arguments[index])
        except RouterError as error:
            self._error = error.with_traceback(None)
        except Exception:
            _LOG.exception("a call failed")
            self._error = InternalError()
        finally:
            self._wakeup.set()
