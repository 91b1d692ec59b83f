"""Several processes of gunicorn: one truth about the workers' loads."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.live.test_chat import ask
from tests.support.processes import Router, Worker, wait_until

URL = "/v1/chat/completions"
ADMIN = "operator"
PROCESSES = 4
FOLLOW_SECONDS = 3.0
"""Each process looks for a change twice a second; the rest is for a busy machine."""
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
        answer = client.stream("POST", self.router.url + URL, json=body)
        self._texts.append(self._open.enter_context(answer).iter_raw())
        next(self._texts[-1])

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="module")
def router(workers: Sequence[Worker]) -> Iterator[Router]:
    with Router(*(worker.url for worker in workers), processes=PROCESSES, admin_key=ADMIN) as router:
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


def test_all_processes_follow_the_list(workers: Sequence[Worker], router: Router) -> None:
    """A worker that one process was told of is used by all of them; one that was removed by none."""
    first, *others = (worker.url for worker in workers)
    client = httpx.Client(base_url=router.url, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30)
    with client:
        ids = {worker["url"]: worker["id"] for worker in client.get("/workers").json()["workers"]}
        assert list(ids) == [first, *others]
        for url in others:
            assert client.delete(f"/workers/{ids[url]}").status_code == 200
        time.sleep(FOLLOW_SECONDS)
        assert seen_by_all(router) == {(first,)}
        counts = [worker.server_info()["generate_calls"] for worker in workers]
        for _ in range(20):
            assert httpx.post(router.url + URL, json=ask("say-text"), timeout=30).status_code == 200
        after = [worker.server_info()["generate_calls"] for worker in workers]
        assert after == [counts[0] + 20, *counts[1:]]
        for url in others:
            assert client.post("/workers", json={"url": url}).status_code == 200
        time.sleep(FOLLOW_SECONDS)
        assert seen_by_all(router) == {(first, *others)}
        wait_until(lambda: router.metric("wsgi_router_worker_up") == len(workers), 10, "all up")


def test_a_broken_list_of_workers_does_no_harm(workers: Sequence[Worker], tmp_path: Path) -> None:
    """Neither a process that is replaced nor a reload minds; a mended file is taken in on a reload."""
    path = tmp_path / "workers.json"
    first, second, third = (worker.url for worker in workers[:3])
    with Router(first, processes=2, admin_key=ADMIN, workers_file=str(path)) as router:
        router.wait_serving()
        operator = {"Authorization": f"Bearer {ADMIN}"}
        answer = httpx.post(router.url + "/workers", json={"url": second}, headers=operator, timeout=30)
        assert answer.status_code == 200
        kept = path.read_text()
        path.write_text('{"added":')
        killed = router.processes()[0]
        killed.kill()
        wait_until(
            lambda: len(router.processes()) == 2 and killed not in router.processes(), 30, "another one"
        )
        router.send(signal.SIGHUP)
        wait_until(
            lambda: "start anew with the settings they had" in router.output(), 30, "word of the reload"
        )
        wait_until(lambda: len(router.processes()) == 2, 30, "the old processes' ends")
        assert seen_by_all(router) == {(first, second)}
        path.write_text(kept.replace(second, third))
        router.send(signal.SIGHUP)
        wait_until(lambda: seen_by_all(router) == {(first, third)}, 30, "the mended list")
        assert "Traceback" not in router.output()
        assert router.output().count("cannot be used") == 1


def seen_by_all(router: Router) -> set[tuple[str, ...]]:
    """The lists that the processes show, asked often enough to meet all of them."""
    lists = set()
    for _ in range(10 * PROCESSES):
        answer = httpx.get(router.url + "/workers", headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30)
        lists.add(tuple(worker["url"] for worker in answer.json()["workers"]))
    return lists
