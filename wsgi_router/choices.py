"""The choices of a request, and the queue between what brings their messages and the one who reads them.

Where messages have to be asked for, a reader (greenlet or thread) for each choice fills the queue, and waits
while it is full. A transport that feeds the native core by itself pushes events, which are few.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from wsgi_router import runtime
from wsgi_router.client_watch import cut
from wsgi_router.deadlines import Deadlines
from wsgi_router.errors import RouterError
from wsgi_router.workers.breaker import FAULTS, LOSSES, Event
from wsgi_router.workers.faults import Faults
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import Call, GenerateJob, GenerateTransport, MessageStream, RpcFailure
from wsgi_router.workers.worker import Lease, Worker

_LOG = logging.getLogger(__name__)

_LEAST_PAUSE: Final = 0.01
_GRACE_SECONDS: Final = 1.0
"""A late request ends by itself, unless whoever sends its answer waits for the client; for so long it may."""
_LOOKS: Final = 4


class Ended:
    """The RPC of a choice ended with status OK."""

    def __repr__(self) -> str:
        return "ENDED"


class Blocked:
    """The socket that was lent to the answer takes no more for now."""

    def __repr__(self) -> str:
        return "BLOCKED"


class Broken(NamedTuple):
    """The native core has taken in a message that it cannot go on from."""

    flags: int
    message: bytes


ENDED: Final = Ended()
BLOCKED: Final = Blocked()
Item = bytes | int | Ended | Blocked | Broken | RpcFailure
"""What comes of a choice: a message, or the flags of messages that the core has taken in already."""
Ready = tuple[int, Item]
"""An item with its choice's index."""


class Companion(Protocol):
    """Another RPC, which works for a choice; see `pairs`. All may be called at any time, and again."""

    lease: Lease

    @property
    def awaited(self) -> bool:
        """Whether the choice waits for what this is to bring.

        If the choice's own worker tells of a failure then, it has most likely waited in vain for this one.
        """

    def __hash__(self) -> int: ...

    def drop(self, silent: bool = False) -> None:
        """The choice has come to nothing: cancels the RPC. `silent`: nothing came before the deadline."""

    def lead(self, message: bytes) -> bytes:
        """What is to be read before `message`, the choice's first one, if anything is. Blocks until it comes.

        Only where messages are asked for; a transport that feeds them is given it.
        """

    def let_end(self) -> None:
        """The choice needs it no more: it may end by itself for a while."""

    def end_late(self) -> None:
        """It has not."""


class Choice:
    """One RPC with its lease, and maybe another one that works for it."""

    __slots__ = (
        *("at_fault", "blocked", "companion", "ended", "index", "last", "lease", "over", "patience"),
        *("request_id", "stale", "stream"),
    )

    def __init__(
        self, index: int, request_id: str, lease: Lease, stream: MessageStream | None, patience: float
    ) -> None:
        self.index = index
        self.request_id = request_id
        self.lease = lease
        self.stream: MessageStream | Call | None = stream  # None: the RPC has ended
        self.last = time.monotonic()
        self.patience = patience  # longest silence after `last`, in seconds
        self.over = False  # the RPC has ended by itself
        self.ended = False  # for the request; its reader may still wait for the RPC's end
        self.blocked = False  # its reader waits for room, so silence is not the worker's
        self.stale = False  # another attempt has taken its place
        self.companion: Companion | None = None
        self.at_fault = lease  # if it fails

    def end_late(self) -> None:
        """The RPC's status did not come in time."""
        stream = self.stream
        if stream is not None:
            runtime.spawn(stream.close)

    def __repr__(self) -> str:
        return f"<choice {self.index} {'open' if self.stream else 'ended'} {self.lease!r}>"


@dataclass(frozen=True, slots=True)
class Shared:
    """What the requests of a process have in common. `queue_size` in messages, timeouts in seconds."""

    pool: WorkerPool
    transport: GenerateTransport
    endings: Deadlines[Choice | Companion]
    """RPCs that have said their last and have not ended yet."""
    limits: Deadlines[TimeLimit]
    defer: Callable[[Callable[[], object]], None]
    queue_size: int
    token_timeout: float
    close_timeout: float


