"""Long streams are even over the processes of a real server, and none waits for one that is frozen."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.live.test_chat import ask
from tests.support.processes import Router, Worker, wait_until

PROCESSES = 4
STREAMS = 400
CLIENTS = 20
MOST_APART = 0.15
"""Of the mean."""


@pytest.fixture(scope="module")
def router(simulator_flags: tuple[str, ...]) -> Iterator[Router]:
    room = ("--max-running", "5000", "--kv-tokens", "10000000")
    with (
        Worker(*simulator_flags, *room) as worker,
        Router(worker.url, processes=PROCESSES) as router,
    ):
        router.wait_serving()
        yield router


class Streams:
    """Streams that do not end, each on a connection of its own."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.open: list[socket.socket] = []
        body = json.dumps(ask("hang-midway", stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    def begin(self) -> None:
        """Returns once the stream has begun."""
        client = socket.create_connection(("127.0.0.1", self.router.port), timeout=60)
        self.open.append(client)
        client.sendall(self._request)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")

    def begin_many(self, count: int, clients: int) -> None:
        numbers = iter(range(count))
        failed: list[BaseException] = []

        def work() -> None:
            try:
                for _ in numbers:
                    self.begin()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not failed

    def counts(self) -> list[int]:
        return [held(process, self.router.port) for process in self.router.processes()]

    def close(self) -> None:
        for client in self.open:
            client.close()


def held(process: psutil.Process, port: int) -> int:
    """Clients' connections of a process."""
    return sum(one.status == "ESTABLISHED" and one.laddr.port == port for one in process.net_connections())


@pytest.fixture
def streams(router: Router) -> Iterator[Streams]:
    made = Streams(router)
    yield made
    made.close()
    wait_until(lambda: sum(made.counts()) == 0, 30, "closed connections")


@pytest.mark.parametrize("clients", [1, CLIENTS])
def test_streams_are_even_over_the_processes(streams: Streams, clients: int) -> None:
    streams.begin_many(STREAMS, clients)
    counts = streams.counts()
    assert sum(counts) == STREAMS
    mean = STREAMS / PROCESSES
    assert all(abs(count - mean) <= MOST_APART * mean for count in counts), counts


def test_a_frozen_process_holds_nobody_up(router: Router, streams: Streams) -> None:
    """Those that run take all, though the frozen one has less than they."""
    frozen = router.processes()[0]
    streams.begin_many(80, CLIENTS)
    with stopped(frozen):
        before = held(frozen, router.port)
        streams.begin_many(120, 1)
        assert held(frozen, router.port) == before
    streams.begin_many(100, 4)  # it catches up
    counts = streams.counts()
    assert max(counts) - min(counts) <= 2 * MOST_APART * 300 / PROCESSES, counts


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)
