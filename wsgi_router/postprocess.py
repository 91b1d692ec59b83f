"""From an open generation to the client's bytes: server-sent events, or one JSON object.

For each message of a worker there is one native call, for each batch of what is ready one yield. Nothing here
is bound to a request's context, so an answer may be dropped anywhere.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from wsgi_router import observability, runtime
from wsgi_router.choices import BLOCKED, ENDED, Broken, Ended
from wsgi_router.dispatch import Generation
from wsgi_router.errors import (
    ClientGone,
    DrainingError,
    InternalError,
    RouterError,
    UpstreamError,
    WorkerAbortError,
    WorkerProtocolError,
)
from wsgi_router.native import ALL_DONE, CANCEL, CHOICE_DONE, FAILED, NativeError, first_failure, router_error
from wsgi_router.settings import Settings
from wsgi_router.workers.transport import RpcFailure

_LOG = logging.getLogger(__name__)

PING: Final = b": ping\n\n"

_LOOKS: Final = 4

_SPECIAL: Final = CHOICE_DONE | CANCEL | ALL_DONE | FAILED

OnEnd = Callable[[dict[str, Any], str], None]
"""Called once at the end with the native counters and one of observability's outcomes."""


class AnswerStream(Protocol):
    """What is used of the native core's Stream."""

    def feed(self, choice: int, message: bytes, /) -> int: ...
    def lend(self, descriptor: int, /) -> None: ...
    def rest(self) -> bytes: ...
    def resume(self) -> None: ...
    def reclaim(self) -> int: ...
    def ping(self, data: bytes, idle_seconds: float, /) -> None: ...
    def end(self, choice: int, /) -> int: ...
    def fail(self, error: bytes, /) -> None: ...
    def take(self) -> bytes: ...
    def result(self) -> bytes: ...
    def failure(self) -> str | None: ...
    def stats(self) -> dict[str, Any]: ...


class Loan(Protocol):
    """A client's socket that the core may write to, as HTTP/1.1 chunks, once the first bytes are sent."""

    descriptor: int

    def send(self, data: bytes) -> None:
        """Sends bytes that are chunks already; blocks while the client reads slowly. Raises OSError."""

    def count(self, written: int) -> None:
        """The core has written so many bytes of content."""


