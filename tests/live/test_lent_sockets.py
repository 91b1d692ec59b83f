"""A lent socket needs no Python: its stream goes on while a greenlet keeps the process's hub to itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import script
from tests.live.test_chat import ask
from tests.support.processes import QWEN3, Router, Worker, wait_until

BURNING = """
import os, time
from wsgi_router.wsgi import application as router

def application(environ, start_response):
    if environ["PATH_INFO"] != "/burn":
        return router(environ, start_response)
    open("{begun}", "w").close()
    end = time.monotonic() + 60
    while not os.path.exists("{enough}") and time.monotonic() < end:
        pass
    start_response("200 OK", [("Content-Length", "0")])
    return []
"""
MORE_EVENTS = 20


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    answers = {"drip": {"random": 12_000, "itl_ms": 10, "free": True}}
    path: Path = script.write(tmp_path_factory.mktemp("script") / "answers.json", answers)
    flags = ("--tokenizer", str(QWEN3), "--model-name", "qwen3-sim", "--eos", "151645")
    with Worker(*flags, "--context-length", "100000", "--script", str(path)) as worker:
        yield worker


class Reader:
    """The events of a stream, as they come."""

    def __init__(self, router: Router) -> None:
        body = json.dumps(ask("drip", stream=True)).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.socket = socket.create_connection(("127.0.0.1", router.port), timeout=30)
        self.socket.sendall(head + body)
        self.text = b""

    def read(self, events: int, seconds: float = 30) -> None:
        """Returns once so many more have come. Raises TimeoutError."""
        wanted = self.text.count(b"data: ") + events
        self.socket.settimeout(seconds)
        while self.text.count(b"data: ") < wanted:
            data = self.socket.recv(65536)
            assert data, self.text[-1000:]
            self.text += data

    def drop_what_is_there(self) -> None:
        """Returns once the socket is empty: nothing that was sent before is read any more."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
        except BlockingIOError:
            return
        raise AssertionError("the stream has ended")


@pytest.mark.parametrize("lent", [True, False])
def test_a_stream_goes_on_while_the_hub_is_busy(worker: Worker, tmp_path: Path, lent: bool) -> None:
    begun, enough = tmp_path / "begun", tmp_path / "enough"
    (tmp_path / "burning.py").write_text(BURNING.format(begun=begun, enough=enough))
    flags = ("--pythonpath", str(tmp_path), "burning:application")
    with Router(worker.url, flags=flags, transport="native", lend_sockets=str(lent).lower()) as router:
        router.wait_serving()
        reader = Reader(router)
        reader.read(5)
        burn = socket.create_connection(("127.0.0.1", router.port), timeout=90)
        burn.sendall(b"GET /burn HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(begun.exists, 30, "the busy loop")
        reader.drop_what_is_there()
        if lent:
            reader.read(MORE_EVENTS)
        else:  # so the loop does keep all greenlets from running
            with pytest.raises(TimeoutError):
                reader.read(1, 0.5)
        enough.touch()
        assert burn.recv(100).startswith(b"HTTP/1.1 200 ")
        reader.read(MORE_EVENTS)
        burn.close()
        reader.socket.close()
