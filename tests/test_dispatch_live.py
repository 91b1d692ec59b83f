"""The flow against real workers over real gRPC, on greenlets and on threads."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.events import Events
from tests.support.flow import Client, Flow, body, collect, error_of, ids_of, job, read_at_random, seconds
from tests.support.hung_worker import HungWorkers
from tests.support.modes import TRANSPORT_MODES, run
from tests.support.processes import Worker, wait_until
from wsgi_router import runtime
from wsgi_router.choices import ENDED
from wsgi_router.dispatch import Generation
from wsgi_router.errors import ClientGone, UpstreamError
from wsgi_router.native import Stream, Tokenizer
from wsgi_router.workers.transport import GenerateJob, Patience, RpcFailure

both = pytest.mark.parametrize("mode", TRANSPORT_MODES)

FIVE, SLOW, WAIT, BURST, BROKEN, ABORTED, HANG, LATE = ([1000 + n, 77] for n in range(8))
ANSWERS: list[tuple[list[int], dict[str, Any]]] = [
    (FIVE, {"token_ids": [11, 12, 13, 14, 15], "ttft_ms": 0, "itl_ms": 0}),
    (SLOW, {"random": 500, "ttft_ms": 0, "itl_ms": 30, "free": True}),
    (WAIT, {"token_ids": [11], "ttft_ms": 5000, "free": True}),
    (BURST, {"random": 600, "ttft_ms": 0, "itl_ms": 0, "free": True}),
    (BROKEN, {"error": {"status": "INVALID_ARGUMENT", "message": "no such thing"}}),
    (ABORTED, {"abort": {"after_tokens": 0}}),
    (HANG, {"token_ids": [11, 12], "hang": {"after_tokens": 1}, "ttft_ms": 0}),
    (LATE, {"token_ids": [11], "ttft_ms": 900, "free": True}),
]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dispatch") / "script.json"
    path.write_text(json.dumps([{"match": {"input_ids": ids}, "answer": answer} for ids, answer in ANSWERS]))
    return path


@pytest.fixture(scope="module")
def worker(script: Path) -> Iterator[Worker]:
    with Worker("--script", str(script)) as process:
        yield process


def answer_scenario(port: int) -> None:
    flow = Flow(port)
    generation = flow.open(FIVE)
    items = collect(generation)[0]
    assert ids_of(items) == [11, 12, 13, 14, 15]
    assert items[-1] is ENDED
    generation.close()
    generation = flow.open(FIVE, choices=4)
    assert [ids_of(items) for items in collect(generation, 4).values()] == [[11, 12, 13, 14, 15]] * 4
    generation.close()
    flow.assert_idle()


def refusal_scenario(port: int) -> None:
    flow = Flow(port)
    error = error_of(lambda: flow.open(BROKEN))
    assert isinstance(error, UpstreamError)
    assert (error.status, error.message) == (400, "no such thing")
    error = error_of(lambda: flow.open(ABORTED))
    assert isinstance(error, UpstreamError)
    flow.assert_idle()


def gone_during_prefill_scenario(port: int) -> None:
    flow = Flow(port)
    client = Client()
    threading.Timer(0.3, client.leave).start()
    assert seconds(lambda: error_of(lambda: flow.open(WAIT, client=client.watch))) < 20
    assert flow.in_flight() == 0
    flow.assert_idle(1)
    client = Client()
    client.leave()
    wait_until(client.watch.check)
    assert isinstance(error_of(lambda: flow.open(WAIT, client=client.watch)), ClientGone)
    flow.assert_idle(1)


def closed_midway_scenario(port: int) -> None:
    """However it ends, the worker's slot is free within a second."""
    flow = Flow(port)

    def by_close() -> None:
        generation = take_some(flow.open(SLOW))
        generation.close()

    def by_dropping() -> None:
        generation = take_some(flow.open(SLOW))
        del generation
        gc.collect()

    def from_elsewhere() -> None:
        generation = take_some(flow.open(SLOW))
        threading.Timer(0.1, generation.close).start()
        while generation.take() or not generation.closed:
            assert generation.wait(5)

    def by_leaving() -> None:
        client = Client()
        generation = take_some(flow.open(SLOW, client=client.watch))
        client.leave()
        wait_until(lambda: (generation.wait(0.1), generation.take(), generation.client_gone)[2])
        generation.close()

    def several_choices() -> None:
        generation = take_some(flow.open(SLOW, choices=3))
        generation.finish(1, cancel=True)
        wait_until(lambda: flow.info()["running"] == 2)
        generation.close()

    for end in (by_close, by_dropping, from_elsewhere, by_leaving, several_choices):
        end()
        wait_until(lambda: flow.in_flight() == 0, 2, end.__name__)
        flow.assert_idle(1)