class _Answer:
    """A generation being turned into an answer; its end is told once."""

    __slots__ = ("_on_end", "done", "generation", "lent", "loan", "stream")

    def __init__(self, generation: Generation, stream: AnswerStream, on_end: OnEnd) -> None:
        self.generation = generation
        self.stream = stream
        self.done = False
        self.loan: Loan | None = None
        """The socket that may be lent."""
        self.lent: Loan | None = None
        """The socket that is lent now."""
        self._on_end: OnEnd | None = on_end

    def feed(self) -> None:
        """Feeds all that is ready. Sets `done` at the answer's end; raises RouterError if it fails.

        Called after `wait` has returned True, so an empty batch has a reason, which is an error too.
        """
        generation, stream = self.generation, self.stream
        taken = generation.take()
        for choice, item in taken:
            if type(item) is int:
                flags = item
            elif type(item) is bytes:
                flags = stream.feed(choice, item)
            elif item is ENDED:
                flags = stream.end(choice)
            elif item is BLOCKED:
                self.unblock()
                continue
            elif isinstance(item, Broken):
                flags, item = item
            else:
                raise _upstream_error(item)
            if flags & _SPECIAL:
                if flags & FAILED:
                    generation.blame(choice)
                    raise self._failure(item)
                self._act_on(choice, flags)
                if self.done:
                    return
        if not taken or runtime.drain.begun:
            self._check_on_life()

    def _act_on(self, choice: int, flags: int) -> None:
        if flags & (CHOICE_DONE | CANCEL):
            self.generation.finish(choice, cancel=bool(flags & CANCEL))
        if flags & ALL_DONE:
            self.done = True

    def lend(self) -> None:
        """From here on the core writes to the client's socket by itself, if it was offered."""
        if self.loan is not None and not self.done:
            self.lent = self.loan
            self.stream.lend(self.lent.descriptor)
            self.unblock()

    def unblock(self) -> None:
        """Sends what the socket did not take, as fast as the client reads, and lets the core go on."""
        if self.lent is not None:
            while rest := self.stream.rest():
                self.lent.send(rest)
                self.stream.resume()

    def reclaim(self) -> None:
        """Takes the socket back, and sends what the core has not. Idempotent."""
        lent, self.lent = self.lent, None
        if lent is not None:
            lent.count(self.stream.reclaim())
            lent.send(self.stream.rest())

    def left(self) -> str:
        """The outcome for a client that has left; it may have had all before the core could tell."""
        lent, self.lent = self.lent, None
        if lent is None:
            return observability.CANCELLED
        lent.count(self.stream.reclaim())
        unsent = self.stream.rest() or self.stream.take()
        whole = len(self.stream.stats()["finish_reasons"]) == self.generation.choices
        return observability.COMPLETE if whole and not unsent else observability.CANCELLED

    def _failure(self, item: bytes | int | Ended) -> RouterError:
        """What the core found wrong with `item`: the worker gave up, or does not keep to the protocol."""
        message = self.stream.failure() or _UNFINISHED
        aborted = type(item) is bytes and first_failure(item) is not None
        return WorkerAbortError(message) if aborted else WorkerProtocolError(message)

    def _check_on_life(self) -> None:
        """Raises the reason if nothing more is to come."""
        generation = self.generation
        if generation.closed or generation.client_gone:
            raise ClientGone
        if runtime.drain.due():
            raise DrainingError
        if generation.exhausted:
            raise WorkerProtocolError(_UNFINISHED)

    @property
    def ended(self) -> bool:
        return self._on_end is None

    def end(self, outcome: str, sending: bool = False) -> None:
        """Closes the generation (see there) and tells the outcome, the first time it is called."""
        on_end, self._on_end = self._on_end, None
        if on_end is None:
            return
        self.done = True
        if self.lent is not None:  # whoever ends it first, the socket is not the core's any more
            self.lent = None
            self.stream.reclaim()
        self.generation.close(sending)
        try:
            on_end(self.stream.stats(), outcome)
        except Exception:
            _LOG.exception("telling an answer's end failed")

    def leave(self) -> None:
        """The server is through with it, whatever was sent."""
        self.end(observability.CANCELLED)
        if not self.generation.over:
            self.generation.close()

    def end_by(self, error: RouterError, sending: bool = False) -> None:
        """Ends as `error` says."""
        self.end(_outcome(error), sending)


def _outcome(error: RouterError) -> str:
    if isinstance(error, DrainingError):
        return observability.DRAINED
    return observability.CANCELLED if isinstance(error, ClientGone) else observability.FAILED


_UNFINISHED: Final = "The worker's stream ended without a last message."


def _upstream_error(item: object) -> RouterError:
    assert isinstance(item, RpcFailure)
    if runtime.drain.due():  # the connections were closed
        return DrainingError()
    return UpstreamError.from_grpc(item.code, item.details)


def _as_router_error(error: Exception) -> RouterError:
    if isinstance(error, RouterError):
        return error
    if isinstance(error, NativeError):
        return router_error(error)
    _LOG.error("an answer failed", exc_info=error)
    return InternalError()


