"""Both transports, and the native one with and without the socket: the same bytes, ends and counts."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.live import script
from tests.live.test_chat import ask
from tests.live.test_faults import raw, running
from tests.support import sse
from tests.support.processes import (
    QWEN3,
    ROOT,
    Router,
    Worker,
    wait_until,
)

URL = "/v1/chat/completions"
PROBABLE: dict[str, Any] = {"logprobs": True, "top_logprobs": 20}
LARGE = 16 * 2**20
FLOOD_TOKENS = 12_000
WAYS: dict[str, dict[str, Any]] = {
    "lent": {"transport": "native"},
    "native": {"transport": "native", "lend_sockets": "false"},
    "grpcio": {"transport": "grpcio"},
}
SAMPLES: dict[str, dict[str, Any]] = {
    "say-text": {},
    "in-chunks": {"stream_options": {"include_usage": True}},
    "say-stop": {"stop": ["STOP"], "n": 1},
    "refuse-input": {},
    "out-of-memory": {},
    "abort-first": {},
    "slow-abort-midway": {},
    "slow-break-midway": {},
    "slow-speak-garbage": {},
    "slow-end-early": {},
    "say-text, with probabilities": {"logprobs": True, "top_logprobs": 2},
    "say-text, cut": {"max_tokens": 3, "stream_options": {"include_usage": True}},
    "say-text, whole": {"stream": False},
    "break-midway, whole": {"stream": False},
    "abort-midway, whole": {"stream": False},
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    answers: dict[str, Any] = {"flood": {"random": FLOOD_TOKENS, "itl_ms": 0, "free": True}}
    for word in ("abort-midway", "break-midway", "speak-garbage", "end-early"):
        # What fails in the same batch as the first token may as well become a status.
        answers[f"slow-{word}"] = {**script.ANSWERS[word], "itl_ms": 400}
    path: Path = script.write(
        tmp_path_factory.mktemp("script") / "answers.json", {**answers, **script.ANSWERS}
    )
    flags = ("--tokenizer", str(QWEN3), "--model-name", "qwen3-sim", "--eos", "151645")
    with Worker(*flags, "--context-length", "100000", "--script", str(path)) as worker:
        yield worker


@pytest.fixture(scope="module")
def routers(worker: Worker) -> Iterator[dict[str, Router]]:
    """One for each way; with an access log that tells the bytes of each answer."""
    flags = ("--access-logfile", "-", "--access-logformat", "sent %(B)s of %(r)s")
    with (
        Router(worker.url, flags=flags, queue_size="100", **WAYS["lent"]) as lent,
        Router(worker.url, flags=flags, queue_size="100", **WAYS["native"]) as native,
        Router(worker.url, flags=flags, queue_size="100", **WAYS["grpcio"]) as grpcio,
    ):
        found = {"lent": lent, "native": native, "grpcio": grpcio}
        for router in found.values():
            router.wait_serving()
        yield found


@pytest.fixture(params=WAYS)
def router(request: pytest.FixtureRequest, routers: dict[str, Router]) -> Router:
    return routers[request.param]


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (URL.encode(), len(data)) + data


def settled(router: Router, worker: Worker) -> None:
    wait_until(lambda: running(worker) == 0, 5, "no request at the worker")
    wait_until(lambda: router.metric("wsgi_router_requests_in_flight") == 0, 5, "no request in flight")
    wait_until(lambda: router.metric("wsgi_router_worker_requests_in_flight") == 0, 5, "no lease")


def plain(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, kind and body without what differs by chance."""
    body = re.sub(r"(chatcmpl-|call_)[0-9a-f]+", r"\1ID", answer.text)
    body = re.sub(r'"created":\d+', '"created":0', body)
    return answer.status_code, answer.headers["content-type"], body


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_bytes_are_the_same(routers: dict[str, Router], worker: Worker, sample: str) -> None:
    body = {**ask(sample.partition(",")[0], stream=True), **SAMPLES[sample]}

    def one(router: Router) -> tuple[int, str, str]:
        return plain(httpx.post(router.url + URL, json=body, timeout=30))

    with ThreadPoolExecutor(len(routers)) as pool:
        answers = dict(zip(routers, pool.map(one, routers.values()), strict=True))
    assert answers["lent"] == answers["grpcio"]
    assert answers["native"] == answers["grpcio"]
    for router in routers.values():
        settled(router, worker)


def test_a_connection_goes_on_after_a_stream(router: Router, worker: Worker) -> None:
    with httpx.Client(base_url=router.url, timeout=30) as client:
        opened = []
        for _ in range(3):
            answer = client.post(URL, json=ask("say-text", stream=True))
            assert answer.text.endswith("data: [DONE]\n\n")
            opened.append(answer.extensions["network_stream"].get_extra_info("client_addr"))
            assert client.get("/health").status_code == 200
        assert len(set(opened)) == 1
    settled(router, worker)


def test_the_access_log_tells_all_bytes(router: Router) -> None:
    answer = httpx.post(router.url + URL, json=ask("in-chunks", stream=True), timeout=30)
    size = len(answer.content)
    wait_until(lambda: f"sent {size} of POST {URL}" in router.output(), 5, f"{size} bytes in the log")