def take_some(generation: Generation) -> Generation:
    for _ in range(3):
        assert generation.wait(5)
        assert generation.take()
    return generation


def silence_scenario(port: int) -> None:
    flow = Flow(port, first_token_timeout=0.5)
    assert seconds(lambda: error_of(lambda: flow.open(WAIT))) < 20
    flow.assert_idle(1)
    flow = Flow(port, token_timeout=0.4)
    generation = flow.open(HANG)
    items = collect(generation)[0]
    assert ids_of(items) == [11]
    assert items[-1].code == "DEADLINE_EXCEEDED"
    generation.close()
    flow.assert_idle(1)


def backpressure_scenario(port: int) -> None:
    """Nothing is lost behind a slow consumer, and not more than the queue is kept."""
    flow = Flow(port, queue_size=20)
    if flow.transport.feeds:
        return fed_backpressure(flow)
    generation = flow.open(BURST)
    time.sleep(0.5)
    assert len(generation._queue.ready) <= 21
    assert len(ids_of(collect(generation)[0])) in (599, 600)  # Complete repeats or carries the last
    generation.close()
    flow.assert_idle()


def fed_backpressure(flow: Flow) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Tokenizer(str(tiny.write(Path(folder))))
    options = {"id": "x", "created": 0, "model": "m", "streaming": True, "ignore_eos": True}
    answer = Stream(tokenizer, json.dumps(options).encode())
    generation = flow.dispatcher.open(job(BURST, 600), answer=answer)
    wait_until(lambda: answer.stats()["completion_tokens"] >= 20)
    time.sleep(0.5)  # more would come meanwhile
    assert answer.stats()["completion_tokens"] <= 100, "not more than the queue and one batch"
    taken = b""
    while not generation.exhausted:
        generation.wait(20)
        generation.take()
        taken += answer.take()
    assert answer.stats()["completion_tokens"] == 600
    generation.close()
    flow.assert_idle()


def killed_scenario(port: int, pid: int, found_down: str) -> None:
    """Makes the file `found_down` once a new worker may start."""
    flow = Flow(port)
    worker = flow.pool.workers[0]
    generation = take_some(flow.open(SLOW))
    os.kill(pid, signal.SIGKILL)
    failure = collect(generation)[0][-1]
    assert isinstance(failure, RpcFailure)
    assert failure.code == "UNAVAILABLE"
    generation.close()
    assert flow.in_flight() == 0
    wait_until(lambda: not flow.pool.usable(), 5)
    assert error_of(lambda: flow.open(FIVE))
    Path(found_down).touch()
    wait_until(worker.available, 30)
    collect(flow.open(FIVE))
    flow.assert_idle()


def failover_scenario(port: int, dead: int) -> None:
    """The second worker dies unnoticed; its share of requests goes to the first one, without an error."""
    flow = Flow(port, dead, policy="round_robin")
    flow.transport.forget(flow.pool.workers[1])
    worker = flow.pool.workers[1]
    worker.url, worker.address = "grpc://127.0.0.1:9", "127.0.0.1:9"  # nobody listens there
    for _ in range(6):
        assert ids_of(collect(flow.open(FIVE))[0]) == [11, 12, 13, 14, 15]
    assert flow.in_flight() == 0
    assert not flow.pool.workers[1].available()


def dropped_scenario(ports: list[int], first: int) -> None:
    """The worker of process `first` ends, and drops its calls, though no client has left."""
    flow = Flow(*ports, policy="round_robin", breaker_failures=2)
    found: list[dict[int, list[Any]]] = []

    def request() -> None:
        with contextlib.closing(flow.open(LATE, choices=2)) as generation:
            found.append(collect(generation, 2))

    threads = [threading.Thread(target=request) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(worker.in_flight == 3 for worker in flow.pool.workers), 20)
    os.kill(first, signal.SIGINT)
    for thread in threads:
        thread.join(60)
    assert [[ids_of(items) for items in one.values()] for one in found] == [[[11], [11]]] * 6
    assert [worker.record._breaker().failures for worker in flow.pool.workers] == [1, 0]
    flow.assert_idle()


def random_ends_scenario(port: int, count: int) -> None:
    """Requests that end in every way, at random moments, many at once: nothing is left of any."""
    flow = Flow(port, queue_size=3, close_timeout=0.5)
    chance = random.Random(7)
    running: list[int] = []

    def request(kind: list[int], choices: int, pause: float, close: bool) -> None:
        client = Client()
        try:
            generation = flow.open(kind, choices=choices, client=client.watch)
            read_at_random(generation, chance, choices, pause)
            if close:
                generation.close()
        except (UpstreamError, ClientGone):
            pass
        finally:
            client.ours.close()
            client.theirs.close()
            running.pop()

    for _ in range(count):
        wait_until(lambda: len(running) < 40, 30)
        running.append(1)
        kind = chance.choice([FIVE, SLOW, BURST, BROKEN, ABORTED, HANG])
        threading.Thread(
            target=request,
            args=(kind, chance.choice([1, 1, 3]), chance.random() * 0.3, chance.random() < 0.8),
        ).start()
    wait_until(lambda: not running, 30)
    gc.collect()
    wait_until(lambda: flow.in_flight() == 0, 5, repr(flow.pool))
    flow.assert_idle(2)
    assert "waiters=0" in repr(runtime.drain)