class Queue:
    """What the readers of one request share with its consumer. Readers hold this, never the Generation, so
    that a Generation that is dropped without `close` can be noticed."""

    __slots__ = (
        "_faults",
        "_lock",
        "choices",
        "closed",
        "lost",
        "on_close",
        "ready",
        "room",
        "shared",
        "wakeup",
    )

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        # Lists: an empty deque takes 700 bytes, and little ever waits here.
        self.ready: list[tuple[Choice, Item]] = []
        self.wakeup = runtime.wakeup()
        self.room: list[runtime.Wakeup] = []
        self.choices: dict[int, Choice] = {}  # those not ended yet, by index
        self.closed = False
        self.lost: tuple[tuple[Choice, Lease], ...] = ()
        """Choices that wait for a worker which was found down: that of the lease."""
        self.on_close: Callable[[], object] | None = None
        """Called once all that was open is cancelled, maybe more than once."""
        self._faults = Faults(shared.pool)
        self._lock = runtime.brief_lock()

    def lose(self, choice: Choice, lease: Lease) -> None:
        """The worker of `lease` was found down, and nothing has come of the choice."""
        if (choice, lease) not in self.lost:
            self.lost += ((choice, lease),)
        self.wakeup.set()

    def note_end(self, lease: Lease, end: Ended | RpcFailure) -> None:
        """Takes in how an RPC that nobody here has cancelled came to its end.

        Whether what came before a good end was of any use, its reader can tell.
        """
        pool = self.shared.pool
        if end is ENDED:
            pool.report(lease.worker, Event.CALL_OK)
        elif isinstance(end, RpcFailure):
            if end.code == "UNAVAILABLE":
                pool.report(lease.worker, Event.CALL_UNREACHABLE)
            self.blame(lease, end.code)

    def note_silence(self, lease: Lease) -> None:
        """Takes in that a worker was waited for in vain."""
        self.shared.pool.report(lease.worker, Event.CALL_SILENT)
        self.blame(lease, "DEADLINE_EXCEEDED")

    def blame(self, lease: Lease, code: str = "INTERNAL") -> None:
        """As `WorkerPool.blame`; all that a request fails at a worker is one failure."""
        self._faults.add(lease, code)

    def read(self, choice: Choice, stream: MessageStream) -> None:
        """Body of a reader: moves messages from the blocking stream into the queue until the RPC ends."""
        ready, wake, limit = self.ready, self.wakeup.set, self.shared.queue_size
        clock, patience = time.monotonic, self.shared.token_timeout
        worker, companion = choice.lease.worker, choice.companion
        end: Ended | RpcFailure = ENDED
        try:
            for message in stream:
                if companion is not None:
                    lead, companion = companion.lead(message), None
                    if lead and not choice.ended:
                        ready.append((choice, lead))
                if choice.ended:
                    continue
                choice.last = worker.heard = clock()
                choice.patience = patience
                ready.append((choice, message))
                wake()
                if len(ready) >= limit:
                    self._wait_for_room(choice)
        except RpcFailure as failure:
            end = failure.with_traceback(None)  # which would tie the queue to its own frames
        except Exception as error:
            _LOG.exception("reading from %s failed", choice.lease.worker.url)
            end = RpcFailure("INTERNAL", f"reading the worker's stream failed: {type(error).__name__}")
        self.over(choice, end)

    def feed(self, choice: Choice, open_call: Callable[[_Sink], Call]) -> None:
        """Adds a choice whose events are pushed. Raises RpcFailure."""
        with self._lock:
            if not self.closed:
                self.choices[choice.index] = choice
        try:
            call = open_call(_Sink(self, choice))
        except BaseException:
            self.end(choice)
            raise
        with self._lock:
            if not choice.over:
                choice.stream = call
        if choice.ended or self.closed:
            self._drop(choice)

    def over(self, choice: Choice, end: Ended | RpcFailure, silent: bool = False) -> None:
        """The RPC of a choice has come to its end by itself."""
        with self._lock:
            choice.over = True
            choice.stream = None
            by_itself = not choice.ended
        self.shared.endings.discard(choice)
        if choice.companion is not None:
            if end is ENDED:
                choice.companion.let_end()
            else:
                if not silent and choice.companion.awaited and _told_of_a_fault(end):
                    choice.at_fault = choice.companion.lease
                choice.companion.drop(silent)
        if by_itself:  # told before the consumer can see the end, and ask the same worker again
            if silent:
                self.note_silence(choice.lease)
            else:
                self.note_end(choice.at_fault, end)
        self.end(choice, end)

    def put(self, choice: Choice, item: Item) -> None:
        """Takes in what a transport has pushed."""
        if not choice.ended:
            self.ready.append((choice, item))
            self.wakeup.set()

    def _wait_for_room(self, choice: Choice) -> None:
        """Holds the reader, and by gRPC's flow control the worker, until the consumer has caught up."""
        room = runtime.wakeup()
        choice.blocked = True
        while len(self.ready) >= self.shared.queue_size and not choice.ended:
            self.room.append(room)
            if len(self.ready) >= self.shared.queue_size and not choice.ended:
                room.wait()
        choice.last = time.monotonic()
        choice.blocked = False

    def make_room(self) -> None:
        """Lets waiting readers look again."""
        while self.room:
            try:
                self.room.pop().set()
            except IndexError:  # another thread was faster
                return

    def start(self, choice: Choice) -> None:
        """Adds a choice and starts its reader; ends it at once if the request was closed meanwhile."""
        with self._lock:
            if not self.closed:
                self.choices[choice.index] = choice
                runtime.spawn(self.read, choice, choice.stream)
                return
        self._drop(choice)

    def end(self, choice: Choice, last: Item | None = None) -> bool:
        """Ends a choice: returns its lease and queues `last`. True for the one caller that did so."""
        choice.lease.release()  # before the consumer can see the end
        if choice.companion is not None:
            choice.companion.lease.release()
        with self._lock:
            if self.choices.get(choice.index) is not choice:
                return False
            if last is not None:
                self.ready.append((choice, last))
            del self.choices[choice.index]
            choice.ended = True
        if last is not None:
            self.wakeup.set()
        if choice.blocked:
            self.make_room()
        return True

    def cancel(self, choice: Choice, last: Item | None = None, silent: bool = False) -> bool:
        """Ends a choice that the worker still works on. True for the one caller that did so."""
        ended = self.end(choice, last)
        if ended:
            self._drop(choice, silent)
        return ended

    def has_event(self, choice: Choice) -> bool:
        """Whether something of a choice lies here."""
        return any(one is choice for one, _ in tuple(self.ready))

    def began(self, choice: Choice) -> bool:
        """Whether anything of a choice has come; else, where messages are fed, it is withdrawn."""
        if self.has_event(choice):
            return True
        call = choice.stream
        return self.shared.transport.feeds and call is not None and not call.withdraw()  # type: ignore[union-attr]

    def expire(self, now: float) -> float:
        """Ends choices whose worker was silent for too long. Returns seconds until the next may be due."""
        pause = math.inf
        for choice in list(self.choices.values()):
            left = choice.last + choice.patience - now
            if left <= 0 and not choice.blocked:
                silence = RpcFailure("DEADLINE_EXCEEDED", f"nothing came for {choice.patience:g} seconds")
                if self.cancel(choice, silence, silent=True):
                    self.note_silence(choice.at_fault)
            pause = min(pause, max(left, _LEAST_PAUSE))
        return pause

    def _drop(self, choice: Choice, silent: bool = False) -> None:
        choice.lease.release()
        if choice.companion is not None:
            choice.companion.drop(silent)
        stream = choice.stream
        if stream is not None:
            stream.close()
            if self.shared.transport.feeds:  # no event follows; a reader would notice by itself
                choice.stream = None
            self.shared.transport.abort(choice.lease.worker, choice.request_id)

    def let_end(self, choice: Choice) -> None:
        """Ends a choice whose last message has come; its status is on the way, and waited for a while."""
        if self.end(choice):
            if choice.companion is not None:
                choice.companion.let_end()
            self.shared.endings.add(choice, self.shared.close_timeout)
            if choice.stream is None:  # the status was faster
                self.shared.endings.discard(choice)

    def close(self) -> None:
        """Cancels all that is open. Idempotent."""
        with self._lock:
            self.closed = True
        for choice in list(self.choices.values()):
            self.cancel(choice)
        if self.on_close is not None:
            self.on_close()
        self.make_room()
        self.wakeup.set()


