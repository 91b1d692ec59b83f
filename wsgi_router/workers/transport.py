"""What the router asks of a gRPC implementation; no implementation is named here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.worker import Worker


class GenerateJob(msgspec.Struct, frozen=True):
    """What a worker is to do. `body` is a GenerateRequest without its request_id; ids are put in front."""

    model: str
    body: bytes
    choices: int = 1
    hints: Hints = NO_HINTS
    streamed: bool = True
    """Whether `body` asks for the tokens as they come; else the worker's one message is the whole answer."""
    adapter: str = ""
    """Name of the LoRA adapter; its id differs from worker to worker, and is added for each."""
    scored: bool = False
    """Whether the client asks for the prompt's own log probabilities."""


class RpcFailure(Exception):
    """An RPC ended with another status than OK. `code` is the status's name, such as "UNAVAILABLE"."""

    def __init__(self, code: str, details: str = "") -> None:
        super().__init__(f"{code}: {details}" if details else code)
        self.code = code
        self.details = details


TOO_LONG: Final = "the worker's answer has too many bytes"


class MessageStream(Protocol):
    """The answer to one RPC: raw messages, in order (of Generate: GenerateResponse)."""

    def __iter__(self) -> Iterator[bytes]:
        """Blocks for the next message; ends with status OK, raises RpcFailure for any other."""

    def close(self) -> None:
        """Cancels the RPC if it still runs; the iteration then ends. Idempotent, callable from anywhere."""


class Sink(Protocol):
    """Where the events of a call go that the transport pushes. None of these blocks or raises."""

    def fed(self, flags: int, message: bytes | None) -> None:
        """The native core has taken messages in; `flags` are the answer's, or-ed.

        `message`: the one that led to FAILED.
        """

    def message(self, message: bytes) -> None:
        """A message that nobody has taken in yet."""

    def blocked(self) -> None:
        """The socket that was lent to the answer takes no more for now."""

    def ended(self, failure: RpcFailure | None, silent: bool) -> None:
        """The call's end, None for status OK; `silent`: nothing came before the deadline."""


class Call(Protocol):
    """A call whose events are pushed."""

    def close(self) -> None:
        """Cancels it if it still runs; no event follows. Idempotent."""

    def withdraw(self) -> bool:
        """`close`, unless a message of it was fed: then it goes on, and this is False."""

    def give(self, message: bytes) -> None:
        """The message that is to come before the first one of a call which was begun as `held`."""


class Patience(NamedTuple):
    """Longest waits in seconds: for the first message, and between two."""

    first: float
    between: float


class Cancel:
    """Called once nobody waits for some unary calls any more, from anywhere; it ends them."""

    def __init__(self) -> None:
        self._ends: list[Callable[[], object]] = []
        self._called = False
        self._lock = threading.Lock()

    @property
    def called(self) -> bool:
        """Whether it was; what fails from then on may have failed by it."""
        return self._called

    def __call__(self) -> None:
        with self._lock:
            self._called = True
            ends = list(self._ends)
        for end in ends:
            end()

    @contextlib.contextmanager
    def calling(self, end: Callable[[], object]) -> Iterator[None]:
        """Within, and maybe a moment longer, `end` is called by this; at once if this was called before."""
        with self._lock:
            self._ends.append(end)
            called = self._called
        try:
            if called:
                end()
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


class Transport(Protocol):
    """Calls to workers. One for each process, made after the fork."""

    def heard(self, worker: Worker) -> float:
        """When anything of a call came from `worker`, by time.monotonic; not later than it can be told."""

    def unary(
        self, worker: Worker, method: str, request: bytes, timeout: float, cancel: Cancel | None = None
    ) -> bytes:
        """One call of `method` (its short name), blocking; raises RpcFailure, CANCELLED after `cancel`.

        Bounded in number: Embed, which may wait for a worker's queue for long, apart from all the others.
        """

    def messages(self, worker: Worker, method: str, request: bytes) -> MessageStream:
        """Starts a call of `method` that has many answers, and no deadline; does not wait for the worker."""

    def gather(self, worker: Worker, method: str, request: bytes, timeout: float, most: int) -> list[bytes]:
        """All messages of one call of a method that streams its answer, blocking.

        Raises RpcFailure; RESOURCE_EXHAUSTED where they have more than `most` bytes. Bounded as `unary` is.
        """

    def abort(self, worker: Worker, request_id: str) -> None:
        """Tells the worker to drop a request. Does not wait, never raises; bounded in number and time."""

    def forget(self, worker: Worker) -> None:
        """Drops the connection to `worker`; the next call makes a new one."""

    def close(self) -> None:
        """Cancels what runs and drops all connections."""


class PulledTransport(Transport, Protocol):
    """One whose messages a reader asks for."""

    feeds: Literal[False]

    def open_stream(self, worker: Worker, request: bytes) -> MessageStream:
        """Starts Generate with a serialised GenerateRequest; does not wait for the worker."""


class FeedingTransport(Transport, Protocol):
    """One that takes the worker's messages in by itself and pushes what comes of them."""

    feeds: Literal[True]

    def feed(
        self,
        worker: Worker,
        request: bytes,
        answer: Any,
        choice: int,
        patience: Patience,
        sink: Sink,
        held: bool = False,
    ) -> Call:
        """Starts Generate with a serialised GenerateRequest; does not wait for the worker.

        `held`: what comes is taken in only after what `Call.give` brings, but for a failure.

        Messages go to the native `answer` as those of `choice`; to `sink`, if it is None or the first message
        says that the worker gave up.
        """


GenerateTransport = PulledTransport | FeedingTransport
