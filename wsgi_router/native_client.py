"""The transport in the native core: HTTP/2, gRPC, decoding and framing in one thread a process.

Python hears of a call at its first message, when its answer has bytes to pass on, and at its end. The events
are delivered in the hub under gevent, else by a thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from wsgi_router import native, runtime, tls
from wsgi_router.descriptors import watch_readable
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.workers.slots import Slots
from wsgi_router.workers.transport import TOO_LONG, Cancel, Patience, RpcFailure, Sink
from wsgi_router.workers.worker import Worker

_LOG = logging.getLogger(__name__)

_ABORTS_AT_ONCE: Final = 64
_UNARY_AT_ONCE: Final = 1024
_GRACE_SECONDS: Final = 2.0
_SUBMITTED_TOGETHER: Final = 8
"""Calls that wait for each other, at most, so that one wake-up of the transport's thread starts them all."""
_MOST_WAITING: Final = 1 << 14
"""Messages of a call that are kept for whoever reads them; more than the 10,000 that an engine replays."""
_STATUS: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""Names of gRPC's status codes, by number."""
_CANCELLED: Final = _STATUS.index("CANCELLED")
_EXHAUSTED: Final = _STATUS.index("RESOURCE_EXHAUSTED")


def _failure(status: int, details: str) -> RpcFailure | None:
    if status == 0:
        return None
    return RpcFailure(_STATUS[status] if status < len(_STATUS) else "UNKNOWN", details)


class _Push:
    """Hands a call's events to a sink; what the extension calls."""

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def fed(self, flags: int, message: bytes | None) -> None:
        self._sink.fed(flags, message)

    def message(self, message: bytes) -> None:
        self._sink.message(message)

    def blocked(self) -> None:
        self._sink.blocked()

    def ended(self, status: int, details: str, silent: bool) -> None:
        self._sink.ended(_failure(status, details), silent)


class _Unary:
    """A unary call's events."""

    __slots__ = ("answer", "done", "failure", "on_end")

    def __init__(self, on_end: Any = None) -> None:
        self.answer: bytes | None = None
        self.failure: RpcFailure | None = None
        self.done = None if on_end else runtime.wakeup()
        self.on_end = on_end

    def message(self, message: bytes) -> None:
        self.answer = message

    def ended(self, status: int, details: str, _silent: bool) -> None:
        self.failure = _failure(status, details)
        if self.failure is None and self.answer is None:
            self.failure = RpcFailure("INTERNAL", "the worker sent no answer")
        self.wake()

    def wake(self) -> None:
        if self.done is None:
            self.on_end(self)
        else:
            self.done.set()

    def cancel(self) -> None:
        """Whoever waits is woken, and drops the call."""
        self.ended(_CANCELLED, "nobody waits for the answer", False)


class _Messages:
    """A call with many answers; see `transport.MessageStream`. What the extension calls, too."""

    def __init__(self) -> None:
        self._ready: deque[bytes] = deque()
        self._changed = runtime.wakeup()
        self._end: RpcFailure | None = None
        self._ended = False
        self._call: native.Call | None = None

    def begin(self, call: native.Call) -> None:
        self._call = call

    def message(self, message: bytes) -> None:
        if self._ended:
            return
        if len(self._ready) < _MOST_WAITING:
            self._ready.append(message)
            self._changed.set()
            return
        self.ended(_EXHAUSTED, "the worker's messages are not read fast enough", False)
        if self._call is not None:
            self._call.close()

    def ended(self, status: int, details: str, _silent: bool) -> None:
        if not self._ended:
            self._end, self._ended = _failure(status, details), True
        self._changed.set()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            while self._ready:
                yield self._ready.popleft()
            if self._ended:
                break
            self._changed.wait()
        if self._end is not None:
            raise RpcFailure(self._end.code, self._end.details)

    def close(self) -> None:
        if self._call is not None:
            self._call.close()
        self.ended(_CANCELLED, "nobody waits for the answer", False)


class _Gathered(_Unary):
    """The events of a call whose answer is streamed, and wanted whole."""

    __slots__ = ("messages", "room")

    def __init__(self, most: int) -> None:
        super().__init__()
        self.messages: list[bytes] = []
        self.room = most

    def message(self, message: bytes) -> None:
        self.room -= len(message)
        if self.room >= 0:
            self.messages.append(message)
        else:
            self.messages.clear()
            self.failure = RpcFailure("RESOURCE_EXHAUSTED", TOO_LONG)
            self.wake()

    def ended(self, status: int, details: str, _silent: bool) -> None:
        self.failure = self.failure or _failure(status, details)
        self.wake()


def _tls_options(credentials: tls.Credentials) -> dict[str, object]:
    return {
        "pinned": credentials.private,
        "certificate": credentials.certificate.decode("utf-8", "replace"),
        "key": credentials.key.decode("utf-8", "replace"),
        "server_name": credentials.server_name,
    }


def _new_net(options: dict[str, object], roots: bytes) -> native.Net:
    """Raises SettingsError for certificates that the core cannot use, though OpenSSL can."""
    try:
        return native.Net(msgspec.json.encode(options), roots)
    except native.NativeError as error:
        if error.param:
            raise SettingsError(f"{error.param.upper()}: {' '.join(error.message.split())}") from None
        raise


