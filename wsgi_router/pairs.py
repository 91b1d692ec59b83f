"""Prefill and decode on workers of their own: who makes a pair, and the prefill worker's call.

Both workers get the same request at once, with a room where they meet: the prefill worker's host, its port,
a random number. The prefill worker computes the prompt and hands its cache over; the answer comes from the
decode worker, which waits for that. So until the decode worker has said something, a failure of either is a
failure of the choice. Afterwards the prefill worker's part is done, and how its call ends harms no answer; it
still counts in what is known of that worker.

The prompt's own log probabilities come from the prefill worker, too, as the decode worker does not know them.
Where a client asks for them nothing of the decode worker's is read before they are here, but for a failure;
it is as if they had come with its first message.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from wsgi_router import runtime
from wsgi_router.choices import ENDED, Choice, Item, Queue
from wsgi_router.errors import NoWorkerError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.roles import Role
from wsgi_router.workers.transport import Call, GenerateJob, MessageStream, Patience, RpcFailure
from wsgi_router.workers.worker import Lease, Worker

_LOG = logging.getLogger(__name__)

_ROOMS: Final = 2**31 - 1
_UNSCORED: Final = "The prefill worker tells no log probabilities of the prompt."
_REGULAR: Final = frozenset({Role.REGULAR})
_PREFILL: Final = frozenset({Role.PREFILL})
_DECODE: Final = frozenset({Role.DECODE})


@dataclass(frozen=True, slots=True)
class Legs:
    """The leases of a choice: on the worker that the answer comes from, and on its prefill worker, if any."""

    answering: Lease
    prefill: Lease | None = None

    def release(self) -> None:
        self.answering.release()
        if self.prefill is not None:
            self.prefill.release()


def possible(pool: WorkerPool, job: GenerateJob, tried: Collection[Worker]) -> bool:
    """Whether anybody else may be asked."""
    return pool.paired(job.model, tried, job.adapter) or pool.can_serve(
        job.model, tried, job.adapter, _REGULAR
    )


def select(
    pool: WorkerPool,
    job: GenerateJob,
    tried: Collection[Worker],
    doubtful: Collection[Worker] = (),
    near: Choice | None = None,
) -> Legs:
    """As `_select`, without those in `doubtful` if there are others."""
    if doubtful:
        with contextlib.suppress(NoWorkerError):
            return _select(pool, job, [*tried, *doubtful], None)
    return _select(pool, job, tried, near)


def follow(first: Choice, tried: Collection[Worker]) -> Legs | None:
    """More leases where `first` has its own; None if it cannot go on there."""
    companion = first.companion
    leases = [first.lease] if companion is None else [first.lease, companion.lease]
    if not all(lease.worker.may_go_on() and lease.worker not in tried for lease in leases):
        return None
    return Legs(*(lease.worker.lease() for lease in leases))


def _select(pool: WorkerPool, job: GenerateJob, tried: Collection[Worker], near: Choice | None) -> Legs:
    """Chooses the worker, or the pair, for a choice of `job`; `near` is another one of the same job.

    A model with usable workers of either half is served by pairs, any other by regular workers. Who names
    a worker gets that one, whatever it is. Raises NoWorkerError, InvalidRequestError.
    """
    named = pool.named(job.hints.target) if job.hints.target else None
    role = None if named is None else named.part.role
    paired = role in (Role.PREFILL, Role.DECODE) or (role is None and _paired(pool, job, tried, near))
    answering = near.lease.worker if near is not None else None
    if not paired:
        try:
            lease = pool.select(job.model, job.hints, tried, job.adapter, answering, _REGULAR)
        except NoWorkerError as error:
            error.retry_after = _retry_after(pool, job, tried, job.hints, job.hints)
            raise
        if not job.streamed:  # nothing tells when its prompt is computed, long before the answer's end
            lease.computed()
        return Legs(lease)
    prefill = near.companion.lease.worker if near is not None and near.companion is not None else None
    free = msgspec.structs.replace(job.hints, target="") if named else job.hints
    hints = job.hints if role is Role.DECODE else free
    other = job.hints if role is Role.PREFILL else free
    try:
        lease = pool.select(job.model, hints, tried, job.adapter, answering, _DECODE)
        lease.computed()  # by the other half
        try:
            return Legs(lease, pool.select(job.model, other, tried, job.adapter, prefill, _PREFILL))
        except BaseException:
            lease.release()
            raise
    except NoWorkerError as error:
        error.retry_after = _retry_after(pool, job, tried, hints, other)
        raise


def _retry_after(
    pool: WorkerPool, job: GenerateJob, tried: Collection[Worker], decode: Hints, prefill: Hints
) -> int:
    """Whole seconds until a regular worker or a pair may be asked, the first of either, as breakers tell."""

    def closed_for(hints: Hints, roles: Collection[Role]) -> float | None:
        return pool.closed_for(job.model, hints, tried, job.adapter, roles)

    halves = [closed_for(decode, _DECODE), closed_for(prefill, _PREFILL)]
    pair = None if halves == [None, None] else max(half or 0.0 for half in halves)  # both are needed
    waits = [wait for wait in (closed_for(job.hints, _REGULAR), pair) if wait is not None and wait < math.inf]
    return max(math.ceil(min(waits, default=0.0)), 1)


def _paired(pool: WorkerPool, job: GenerateJob, tried: Collection[Worker], near: Choice | None) -> bool:
    if near is not None:
        return near.companion is not None
    return pool.apart(job.model, tried, job.adapter)  # else nobody could tell when they may be asked again


def meeting(worker: Worker) -> bytes:
    """The field of a GenerateRequest that says where the two meet: at this prefill worker, in a new room."""
    params = pb.DisaggregatedParams(
        bootstrap_host=worker.address.rpartition(":")[0],
        bootstrap_port=worker.part.bootstrap_port,
        bootstrap_room=secrets.randbelow(_ROOMS),
    )
    return pb.GenerateRequest(disaggregated_params=params).SerializeToString()


class Prefill:
    """The call to a choice's prefill worker; see `choices.Companion`, and `transport.Sink`.

    `first_failure`: see `dispatch.Dispatcher`.
    """

    __slots__ = (
        *(
            "_choice",
            "_dropped",
            "_first_failure",
            "_gave_up",
            "_lead",
            "_lock",
            "_needed",
            "_over",
            "_queue",
        ),
        *("_stream", "_told", "_unscored", "lease"),
    )

    def __init__(
        self,
        queue: Queue,
        choice: Choice,
        lease: Lease,
        first_failure: Callable[[bytes], str | None],
        scored: bool = False,
    ) -> None:
        self.lease = lease
        self._queue = queue
        self._choice = choice
        self._first_failure = first_failure
        self._stream: MessageStream | Call | None = None
        self._needed = True  # nothing has come of the choice
        self._over = False
        self._gave_up = False
        self._dropped = False
        self._unscored = scored  # the prompt's log probabilities are wanted, and not here yet
        self._lead = b""  # what they are told by, where the choice's reader waits for it
        self._told = runtime.wakeup() if scored and not queue.shared.transport.feeds else None
        self._lock = runtime.brief_lock()

    @property
    def awaited(self) -> bool:
        """See `choices.Companion`."""
        return self._needed and not self._over and not self._dropped

    def start(self, request: bytes, patience: float) -> None:
        """Asks the worker, unless the choice has ended already. What goes wrong is the choice's failure.

        To be called once the choice is in the queue; `patience` is how long its first event may take.
        """
        transport, shared = self._queue.shared.transport, self._queue.shared
        if self._dropped:
            return
        try:
            if transport.feeds:
                limits = Patience(patience, shared.token_timeout)
                call = transport.feed(self.lease.worker, request, None, 0, limits, self)
                self._started(call)
            else:
                stream = transport.open_stream(self.lease.worker, request)
                self._started(stream)
                runtime.spawn(self._read, stream)
        except RpcFailure as failure:
            self.ended(failure, False)

    def _started(self, stream: MessageStream | Call) -> None:
        with self._lock:
            if not self._over:
                self._stream = stream
            dropped = self._dropped
        if dropped:
            self._cancel()

    def _read(self, stream: MessageStream) -> None:
        """Body of a reader: drains the stream."""
        failure: RpcFailure | None = None
        try:
            for message in stream:
                self.lease.worker.heard = time.monotonic()
                self.message(message)
        except RpcFailure as error:
            failure = error.with_traceback(None)
        except Exception as error:
            _LOG.exception("reading from %s failed", self.lease.worker.url)
            failure = RpcFailure("INTERNAL", f"reading the worker's stream failed: {type(error).__name__}")
        self.ended(failure, False)

    def fed(self, flags: int, message: bytes | None) -> None:
        """It has no answer that could be fed."""

    def blocked(self) -> None:
        """It has no socket."""

    def message(self, message: bytes) -> None:
        """One of the prefill worker's: its token comes from the decode worker, too."""
        if self._first_failure(message) is not None:
            self._gave_up = True
            self._fail(message)
        elif self._unscored:
            self._score(message)

    def _score(self, message: bytes) -> None:
        """Hands the prompt's log probabilities on, if the message has them."""
        with contextlib.suppress(DecodeError):  # the last message may be better; else they are missed
            response = pb.GenerateResponse.FromString(message)
            part = response.chunk if response.HasField("chunk") else response.complete
            if not part.HasField("input_logprobs"):
                return
            chunk = pb.GenerateStreamChunk(input_logprobs=part.input_logprobs)
            lead = pb.GenerateResponse(chunk=chunk).SerializeToString()
            self._unscored = False
            stream = self._choice.stream
            if self._told is not None:
                self._lead = lead
                self._told.set()
            elif stream is not None:
                stream.give(lead)  # type: ignore[union-attr]

    def lead(self, message: bytes) -> bytes:
        """See `choices.Companion`."""
        if self._told is None or self._first_failure(message) is not None:
            return b""
        self._choice.at_fault = self.lease  # if this takes too long
        self._told.wait()
        if not self._choice.ended:
            self._choice.at_fault = self._choice.lease
        lead, self._lead = self._lead, b""
        return lead

    def ended(self, failure: RpcFailure | None, silent: bool) -> None:
        """The RPC has ended by itself."""
        shared = self._queue.shared
        with self._lock:
            dropped = self._dropped
            self._over = True
            self._stream = None
        shared.endings.discard(self)
        self.lease.release()
        if dropped:
            return
        if silent:
            self._queue.note_silence(self.lease)
        else:
            self._queue.note_end(self.lease, ENDED if failure is None else failure)
        if failure is not None:
            self._fail(failure, silent)
        elif not self._gave_up:
            shared.pool.credit(self.lease.worker)
            if self._unscored:
                self._fail(RpcFailure("UNIMPLEMENTED", _UNSCORED))
        self._let_go()

    def _fail(self, item: Item, silent: bool = False) -> None:
        """The choice fails with `item`, if it waits for what this was to bring."""
        queue, choice = self._queue, self._choice
        if not self._needed or choice.ended or queue.began(choice):
            return
        choice.at_fault = self.lease
        if queue.cancel(choice, item) and silent:  # either may have kept the other waiting
            queue.note_silence(choice.lease)

    def _let_go(self) -> None:
        """Whoever waits in `lead` goes on."""
        if self._told is not None:
            self._told.set()

    def let_end(self) -> None:
        """See `choices.Companion`."""
        self._needed = False
        endings = self._queue.shared.endings
        if not (self._over or self._dropped):
            endings.add(self, self._queue.shared.close_timeout)
            if self._over or self._dropped:  # it was faster
                endings.discard(self)

    def end_late(self) -> None:
        """See `choices.Companion`."""
        runtime.spawn(self.drop)

    def drop(self, silent: bool = False) -> None:
        """See `choices.Companion`."""
        with self._lock:
            done = self._over or self._dropped
            self._dropped = True
        self.lease.release()
        self._let_go()
        if done:
            return
        self._queue.shared.endings.discard(self)
        if silent and self._needed:
            self._queue.note_silence(self.lease)
        self._cancel()

    def _cancel(self) -> None:
        """Ends the RPC, if it has begun, and tells the worker."""
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
            self._queue.shared.transport.abort(self.lease.worker, self._choice.request_id)

    def __repr__(self) -> str:
        return f"<prefill of {self._choice.index} {'open' if self._stream else 'ended'} {self.lease!r}>"
