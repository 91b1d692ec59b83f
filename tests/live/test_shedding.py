"""Workers that are full with the requests of another router: told to all processes, and refused by them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.live.test_chat import ask
from tests.live.test_processes import running
from tests.support.processes import Router, Worker, wait_until

URL = "/v1/chat/completions"
PROCESSES = 2
NEW_CONNECTIONS = httpx.Limits(max_keepalive_connections=0)
"""One for each request, so that the processes take turns."""


@pytest.fixture
def worker(simulator_flags: tuple[str, ...]) -> Iterator[Worker]:
    with Worker(*simulator_flags, "--max-running", "1") as worker:
        yield worker


def codes(router: Router) -> set[str]:
    """What the processes answer, asked often enough to meet all of them."""
    seen = set()
    with httpx.Client(timeout=5, limits=NEW_CONNECTIONS) as client:
        for _ in range(8 * PROCESSES):
            try:
                answer = client.post(router.url + URL, json=ask("say-text"))
            except httpx.TimeoutException:
                seen.add("waits")  # it was sent to the worker, before that one has told its load
                continue
            seen.add("ok" if answer.status_code == 200 else answer.json()["error"]["code"])
            assert answer.status_code in (200, 503)
            assert (answer.status_code == 503) == ("Retry-After" in answer.headers)
    return seen


def test_full_workers_are_left_in_peace(worker: Worker) -> None:
    shed: dict[str, Any] = {"loads_interval": "0.2", "shed_waiting_requests": "3"}
    with Router(worker.url) as other, Router(worker.url, processes=PROCESSES, **shed) as router:
        other.wait_serving()
        router.wait_serving()
        assert codes(router) == {"ok"}
        with httpx.Client(timeout=60) as client:
            threads = [threading.Thread(target=fill, args=(client, other)) for _ in range(4)]
            for thread in threads:
                thread.start()
            wait_until(lambda: worker.server_info()["waiting"] == 3, 20, "a queue")
            wait_until(lambda: codes(router) == {"workers_overloaded"}, 40, "refusals")
            calls = worker.server_info()["generate_calls"]
            assert codes(router) == {"workers_overloaded"}
            assert worker.server_info()["generate_calls"] == calls
            other.send(signal.SIGINT)
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
        wait_until(lambda: not any(running([worker])), 20, "an idle worker")
        wait_until(lambda: codes(router) == {"ok"}, 40, "service")


def fill(client: httpx.Client, router: Router) -> None:
    answer = client.post(router.url + URL, json=ask("hang-first"))
    assert answer.json()["error"]["code"] == "draining"