def _soon() -> Callable[[Callable[[], object]], object] | None:
    """Runs functions in the hub of whoever calls this, once all that is ready has had its turn.

    None without gevent.
    """
    if not runtime.patched():
        return None
    import gevent

    return gevent.get_hub().loop.run_callback  # type: ignore[no-any-return]


class NativeTransport:
    """See `transport.FeedingTransport`. To be made after the fork; under gevent, after patching."""

    feeds: Literal[True] = True

    def __init__(self, settings: Settings) -> None:
        runtime.init_process(0)
        credentials = tls.load(settings)
        options = {
            "keepalive_time_ms": int(settings.keepalive_time * 1000),
            "keepalive_timeout_ms": int(settings.keepalive_timeout * 1000),
            "queue_size": settings.queue_size,
            "tls": _tls_options(credentials),
        }
        self._net = _new_net(options, credentials.roots)
        self._unwatch = watch_readable(self._net.fileno(), self._net.deliver)
        self._abort_timeout = settings.abort_timeout
        self._unary_slots = Slots(_UNARY_AT_ONCE)
        self._embed_slots = Slots(_UNARY_AT_ONCE)
        self._aborts: dict[_Unary, Any] = {}
        self._aborts_lock = threading.Lock()
        self._closed = False
        self._soon = _soon()
        self._unsubmitted = 0

    def feed(
        self,
        worker: Worker,
        request: bytes,
        answer: Any,
        choice: int,
        patience: Patience,
        sink: Sink,
        held: bool = False,
    ) -> Any:
        call = self._net.generate(
            worker.url, request, answer, choice, patience.first, patience.between, _Push(sink)
        )
        if held:
            call.hold()
        if self._soon is None:
            self._start_calls()
            return call
        self._unsubmitted += 1
        if self._unsubmitted >= _SUBMITTED_TOGETHER:
            self._submit()
        elif self._unsubmitted == 1:
            self._soon(self._submit)
        return call

    def _submit(self) -> None:
        if self._unsubmitted:
            self._unsubmitted = 0
            self._start_calls()

    def _start_calls(self) -> None:
        with contextlib.suppress(ValueError):  # it was closed meanwhile, which has ended them
            self._net.submit()

    def heard(self, worker: Worker) -> float:
        silence = self._net.heard(worker.url)
        return 0.0 if silence is None else time.monotonic() - silence

    def unary(
        self, worker: Worker, method: str, request: bytes, timeout: float, cancel: Cancel | None = None
    ) -> bytes:
        slots = self._embed_slots if method == "Embed" else self._unary_slots
        events = _Unary()
        self._wait_for(events, slots, worker, method, request, timeout, cancel or Cancel())
        assert events.answer is not None
        return events.answer

    def gather(self, worker: Worker, method: str, request: bytes, timeout: float, most: int) -> list[bytes]:
        events = _Gathered(most)
        self._wait_for(events, self._unary_slots, worker, method, request, timeout, Cancel())
        return events.messages

    def _wait_for(
        self,
        events: _Unary,
        slots: Slots,
        worker: Worker,
        method: str,
        request: bytes,
        timeout: float,
        cancel: Cancel,
    ) -> None:
        """Makes a call and returns at its end. Raises RpcFailure."""
        with slots.held(timeout, cancel) as left:
            self._call(events, worker, method, request, left, cancel)

    def _call(
        self, events: _Unary, worker: Worker, method: str, request: bytes, timeout: float, cancel: Cancel
    ) -> None:
        call = self._net.unary(worker.url, method, request, timeout, events)
        try:
            assert events.done is not None
            with cancel.calling(events.cancel):
                if not events.done.wait(timeout + _GRACE_SECONDS):
                    raise RpcFailure("DEADLINE_EXCEEDED", f"no answer for {timeout:g} seconds")
        finally:
            call.close()
        failure, events.failure = events.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else the error would hold itself by its traceback

    def messages(self, worker: Worker, method: str, request: bytes) -> _Messages:
        stream = _Messages()
        stream.begin(self._net.unary(worker.url, method, request, math.inf, stream))
        return stream

    def abort(self, worker: Worker, request_id: str) -> None:
        if len(self._aborts) >= _ABORTS_AT_ONCE or self._closed:
            _LOG.debug("abort of %s left out: %d are under way", request_id, len(self._aborts))
            return
        request = pb.AbortRequest(request_id=request_id, reason="client gone").SerializeToString()
        events = _Unary(self._forget_abort)
        self._aborts[events] = None
        call = self._net.unary(worker.url, "Abort", request, self._abort_timeout, events)
        with self._aborts_lock:
            if events in self._aborts:  # else it has ended already
                self._aborts[events] = call

    def _forget_abort(self, events: _Unary) -> None:
        with self._aborts_lock:
            self._aborts.pop(events, None)

    def forget(self, worker: Worker) -> None:
        self._net.forget(worker.url)

    def close(self) -> None:
        self._closed = True
        self._unwatch()
        self._net.close()

    def __repr__(self) -> str:
        return f"<NativeTransport {self._net!r} aborts={len(self._aborts)}>"
