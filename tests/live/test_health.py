"""What the processes of a server find out about workers together."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.live.test_chat import ask
from tests.support import sse
from tests.support.processes import Router, Worker, wait_until

URL = "/v1/chat/completions"
PROCESSES = 3


@pytest.fixture
def worker(simulator_flags: tuple[str, ...]) -> Iterator[Worker]:
    with Worker(*simulator_flags) as worker:
        yield worker


def connections(router: Router, worker: Worker) -> list[psutil.Process]:
    """The processes that have a connection to the worker."""
    return [process for process in router.processes() if worker.port in ports(process)]


def ports(process: psutil.Process) -> set[int]:
    """Where it has connections to; none if it is gone."""
    try:
        return {one.raddr.port for one in process.net_connections() if one.raddr}
    except psutil.NoSuchProcess:
        return set()


def states(router: Router) -> set[int]:
    return {router.status("/readiness") for _ in range(4 * PROCESSES)}


def test_one_process_probes_and_another_one_follows_it(worker: Worker) -> None:
    """Nobody else has a connection to a worker that was sent no request yet."""
    waits: dict[str, Any] = {"health_interval": "0.2", "engine_check_interval": "1"}
    with Router(worker.url, processes=PROCESSES, **waits) as router:
        router.wait_serving()
        wait_until(lambda: len(connections(router, worker)) == 1, what="one that probes")
        (leader,) = connections(router, worker)
        leader.send_signal(signal.SIGKILL)
        wait_until(lambda: len(connections(router, worker)) == 1, 20, "another one that probes")
        assert connections(router, worker) != [leader]
        wait_until(lambda: len(router.processes()) == PROCESSES, 20, "a new process")
        router.wait_serving()
        worker.send(signal.SIGUSR1)  # the engine is unwell; the worker's front answers as before
        wait_until(lambda: states(router) == {503}, 20, "all know that it is unwell")
        wait_until(lambda: router.metric("wsgi_router_worker_state", state="down") == 1, what="down")
        told = f"worker {worker.url} is down"
        wait_until(lambda: told in router.output(), what="a line in the log")
        worker.send(signal.SIGUSR1)
        wait_until(lambda: states(router) == {200}, 20, "all know that it is well")
        wait_until(lambda: router.metric("wsgi_router_worker_state", state="up") == 1, what="up")
        worker.kill()
        wait_until(lambda: states(router) == {503}, 20, "all know that it is gone")
        wait_until(lambda: router.output().count(told) >= 2, what="a second line")
        assert router.output().count(told) == 2


def test_a_breaker_opens_for_all_processes(worker: Worker) -> None:
    waits: dict[str, Any] = {
        "breaker_failures": "4",
        "breaker_seconds": "8",
        "breaker_successes": "2",
        "admin_key": "k",
    }
    with Router(worker.url, processes=PROCESSES, **waits) as router:
        router.wait_serving()
        for _ in range(4):  # each on a connection of its own, so that the processes take turns
            assert httpx.post(router.url + URL, json=ask("abort-first"), timeout=30).status_code == 500
        answers = [httpx.post(router.url + URL, json=ask("say-text"), timeout=30) for _ in range(4)]
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.headers["retry-after"] for answer in answers} <= {*"12345678"}
        assert router.metric("wsgi_router_worker_breaker", state="open") == 1
        listed = httpx.get(router.url + "/workers", headers={"Authorization": "Bearer k"}).json()["workers"]
        assert (listed[0]["breaker"], listed[0]["is_healthy"]) == ("open", True)
        wait_until(lambda: router.metric("wsgi_router_worker_breaker", state="half_open") == 1, 10)
        for _ in range(2):
            assert httpx.post(router.url + URL, json=ask("say-text"), timeout=30).status_code == 200
        wait_until(lambda: router.metric("wsgi_router_worker_breaker", state="closed") == 1, what="closed")
        lines = [f"the breaker is {said}" for said in ("open for 8 s", "half-open", "closed")]
        wait_until(lambda: all(line in router.output() for line in lines), what="lines in the log")
        assert [router.output().count(line) for line in lines] == [1, 1, 1]


@pytest.mark.parametrize("transport", ["native", "grpcio"])
def test_a_request_that_takes_too_long(worker: Worker, transport: str) -> None:
    with Router(worker.url, request_timeout="1.5", transport=transport) as router:
        router.wait_serving()
        for word, streaming in (("hang-first", True), ("go-slowly", False)):
            answer = httpx.post(router.url + URL, json=ask(word, stream=streaming), timeout=30)
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        for word in ("go-slowly", "hang-midway"):
            body = ask(word, stream=True)
            with httpx.stream("POST", router.url + URL, json=body, timeout=30) as answer:
                chunks = list(sse.events(answer.iter_lines()))
            assert chunks[-1] == "[DONE]"
            assert isinstance(chunks[-2], dict)
            assert chunks[-2]["error"]["code"] == "deadline_exceeded"
        wait_until(lambda: int(worker.server_info()["running"]) == 0, 5, "no request left")
        assert router.status("/readiness") == 200  # the worker did nothing wrong
        assert router.metric("wsgi_router_worker_state", state="up") == 1
