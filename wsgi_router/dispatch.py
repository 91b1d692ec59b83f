"""From a prepared request to its open answer: leases, streams, the wait for the first event, and repetitions.

A request is one job or several, one for each of its prompts; the choices of all of them count up from 0.

    Dispatcher.open ──▶ Generation ◀── wait/take/finish/close ── postprocess
                           │ one bounded queue (`choices`)
                           └── a reader (greenlet or thread) for each choice, or the transport's events

A choice ends once, whoever comes first: its RPC's end, `finish`, or `close`. Ending it returns its lease; the
RPC is cancelled, and Abort sent, only if the worker is not done with it.

A choice that fails before its first event is begun again at another worker, after a short pause, as far as
`workers.retries` allows. Whoever waits for the answer begins it; nothing else runs meanwhile.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from wsgi_router import observability, pairs, runtime
from wsgi_router.choices import Again, Choice, Ended, Item, Opening, Queue, Ready, Shared, TimeLimit
from wsgi_router.client_watch import ClientWatch
from wsgi_router.deadlines import Deadlines
from wsgi_router.errors import (
    ClientGone,
    DeadlineError,
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
from wsgi_router.workers.breaker import State
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.retries import found_down
from wsgi_router.workers.transport import (
    GenerateJob,
    GenerateTransport,
    Patience,
    RpcFailure,
)
from wsgi_router.workers.worker import Lease, Worker

_LOG = logging.getLogger(__name__)

_ID_FIELD: Final = b"\x0a\x20"
"""Tag of GenerateRequest.request_id and the length of our ids, 32 hex digits."""


class Generation:
    """All choices of one request, for one consumer. `close` may be called from anywhere."""

    __slots__ = (
        "_again",
        "_client",
        "_deadline",
        "_dispatcher",
        "_leases",
        "_limit",
        "_opening",
        "_queue",
        "answer",
        "choices",
    )

    def __init__(
        self, dispatcher: Dispatcher, client: ClientWatch | None, answer: Any, deadline: float = math.inf
    ) -> None:
        self._dispatcher = dispatcher
        self._queue = Queue(dispatcher.shared)
        self._client = client
        self.answer = answer
        self.choices = 0
        """How many there are, once this is open."""
        self._deadline = deadline
        self._opening: dict[int, Opening] = {}  # by the index of the choice
        self._again: list[Again] = []
        self._leases: dict[int, Lease] = {}  # of the choices that nothing was said about yet
        self._limit: TimeLimit | None = None
        if deadline < math.inf:
            self._limit = TimeLimit(self._queue, None if client is None else client.connection)
            dispatcher.shared.limits.add(self._limit, max(deadline - time.monotonic(), 0.0))
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
        return not self._queue.choices and not self._queue.ready and not self._again

    def wait(self, timeout: float | None = None) -> bool:
        """False if nothing has happened for `timeout` seconds.

        True as soon as something is ready, or nothing can come any more: the client is gone, the drain's
        moment has come, this is closed or exhausted. A worker's silence beyond its deadline is an RpcFailure
        that becomes ready. Raises DeadlineError once the whole request is late; RouterError if a choice
        cannot be begun again.
        """
        queue, client = self._queue, self._client
        if queue.ready:
            # One may be silent while the others talk.
            if len(queue.choices) > 1 or self._again or self._deadline < math.inf:
                self._look(time.monotonic())
            return True
        now = time.monotonic()
        end = math.inf if timeout is None else now + timeout
        while not (queue.closed or self.client_gone or runtime.drain.due()):
            pause = min(self._look(now), end - now)
            if queue.ready or self.exhausted:
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

    def _look(self, now: float) -> float:
        """Ends what is late, begins again what is due; returns the seconds until there may be more."""
        if now >= self._deadline:
            raise DeadlineError("The request was not answered in time.")
        if self._queue.lost:
            self._leave_lost()
        pause = min(self._queue.expire(now), self._deadline - now)
        if self._again:
            for again in [again for again in self._again if again.due <= now]:
                self._again.remove(again)
                self._dispatcher.start_again(self, again.opening, again.error)
            pause = min(pause, *(again.due - now for again in self._again)) if self._again else pause
        return pause

    def _leave_lost(self) -> None:
        """Has choices begun again that wait for workers which were found down. Raises RouterError."""
        lost, self._queue.lost = self._queue.lost, ()
        for choice, lease in lost:
            opening = self._opening.get(choice.index)
            if opening is not None and not choice.ended:
                self._dispatcher.leave(self, opening, choice, lease.worker)

    def take(self) -> list[Ready]:
        """All that is ready, in order; empty if nothing is. Raises RouterError if a choice cannot start."""
        queue, opening = self._queue, self._opening
        ready = queue.ready
        taken: list[Ready] = []
        while ready:
            choice, item = ready.pop(0)
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
                ready.pop(0)
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
        dispatcher, companion = self._dispatcher, choice.companion
        error = dispatcher.error_of(item)
        if error is None:
            choice.lease.worker.proved = time.monotonic()
            choice.lease.begun()
            del self._opening[choice.index]
            if companion is not None:
                companion.lease.begun()
                companion.let_end()
            dispatcher.start_others(self, opening, choice)
            if not self._opening:
                self._opening.clear()  # gives its memory back
            return True
        choice.stale = True
        if companion is not None:
            if companion.awaited:
                choice.at_fault = companion.lease
            companion.drop()
        self._queue.let_end(choice)
        at_fault = choice.at_fault
        if not isinstance(item, RpcFailure):  # else it has been told
            self._leases.pop(choice.index, None)
            self._queue.blame(at_fault)
        if opening.job.adapter:
            at_fault.worker.forget_adapters()
        if at_fault is not choice.lease:
            opening.doubtful.append(choice.lease.worker)
        dispatcher.try_again(self, opening, at_fault.worker, error)
        return False

    def finish(self, choice: int, cancel: bool) -> None:
        """A choice is done for the client. `cancel`: the worker still works on it and is told to stop."""
        lease = self._leases.pop(choice, None)
        if lease is not None:
            self._queue.shared.pool.credit(lease.worker)
        found = self._queue.choices.get(choice)
        if found is not None:
            if cancel:
                self._queue.cancel(found)
            else:
                self._queue.let_end(found)

    def begin_again(self, due: float, opening: Opening, error: RouterError) -> None:
        """A choice is to be begun again then, by whoever waits for the answer."""
        self._again.append(Again(due, opening, error))

    def blame(self, choice: int) -> None:
        """What came of a choice is of no use, by the worker's fault."""
        lease = self._leases.pop(choice, None)
        if lease is not None:
            self._queue.blame(lease)

    def close(self, sending: bool = False) -> None:
        """Cancels what is open, returns all leases, ends the readers. Idempotent.

        `sending`: the server has a last piece to send, which may not take longer than the request; it is
        to be called without that once the server may use the connection for other things.
        """
        limit = self._limit
        if not sending:
            self._limit = None
        _close_all(self._queue, self._client, None if sending else limit)

    @property
    def over(self) -> bool:
        """Whether this is closed, and nothing is left to send that may be late."""
        return self._queue.closed and self._limit is None

    def __del__(self) -> None:
        if not self.over:
            # The server forgot `close`, and a finaliser may run anywhere, so the work is done elsewhere.
            self._queue.shared.defer(functools.partial(_close_all, self._queue, self._client, self._limit))

    def __repr__(self) -> str:
        queue = self._queue
        state = "closed" if queue.closed else "open"
        return f"<Generation {state} choices={list(queue.choices.values())!r} ready={len(queue.ready)}>"


