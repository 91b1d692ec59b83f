"""Clients that leave, read slowly or never, send slowly; and a thousand at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator
from typing import Final

import pytest

from tests.chaos.clients import leave, opened
from tests.chaos.conftest import LONG, SEED, TRANSPORTS, rounds, router, simulator, wait_up
from tests.chaos.load import Ask, Connection, Load, Outcome, all_at_once, check
from tests.chaos.processes import resident, wait_held_back
from tests.support.processes import Router, Worker
from tests.support.watch import Watch

_MANY: Final = 1000
_MIB: Final = 1 << 20
GROWTH: Final = 64 * _MIB
MOST_WAITING: Final = 1_200_000
"""Tokens of a stream on their way to a client that reads nothing, 64 in a message: a window of 256 KiB,
QUEUE_SIZE messages, and what the kernel's buffers take, 4 MiB by default."""


class Bench:
    """A router in front of two simulators, warmed up."""

    def __init__(self, server: Router, workers: tuple[Worker, ...]) -> None:
        self.server = server
        self.workers = workers
        wait_up(server, len(workers))
        with Load(server.port, 100, lambda rng: Ask(tokens=rng.randrange(1, 8)), SEED) as load:
            load.wait_for(100)
        check(load.outcomes)
        self.watch = Watch(server, workers)
        self.before = self.watch.settled()


@pytest.fixture(scope="module", params=TRANSPORTS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    flags = (
        "--itl-ms",
        "250",
    )
    with (
        simulator(*flags) as first,
        simulator(*flags) as second,
        router(first.url, second.url, transport=request.param) as server,
    ):
        yield Bench(server, (first, second))
        assert "Traceback" not in server.output(), server.output()[-4000:]


def test_clients_that_leave(bench: Bench) -> None:
    """At every moment: with a FIN or a reset, in the request, before the answer, in the middle of it."""
    rng = random.Random(SEED)
    for _ in rounds(2):
        leave(bench.server, rng, 100, Ask(tokens=2000))
        bench.watch.settled()
    bench.watch.check(bench.before)


class Flood:
    """Endless answers as fast as the clients take them, from one worker."""

    def __init__(self, server: Router, worker: Worker) -> None:
        self.server = server
        self.worker = worker
        wait_up(server, 1)
        with Load(server.port, 16, lambda rng: Ask(tokens=rng.randrange(1, 3000)), SEED) as load:
            load.wait_for(32)
        check(load.outcomes)
        self.watch = Watch(server, (worker,))
        self.before = self.watch.settled()

    def resident(self) -> int:
        return sum(one.memory_info().rss for one in self.server.processes())


@pytest.fixture(scope="module", params=["native", "grpcio"])
def flood(request: pytest.FixtureRequest) -> Iterator[Flood]:
    flags = (
        "--itl-ms",
        "0",
        "--tokens-per-chunk",
        "64",
        "--context-length",
        "100000000",
        "--history",
        "50",
        "--kv-tokens",
        "2000000000",
    )
    with simulator(*flags) as worker, router(worker.url, transport=request.param) as server:
        yield Flood(server, worker)
        assert "Traceback" not in server.output(), server.output()[-4000:]


def test_clients_that_never_read_hold_their_workers_back(flood: Flood) -> None:
    """The worker stops, the router's memory stays; others are served, by the same worker, as ever."""
    clients, tokens = (32, 3_000_000) if LONG else (2, 2_000_000)
    wire = Ask(tokens=tokens).wire()
    before = resident(flood.server)
    with contextlib.ExitStack() as held:
        for _ in range(clients):
            held.enter_context(opened(flood.server, wire, receive_buffer=4096))
        given = wait_held_back(flood.worker, 1, 120)
        assert given < clients * tokens
        grown = resident(flood.server) - before
        print(f"{clients} clients read nothing: {given} of {clients * tokens} tokens, {grown >> 20} MiB more")
        assert given < clients * MOST_WAITING
        assert grown < GROWTH + clients * 2 * _MIB
        with Load(flood.server.port, 8, lambda rng: Ask(tokens=rng.randrange(1, 3000)), SEED) as load:
            load.wait_for(24)
        check(load.outcomes)
    flood.watch.check(flood.before)


def test_clients_that_read_slowly_get_everything(flood: Flood) -> None:
    """Long answers through small buffers, a few bytes at a time: held back, and not a token lost."""
    ask = Ask(tokens=60_000 if LONG else 20_000)

    async def slow(number: int) -> Outcome:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.connect(("127.0.0.1", flood.server.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=16384)
        connection = Connection(_Slow(reader, number), writer)
        outcome = await connection.ask(ask)
        await connection.close()
        return outcome

    outcomes = all_at_once([slow(number) for number in range(24 if LONG else 6)])
    check(outcomes)
    flood.watch.check(flood.before)


class _Slow(asyncio.StreamReader):
    """Another's bytes, with a pause before every so many of them."""

    def __init__(self, reader: asyncio.StreamReader, number: int) -> None:
        super().__init__()
        self._inner = reader
        self._every = 20 + number
        self._reads = 0

    async def _pause(self) -> None:
        self._reads += 1
        if self._reads % self._every == 0:
            await asyncio.sleep(0.02)

    async def readuntil(self, separator: bytes = b"\n") -> bytes:  # type: ignore[override]
        await self._pause()
        return await self._inner.readuntil(separator)

    async def readexactly(self, n: int) -> bytes:
        return await self._inner.readexactly(n)


def test_bodies_that_come_slowly(bench: Bench) -> None:
    """A few bytes at a time: each is answered, and others need not wait for it."""
    wire = Ask(tokens=3).wire()

    async def trickle(number: int) -> Outcome:
        connection = await Connection.open(bench.server.port)
        step = 5 + number % 7
        for at in range(0, len(wire) - step, step):
            connection.writer.write(wire[at : at + step])
            await connection.writer.drain()
            await asyncio.sleep(0.01)
        return await connection.ask(_Rest(wire[at + step :], 3))

    with Load(bench.server.port, 10, lambda rng: Ask(tokens=5), SEED) as load:
        outcomes = all_at_once([trickle(number) for number in range(200 if LONG else 50)])
        load.wait_for(10)
    check(outcomes)
    check(load.outcomes)
    bench.watch.check(bench.before)


class _Rest(Ask):
    """What is left to send of a request."""

    def __init__(self, rest: bytes, tokens: int) -> None:
        super().__init__(tokens=tokens)
        object.__setattr__(self, "rest", rest)

    def wire(self, keep_alive: bool = False) -> bytes:
        rest: bytes = self.rest  # type: ignore[attr-defined]
        return rest


def test_a_thousand_streams(bench: Bench) -> None:
    """All open at one time, and each whole; the same again and again costs no more memory."""
    open_now = most = 0

    async def one(tokens: int) -> Outcome:
        nonlocal open_now, most
        connection = await Connection.open(bench.server.port)

        def begun() -> None:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)

        outcome = await connection.ask(Ask(tokens=tokens), begun=begun)
        open_now -= 1
        await connection.close()
        return outcome

    tokens = 20
    while most < _MANY:
        assert tokens < 20_000
        open_now = most = 0
        check(all_at_once([one(tokens) for _ in range(_MANY)]))
        print(f"at most {most} at once, of {tokens} tokens")
        tokens *= 2
    bench.watch.check(bench.before, growth=4 * GROWTH)
