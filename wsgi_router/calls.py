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
from wsgi_router.workers.breaker import Event
from wsgi_router.workers.faults import Faults
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.retries import found_down
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


class _Attempt:
    """A call that waits for an answer of an engine; it goes to another worker if that one is found down."""

    __slots__ = ("_request", "_tried", "allowed", "cancel", "left")

    def __init__(self, request: _Request, tried: Sequence[Worker], cancel: Cancel) -> None:
        """At the last of those `tried`; `cancel` ends the call."""
        self._request = request
        self._tried = tried
        self.cancel = cancel
        self.left = False
        self.allowed = False
        """Another worker may be asked, and that is counted."""

    def leave(self) -> None:
        """The worker was found down. Does not block."""
        if self.left:
            return
        another = self._request.leave(self._tried)
        if another is not None:
            self.left, self.allowed = True, another
            self.cancel()


class _Request:
    """The calls of one request, and what they share."""

    def __init__(self, call: Call, pool: WorkerPool, transport: Transport) -> None:
        self.cancel = Cancel()
        """Ends them all."""
        self._asked = call
        self._pool = pool
        self._transport = transport
        self._faults = Faults(pool)
        self._reached: list[Worker] = []
        self._lock = runtime.brief_lock()

    def ask(self, message: bytes) -> bytes:
        """See `Calls.ask`."""
        tried: list[Worker] = []
        self._pool.retries.count(1, time.monotonic())
        while True:
            lease = self._select(tried)
            tried.append(lease.worker)
            attempt = _Attempt(self, tuple(tried), Cancel())
            try:
                return self._call(lease, message, attempt)
            except UpstreamError as failure:
                error = failure.with_traceback(None)
            finally:
                lease.release()
            allowed = attempt.allowed and error.failover
            if self.cancel.called or not (allowed or self._may_ask_another(tried, error)):
                raise error
            self._pause(tried, error)
            observability.metrics().retries.inc()

    def _select(self, tried: Collection[Worker]) -> Lease:
        """A lease of the pool's; or another one where one of the calls went, as breakers stop requests only.

        Raises RouterError.
        """
        with self._lock:  # whoever finds no room on trial sees who has taken it
            try:
                lease = self._pool.select(
                    self._asked.model, self._asked.hints, tried, roles=self._asked.roles
                )
            except NoWorkerError:
                for worker in self._reached:
                    if worker.may_go_on() and worker not in tried:
                        return worker.lease()
                raise
            if lease.worker not in self._reached:
                self._reached.append(lease.worker)
            return lease

    def _may_ask_another(self, tried: Collection[Worker], error: RouterError) -> bool:
        """Whether one more worker may be asked after those that were `tried`; counts it then."""
        return self._is_other(tried) and self._pool.retries.allow(error, tried, time.monotonic())

    def leave(self, tried: Sequence[Worker]) -> bool | None:
        """What becomes of a call at the last of those that were `tried`; see `Retries.leave`."""
        return self._pool.retries.leave(tried, self._is_other(tried), time.monotonic())

    def _is_other(self, tried: Collection[Worker]) -> bool:
        try:
            self._pool.candidates(self._asked.model, tried, roles=self._asked.roles)
        except NoWorkerError:  # the failure says more than that nobody else is there
            return False
        return not self._asked.hints.target

    def _pause(self, tried: Collection[Worker], error: RouterError) -> None:
        """Returns when another worker is to be asked. Raises `error` if nobody waits any more."""
        left = runtime.wakeup()
        with self.cancel.calling(left.set):
            if left.wait(self._pool.retries.pause(tried)):
                raise error

    def _call(self, lease: Lease, message: bytes, attempt: _Attempt) -> bytes:
        worker, pool, asked = lease.worker, self._pool, self._asked
        generating = asked.method in _GENERATING
        left = asked.deadline - time.monotonic()
        if left <= 0:
            raise _late()
        if generating:
            lease.watch(attempt.leave)
        limit = min(asked.timeout, left)
        try:
            with self.cancel.calling(attempt.cancel):
                answer = self._transport.unary(worker, asked.method, message, limit, attempt.cancel)
        except RpcFailure as failure:
            if attempt.left:
                raise found_down() from None
            if self.cancel.called:  # it says nothing of the worker
                raise UpstreamError.from_grpc(failure.code, failure.details) from None
            if failure.code == "DEADLINE_EXCEEDED" and left < asked.timeout:  # it was given too little time
                raise _late() from None
            pool.report_failure(worker, failure)
            if generating:
                self._faults.add(lease, failure.code)
            raise UpstreamError.from_grpc(failure.code, failure.details) from None
        if generating:
            pool.report(worker, Event.CALL_OK)
            pool.credit(worker)
        return answer


class Calls:
    """Makes calls with the pool's leases. Requests and answers are serialised messages."""

    def __init__(self, pool: WorkerPool, transport: Transport) -> None:
        self._pool = pool
        self._transport = transport

    def ask(self, call: Call, request: bytes) -> bytes:
        """The answer of one worker; of another one where the first fails and that may help.

        Raises RouterError.
        """
        return _Request(call, self._pool, self._transport).ask(request)

    def ask_for_each(
        self, call: Call, requests: Sequence[bytes], client: ClientWatch | None = None
    ) -> list[bytes]:
        """`ask` for each of `requests`, some at once. One that fails ends all. Takes `client` over."""
        shared = _Request(call, self._pool, self._transport)
        try:
            return _Batch(shared.ask, requests).run(client)
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
