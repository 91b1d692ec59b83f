"""Requests that take too long as a whole: what ends them, where, and what is left of them."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.bench import ABORT, Bench, chunk, nothing_is_left
from tests.support.flow import Client, body
from tests.support.modes import run
from tests.support.processes import wait_until
from wsgi_router import runtime
from wsgi_router.calls import Call, Calls
from wsgi_router.dispatch import Generation
from wsgi_router.errors import DeadlineError, UpstreamError
from wsgi_router.workers.retries import Retries
from wsgi_router.workers.transport import GenerateJob, RpcFailure


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


def late(bench: Bench, seconds: float) -> Callable[[], Generation]:
    until = time.monotonic() + seconds
    return lambda: bench.dispatcher.open(GenerateJob("m", body([1], 9)), until=until)


def test_a_request_that_is_late_before_its_first_event() -> None:
    bench = Bench((), health_interval=100)
    start = time.monotonic()
    with pytest.raises(DeadlineError):
        late(bench, 0.2)()
    assert 0.2 <= time.monotonic() - start < 20
    assert len(bench.transport.aborted) == 1
    assert all(worker.available() for worker in bench.pool.workers)
    assert bench.pool.workers[0].record._breaker().failures == 0


def test_a_request_that_was_late_when_it_came_asks_nobody() -> None:
    bench = Bench((chunk(1), None))
    with pytest.raises(DeadlineError):
        late(bench, -1)()
    assert bench.transport.streams == []


@pytest.mark.parametrize("talking", [False, True])
def test_a_stream_that_is_late(talking: bool) -> None:
    bench = Bench((chunk(1),), health_interval=100)
    generation = late(bench, 0.4)()
    deadline = time.monotonic() + 20

    def read() -> None:
        while time.monotonic() < deadline:
            if talking:
                bench.transport.streams[0].put(chunk(2))
            generation.wait(0.1)
            generation.take()

    with pytest.raises(DeadlineError):
        read()
    generation.close()
    assert len(bench.transport.aborted) == 1


def read_all(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def test_a_late_stream_that_nobody_looks_at_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its client reads nothing, and the server waits to send; the connection is cut."""
    monkeypatch.setattr("wsgi_router.choices._GRACE_SECONDS", 0.1)
    bench = Bench((chunk(1),), health_interval=100)
    closed: list[bool] = []
    client = Client()
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    until = time.monotonic() + 0.3
    generation = bench.dispatcher.open(
        GenerateJob("m", body([1], 9)), client.watch, until=until, on_close=lambda: closed.append(True)
    )
    with pytest.raises(BrokenPipeError):
        client.ours.sendall(b"x" * (64 << 20))
    assert time.monotonic() >= until
    wait_until(lambda: closed)
    assert generation.closed
    assert sum(bench.in_flight()) == 0
    assert len(bench.transport.aborted) == 1
    client.ours.close()
    with pytest.raises(ConnectionResetError):
        read_all(client.theirs)


def _standing_still() -> None:
    """All that was due meanwhile is so at one moment."""
    from gevent import monkey

    bench = Bench((), health_interval=100)
    client = Client()
    runtime.call_later(0.1, lambda: monkey.get_original("time", "sleep")(2.5))
    with pytest.raises(DeadlineError):
        bench.dispatcher.open(GenerateJob("m", body([1], 9)), client.watch, until=time.monotonic() + 0.5)
    assert len(bench.dispatcher.shared.limits) == 0
    client.theirs.setblocking(False)
    with pytest.raises(BlockingIOError):  # its answer can be sent
        client.theirs.recv(1)
    bench.pool.close()


def test_a_process_that_stands_still_around_a_deadline_answers_all_the_same() -> None:
    run("gevent", _standing_still)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_request_that_is_over_in_time_is_late_no_more(forgotten: bool) -> None:
    bench = Bench((chunk(1), None))
    client = Client()
    until = time.monotonic() + 60
    generation = bench.dispatcher.open(GenerateJob("m", body([1], 9)), client.watch, until=until)
    assert len(bench.dispatcher.shared.limits) == 1
    generation.close(sending=True)
    assert len(bench.dispatcher.shared.limits) == 1  # its last piece may be late
    assert not generation.over
    if forgotten:
        del generation
        gc.collect()
        wait_until(lambda: len(bench.dispatcher.shared.limits) == 0)
    else:
        generation.close()
        assert generation.over
        assert len(bench.dispatcher.shared.limits) == 0


def test_a_request_that_cannot_begin_is_late_no_more() -> None:
    bench = Bench((RpcFailure("INVALID_ARGUMENT"),))
    with pytest.raises(UpstreamError):
        late(bench, 60)()
    assert len(bench.dispatcher.shared.limits) == 0


def test_a_late_request_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retries, "pause", staticmethod(lambda tried: 60))
    bench = Bench((ABORT, None), (chunk(1), None))
    with pytest.raises(DeadlineError):
        late(bench, 0.2)()
    assert len(bench.transport.streams) == 1


def test_late_embeddings() -> None:
    bench = Bench(workers=2, health_interval=100)
    bench.transport.unary_answers = {"Embed": lambda _request: RpcFailure("DEADLINE_EXCEEDED")}
    calls = Calls(bench.pool, bench.transport)
    with pytest.raises(DeadlineError):
        calls.ask_for_each(Call("Embed", 5, "m", deadline=time.monotonic() + 0.5), [b"x"] * 3)
    assert all(worker.available() for worker in bench.pool.workers)
    asked = len(bench.transport.asked)
    with pytest.raises(DeadlineError):
        calls.ask(Call("Embed", 5, "m", deadline=time.monotonic() - 1), b"x")
    assert len(bench.transport.asked) == asked