def starvation_scenario(port: int) -> None:
    """200 streams wait for their first token; another request on the same channel is not held up."""
    flow = Flow(port)
    waiting: list[Generation] = []
    for _ in range(200):
        threading.Thread(target=lambda: waiting.append(flow.open(WAIT)), daemon=True).start()
    wait_until(lambda: flow.info()["running"] == 200, 20)
    assert seconds(lambda: collect(flow.open(FIVE))) < 20
    assert seconds(lambda: flow.info()) < 20
    assert not waiting, "the fast one came after the slow ones"
    wait_until(lambda: len(waiting) == 200, 30)
    for generation in waiting:
        generation.close()
    waiting.clear()
    flow.assert_idle(2)


def hung_scenario(port: int, hung: list[int]) -> None:
    """20 workers hang in calls of every kind; one that answers is not held up, nor is a name lookup."""
    flow = Flow(port, *hung)
    for worker in flow.pool.workers[1:]:
        for _ in range(3):
            lease = worker.lease()
            hang(flow, worker)
            lease.release()
        flow.transport.abort(worker, "x")
        runtime.spawn(lambda w=worker: error_of(lambda: flow.transport.unary(w, "HealthCheck", b"", 5)))
    time.sleep(0.5)
    fast = [worker for worker in flow.pool.workers if worker.card and worker.card.name != "hung"]
    assert len(fast) == 1

    def ask() -> None:
        assert fast[0].card is not None
        collect(flow.dispatcher.open(GenerateJob(fast[0].card.name, body(FIVE, 5))))

    assert seconds(ask) < 20
    assert seconds(lambda: socket.getaddrinfo("localhost", 80)) < 20
    flow.transport.close()


def hang(flow: Flow, worker: Any) -> None:
    """A stream that nothing comes of."""
    if flow.transport.feeds:
        flow.transport.feed(worker, b"", None, 0, Patience(60, 60), Events())
    else:
        stream = flow.transport.open_stream(worker, b"")
        runtime.spawn(lambda: error_of(lambda: list(stream)))


@both
def test_an_answer(mode: str, worker: Worker) -> None:
    run(mode, answer_scenario, worker.port)


@both
def test_a_refusal(mode: str, worker: Worker) -> None:
    run(mode, refusal_scenario, worker.port)


@both
def test_client_gone_during_prefill(mode: str, worker: Worker) -> None:
    run(mode, gone_during_prefill_scenario, worker.port)


@both
def test_closed_midway(mode: str, worker: Worker) -> None:
    run(mode, closed_midway_scenario, worker.port)


@both
def test_silence(mode: str, worker: Worker) -> None:
    run(mode, silence_scenario, worker.port)


@both
def test_backpressure(mode: str, worker: Worker) -> None:
    run(mode, backpressure_scenario, worker.port)


@both
def test_killed_midway_and_back_again(mode: str, script: Path, tmp_path: Path) -> None:
    down = tmp_path / "down"
    with ThreadPoolExecutor() as executor, Worker("--script", str(script)) as first:
        scenario = executor.submit(run, mode, killed_scenario, first.port, first.pid, str(down))
        wait_until(lambda: down.exists() or scenario.done(), 60)
        first.stop()  # reaped
        with Worker("--script", str(script), port=first.port):
            scenario.result(60)


@both
def test_failover(mode: str, worker: Worker, script: Path) -> None:
    with Worker("--script", str(script)) as second:
        run(mode, failover_scenario, worker.port, second.port)


@pytest.mark.parametrize("mode", [TRANSPORT_MODES[0], TRANSPORT_MODES[3]])
def test_dropped_by_a_worker_that_ends(mode: str, worker: Worker, script: Path) -> None:
    with Worker("--script", str(script)) as other:
        run(mode, dropped_scenario, [other.port, worker.port], other.pid)


@both
def test_random_ends(mode: str, worker: Worker) -> None:
    run(mode, random_ends_scenario, worker.port, 400, seconds=120)


@both
def test_200_waiting_streams_starve_nobody(mode: str, worker: Worker) -> None:
    run(mode, starvation_scenario, worker.port, seconds=120)


@both
def test_20_hung_workers_starve_nobody(mode: str, worker: Worker) -> None:
    with HungWorkers(20) as hung:
        run(mode, hung_scenario, worker.port, hung.ports, seconds=120)