class Opening:
    """A choice, number `index` of the request, that has not had its first event yet; `others` wait for it."""

    __slots__ = ("deadline", "doubtful", "index", "job", "others", "tried")

    def __init__(self, index: int, job: GenerateJob, deadline: float, others: range = range(0)) -> None:
        self.index = index
        self.job = job
        self.deadline = deadline
        self.others = others
        self.tried: list[Worker] = []
        self.doubtful: list[Worker] = []  # others that may have been at fault


class Again(NamedTuple):
    """A choice that is to be begun again, when it is `due`; `error` is how it has failed."""

    due: float
    opening: Opening
    error: RouterError


class TimeLimit:
    """Ends a request that is late, where whoever sends its answer waits for a client that reads nothing.

    Else it ends by itself, for which it is given a while. That is counted in looks at it: a process that
    stood still has looked once, and then everybody gets a turn.
    """

    __slots__ = ("_connection", "_looks", "_queue")

    def __init__(self, queue: Queue, connection: Any) -> None:
        """`connection`: as `client_watch.cut` takes it, or None."""
        self._queue = queue
        self._connection = connection
        self._looks = _LOOKS

    def end_late(self) -> float | None:
        """It was not over in time. Does not block; returns the seconds until this is to be called again."""
        if self._looks:
            self._looks -= 1
            self._queue.wakeup.set()
            return _GRACE_SECONDS / _LOOKS
        try:
            if self._connection is not None:
                cut(self._connection)
        finally:
            runtime.spawn(self._queue.close)
        return None


def _told_of_a_fault(end: Ended | RpcFailure) -> bool:
    """Whether the worker was there, and something was wrong, but not with the request."""
    return isinstance(end, RpcFailure) and end.code in FAULTS - LOSSES


class _Sink:
    """Events of a choice whose transport pushes them; see `transport.Sink`."""

    __slots__ = ("_choice", "_queue")

    def __init__(self, queue: Queue, choice: Choice) -> None:
        self._queue = queue
        self._choice = choice

    def fed(self, flags: int, message: bytes | None) -> None:
        self._queue.put(self._choice, flags if message is None else Broken(flags, message))

    def message(self, message: bytes) -> None:
        self._queue.put(self._choice, message)

    def blocked(self) -> None:
        self._queue.put(self._choice, BLOCKED)

    def ended(self, failure: RpcFailure | None, silent: bool) -> None:
        self._queue.over(self._choice, ENDED if failure is None else failure, silent)
