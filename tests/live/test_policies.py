"""Policies that go by a key, with real processes: three workers, one of which dies and comes back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.live.test_chat import ask
from tests.support.processes import Router, Worker, wait_until
from tests.support.scheduler import SchedulerClient

KEY, TARGET = "X-SMG-Routing-Key", "X-SMG-Target-Worker"
FOLLOW_SECONDS = 1.0
"""The rest is for a busy machine."""
KEYS = [f"session-{number}" for number in range(9)]


class Crowd:
    """Three workers, and how many requests each has answered."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        self.flags = flags
        with ThreadPoolExecutor(3) as pool:
            self.workers = list(pool.map(lambda _: Worker(*flags).start(), range(3)))
        self.finished = [0, 0, 0]

    @property
    def urls(self) -> list[str]:
        return [worker.url for worker in self.workers]

    def restart(self, place: int) -> None:
        self.workers[place] = Worker(*self.flags, port=self.workers[place].port).start()
        self.finished[place] = 0

    def answered(self, requests: int) -> list[int]:
        """How many each has answered since the last call, once these are so many."""
        before = self.finished
        found: list[int] = []

        def all_told() -> bool:
            self.finished = [
                self._count(worker) if worker.running() else before[place]
                for place, worker in enumerate(self.workers)
            ]
            found[:] = [now - then for now, then in zip(self.finished, before, strict=True)]
            return sum(found) >= requests

        wait_until(all_told)
        return found

    def _count(self, worker: Worker) -> int:
        with SchedulerClient(worker.port) as client:
            return int(client.info()["finished"])

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


@pytest.fixture(scope="module")
def crowd(simulator_flags: tuple[str, ...]) -> Iterator[Crowd]:
    made = Crowd(simulator_flags)
    yield made
    made.stop()


def post(router: Router, **headers: str) -> httpx.Response:
    body = ask("say-text", max_tokens=2)
    return httpx.post(router.url + "/v1/chat/completions", json=body, headers=headers, timeout=30)


def went(router: Router, crowd: Crowd, **headers: str) -> int:
    """The place of the worker that requests go to: two of them, maybe by two processes."""
    crowd.answered(0)
    assert [post(router, **headers).status_code for _ in range(2)] == [200, 200]
    counts = crowd.answered(2)
    assert sorted(counts) == [0, 0, 2], headers
    return counts.index(2)


def places(router: Router, crowd: Crowd) -> dict[str, int]:
    return {key: went(router, crowd, **{KEY: key}) for key in KEYS}


def wait_known(router: Router, word: str, *urls: str, times: int = 1) -> None:
    """Returns once it was said so many times of each worker that it `word`, "is up" say.

    One process finds out and says so, the others follow within a quarter of a second.
    """
    for url in urls:
        said = f"worker {url} {word}"
        wait_until(lambda said=said: router.output().count(said) >= times, 30, said)  # type: ignore[misc]
    time.sleep(FOLLOW_SECONDS)


def test_a_key_leaves_a_dead_worker_and_comes_back(crowd: Crowd) -> None:
    settings: dict[str, Any] = {"policy": "consistent_hashing", "target_worker_header": "true"}
    with Router(*crowd.urls, processes=2, **settings) as router:
        wait_known(router, "is up", *crowd.urls)
        before = places(router, crowd)
        counts = Counter(before.values())
        assert len(counts) > 1
        lost = counts.most_common(1)[0][0]
        for place, url in enumerate(crowd.urls):
            assert went(router, crowd, **{TARGET: url, KEY: KEYS[0]}) == place
        unknown = post(router, **{TARGET: "grpc://127.0.0.1:1"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "worker_not_found")

        crowd.workers[lost].kill()
        without = places(router, crowd)
        moved = {key for key in KEYS if without[key] != before[key]}
        assert moved == {key for key in KEYS if before[key] == lost}
        wait_known(router, "is down", crowd.urls[lost])
        down = post(router, **{TARGET: crowd.urls[lost]})
        assert down.status_code == 503
        assert down.json()["error"]["code"] in ("no_worker_available", "worker_unavailable")
        assert down.headers["Retry-After"]

        crowd.restart(lost)
        wait_known(router, "is up", crowd.urls[lost], times=2)
        assert places(router, crowd) == before


def test_a_sticky_key_stays_with_its_new_worker(crowd: Crowd) -> None:
    with Router(*crowd.urls, policy="sticky") as router:
        wait_known(router, "is up", *crowd.urls)
        before = places(router, crowd)
        lost = before[KEYS[0]]
        crowd.workers[lost].kill()
        without = places(router, crowd)
        assert all(without[key] == before[key] or before[key] == lost for key in KEYS)
        wait_known(router, "is down", crowd.urls[lost])
        crowd.restart(lost)
        wait_known(router, "is up", crowd.urls[lost], times=2)
        assert places(router, crowd) == without