def _close_all(queue: Queue, client: ClientWatch | None, limit: TimeLimit | None) -> None:
    if limit is not None:
        queue.shared.limits.discard(limit)
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
            Deadlines(lambda late: late.end_late()),
            Deadlines(lambda late: late.end_late()),
            runtime.deferrer(),
            settings.queue_size,
            settings.token_timeout,
            settings.close_timeout,
        )
        self._pool = pool
        self._first_token_timeout = settings.first_token_timeout
        self._answer_timeout = settings.answer_timeout
        self._retries = pool.retries
        self._first_failure = first_failure

    def open(
        self,
        jobs: GenerateJob | Sequence[GenerateJob],
        client: ClientWatch | None = None,
        patience: float | None = None,
        answer: Any = None,
        until: float = math.inf,
        on_close: Callable[[], object] | None = None,
    ) -> Generation:
        """The open answer to `jobs`, once the first event of any is there; `client` is closed with it.

        `answer`: the native stream, for a transport that feeds it by itself. `on_close` is called when the
        generation has closed, however it comes to that; it may be called more than once.

        `patience`: seconds to wait for it, by default FIRST_TOKEN_TIMEOUT (ANSWER_TIMEOUT, if the worker's
        one message is the whole answer). All jobs have as many choices.

        `until`: when the whole request has to be over, by time.monotonic; what is open then ends late.

        Raises RouterError if a first event is a failure, after other workers were asked where that may
        help; ClientGone, DeadlineError, NoWorkerError, DrainingError. A choice that fails so later, when
        another one has begun, makes `wait` or `take` raise.
        """
        jobs = (jobs,) if isinstance(jobs, GenerateJob) else jobs
        if patience is None:
            streamed = all(job.streamed for job in jobs)
            patience = self._first_token_timeout if streamed else self._answer_timeout
        now = time.monotonic()
        deadline = now + patience
        generation = Generation(self, client, answer, until)
        generation._queue.on_close = on_close
        generation.choices = sum(job.choices for job in jobs)
        self._retries.count(generation.choices, now)
        try:
            generation._look(now)
            for number, job in enumerate(jobs):
                index = number * job.choices
                opening = Opening(index, job, deadline, range(index + 1, index + job.choices))
                generation._opening[index] = opening
                self.start(generation, opening)
            generation._wait_for_start()
        except BaseException:
            generation.close()
            raise
        return generation

    def start(self, generation: Generation, opening: Opening, near: Choice | None = None) -> None:
        """Asks a worker, or a pair, for a choice; that of `near` first.

        A half-open breaker lets requests through, not parts of one: the rest goes where the first part went.
        Raises RouterError if that fails for good.
        """
        try:
            legs = pairs.select(self._pool, opening.job, opening.tried, opening.doubtful, near)
        except NoWorkerError:
            firsts = list(generation._queue.choices.values()) if near is None else [near]
            followed = (pairs.follow(first, opening.tried) for first in firsts)
            found = next((one for one in followed if one is not None), None)
            if found is None:
                raise
            legs = found
        try:
            self._add(generation, opening, legs)
        except RpcFailure as failure:
            error = UpstreamError.from_grpc(failure.code, failure.details)
            self.try_again(generation, opening, legs.answering.worker, error)

    def try_again(self, generation: Generation, opening: Opening, worker: Worker, error: RouterError) -> None:
        """Has a choice begun again that `worker` has failed. Raises `error` where that would not help."""
        tried = opening.tried
        tried.append(worker)
        if not self._may_ask_another(opening.job, tried, error):
            raise error  # it says more than that nobody else is there
        generation.begin_again(time.monotonic() + self._retries.pause(tried), opening, error)

    def leave(self, generation: Generation, opening: Opening, choice: Choice, worker: Worker) -> None:
        """Has a choice begun again that waits for `worker`, which was found down. Raises RouterError.

        Whether it goes, `Retries.leave` says; if it stays, this is to be called again.
        """
        queue, tried, now = generation._queue, [*opening.tried, worker], time.monotonic()
        if worker.state is not State.DOWN or queue.has_event(choice):
            return
        another = self._retries.leave(tried, self._is_another(opening.job, tried), now)
        if another is None or queue.began(choice):
            return
        choice.stale = True
        queue.cancel(choice)
        if not another:
            raise found_down()
        opening.tried = tried
        generation.begin_again(now + self._retries.pause(tried), opening, found_down())

    def _may_ask_another(self, job: GenerateJob, tried: list[Worker], error: RouterError) -> bool:
        """Whether one more worker may be asked after those that were `tried`; counts it then."""
        return self._is_another(job, tried) and self._retries.allow(error, tried, time.monotonic())

    def _is_another(self, job: GenerateJob, tried: list[Worker]) -> bool:
        return not job.hints.target and pairs.possible(self._pool, job, tried)

    def start_again(self, generation: Generation, opening: Opening, error: RouterError) -> None:
        """Asks another worker than before. Raises `error` if there is none any more."""
        if time.monotonic() >= opening.deadline:
            raise error
        _LOG.info("%s failed before its first event: %s", opening.tried[-1].url, error.message)
        try:
            self.start(generation, opening)
        except NoWorkerError:
            raise error from None
        observability.metrics().retries.inc()

    def start_others(self, generation: Generation, opening: Opening, first: Choice) -> None:
        """Asks for a job's other choices: who began the first has the prompt in its cache."""
        deadline = time.monotonic() + self._first_token_timeout
        for index in opening.others:
            other = generation._opening[index] = Opening(index, opening.job, deadline)
            self.start(generation, other, near=first)

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

    def _add(self, generation: Generation, opening: Opening, legs: pairs.Legs) -> None:
        """Starts an RPC and its reader, or those of a pair; the leases are the generation's from here on."""
        request_id = random_id()
        job, worker, queue, index = opening.job, legs.answering.worker, generation._queue, opening.index
        transport = self.shared.transport
        generation._leases[index] = legs.answering
        patience = opening.deadline - time.monotonic()
        choice = Choice(index, request_id, legs.answering, None, math.inf)
        for lease in (legs.answering, legs.prefill):
            if lease is not None:
                lease.watch(functools.partial(queue.lose, choice, lease))
        try:
            request = _ID_FIELD + request_id.encode("ascii") + job.body
            if legs.prefill is not None:
                request += pairs.meeting(legs.prefill.worker)
                prefill = pairs.Prefill(queue, choice, legs.prefill, self._first_failure, job.scored)
                asked = request + _adapter_field(legs.prefill.worker, job.adapter)
                choice.companion = prefill
            request += _adapter_field(worker, job.adapter)
            if transport.feeds:
                limits, held = (
                    Patience(patience, self.shared.token_timeout),
                    legs.prefill is not None and job.scored,
                )
                feed = functools.partial(transport.feed, worker, request, generation.answer, index, limits)
                queue.feed(choice, functools.partial(feed, held=held))
            else:
                choice.stream, choice.patience = transport.open_stream(worker, request), patience
                queue.start(choice)
        except BaseException as error:
            legs.release()
            if isinstance(error, RpcFailure):
                queue.note_end(legs.answering, error)
            raise
        if legs.prefill is not None:
            prefill.start(asked, patience)

    def __repr__(self) -> str:
        return f"<Dispatcher {self._pool!r}>"


def _adapter_field(worker: Worker, name: str) -> bytes:
    """The field of a GenerateRequest that names an adapter. Raises NoWorkerError if it has just gone."""
    if not name:
        return b""
    adapter = worker.adapters.get(name)
    if adapter is None:
        raise NoWorkerError
    return pb.GenerateRequest(lora_id=adapter.id).SerializeToString()
