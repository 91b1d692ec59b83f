"""A client that reads nothing, and never leaves: REQUEST_TIMEOUT ends what it keeps, and its connection."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.test_chat import ask
from tests.support.processes import QWEN3, Router, Worker, wait_until

URL = "/v1/chat/completions"
SECONDS = 5
TOKENS = 100_000

SMALL_BUFFERS = """
import socket
from wsgi_router.wsgi import application as router

def application(environ, start_response):
    environ["gunicorn.socket"].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return router(environ, start_response)
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    flags = ("--tokenizer", str(QWEN3), "--model-name", "qwen3-sim", "--eos", "151645", "--itl-ms", "0")
    room = ("--context-length", "100000000", "--kv-tokens", "2000000000", "--tokens-per-chunk", "1024")
    with Worker(*flags, *room) as worker:
        yield worker


@contextlib.contextmanager
def unread(router: Router) -> Iterator[socket.socket]:
    """The connection of a client that has asked for a long answer."""
    body = json.dumps(ask("x", stream=True, max_tokens=TOKENS, ignore_eos=True)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", router.port))
        client.sendall(head + body)
        yield client


def open_ports(router: Router) -> set[int]:
    """Those of clients that gunicorn's processes have connections to."""
    found = [one for process in router.processes() for one in process.net_connections()]
    return {one.raddr.port for one in found if one.raddr and one.laddr.port == router.port}


def read_all(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def wait_for_its_slot(router: Router) -> None:
    """Asks until a request is answered: there is one slot, and its holder's end is the next one's chance."""
    statuses: list[int] = []
    while not statuses or statuses[-1] == 504:  # it waited its turn for too long
        statuses.append(httpx.post(router.url + URL, json=ask("x", max_tokens=5), timeout=60).status_code)
    assert statuses[-1] == 200


def keeps_nothing(worker: Worker, folder: Path, transport: str, flags: Sequence[str]) -> None:
    limits: dict[str, Any] = {
        "request_timeout": str(SECONDS),
        "max_concurrent_requests": "1",
        "queue_size": "50",
    }
    application = ("--pythonpath", str(folder), "small_buffers:application")
    with Router(worker.url, transport=transport, flags=(*flags, *application), **limits) as router:
        router.wait_serving()
        start = time.monotonic()
        with unread(router) as client:
            port = client.getsockname()[1]
            wait_until(lambda: router.metric("wsgi_router_requests_running") == 1, 10, "its slot")
            assert port in open_ports(router)
            wait_for_its_slot(router)
            assert time.monotonic() - start >= SECONDS
            wait_until(lambda: port not in open_ports(router), 10, "its connection's end")
            with pytest.raises(ConnectionResetError):
                read_all(client)
        for name in ("requests_running", "requests_in_flight", "worker_requests_in_flight"):
            wait_until(lambda name=name: router.metric(f"wsgi_router_{name}") == 0, 10, name)  # type: ignore[misc]
        assert router.settled_metric("wsgi_router_cancellations_total") == 1
        assert "Traceback" not in router.output(), router.output()


def test_it_keeps_nothing_for_longer(worker: Worker, tmp_path: Path) -> None:
    """With its socket lent, and where gunicorn sends to it from greenlets and from threads."""
    (tmp_path / "small_buffers.py").write_text(SMALL_BUFFERS)
    with ThreadPoolExecutor() as pool:
        threads = ("-k", "gthread", "--threads", "8")
        asked = [
            pool.submit(keeps_nothing, worker, tmp_path, transport, flags)
            for transport, flags in (("native", ()), ("grpcio", ()), ("native", threads))
        ]
        for one in asked:
            one.result()
    wait_until(lambda: int(worker.server_info()["running"]) == 0, 10, "no request left")
