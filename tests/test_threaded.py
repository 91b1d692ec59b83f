"""gunicorn's gthread worker: connections are cut in the end, and taken only while a thread is free."""

from __future__ import annotations

import socket
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.workers.ggevent import GeventWorker
from gunicorn.workers.gthread import ThreadWorker

from tests.support.processes import wait_until
from wsgi_router import runtime, serving, threaded

MORE_THAN_FITS = bytes(64 << 20)


class Connection:
    """As gunicorn's: equal to itself alone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock


class Writing:
    """A worker of gunicorn's whose request writes to a client that reads nothing, in a thread."""

    def __init__(self, connections: threaded.Connections) -> None:
        self.errors: list[OSError] = []
        self._client, self._served = socket.socketpair()
        worker = object.__new__(ThreadWorker)
        worker.__dict__["handle"] = self._handle
        connections.follow(worker)
        self._thread = threading.Thread(target=worker.handle, args=(Connection(self._served),))
        self._thread.start()

    def _handle(self, connection: Any) -> bool:
        try:
            connection.sock.sendall(MORE_THAN_FITS)
        except OSError as error:
            self.errors.append(error)
        return False

    def wait(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._client.close()
        self._served.close()


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> threaded.Connections:
    made = threaded.Connections()
    monkeypatch.setattr(serving, "_connections", made)
    monkeypatch.setattr(runtime, "drain", runtime.Drain())
    return made


def test_a_quick_end_cuts_writes_that_nobody_reads(connections: threaded.Connections) -> None:
    writing = Writing(connections)
    wait_until(lambda: repr(connections) == "<Connections 1>", 30, "a request")
    serving.end_streams()
    writing.wait()
    assert isinstance(writing.errors[0], BrokenPipeError | ConnectionResetError)
    assert repr(connections) == "<Connections 0>"


def test_a_connection_that_has_gone_is_no_matter(connections: threaded.Connections) -> None:
    writing = Writing(connections)
    wait_until(lambda: repr(connections) == "<Connections 1>", 30, "a request")
    writing._client.close()
    connections.cut()
    writing.wait()
    connections.cut()


@pytest.mark.parametrize(("idle", "waiting", "most"), [(0, 0, 8), (5, 2, 15), (60, 0, 60)])
def test_connections_are_taken_while_a_thread_is_free(idle: int, waiting: int, most: int) -> None:
    """Idle ones hold none; beyond gunicorn's own limit nothing is taken."""
    configuration = Config()
    configuration.set("threads", 8)
    configuration.set("worker_connections", 60)
    worker: Any = ThreadWorker(1, 1, [], None, 30, configuration, SimpleNamespace())
    assert worker.worker_connections == 60
    threaded.Connections().follow(worker)
    worker.keepalived_conns, worker.pending_conns = deque(range(idle)), deque(range(waiting))
    assert worker.worker_connections == most


def test_the_last_thread_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was ready in the same turn may have taken it."""
    taken: list[Any] = []
    monkeypatch.setattr(ThreadWorker, "accept", lambda _worker, listener: taken.append(listener))
    worker: Any = ThreadWorker(1, 1, [], None, 30, Config(), SimpleNamespace())
    worker.cfg.set("threads", 2)
    threaded.Connections().follow(worker)
    for worker.nr_conns in (1, 2, 3):
        worker.accept(f"listener at {worker.nr_conns}")
    assert taken == ["listener at 1"]


def test_other_workers_stay_as_they_are() -> None:
    worker = object.__new__(GeventWorker)
    threaded.Connections().follow(worker)
    assert not vars(worker)
    assert type(worker) is GeventWorker
