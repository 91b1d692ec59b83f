"""A dispatcher over workers that are up, on the scripted transport, and a check that nothing is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from wsgi_router import runtime
from wsgi_router.client_watch import ClientWatch
from wsgi_router.dispatch import Dispatcher, Generation
from wsgi_router.native import first_failure
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import GenerateJob

from .flow import body, live_queues
from .processes import wait_until
from .transport import Answer, FakeTransport

ABORT = pb.GenerateResponse(complete=pb.GenerateComplete(finish_reason="abort")).SerializeToString()


def chunk(token: int, count: int = 0) -> bytes:
    """One token; `count` is the total so far."""
    return pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(token_ids=[token], prompt_tokens=3, completion_tokens=count)
    ).SerializeToString()


def complete(token: int, count: int, reason: str = "stop") -> bytes:
    """The last message, which repeats the last token."""
    return pb.GenerateResponse(
        complete=pb.GenerateComplete(
            output_ids=[token], prompt_tokens=3, completion_tokens=count, finish_reason=reason
        )
    ).SerializeToString()


class Bench:
    """The n-th stream gives out the n-th of `answers`."""

    made: ClassVar[list[Bench]] = []

    def __init__(self, *answers: Answer, workers: int = 2, pairs: int = 0, **settings: Any) -> None:
        def named(letter: str, count: int) -> tuple[str, ...]:
            return tuple(f"grpc://{letter}{number}:1" for number in range(count))

        values: dict[str, Any] = {
            "workers": named("w", workers),
            "prefill_workers": named("p", pairs),
            "decode_workers": named("d", pairs),
            "policy": "round_robin",
            "health_interval": 0.1,
        }
        self.settings = Settings(**{**values, **settings})
        urls = self.settings.all_workers()
        self.transport = FakeTransport(*answers)
        self.transport.infos = dict.fromkeys(urls, pb.GetModelInfoResponse(served_model_name="m"))
        self.pool = WorkerPool(self.settings, self.transport)
        self.pool.start()
        self.made.append(self)
        wait_until(lambda: all(worker.available() for worker in self.pool.workers))
        self.dispatcher = Dispatcher(self.pool, self.transport, self.settings, first_failure)

    def open(self, choices: int = 1, client: ClientWatch | None = None) -> Generation:
        return self.dispatcher.open(GenerateJob("m", body([1, 2, 3], 9), choices), client)

    def in_flight(self) -> list[int]:
        return [worker.in_flight for worker in self.pool.workers]

    def asked(self) -> list[str]:
        return [stream.worker.url for stream in self.transport.streams]


@contextlib.contextmanager
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test ends with all leases returned, all readers ended, and nobody waiting for the drain."""
    Bench.made.clear()
    monkeypatch.setattr(runtime, "drain", runtime.Drain())
    yield
    while Bench.made:
        bench = Bench.made.pop()
        bench.pool.close()
        wait_until(lambda b=bench: sum(b.in_flight()) == 0, 20, f"leases of {bench.pool}")  # type: ignore[misc]
    wait_until(lambda: live_queues() == 0, 20, "readers ended")
    assert "waiters=0" in repr(runtime.drain)
