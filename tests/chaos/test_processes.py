"""gunicorn's processes: reloaded, recycled, told to end, and killed, while requests come and streams flow."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.chaos.conftest import LONG, MODEL, SEED, TRANSPORTS, rounds, router, simulator
from tests.chaos.load import CUT, Ask, Load, check, counted
from tests.chaos.processes import kill, reload, stop
from tests.support.processes import Router, Worker, wait_until
from tests.support.watch import Watch

STREAMS = 200 if LONG else 60
RELOADS = 50 if LONG else 3
KINDS = [(2, "native"), (4, "native"), (2, "grpcio")] if LONG else [(2, "native")]


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker]]:
    flags = ("--itl-ms", "100")
    with simulator(*flags) as first, simulator(*flags) as second:
        yield first, second


def asking(rng: random.Random) -> Ask:
    """Of a second or two; some are done at once, some outlive a reload or two."""
    tokens = rng.choice((1, 5, 10, 15, 20, 20, 30, 60))
    return Ask(tokens=tokens, stream=rng.random() < 0.9)


@pytest.mark.parametrize(("processes", "transport"), KINDS)
def test_reloads_under_load_lose_nothing(
    workers: tuple[Worker, Worker], processes: int, transport: str
) -> None:
    """Not one error: every request gets its whole answer, whatever process it comes to."""
    urls = [worker.url for worker in workers]
    with router(*urls, processes=processes, transport=transport) as server:
        server.wait_serving()
        with Load(server.port, STREAMS, asking, SEED) as load:
            load.wait_for(STREAMS)
        check(load.outcomes)
        watch = Watch(server, workers)
        before = watch.settled()
        with Load(server.port, STREAMS, asking, SEED) as load:
            load.wait_begun(STREAMS // 2)
            for number in range(RELOADS):
                reload(server)
                load.wait_begun(STREAMS // 8)
                if number % 10 == 0:
                    print(number, counted(load.outcomes), len(server.processes()))
                check(tuple(load.outcomes))
            load.stop()
        print(f"{RELOADS} reloads, {processes} processes, {transport}: {check(load.outcomes)}")
        assert "Traceback" not in server.output(), server.output()[-4000:]
        watch.check(before)


def counting_files(server: Router) -> int:
    """Files in which processes count; those of the ended share one."""
    opened = (one.path for one in server.processes()[0].open_files())
    folder = next(Path(path).parent for path in opened if Path(path).name.startswith("counter_"))
    return len(list(folder.glob("counter_*.db")))


def test_recycled_processes_lose_nothing(workers: tuple[Worker, Worker]) -> None:
    """max_requests: processes end after so many requests, and others take their place."""
    flags = ("--max-requests", "40", "--max-requests-jitter", "20")
    with router(*(worker.url for worker in workers), processes=4, flags=flags) as server:
        server.wait_serving()
        first = {process.pid for process in server.processes()}
        with Load(server.port, 40, lambda rng: Ask(tokens=rng.randrange(1, 8)), SEED, pause=0.1) as load:
            wait_until(lambda: not first & {one.pid for one in server.processes()}, 120, "other processes")
            if LONG:
                load.wait_for(3000, 600)
            load.stop()
        print("recycled", check(load.outcomes))
        wait_until(lambda: counting_files(server) <= 4 + 1, 90, "files of the processes that count")
        assert "Traceback" not in server.output(), server.output()[-4000:]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_killed_processes_take_their_own_requests_alone(
    workers: tuple[Worker, Worker], transport: str
) -> None:
    """What a killed process had is cut, and counts no more; all other requests get their whole answers."""
    rng = random.Random(SEED)
    urls = [worker.url for worker in workers]
    with router(*urls, processes=4, transport=transport) as server:
        server.wait_serving()
        with Load(server.port, STREAMS, asking, SEED) as load:
            load.wait_for(STREAMS)
        watch = Watch(server, workers)
        before = watch.settled()
        ports: set[int] = set()
        with Load(server.port, STREAMS, asking, SEED) as load:
            for _ in rounds(2):
                load.wait_begun(STREAMS // 2)
                with contextlib.suppress(psutil.NoSuchProcess):
                    ports |= kill(rng.choice(server.processes()))
                wait_until(lambda: len(watch.live()) == 4, 60, "another process")
            load.stop()
        counts = check(load.outcomes, killed=ports)
        print("killed", counts)
        assert counts[CUT] > 0, "the killed processes had something to do"
        assert "Traceback" not in server.output(), server.output()[-4000:]
        watch.check(before)


def test_a_process_that_stands_still_is_replaced(workers: tuple[Worker, Worker]) -> None:
    """gunicorn's heartbeat kills it; the others serve all the while."""
    flags = ("--timeout", "3")
    with router(*(worker.url for worker in workers), processes=2, flags=flags) as server:
        server.wait_serving()
        watch = Watch(server, workers)
        before = watch.settled()
        with Load(server.port, 20, asking, SEED) as load:
            load.wait_begun(20)
            process = server.processes()[0]
            ports = stop(process)
            wait_until(lambda: process.pid not in watch.live(), 60, "the end of the process")
            load.wait_for(20)
            load.stop()
        print("stood still", check(load.outcomes, killed=ports))
        watch.check(before)


def test_the_end_lets_streams_end(workers: tuple[Worker, Worker]) -> None:
    """SIGTERM to the server: what has begun goes on to its end, and the server ends after it."""
    with router(*(worker.url for worker in workers), processes=4) as server:
        server.wait_serving()
        with Load(
            server.port, STREAMS, lambda rng: Ask(tokens=rng.randrange(20, 40)), SEED, once=True
        ) as load:
            load.wait_begun(STREAMS)
            server.send(signal.SIGTERM)
            print("told to end", check(load.stop()))
        assert server.child is not None
        assert server.child.wait(60) == 0
        running = Watch(server, workers).running
        wait_until(lambda: not running(), 60, "nothing runs on the workers")


def test_sdks_see_nothing_of_reloads(workers: tuple[Worker, Worker]) -> None:
    """Clients that keep their connections: an openai SDK without retries, and httpx."""
    with router(*(worker.url for worker in workers), processes=2) as server:
        server.wait_serving()
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
            httpx.Client(base_url=server.url, timeout=60) as plain,
        ):
            for _ in range(10 if LONG else 1):
                server.send(signal.SIGHUP)
                old = {process.pid for process in server.processes()}
                end = time.monotonic() + 60
                while old & {process.pid for process in server.processes()}:
                    assert time.monotonic() < end, "the old processes go on"
                    _complete(client)
                    assert plain.get("/v1/models").status_code == 200


def _complete(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=3, stream=True
    )
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
