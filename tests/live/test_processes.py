"""Several processes of gunicorn: one truth about the workers' loads."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence

import httpx
import pytest

from tests.live.test_chat import ask
from tests.support.processes import Router, Worker, wait_until

PROCESSES = 4
EACH = 3
"""Streams that each of the workers should have."""


@pytest.fixture(scope="module")
def workers(simulator_flags: tuple[str, ...]) -> Iterator[Sequence[Worker]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Worker(*simulator_flags)) for _ in range(4)]


def running(workers: Sequence[Worker]) -> list[int]:
    return [int(worker.server_info()["running"]) for worker in workers]


class Streams:
    """Open streams, each on a connection of its own, so that the processes take turns."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._open = contextlib.ExitStack()
        self._texts: list[Iterator[bytes]] = []  # an iterator that is dropped closes its answer

    def begin(self) -> None:
        """Opens one more; returns after its first event."""
        client = self._open.enter_context(httpx.Client(timeout=60))
        body = ask("hang-midway", stream=True)
        answer = client.stream("POST", self.router.url + "/v1/chat/completions", json=body)
        self._texts.append(self._open.enter_context(answer).iter_raw())
        next(self._texts[-1])

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="module")
def router(workers: Sequence[Worker]) -> Iterator[Router]:
    with Router(*(worker.url for worker in workers), processes=PROCESSES, policy="least_load") as router:
        router.wait_serving()
        yield router


@pytest.fixture
def streams(workers: Sequence[Worker], router: Router) -> Iterator[Streams]:
    made = Streams(router)
    yield made
    made.close()
    wait_until(lambda: not any(running(workers)), 10, "idle workers")


def test_load_is_even_over_processes(workers: Sequence[Worker], streams: Streams) -> None:
    for _ in range(EACH * len(workers)):
        streams.begin()
    assert running(workers) == [EACH] * len(workers)


def test_counts_of_a_killed_process_vanish(workers: Sequence[Worker], streams: Streams) -> None:
    wanted = EACH * len(workers)
    for _ in range(wanted):
        streams.begin()
    before = {process.pid for process in streams.router.processes()}
    busiest = max(streams.router.processes(), key=lambda process: len(process.net_connections()))
    busiest.send_signal(signal.SIGKILL)

    def replaced() -> bool:
        now = {process.pid for process in streams.router.processes()}
        return len(now) == PROCESSES and now != before

    wait_until(replaced, 30, "a new process")
    wait_until(lambda: sum(running(workers)) < wanted, 10, "its calls ended")
    streams.router.wait_serving()
    for _ in range(wanted - sum(running(workers))):
        streams.begin()
    assert running(workers) == [EACH] * len(workers)
