"""The drain begins when gunicorn's worker has been told to end, and leaves time for last words."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.workers.ggevent import GeventWorker

from tests.support.processes import wait_until
from wsgi_router import gunicorn_conf, runtime, serving


def test_the_drain_begins_when_the_worker_ends(drain: runtime.Drain) -> None:
    worker = SimpleNamespace(alive=True, cfg=SimpleNamespace(graceful_timeout=300))
    serving.start(worker)
    time.sleep(0.4)
    assert not drain.begun
    told = time.monotonic()
    worker.alive = False
    wait_until(lambda: drain.begun, 5, "the drain")
    assert drain.deadline is not None
    assert told + 295 < drain.deadline <= time.monotonic() + 300 - serving.LAST_WORDS_SECONDS


def test_a_quick_end_waits_until_streams_have_ended(drain: runtime.Drain) -> None:
    flag = runtime.wakeup()
    drain.begin(300)
    drain.subscribe(flag)
    start = time.monotonic()
    runtime.call_later(0.2, lambda: drain.unsubscribe(flag))
    serving.end_streams()
    assert time.monotonic() - start >= 0.2
    assert drain.due()
    assert flag.wait(0)


def test_a_quick_end_does_not_wait_for_long(drain: runtime.Drain) -> None:
    drain.subscribe(runtime.wakeup())
    start = time.monotonic()
    serving.end_streams()
    assert time.monotonic() - start < 20


def test_a_short_grace_ends_streams_at_once(drain: runtime.Drain) -> None:
    serving.start(SimpleNamespace(alive=False, cfg=SimpleNamespace(graceful_timeout=2)))
    wait_until(drain.due, 5, "the end of streams")


def test_what_the_processes_share_is_not_tidied_up_while_they_run() -> None:
    folder = gunicorn_conf._make_directory("test")
    tidying = os.open(folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(tidying, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(tidying)
    gunicorn_conf.on_exit(None)
    assert not folder.exists()


def test_a_connection_taken_before_the_listener_closed_is_answered() -> None:
    """As at a reload: its greenlet's turn comes when there is no listener any more."""
    configuration = Config()
    configuration.set("keepalive", 0)
    worker = object.__new__(GeventWorker)
    worker.__dict__.update(cfg=configuration, log=Logger(configuration), alive=True, nr=0, max_requests=1000)
    worker.wsgi = lambda _environ, start: start("204 No Content", []) and []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker.sockets = [listener]
        serving.remember_names(worker)
        client = socket.create_connection(listener.getsockname())
        taken, address = listener.accept()
    with client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        worker.handle(listener, taken, address)
        client.settimeout(30)
        assert client.recv(100).startswith(b"HTTP/1.1 204 ")
