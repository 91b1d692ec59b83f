"""The limit of running requests in real processes: what the workers see, clients that leave, ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from tests.live.test_chat import ask
from tests.live.test_processes import Streams, running
from tests.support.processes import Router, Worker, wait_until

URL = "/v1/chat/completions"
LIMIT = 3
SETTINGS: dict[str, Any] = {"max_concurrent_requests": str(LIMIT), "queue_limit": "40", "queue_timeout": "30"}
NEW_CONNECTIONS = httpx.Limits(max_keepalive_connections=0)
THREADS = ("-k", "gthread", "--threads", "32")


@pytest.fixture(scope="module")
def workers(simulator_flags: tuple[str, ...]) -> Iterator[Sequence[Worker]]:
    with Worker(*simulator_flags) as one, Worker(*simulator_flags) as other:
        yield one, other


@pytest.fixture(scope="module", params=[(), THREADS], ids=["gevent", "gthread"])
def router(request: pytest.FixtureRequest, workers: Sequence[Worker]) -> Iterator[Router]:
    urls = [worker.url for worker in workers]
    with Router(*urls, processes=2, flags=request.param, **SETTINGS) as router:
        router.wait_serving()
        yield router


class Requests:
    """Requests that are asked at the same time, each by a client of its own."""

    def __init__(self, router: Router, count: int, word: str = "say-text", timeout: float = 60) -> None:
        self.statuses: list[int] = []
        self.codes: list[str] = []
        self._url, self._body = router.url + URL, ask(word)
        self._client = httpx.Client(timeout=timeout, limits=NEW_CONNECTIONS)
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        try:
            answer = self._client.post(self._url, json=self._body)
        except httpx.TimeoutException:
            return  # and the client is gone
        self.statuses.append(answer.status_code)
        if answer.status_code != 200:
            self.codes.append(answer.json()["error"]["code"])
            assert int(answer.headers["Retry-After"]) >= 1

    def join(self) -> list[int]:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        self._client.close()
        return self.statuses


def waiting(router: Router) -> int:
    return int(router.metric("wsgi_router_requests_waiting"))


def held(router: Router) -> int:
    return int(router.metric("wsgi_router_requests_running"))


@pytest.fixture
def streams(router: Router, workers: Sequence[Worker]) -> Iterator[Streams]:
    made = Streams(router)
    yield made
    made.close()
    wait_until(lambda: held(router) == 0 and waiting(router) == 0, 10, "all slots are back")
    wait_until(lambda: not any(running(workers)), 10, "idle workers")


def test_the_workers_never_see_more(router: Router, workers: Sequence[Worker], streams: Streams) -> None:
    requests = Requests(router, 24, "say-stop")
    most = 0
    while len(requests.statuses) < 24:
        most = max(most, sum(running(workers)))
    assert requests.join() == [200] * 24
    assert 2 <= most <= LIMIT + 2  # a worker counts a request for a moment longer than the router


def test_streams_hold_their_slots(router: Router, workers: Sequence[Worker], streams: Streams) -> None:
    for _ in range(LIMIT):
        streams.begin()
    requests = Requests(router, 4)
    wait_until(lambda: waiting(router) == 4, 10, "a queue")
    time.sleep(0.3)
    assert not requests.statuses
    assert (sum(running(workers)), held(router)) == (LIMIT, LIMIT)
    streams.close()
    assert requests.join() == [200] * 4


def test_a_client_that_waits_and_leaves(router: Router, streams: Streams) -> None:
    for _ in range(LIMIT):
        streams.begin()
    requests = Requests(router, 4, timeout=1.5)
    wait_until(lambda: waiting(router) == 4, 10, "a queue")
    assert requests.join() == []
    wait_until(lambda: waiting(router) == 0, 10, "an empty queue")
    assert held(router) == LIMIT


def test_too_many(router: Router, streams: Streams) -> None:
    for _ in range(LIMIT):
        streams.begin()
    requests = Requests(router, 50)
    wait_until(lambda: len(requests.statuses) >= 10, 20, "refusals")
    assert set(requests.statuses) == {429}
    assert set(requests.codes) == {"queue_full"}
    streams.close()
    statuses = requests.join()
    assert statuses.count(200) >= 20
    assert set(statuses) == {200, 429}


def test_the_queue_is_served_while_the_server_ends(workers: Sequence[Worker]) -> None:
    with Router(workers[0].url, **{**SETTINGS, "max_concurrent_requests": "1"}) as router:
        router.wait_serving()
        streams = Streams(router)
        streams.begin()
        requests = Requests(router, 4)
        wait_until(lambda: waiting(router) == 4, 20, "a queue")
        router.send(signal.SIGTERM)
        wait_until(lambda: "takes no new connections" in router.output(), 20, "the drain")
        streams.close()
        assert requests.join() == [200] * 4


def test_processes_that_die_and_that_drain(workers: Sequence[Worker]) -> None:
    """What a killed one had is free; the streams of one that drains count until they end."""
    with Router(workers[0].url, processes=2, **SETTINGS) as router:
        router.wait_serving()
        for _ in range(LIMIT):
            Streams(router).begin()
        for process in router.processes():
            process.kill()
        wait_until(lambda: router.status("/readiness") == 200, 30, "new processes")
        wait_until(lambda: held(router) == 0, 10, "free slots")
        streams = Streams(router)
        for _ in range(LIMIT):
            streams.begin()
        old = {process.pid for process in router.processes()}
        router.send(signal.SIGHUP)
        wait_until(lambda: len(router.processes()) == 4, 30, "new processes")
        wait_until(lambda: not set(accepting(router)) & old, 30, "the drain")
        requests = Requests(router, 6)
        wait_until(lambda: waiting(router) == 6, 20, "a queue")
        assert int(workers[0].server_info()["running"]) == LIMIT
        streams.close()
        assert requests.join() == [200] * 6


def accepting(router: Router) -> list[int]:
    """Processes that hold the listening socket."""
    return [
        process.pid
        for process in router.processes()
        if any(one.status == "LISTEN" for one in process.net_connections())
    ]
