"""Workers that stop answering, and workers that are only busy."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import script
from tests.live.test_chat import ask
from tests.support.hung_worker import HungWorkers
from tests.support.processes import Router, Worker, wait_until

URL = "/v1/chat/completions"
NEW_CONNECTIONS = httpx.Limits(max_keepalive_connections=0)
WAITS: dict[str, Any] = {"first_token_timeout": "4", "health_timeout": "1", "health_interval": "0.5"}


@contextlib.contextmanager
def stopped(worker: Worker) -> Iterator[None]:
    """Within, the worker's process stands still; its connections stay open."""
    worker.send(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.send(signal.SIGCONT)


def test_a_stopped_worker_of_two_is_passed_over(simulator_flags: tuple[str, ...]) -> None:
    """One request at most waits in vain; then the others go to the worker that answers."""
    with (
        Worker(*simulator_flags) as first,
        Worker(*simulator_flags) as second,
        Router(first.url, second.url, **{**WAITS, "health_timeout": "60"}, policy="round_robin") as router,
    ):
        wait_until(lambda: router.metric("wsgi_router_worker_up") == 2, 15, "two workers up")
        with stopped(first):
            body = ask("say-text", stream=True)
            seen = [httpx.post(router.url + URL, json=body, timeout=30).status_code for _ in range(12)]
            assert seen.count(504) == 1
            assert seen.count(200) == 11
        wait_until(lambda: router.metric("wsgi_router_worker_up") == 2, 90, "two workers up again")


def test_requests_leave_a_worker_that_is_found_down(simulator_flags: tuple[str, ...]) -> None:
    """In all processes, whichever of them has found it out; over both transports."""
    waits: dict[str, Any] = {**WAITS, "first_token_timeout": "100", "health_interval": "0.2"}
    with ExitStack() as stack:
        first, second = (stack.enter_context(Worker(*simulator_flags)) for _ in range(2))
        routers = [
            stack.enter_context(
                Router(first.url, second.url, **waits, policy="round_robin", processes=2, transport=transport)
            )
            for transport in ("native", "grpcio")
        ]
        client = stack.enter_context(httpx.Client(timeout=90, limits=NEW_CONNECTIONS))
        pool = stack.enter_context(ThreadPoolExecutor(32))
        for router in routers:
            wait_until(lambda r=router: r.metric("wsgi_router_worker_up") == 2, 15, "two up")  # type: ignore[misc]
        with stopped(first):
            bodies = [ask("say-text", stream=bool(number % 2), n=1 + number % 3) for number in range(12)]
            bodies += [ask("say-text", stream=True, stop=["Hello"])] * 2
            asked = [pool.submit(client.post, one.url + URL, json=body) for body in bodies for one in routers]
            assert [one.result().status_code for one in asked] == [200] * 28
            for router in routers:
                assert router.metric("wsgi_router_worker_state", state="down") == 1
                assert router.settled_metric("wsgi_router_retries_total") >= 4
        for router in routers:
            wait_until(lambda r=router: r.metric("wsgi_router_worker_up") == 2, 30, "two up")  # type: ignore[misc]
            assert router.metric("wsgi_router_worker_requests_in_flight") == 0
        wait_until(lambda: int(first.server_info()["running"]) == 0, 5, "no request left")


def test_a_worker_removed_before_a_reload_and_found_down_after_it(
    simulator_flags: tuple[str, ...], simulators: tuple[Worker, Worker], tmp_path: Path
) -> None:
    """The processes that follow do not know it; those of before see to what waits there."""
    hangs = {**script.ANSWERS, "say-text": script.ANSWERS["hang-first"]}
    waits: dict[str, Any] = {
        **WAITS,
        "first_token_timeout": "100",
        "health_interval": "0.2",
        "admin_key": "k",
    }
    admin: dict[str, Any] = {"headers": {"Authorization": "Bearer k"}, "timeout": 30}
    with (
        Worker(*simulator_flags[:-1], str(script.write(tmp_path / "hangs.json", hangs))) as first,
        Router(first.url, **waits) as router,
        ThreadPoolExecutor(1) as pool,
    ):
        router.wait_serving(times=1)
        asked = pool.submit(httpx.post, router.url + URL, json=ask("say-text"), timeout=90)
        wait_until(lambda: int(first.server_info()["running"]) == 1, 10, "a request")
        (listed,) = httpx.get(router.url + "/workers", **admin).json()["workers"]
        assert httpx.post(router.url + "/workers", json={"url": simulators[0].url}, **admin).is_success
        assert httpx.delete(f"{router.url}/workers/{listed['id']}", **admin).is_success
        router.send(signal.SIGHUP)
        wait_until(lambda: "takes no new connections" in router.output(), 30, "a process that leads no more")
        with stopped(first):
            assert asked.result().status_code == 200
        assert f"{first.url} failed before its first event" in router.output()


def test_a_busy_worker_is_asked_once_it_has_time(simulator_flags: tuple[str, ...]) -> None:
    """It misses one check, as one does that chews on a huge prompt; the router still has nobody better."""
    with Worker(*simulator_flags) as worker, Router(worker.url, **{**WAITS, "health_timeout": "2"}) as router:
        router.wait_serving()
        with stopped(worker):
            wait_until(lambda: router.metric("wsgi_router_worker_up") == 0, 15, "a missed check")
            assert router.status("/readiness") == 200
        start = time.monotonic()
        assert httpx.post(router.url + URL, json=ask("say-text"), timeout=30).status_code == 200
        assert time.monotonic() - start < 20
        wait_until(lambda: router.metric("wsgi_router_worker_up") == 1, 15, "up again")


@pytest.mark.parametrize("transport", ["native", "grpcio"])
def test_embeddings_that_nobody_waits_for_are_cancelled(transport: str) -> None:
    """Else they would hold their leases, and the calls of others, until FIRST_TOKEN_TIMEOUT."""
    with HungWorkers(1) as hung, Router(f"grpc://127.0.0.1:{hung.ports[0]}", transport=transport) as router:
        router.wait_serving()
        body = {"model": "hung", "input": ["x"] * 20}
        for _ in range(4):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(router.url + "/v1/embeddings", json=body, timeout=0.5)
        wait_until(lambda: router.metric("wsgi_router_requests_in_flight") == 0, 10, "requests ended")
        wait_until(lambda: router.metric("wsgi_router_worker_requests_in_flight") == 0, 10, "leases back")
        assert router.metric("wsgi_router_worker_up") == 1
        assert router.metric("wsgi_router_cancellations_total") == 4