class StreamResponse:
    """A streamed answer as a WSGI iterable. `close` cancels what is open; it may come from anywhere.

    Each piece is all that is ready. No generator: an open stream's memory is its objects and its stack.
    """

    __slots__ = ("_answer", "_failure", "_head", "_lendable", "_over", "_ping_interval")

    def __init__(
        self, answer: _Answer, head: bytes, settings: Settings, failure: Exception | None = None
    ) -> None:
        """`failure`: what followed `head`, and ends the answer."""
        self._answer = answer
        self._head = head
        self._failure = failure
        self._ping_interval = settings.ping_interval
        self._lendable = settings.lend_sockets and answer.generation.fed
        self._over = False

    def __iter__(self) -> StreamResponse:
        return self

    def __next__(self) -> bytes:
        piece = None if self._over else self._next_piece()
        if piece is None:
            raise StopIteration
        return piece

    def _next_piece(self) -> bytes | None:
        """Ends the answer when it is done, however that is."""
        answer = self._answer
        head, self._head = self._head, b""
        if self._failure is not None:
            return head or self._broken_off(self._failure)
        try:
            if not answer.done:
                if head:
                    return head
                if answer.loan is not None and answer.lent is None:
                    answer.lend()
                    return b""  # the server drops the first piece, which it would hold until the end
                head = self._wait()
                if not answer.done:
                    return head
            self._over = True
            answer.reclaim()
            head += answer.stream.take()
        except (ClientGone, OSError):
            self._over = True
            answer.end(answer.left())
            return None
        except Exception as error:
            return self._broken_off(error)
        if not answer.ended:
            answer.end(observability.COMPLETE, sending=True)
            return head or None
        return None  # closed from elsewhere

    def _wait(self) -> bytes:
        """Waits for something to pass on; returns with the answer's end too."""
        answer, interval = self._answer, self._ping_interval
        while not answer.done:
            # How long the socket was silent is for the core to know: it is asked a few times an interval.
            if answer.generation.wait(interval if answer.lent is None else interval / _LOOKS):
                answer.feed()
                if answer.lent is None and (data := answer.stream.take()):
                    return data
            elif answer.lent is None:
                return PING
            else:
                answer.stream.ping(PING, interval)
                answer.unblock()
        return b""

    def _broken_off(self, error: Exception) -> bytes | None:
        """The last piece of an answer that has failed."""
        self._over = True
        answer, reason = self._answer, _as_router_error(error)
        with contextlib.suppress(OSError):
            answer.reclaim()
        answer.stream.fail(reason.body())
        data = answer.stream.take()
        answer.end_by(reason, sending=True)
        return data or None

    def offer(self, loan: Loan) -> None:
        """Before the first piece is taken; once it is sent, the core may write the rest to the client."""
        if self._lendable:
            self._answer.loan = loan

    def close(self) -> None:
        self._answer.leave()

    def __del__(self) -> None:
        # A server may forget `close`; a finaliser may run anywhere, so the work is done elsewhere.
        answer = self._answer
        if not (answer.ended and answer.generation.over):
            answer.generation.defer(answer.leave)

    def __repr__(self) -> str:
        return f"<StreamResponse {'ended' if self._answer.ended else 'open'} {self._answer.generation!r}>"


def stream_response(
    generation: Generation, stream: AnswerStream, settings: Settings, on_end: OnEnd
) -> StreamResponse:
    """The answer as server-sent events. Takes `generation` over.

    The first batch is fed here: a failure before the first event raises RouterError, so that it can still
    become a status. Later failures are an error event and [DONE], also those of the same batch: what has come
    is not lost.
    """
    answer = _Answer(generation, stream, on_end)
    try:
        head = b""
        while not head and not answer.done:
            generation.wait()
            answer.feed()
            head = stream.take()
    except Exception as error:
        head = b"" if isinstance(error, (ClientGone, NativeError)) else stream.take()
        if not head:
            raise _failed(answer, error) from None
        return StreamResponse(answer, head, settings, error.with_traceback(None))
    except BaseException:
        answer.end(observability.CANCELLED)
        raise
    return StreamResponse(answer, head, settings)


def aggregate(generation: Generation, stream: AnswerStream, on_end: OnEnd) -> bytes:
    """The whole answer as one JSON object. Takes `generation` over. Raises RouterError."""
    answer = _Answer(generation, stream, on_end)
    try:
        while not answer.done:
            generation.wait()
            answer.feed()
        result = stream.result()
    except Exception as error:
        raise _failed(answer, error) from None
    except BaseException:
        answer.end(observability.CANCELLED)
        raise
    answer.end(observability.COMPLETE)
    return result


def _failed(answer: _Answer, error: Exception) -> RouterError:
    reason = _as_router_error(error)
    answer.end_by(reason)
    return reason
