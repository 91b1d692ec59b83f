"""From a prepared request to its open answer: leases, streams, the wait for the first event, one failover.

A request is one job or several, one for each of its prompts; the choices of all of them count up from 0.

    Dispatcher.open ──▶ Generation ◀── wait/take/finish/close ── postprocess
                           │ one bounded queue (`choices`)
                           └── a reader (greenlet or thread) for each choice, or the transport's events

A choice ends once, whoever comes first: its RPC's end, `finish`, or `close`. Ending it returns its lease; the
RPC is cancelled, and Abort sent, only if the worker is not done with it.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from wsgi_router import observability, runtime
from wsgi_router.choices import Choice, Ended, Item, Queue, Ready, Shared
from wsgi_router.client_watch import ClientWatch
from wsgi_router.deadlines import Deadlines
from wsgi_router.errors import (
    ClientGone,
    DrainingError,
    NoWorkerError,
    RouterError,
    UpstreamError,
    WorkerAbortError,
    WorkerProtocolError,
)
from wsgi_router.ids import random_id
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import (
    GenerateJob,
    GenerateTransport,
    Patience,
    RpcFailure,
)
from wsgi_router.workers.worker import Lease, Worker

_LOG = logging.getLogger(__name__)

_ATTEMPTS: Final = 2
_ID_FIELD: Final = b"\x0a\x20"
"""Tag of GenerateRequest.request_id and the length of our ids, 32 hex digits."""


class _Opening:
    """A choice, number `index` of the request, that has not had its first event yet; `others` wait for it."""

    __slots__ = ("deadline", "index", "job", "others", "tried")

    def __init__(self, index: int, job: GenerateJob, deadline: float, others: range = range(0)) -> None:
        self.index = index
        self.job = job
        self.deadline = deadline
        self.others = others
        self.tried: list[Worker] = []


class Generation:
    """All choices of one request, for one consumer. `close` may be called from anywhere."""

    def __init__(self, dispatcher: Dispatcher, client: ClientWatch | None, answer: Any) -> None:
        self._dispatcher = dispatcher
        self._queue = Queue(dispatcher.shared)
        self._client = client
        self.answer = answer
        self.choices = 0
        """How many there are, once this is open."""
        self._opening: dict[int, _Opening] = {}  # by the index of the choice
        runtime.drain.subscribe(self._queue.wakeup)
        if client is not None:
            client.subscribe(self._queue.wakeup)

    @property
    def fed(self) -> bool:
        """Whether the transport takes messages in by itself."""
        return self._queue.shared.transport.feeds

    @property
    def closed(self) -> bool:
        return self._queue.closed

    @property
    def defer(self) -> Callable[[Callable[[], object]], None]:
        """Runs a function elsewhere; for finalisers (`runtime.deferrer`)."""
        return self._queue.shared.defer

    @property
    def client_gone(self) -> bool:
        """Whether the client has closed its connection, as far as can be told."""
        return self._client is not None and self._client.gone

    @property
    def exhausted(self) -> bool:
        """Whether no choice is open any more and everything was taken."""
        return not self._queue.choices and not self._queue.ready

    def wait(self, timeout: float | None = None) -> bool:
        """False if nothing has happened for `timeout` seconds.

        True as soon as something is ready, or nothing can come any more: the client is gone, the drain's
        moment has come, this is closed or exhausted. A worker's silence beyond its deadline is an RpcFailure
        that becomes ready.
        """
        queue, client = self._queue, self._client
        if queue.ready:
            if len(queue.choices) > 1:  # one may be silent while the others talk
                queue.expire(time.monotonic())
            return True
        now = time.monotonic()
        end = math.inf if timeout is None else now + timeout
        while not (queue.closed or self.client_gone or runtime.drain.due()):
            pause = min(queue.expire(now), end - now)
            if queue.ready or not queue.choices:
                return True
            if pause <= 0:
                return False
            if client is not None and client.poll_seconds is not None:
                client.poll(now)
                pause = min(pause, client.poll_seconds)
            queue.wakeup.wait(None if pause == math.inf else pause)
            if queue.ready:
                return True
            now = time.monotonic()
        return True

    def take(self) -> list[Ready]:
        """All that is ready, in order; empty if nothing is. Raises RouterError if a choice cannot start."""
        queue, opening = self._queue, self._opening
        ready = queue.ready
        taken: list[Ready] = []
        while ready:
            choice, item = ready.popleft()
            if not choice.stale and (not opening or self._begun(choice, item)):
                taken.append((choice.index, item))
        if queue.room:
            queue.make_room()
        return taken

    def _wait_for_start(self) -> None:
        """Returns once the first event of an answer is ready. Raises RouterError."""
        ready = self._queue.ready
        while True:
            while ready:
                if self._begun(*ready[0]):
                    return
                ready.popleft()
            self.wait()
            if self.client_gone or self.closed:
                raise ClientGone
            if not ready and runtime.drain.due():
                raise DrainingError

    def _begun(self, choice: Choice, item: Item) -> bool:
        """Looks at what came of a choice. False if it is a failure, and another worker was asked instead."""
        opening = self._opening.get(choice.index)
        if opening is None or choice.stale:
            return not choice.stale
        dispatcher, worker = self._dispatcher, choice.lease.worker
        error = dispatcher.error_of(item)
        if error is None:
            del self._opening[choice.index]
            dispatcher.start_others(self, opening, worker)
            return True
        choice.stale = True
        self._queue.let_end(choice)
        if opening.job.adapter:
            worker.forget_adapters()
        opening.tried.append(worker)
        dispatcher.start(self, opening, error)
        return False

    def finish(self, choice: int, cancel: bool) -> None:
        """A choice is done for the client. `cancel`: the worker still works on it and is told to stop."""
        found = self._queue.choices.get(choice)
        if found is not None:
            if cancel:
                self._queue.cancel(found)
            else:
                self._queue.let_end(found)

    def close(self) -> None:
        """Cancels what is open, returns all leases, ends the readers. Idempotent."""
        _close_all(self._queue, self._client)

    def __del__(self) -> None:
        if not self._queue.closed:
            # The server forgot `close`, and a finaliser may run anywhere, so the work is done elsewhere.
            self._queue.shared.defer(functools.partial(_close_all, self._queue, self._client))

    def __repr__(self) -> str:
        queue = self._queue
        state = "closed" if queue.closed else "open"
        return f"<Generation {state} choices={list(queue.choices.values())!r} ready={len(queue.ready)}>"


def _close_all(queue: Queue, client: ClientWatch | None) -> None:
    runtime.drain.unsubscribe(queue.wakeup)
    if client is not None:
        client.close()
    queue.close()


class Dispatcher:
    """Opens generations. One for each process, made after the fork.

    `first_failure` is the native core's: the worker's words, if a first message says that it gave up.
    """

    def __init__(
        self,
        pool: WorkerPool,
        transport: GenerateTransport,
        settings: Settings,
        first_failure: Callable[[bytes], str | None],
    ) -> None:
        self.shared = Shared(
            pool,
            transport,
            Deadlines(Choice.end_late),
            runtime.deferrer(),
            settings.queue_size,
            settings.token_timeout,
            settings.close_timeout,
        )
        self._pool = pool
        self._first_token_timeout = settings.first_token_timeout
        self._answer_timeout = settings.answer_timeout
        self._first_failure = first_failure

    def open(
        self,
        jobs: GenerateJob | Sequence[GenerateJob],
        client: ClientWatch | None = None,
        patience: float | None = None,
        answer: Any = None,
        on_close: Callable[[], object] | None = None,
    ) -> Generation:
        """The open answer to `jobs`, once the first event of any is there; `client` is closed with it.

        `answer`: the native stream, for a transport that feeds it by itself. `on_close` is called when the
        generation has closed, however it comes to that; it may be called more than once.

        `patience`: seconds to wait for it, by default FIRST_TOKEN_TIMEOUT (ANSWER_TIMEOUT, if the worker's
        one message is the whole answer). All jobs have as many choices.
        Raises RouterError if a first event is a failure, after one other worker was asked where that may
        help; ClientGone, DeadlineError, NoWorkerError, DrainingError. A choice that fails so later, when
        another one has begun, makes `take` raise.
        """
        jobs = (jobs,) if isinstance(jobs, GenerateJob) else jobs
        if patience is None:
            streamed = all(job.streamed for job in jobs)
            patience = self._first_token_timeout if streamed else self._answer_timeout
        deadline = time.monotonic() + patience
        generation = Generation(self, client, answer)
        generation._queue.on_close = on_close
        generation.choices = sum(job.choices for job in jobs)
        try:
            for number, job in enumerate(jobs):
                index = number * job.choices
                opening = _Opening(index, job, deadline, range(index + 1, index + job.choices))
                generation._opening[index] = opening
                self.start(generation, opening)
            generation._wait_for_start()
        except BaseException:
            generation.close()
            raise
        return generation

    def start(
        self,
        generation: Generation,
        opening: _Opening,
        error: RouterError | None = None,
        near: Worker | None = None,
    ) -> None:
        """Asks a worker for a choice, `near` first; `error` is how the last attempt ended, if there was one.

        Raises it where another worker would not help, or there is none.
        """
        job, tried = opening.job, opening.tried
        while error is None or (error.failover and len(tried) < _ATTEMPTS):
            try:
                beside = None if tried else near
                lease = self._pool.select(job.model, job.hints, tried, job.adapter, beside)
            except NoWorkerError:
                if error is not None:  # the failure says more than that nobody else is there
                    raise error from None
                raise
            if error is not None:
                _LOG.info("%s failed before its first event: %s", tried[-1].url, error.message)
                observability.metrics().retries.inc()
            try:
                self._add(generation, opening, lease)
                return
            except RpcFailure as failure:
                error = UpstreamError.from_grpc(failure.code, failure.details)
                tried.append(lease.worker)
        raise error

    def start_others(self, generation: Generation, opening: _Opening, worker: Worker) -> None:
        """Asks for a job's other choices: the worker that began the first has the prompt in its cache."""
        deadline = time.monotonic() + self._first_token_timeout
        for index in opening.others:
            other = generation._opening[index] = _Opening(index, opening.job, deadline)
            self.start(generation, other, near=worker)

    def error_of(self, first: Item) -> RouterError | None:
        """What a choice's first event says, if it is a failure."""
        if isinstance(first, RpcFailure):
            return UpstreamError.from_grpc(first.code, first.details)
        if isinstance(first, Ended):
            return WorkerProtocolError("The worker ended the request without an answer.")
        if type(first) is not bytes:
            return None
        message = self._first_failure(first)
        return None if message is None else WorkerAbortError(message)

    def _add(self, generation: Generation, opening: _Opening, lease: Lease) -> None:
        """Starts an RPC and its reader; the lease is the generation's from here on."""
        request_id = random_id()
        job, worker, queue, index = opening.job, lease.worker, generation._queue, opening.index
        transport = self.shared.transport
        patience = opening.deadline - time.monotonic()
        try:
            request = _ID_FIELD + request_id.encode("ascii") + job.body
            if job.adapter:
                request += _adapter_field(worker, job.adapter)
            if transport.feeds:
                limits = Patience(patience, self.shared.token_timeout)
                call = functools.partial(transport.feed, worker, request, generation.answer, index, limits)
                queue.feed(Choice(index, request_id, lease, None, math.inf), call)
            else:
                stream = transport.open_stream(worker, request)
                queue.start(Choice(index, request_id, lease, stream, patience))
        except BaseException as error:
            lease.release()
            if isinstance(error, RpcFailure):
                self.shared.note_end(worker, error)
            raise

    def __repr__(self) -> str:
        return f"<Dispatcher {self._pool!r}>"


def _adapter_field(worker: Worker, name: str) -> bytes:
    """The field of a GenerateRequest that names an adapter. Raises NoWorkerError if it has just gone."""
    adapter = worker.adapters.get(name)
    if adapter is None:
        raise NoWorkerError
    return pb.GenerateRequest(lora_id=adapter.id).SerializeToString()
