"""The same rule under `-k gthread`, where whatever is under way holds a thread.

Nothing there tells of a client's end but a look now and then, and a client that reads nothing holds its
thread up in the middle of a write.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.chaos.clients import leave, opened
from tests.chaos.conftest import HASTY, LONG, SEED, rounds, router, simulator, wait_up
from tests.chaos.load import CUT, DONE, EVENT, STATUS, Ask, Load, check
from tests.chaos.processes import kill, reload, resident, start_again, wait_held_back
from tests.support.processes import Router, Worker, free_port, wait_until
from tests.support.watch import Watch

PROCESSES: Final = 2
THREADS: Final = 64 if LONG else 12
FLAGS: Final = ("-k", "gthread", "--threads", str(THREADS))
STREAMS: Final = 150 if LONG else 20
"""More than there are threads, if all is long: some wait for one."""
FLOOD: Final = "flood"
"""A model whose worker gives endless answers as fast as they are taken."""
_FLOOD: Final = (
    "--model-name",
    FLOOD,
    "--itl-ms",
    "0",
    "--tokens-per-chunk",
    "64",
    "--context-length",
    "10000000",
)
MOST_WAITING: Final = 1_200_000
"""Tokens of a stream on their way to a client that reads nothing (tests/chaos/test_clients.py)."""

FILL_SECONDS: Final = 1.0
"""After which its worker has filled what lies on the way to a client."""


def asking(rng: random.Random) -> Ask:
    return Ask(tokens=rng.choice((1, 5, 10, 20, 40, 60)), stream=rng.random() < 0.8)


class Bench:
    """A router whose processes have all the threads that they will ever have."""

    def __init__(self, server: Router, workers: tuple[Worker, ...]) -> None:
        self.server = server
        self.workers = workers
        wait_up(server, len(workers))
        self.watch = Watch(server, workers)
        while self._most_threads() < THREADS:
            with self.load(lambda _: Ask(tokens=10), 4 * THREADS, once=True) as load:
                load.wait_for(4 * THREADS)
            check(load.outcomes)
        self.before = self.watch.settled()

    def _most_threads(self) -> int:
        return min(int(one["python_threads"]) for one in self.watch.held().values())

    def load(self, ask: Callable[[random.Random], Ask], clients: int = STREAMS, once: bool = False) -> Load:
        return Load(self.server.port, clients, ask, SEED, once=once)


@contextlib.contextmanager
def made(*workers: Worker, **settings: str) -> Iterator[Bench]:
    with router(*(worker.url for worker in workers), processes=PROCESSES, flags=FLAGS, **settings) as server:
        yield Bench(server, workers)
        assert "Traceback" not in server.output(), server.output()[-4000:]


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker, Worker]]:
    made = (simulator(), simulator(port=free_port()), simulator(*_FLOOD))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        list(pool.map(stack.enter_context, made))
        yield made


@pytest.fixture(scope="module")
def bench(workers: tuple[Worker, ...]) -> Iterator[Bench]:
    with made(*workers) as bench:
        yield bench


def test_processes_reloaded_and_killed(bench: Bench) -> None:
    """A reload loses nothing; a killed process takes its own requests alone."""
    rng = random.Random(SEED)
    ports: set[int] = set()
    with bench.load(asking) as load:
        for _ in range(20 if LONG else 1):
            load.wait_begun(STREAMS // 2)
            reload(bench.server)
        wait_until(lambda: len(bench.watch.live()) == PROCESSES, 120, "the old processes' end")
        print("reloaded", check(tuple(load.outcomes)))
        for _ in rounds(1):
            load.wait_begun(STREAMS)
            ports |= kill(rng.choice(bench.server.processes()))
            wait_until(lambda: len(bench.watch.live()) == PROCESSES, 60, "another process")
        load.wait_begun(STREAMS // 2)
        counts = check(load.stop(), killed=ports)
    print("killed", counts)
    assert counts[CUT] > 0, "the killed processes had something to do"
    bench.watch.check(bench.before)


def test_a_full_process_leaves_connections_to_the_others(bench: Bench) -> None:
    """Of all threads one is free, and nothing waits while it is."""
    streams = PROCESSES * THREADS - 1
    with contextlib.ExitStack() as held:
        for _ in range(streams):
            held.enter_context(opened(bench.server, Ask(tokens=20_000).wire()))
        wait_until(lambda: bench.watch.running() == streams, 60, "all streams to begin")
        assert all(bench.server.status("/health") == 200 for _ in range(8))
    bench.watch.check(bench.before)


def test_clients_that_leave(bench: Bench) -> None:
    rng = random.Random(SEED)
    for _ in rounds(1):
        leave(bench.server, rng, 2 * THREADS, Ask(tokens=2000))
        bench.watch.settled()
    bench.watch.check(bench.before)


def test_clients_that_never_read_hold_a_thread_and_no_more(bench: Bench) -> None:
    clients, tokens = (4, 3_000_000) if LONG else (2, 2_000_000)
    before = resident(bench.server)
    with contextlib.ExitStack() as held:
        wire = Ask(tokens=tokens, model=FLOOD).wire()
        for _ in range(clients):
            held.enter_context(opened(bench.server, wire, receive_buffer=4096))
        given = wait_held_back(bench.workers[-1], 0.5, 600)
        grown = resident(bench.server) - before
        print(f"{clients} clients read nothing: {given} tokens, {grown >> 20} MiB more")
        assert 0 < given < clients * MOST_WAITING
        assert grown < (64 + 2 * clients) << 20
        with bench.load(lambda rng: Ask(tokens=rng.randrange(1, 1000), model=FLOOD), 8) as load:
            load.wait_for(16)
        check(load.outcomes)
    bench.watch.check(bench.before)


def test_an_end_waits_for_no_client_that_reads_nothing(workers: tuple[Worker, ...]) -> None:
    """Neither a reload's, beyond graceful_timeout, nor a quick one; and nobody has to kill the process."""
    flood = workers[-1]
    ends = (signal.SIGHUP, signal.SIGINT) if LONG else (signal.SIGHUP,)
    flags = (*FLAGS, "--graceful-timeout", "3")
    with router(flood.url, processes=1, flags=flags) as server, contextlib.ExitStack() as held:
        wait_up(server, 1)
        for number in ends:
            (old,) = server.processes()
            wire = Ask(tokens=3_000_000, model=FLOOD).wire()
            client = held.enter_context(opened(server, wire, receive_buffer=4096))
            client.recv(1)  # it has begun
            time.sleep(FILL_SECONDS)
            server.send(number)
            wait_until(lambda old=old: not old.is_running(), 120, "the end of the process")  # type: ignore[misc]
            wait_until(lambda: not flood.server_info()["running"], 30, "nothing runs on the worker")
        output = server.output()
    # gunicorn's master kills what does not end by itself; a killed process logs no requests.
    assert output.count("POST /v1/chat/completions 200") == len(ends), output[-4000:]
    assert "WORKER TIMEOUT" not in output
    assert "Traceback" not in output, output[-4000:]


def test_workers_killed_and_frozen(workers: tuple[Worker, ...]) -> None:
    """What a worker had that is killed or stands still ends with an error; the other answers all the rest."""
    one, mortal, _ = workers
    with made(one, mortal, **{**HASTY, "token_timeout": "3"}) as bench:
        with bench.load(asking) as load:
            for _ in rounds(1):
                load.wait_begun(STREAMS)
                mortal.send(signal.SIGSTOP)
                load.wait_for(STREAMS)
                mortal.send(signal.SIGCONT)
                wait_up(bench.server, 2)
                load.wait_begun(STREAMS // 2)
                start_again(mortal)
                wait_up(bench.server, 2)
            counts = check(load.stop(), (EVENT, STATUS))
        print("workers killed and frozen", counts)
        assert counts[DONE] > counts[EVENT] > 0
        bench.watch.check(bench.before)