def test_a_slow_reader_loses_nothing_and_fills_no_memory(router: Router, worker: Worker) -> None:
    """The bytes wait in the worker, not in the router; another client is not held up."""
    process = router.processes()[0]
    before = process.memory_info().rss
    body = ask(
        "flood", stream=True, max_tokens=FLOOD_TOKENS, stream_options={"include_usage": True}, **PROBABLE
    )
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    slow.settimeout(30)
    slow.connect(("127.0.0.1", router.port))
    try:
        slow.sendall(request(body))
        time.sleep(4)  # the worker would have sent all by then, if anybody took it
        assert process.memory_info().rss - before < LARGE // 2
        other = httpx.post(router.url + URL, json=ask("say-text", stream=True), timeout=30)
        assert other.text.endswith("data: [DONE]\n\n")
        received = bytearray()
        while not received.endswith(b"\r\n0\r\n\r\n"):
            part = slow.recv(1 << 20)
            assert part
            received += part
    finally:
        slow.close()
    assert len(received) > LARGE
    text = b"".join(chunks(bytes(received).partition(b"\r\n\r\n")[2]))
    assert text.endswith(b"data: [DONE]\n\n")
    usage = json.loads(text.rsplit(b"data: ", 2)[1])["usage"]
    assert usage["completion_tokens"] == FLOOD_TOKENS
    settled(router, worker)


def chunks(body: bytes) -> Iterator[bytes]:
    """The contents of an HTTP/1.1 chunked body, to its end."""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        assert body[length : length + 2] == b"\r\n"
        if not length:
            assert body == b"\r\n"
            return
        yield body[:length]
        body = body[length + 2 :]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("word", ["flood", "go-slowly", "hang-midway"])
def test_a_client_that_leaves(router: Router, worker: Worker, word: str, reset: bool) -> None:
    connection = raw(router, json.dumps(ask(word, stream=True, max_tokens=4000)).encode())
    assert connection.recv(100)
    time.sleep(0.3)  # in the midst of the stream
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()
    settled(router, worker)
    assert httpx.post(router.url + URL, json=ask("say-text"), timeout=30).status_code == 200


def test_http_1_0_has_no_chunks(router: Router) -> None:
    body = json.dumps(ask("say-text", stream=True)).encode()
    with socket.create_connection(("127.0.0.1", router.port), timeout=30) as connection:
        connection.sendall(
            b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (URL.encode(), len(body)) + body
        )
        received = b""
        while part := connection.recv(65536):
            received += part
    head, _, text = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert text.startswith(b"data: {")
    assert text.endswith(b"data: [DONE]\n\n")


def test_many_streams_at_once(router: Router, worker: Worker) -> None:
    """Two hundred clients, some of whom leave: each gets its own text, whole."""
    bodies = [json.dumps(ask("in-chunks", stream=True)).encode()] * 200
    connections = [raw(router, body) for body in bodies]
    for connection in connections[::7]:
        connection.close()
    for number, connection in enumerate(connections):
        if number % 7:
            received = b""
            while not received.endswith(b"\r\n0\r\n\r\n"):
                part = connection.recv(65536)
                assert part
                received += part
            events = [
                json.loads(line[6:])
                for line in b"".join(chunks(received.partition(b"\r\n\r\n")[2])).split(b"\n")
                if line.startswith(b"data: {")
            ]
            assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == script.TEXT
            connection.close()
    settled(router, worker)


@pytest.mark.parametrize("way", WAYS)
def test_a_drain_midway(worker: Worker, way: str) -> None:
    with Router(worker.url, flags=("--graceful-timeout", "5"), **WAYS[way]) as router:
        router.wait_serving()
        with httpx.stream(
            "POST", router.url + URL, json=ask("hang-midway", stream=True), timeout=30
        ) as answer:
            events = sse.events(answer.iter_lines())
            seen = [next(events)]
            router.send(signal.SIGTERM)
            seen += list(events)
        assert seen[-1] == "[DONE]"
        assert "error" in seen[-2]
    wait_until(lambda: running(worker) == 0, 5, "no request left")


WRAPPED = """
from wsgi_router.wsgi import application as router


class Shouting:
    def __init__(self, answer):
        self.answer = answer

    def __iter__(self):
        return (piece.upper() for piece in self.answer)

    def close(self):
        self.answer.close()


def application(environ, start_response):
    return Shouting(router(environ, start_response))
"""


def test_middleware_sees_every_piece(worker: Worker, tmp_path: Path) -> None:
    """What wraps the answer is never written past."""
    (tmp_path / "shouting.py").write_text(WRAPPED)
    router = Router(worker.url, flags=("--chdir", str(ROOT), "--pythonpath", str(tmp_path)), **WAYS["lent"])
    router.command.append("shouting:application")
    with router:
        router.wait_serving()
        answer = httpx.post(router.url + URL, json=ask("say-text", stream=True), timeout=30)
    assert "WÖRLD" in answer.text or "W\\u00D6RLD" in answer.text or "HELLO" in answer.text
    assert answer.text == answer.text.replace("data", "DATA")


def test_descriptors_stay_level(router: Router, worker: Worker) -> None:
    process: psutil.Process = router.processes()[0]
    settled(router, worker)
    before = process.num_fds()
    for number in range(30):
        connection = raw(router, json.dumps(ask("go-slowly", stream=True)).encode())
        assert connection.recv(100)
        if number % 2:
            time.sleep(0.02)  # others leave at once
        connection.close()
    settled(router, worker)
    wait_until(lambda: process.num_fds() <= before + 2, 5, "descriptors as before")
