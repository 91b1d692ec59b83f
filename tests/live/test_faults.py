"""Faults: workers that are not there, break or hang; clients that leave; bad bodies; SIGTERM."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.live.test_chat import ask
from tests.support import sse
from tests.support.processes import Router, Worker, free_port, wait_until

URL = "/v1/chat/completions"


def raw(router: Router, body: bytes, headers: str = "") -> socket.socket:
    """A connection that has sent a chat request by hand."""
    connection = socket.create_connection(("127.0.0.1", router.port), timeout=30)
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def running(*workers: Worker) -> int:
    return sum(int(worker.server_info()["running"]) for worker in workers)


@pytest.fixture
def pair(simulator_flags: tuple[str, ...]) -> Iterator[tuple[Worker, Router]]:
    """A worker and a router of a test's own, for breaking."""
    with Worker(*simulator_flags) as worker, Router(worker.url) as router:
        router.wait_serving()
        yield worker, router


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"null", 400),
        (b"[]", 400),
        (b'{"model": "\x80"}', 400),
        (b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', 400),
        (b'{"model":"m","messages":' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (b'{"model":"qwen3-sim","temperature":NaN,"messages":[{"role":"user","content":"x"}]}', 400),
        (b'{"model":"qwen3-sim","temperature":1e999,"messages":[{"role":"user","content":"x"}]}', 400),
    ],
)
def test_bad_bodies(router: Router, body: bytes, status: int) -> None:
    answer = httpx.post(router.url + URL, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    error_of(answer)


def test_a_body_over_the_limit_is_refused_unread(router: Router) -> None:
    size = 65 << 20
    with socket.create_connection(("127.0.0.1", router.port), timeout=30) as connection:
        connection.sendall(f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
    with contextlib.suppress(httpx.WriteError):  # the answer may come before the body is sent
        assert httpx.post(router.url + URL, content=b"x" * size, timeout=30).status_code == 413


def test_an_answer_before_the_whole_body_is_its_connections_last(router: Router) -> None:
    """Said in a header, for a client would put its next request on a connection that is about to close."""
    body = b" " * (1 << 20)
    with httpx.Client(base_url=router.url, timeout=30) as client:
        answer = client.post("/v1/nothing", content=body)
        assert (answer.status_code, answer.headers["connection"]) == (404, "close")
        assert client.post("/v1/nothing", content=b"{}").headers["connection"] == "keep-alive"


def test_a_prompt_that_is_too_long(router: Router) -> None:
    answer = httpx.post(router.url + URL, json=ask("word " * 5000, stream=True), timeout=30)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "context_length_exceeded"
    answer = httpx.post(router.url + URL, json=ask("word", max_tokens=5000), timeout=30)
    assert answer.status_code == 400


def test_unknown_model_path_and_method(router: Router) -> None:
    answer = httpx.post(router.url + URL, json={**ask("x"), "model": "other"})
    assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")
    assert error_of(httpx.get(router.url + "/v1/nothing"))["type"] == "invalid_request_error"
    answer = httpx.get(router.url + URL)
    assert answer.status_code == 405
    error_of(answer)


@pytest.mark.parametrize("word", ["hang-first", "hang-midway", "go-slowly"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_client_that_leaves_ends_the_workers_request(
    router: Router, simulators: tuple[Worker, Worker], word: str, streaming: bool
) -> None:
    wait_until(lambda: running(*simulators) == 0, 5, "a quiet start")
    connection = raw(router, json.dumps(ask(word, stream=streaming)).encode())
    wait_until(lambda: running(*simulators) == 1, 5, "a running request")
    if streaming and word != "hang-first":
        assert connection.recv(100)
    time.sleep(0.2)
    connection.close()
    # A second is promised; a busy machine is given more.
    wait_until(lambda: running(*simulators) == 0, 3, "the worker's request ended")
    wait_until(lambda: router.metric("wsgi_router_requests_in_flight") == 0, 5, "nothing in flight")


def test_pipelined_bytes_are_no_farewell(router: Router) -> None:
    body = json.dumps(ask("say-text", stream=True)).encode()
    with raw(router, body) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(65536)
    assert b"error" not in received


def test_a_worker_killed_midway(pair: tuple[Worker, Router]) -> None:
    worker, router = pair
    with httpx.stream("POST", router.url + URL, json=ask("go-slowly", stream=True), timeout=30) as answer:
        chunks = sse.events(answer.iter_lines())
        seen = [next(chunks), next(chunks)]
        worker.kill()
        seen += list(chunks)
    assert seen[-1] == "[DONE]"
    assert isinstance(seen[-2], dict)
    assert "error" in seen[-2]
    wait_until(lambda: router.status("/readiness") == 503, 10, "readiness 503")
    wait_until(lambda: router.metric("wsgi_router_requests_in_flight") == 0, 5, "nothing in flight")


def test_a_worker_that_comes_later(simulator_flags: tuple[str, ...]) -> None:
    port = free_port()
    with Router(f"grpc://127.0.0.1:{port}") as router:
        assert router.status("/health") == 200
        assert router.status("/readiness") == 503
        answer = httpx.post(router.url + URL, json=ask("say-text"))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        for _ in range(2):  # it comes, goes, and comes back
            with Worker(*simulator_flags, port=port):
                wait_until(lambda: router.status("/readiness") == 200, 15, "readiness 200")
                assert httpx.post(router.url + URL, json=ask("say-text"), timeout=30).status_code == 200
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(router.url + URL, json=ask("say-text"), timeout=30)
            wait_until(lambda: router.status("/readiness") == 503, 15, "readiness 503")


def test_an_idle_worker_that_dies_is_noticed(simulator_flags: tuple[str, ...]) -> None:
    """No request is sent: each process finds out by itself, and the metrics say so too."""

    def states(router: Router) -> set[int]:
        return {router.status("/readiness") for _ in range(8)}

    with Worker(*simulator_flags) as worker, Router(worker.url, processes=2) as router:
        router.wait_serving()
        worker.kill()
        wait_until(lambda: states(router) == {503}, 10, "readiness 503")
        wait_until(lambda: router.metric("wsgi_router_worker_up") == 0, 5, "worker_up 0")
        with Worker(*simulator_flags, port=worker.port):
            wait_until(lambda: states(router) == {200}, 15, "readiness 200")
            wait_until(lambda: router.metric("wsgi_router_worker_up") == 1, 5, "worker_up 1")


def test_a_dead_worker_is_passed_over(simulator_flags: tuple[str, ...]) -> None:
    with (
        Worker(*simulator_flags) as first,
        Worker(*simulator_flags) as second,
        Router(first.url, second.url, policy="round_robin") as router,
    ):
        wait_until(lambda: router.metric("wsgi_router_worker_up") == 2, 15, "two workers up")
        first.kill()
        for _ in range(10):
            answer = httpx.post(router.url + URL, json=ask("say-text"), timeout=30)
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("settings", [{"first_token_timeout": "1", "answer_timeout": "1"}])
def test_a_worker_that_says_nothing(simulator_flags: tuple[str, ...], settings: dict[str, Any]) -> None:
    with Worker(*simulator_flags) as worker, Router(worker.url, **settings, token_timeout="1") as router:
        router.wait_serving()
        assert httpx.post(router.url + URL, json=ask("hang-first"), timeout=30).status_code == 504
        with httpx.stream(
            "POST", router.url + URL, json=ask("hang-midway", stream=True), timeout=30
        ) as answer:
            chunks = list(sse.events(answer.iter_lines()))
        assert chunks[-1] == "[DONE]"
        assert isinstance(chunks[-2], dict)
        assert chunks[-2]["error"]["code"] == "deadline_exceeded"
        wait_until(lambda: running(worker) == 0, 5, "no request left")


def test_a_worker_that_stops_answering_is_suspected(simulator_flags: tuple[str, ...]) -> None:
    waits: dict[str, Any] = {"first_token_timeout": "1", "health_timeout": "1", "health_interval": "0.5"}
    with Worker(*simulator_flags) as worker, Router(worker.url, **waits) as router:
        router.wait_serving()
        worker.send(signal.SIGSTOP)
        try:
            assert (
                httpx.post(router.url + URL, json=ask("say-text", stream=True), timeout=30).status_code == 504
            )
            wait_until(lambda: router.status("/readiness") == 503, 10, "readiness 503")
        finally:
            worker.send(signal.SIGCONT)
        wait_until(lambda: router.status("/readiness") == 200, 15, "readiness 200")
        assert httpx.post(router.url + URL, json=ask("say-text"), timeout=30).status_code == 200


def test_pings_while_nothing_comes(simulator_flags: tuple[str, ...]) -> None:
    with Worker(*simulator_flags) as worker, Router(worker.url, ping_interval="0.3") as router:
        router.wait_serving()
        connection = raw(router, json.dumps(ask("hang-midway", stream=True)).encode())
        received = b""
        while received.count(b"\n: ping") + received.count(b"\n:ping") < 2:
            part = connection.recv(65536)
            assert part
            received += part
        connection.close()


def test_sigterm_lets_open_streams_end(pair: tuple[Worker, Router]) -> None:
    _worker, router = pair
    seen: list[Any] = []
    begun = threading.Event()

    def read() -> None:
        body = ask("go-slowly", stream=True)
        with httpx.stream("POST", router.url + URL, json=body, timeout=30) as answer:
            for chunk in sse.events(answer.iter_lines()):
                seen.append(chunk)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(10)
    router.send(signal.SIGTERM)
    reader.join(30)
    assert seen[-1] == "[DONE]"
    assert seen[-2]["choices"][0]["finish_reason"] == "stop"
    assert router.child is not None
    assert router.child.wait(15) == 0


def test_streams_that_outlive_the_drain_get_an_error_event(simulator_flags: tuple[str, ...]) -> None:
    with (
        Worker(*simulator_flags) as worker,
        Router(worker.url, flags=("--graceful-timeout", "5")) as router,
    ):
        router.wait_serving()
        body = ask("hang-midway", stream=True)
        with httpx.stream("POST", router.url + URL, json=body, timeout=30) as answer:
            chunks = sse.events(answer.iter_lines())
            seen = [next(chunks)]
            router.send(signal.SIGTERM)
            seen += list(chunks)
        assert seen[-1] == "[DONE]"
        assert isinstance(seen[-2], dict)
        assert "error" in seen[-2]
        wait_until(lambda: running(worker) == 0, 5, "no request left")
