"""What scenarios of the flow share: a dispatcher in front of real workers, and a client that can leave."""

from __future__ import annotations

import gc
import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any

from wsgi_router.api.services import TRANSPORTS
from wsgi_router.choices import ENDED, Choice, Queue
from wsgi_router.client_watch import ClientWatch
from wsgi_router.dispatch import Dispatcher, Generation
from wsgi_router.native import first_failure
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import GenerateJob, RpcFailure

from . import modes
from .processes import wait_until


def body(ids: list[int], tokens: int, *, stream: bool = True) -> bytes:
    """A GenerateRequest without its id."""
    sampling = pb.SamplingParams(
        temperature=1, top_p=1, top_k=-1, repetition_penalty=1, n=1, max_new_tokens=tokens, ignore_eos=True
    )
    tokenized = pb.TokenizedInput(input_ids=ids)
    return pb.GenerateRequest(
        tokenized=tokenized, sampling_params=sampling, stream=stream
    ).SerializeToString()


def job(ids: list[int], tokens: int = 5, choices: int = 1) -> GenerateJob:
    return GenerateJob(model="", body=body(ids, tokens), choices=choices)


class Flow:
    """Transport, pool and dispatcher of a process, as the application makes them."""

    def __init__(self, *ports: int, up: int | None = None, **settings: Any) -> None:
        urls = tuple(f"grpc://127.0.0.1:{port}" for port in ports)
        self.settings = Settings(workers=urls, **{"health_interval": 0.2, **settings})
        self.transport = TRANSPORTS[os.environ.get(modes.TRANSPORT) or "auto"](self.settings)
        self.pool = WorkerPool(self.settings, self.transport)
        self.pool.start()
        self.dispatcher = Dispatcher(self.pool, self.transport, self.settings, first_failure)
        wanted = len(ports) if up is None else up
        wait_until(lambda: sum(worker.available() for worker in self.pool.workers) >= wanted, 20)

    def open(self, *args: Any, client: ClientWatch | None = None, **kwargs: Any) -> Generation:
        return self.dispatcher.open(job(*args, **kwargs), client)

    def in_flight(self) -> int:
        return sum(worker.in_flight for worker in self.pool.workers)

    def info(self, index: int = 0) -> dict[str, Any]:
        """The worker's own counts."""
        answer = self.transport.unary(self.pool.workers[index], "GetServerInfo", b"", 5)
        return dict(pb.GetServerInfoResponse.FromString(answer).scheduler_info)

    def assert_idle(self, seconds: float = 1.0) -> None:
        """All leases are back, all readers have ended, and the workers that are up run nothing."""
        assert self.in_flight() == 0, self.pool
        up = [n for n, worker in enumerate(self.pool.workers) if worker.available()]
        wait_until(lambda: all(self.info(n)["running"] == 0 for n in up), seconds, "workers run nothing")
        wait_until(lambda: running_readers() == 0, 10, "readers ended")


def running_readers() -> int:
    """Choices whose RPC has not ended, in the whole process."""
    gc.collect()
    return sum(isinstance(thing, Choice) and thing.stream is not None for thing in gc.get_objects())


def live_queues() -> int:
    """Requests of which anything is still kept, in the whole process."""
    gc.collect()
    return sum(isinstance(thing, Queue) for thing in gc.get_objects())


class Client:
    """A client's connection: what the server has of it, and its leaving."""

    def __init__(self) -> None:
        self.ours, self.theirs = tcp_pair()
        self.watch = ClientWatch({"gunicorn.socket": self.ours})

    def leave(self) -> None:
        self.theirs.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return far, near


def collect(generation: Generation, choices: int = 1) -> dict[int, list[Any]]:
    """Everything of a generation until each choice has ended."""
    found: dict[int, list[Any]] = {index: [] for index in range(choices)}
    ended = 0
    while ended < choices:
        assert generation.wait(20), "nothing for 20 s"
        for index, item in generation.take():
            found[index].append(item)
            ended += item is ENDED or isinstance(item, RpcFailure)
    return found


def read_at_random(generation: Generation, chance: random.Random, choices: int, pause: float) -> None:
    """Takes what comes for `pause` seconds at most, and now and then ends one of the choices."""
    end = time.monotonic() + pause
    while time.monotonic() < end and not generation.exhausted:
        generation.wait(max(end - time.monotonic(), 0))
        generation.take()
        if chance.random() < 0.2:
            generation.finish(chance.randrange(choices), cancel=chance.random() < 0.5)


def ids_of(items: list[Any]) -> list[int]:
    """Token ids of a choice's chunks."""
    messages = [pb.GenerateResponse.FromString(item) for item in items if isinstance(item, bytes)]
    return [token for message in messages for token in message.chunk.token_ids]


def error_of(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")


def seconds(call: Callable[[], object]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start
