"""A transport without a network: streams that a test writes, model info that it sets."""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.transport import Cancel, RpcFailure
from wsgi_router.workers.worker import Worker


class FakeStream:
    """Gives out what `put` has put in; None ends it well, an RpcFailure otherwise."""

    def __init__(self, worker: Worker, request: bytes, *items: bytes | RpcFailure | None) -> None:
        self.worker = worker
        self.request = pb.GenerateRequest.FromString(request)
        self.closes = 0
        self.given = 0
        self._items: queue.Queue[bytes | RpcFailure | None] = queue.Queue()
        for item in items:
            self.put(item)

    def put(self, item: bytes | RpcFailure | None) -> None:
        self._items.put(item)

    def __iter__(self) -> Iterator[bytes]:
        while (item := self._items.get()) is not None:
            if isinstance(item, RpcFailure):
                raise _fresh(item)
            self.given += 1
            yield item

    def close(self) -> None:
        self.closes += 1
        self._items.put(RpcFailure("CANCELLED", "by us"))


def _fresh(failure: RpcFailure) -> RpcFailure:
    """A copy: a raised error keeps the frames it went through alive."""
    return RpcFailure(failure.code, failure.details)


_REFUSED = RpcFailure("UNAVAILABLE", "connection refused")
_DEFAULTS = {
    "ListLoadedLoRAAdapters": RpcFailure("UNIMPLEMENTED", "no adapters here"),
    "HealthCheck": pb.HealthCheckResponse(healthy=True),
}
Answer = tuple[bytes | RpcFailure | None, ...] | RpcFailure


class FakeTransport:
    """`answers`: for the n-th stream, its items, or a failure to open it. `infos`: by worker URL.

    `probes`, `checks`: workers that the pool itself has asked, by GetModelInfo and by HealthCheck.
    `asked`: methods of all other unary calls.
    `unary_answers`: by method, a message or its bytes, a failure, or what makes one of the request (and the
    worker's URL).
    """

    feeds: Literal[False] = False

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.streams: list[FakeStream] = []
        self.aborted: list[tuple[str, str]] = []
        self.forgotten: list[str] = []
        self.infos: dict[str, pb.GetModelInfoResponse | RpcFailure] = {}
        self.probes: list[str] = []
        self.checks: list[str] = []
        self.asked: list[str] = []
        self.unary_answers: dict[str, Any] = {}
        self.streamed: dict[str, Any] = {}
        self.on_open: Callable[[], None] | None = None
        self.on_unary: Callable[[], object] | None = None
        self.on_cancel: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def open_stream(self, worker: Worker, request: bytes) -> FakeStream:
        with self._lock:
            answer = self.answers.pop(0) if self.answers else ()
            if isinstance(answer, RpcFailure):
                raise _fresh(answer)
            stream = FakeStream(worker, request, *answer)
            self.streams.append(stream)
            return stream

    def messages(self, worker: Worker, method: str, request: bytes) -> FakeStream:
        raise RpcFailure("UNIMPLEMENTED", f"{method} is nothing that this worker has")

    def heard(self, worker: Worker) -> float:
        return worker.heard

    def unary(
        self, worker: Worker, method: str, request: bytes, timeout: float, cancel: Cancel | None = None
    ) -> bytes:
        if method == "HealthCheck":
            self.checks.append(worker.url)
            return self._answer(worker, method, request)
        if method != "GetModelInfo":
            self.asked.append(method)
            with (cancel or Cancel()).calling(self.on_cancel):
                return self._answer(worker, method, request)
        self.probes.append(worker.url)
        if self.on_unary is not None:
            self.on_unary()
        info = self.infos.get(worker.url, RpcFailure("UNAVAILABLE", "connection refused"))
        if isinstance(info, RpcFailure):
            raise info
        return info.SerializeToString()

    def _answer(self, worker: Worker, method: str, request: bytes) -> bytes:
        answer = self.unary_answers.get(method, _DEFAULTS.get(method, _REFUSED))
        if inspect.isfunction(answer):
            answer = answer(request, worker.url) if answer.__code__.co_argcount == 2 else answer(request)
        if isinstance(answer, RpcFailure):
            raise _fresh(answer)
        serialised: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
        return serialised

    def gather(self, worker: Worker, method: str, request: bytes, timeout: float, most: int) -> list[bytes]:
        """What `streamed` has for the worker's URL: messages, a failure, or what makes them."""
        self.asked.append(method)
        answer = self.streamed.get(worker.url, RpcFailure("UNIMPLEMENTED", "no such method"))
        answer = answer() if callable(answer) else answer
        if isinstance(answer, RpcFailure):
            raise _fresh(answer)
        return list(answer)

    def abort(self, worker: Worker, request_id: str) -> None:
        self.aborted.append((worker.url, request_id))

    def forget(self, worker: Worker) -> None:
        self.forgotten.append(worker.url)

    def close(self) -> None: ...
