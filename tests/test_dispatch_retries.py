"""Requests that fail before their first event, workers that fail in a row."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.bench import ABORT, Bench, chunk, complete, nothing_is_left
from tests.support.flow import Client, body, collect
from tests.support.processes import wait_until
from tests.support.transport import Answer
from wsgi_router import observability, runtime
from wsgi_router.calls import Call, Calls
from wsgi_router.choices import ENDED
from wsgi_router.dispatch import Generation
from wsgi_router.errors import (
    ClientGone,
    NoWorkerError,
    UpstreamError,
    WorkerAbortError,
)
from wsgi_router.pairs import follow
from wsgi_router.workers.breaker import Phase, State
from wsgi_router.workers.retries import Retries
from wsgi_router.workers.transport import GenerateJob, RpcFailure

UNAVAILABLE = RpcFailure("UNAVAILABLE", "connection reset")
INTERNAL = RpcFailure("INTERNAL", "broken")
CANCELLED = RpcFailure("CANCELLED", "the server is shutting down")


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


def pausing(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(Retries, "pause", staticmethod(lambda tried: seconds))


@pytest.mark.parametrize(
    "failure", [UNAVAILABLE, (INTERNAL,), (CANCELLED,), (RpcFailure("UNKNOWN"),), (ABORT, None), (None,)]
)
def test_a_request_goes_from_worker_to_worker(failure: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    pausing(monkeypatch, 0.1)
    before = observability.metrics().retries._value.get()
    bench = Bench(failure, failure, (chunk(7), None), workers=3)
    start = time.monotonic()
    generation = bench.open()
    assert time.monotonic() - start >= 0.2
    assert collect(generation) == {0: [chunk(7), ENDED]}
    assert len(set(bench.asked())) == len(bench.asked())
    assert observability.metrics().retries._value.get() == before + 2
    bodies = [stream.request for stream in bench.transport.streams]
    assert all(list(request.tokenized.input_ids) == [1, 2, 3] for request in bodies)
    generation.close()


def test_the_client_may_leave_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pausing(monkeypatch, 60)
    bench = Bench((INTERNAL,), (chunk(1), None))
    client = Client()
    runtime.call_later(0.1, client.leave)
    start = time.monotonic()
    with pytest.raises(ClientGone):
        bench.open(client=client.watch)
    assert time.monotonic() - start < 20
    assert len(bench.transport.streams) == 1


def test_a_pause_ends_with_the_time_for_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    pausing(monkeypatch, 0.3)
    bench = Bench((INTERNAL,), (chunk(1), None), first_token_timeout=0.2)
    with pytest.raises(UpstreamError, match="broken"):
        bench.open()
    assert len(bench.transport.streams) == 1


def test_without_another_worker_there_is_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pausing(monkeypatch, 60)
    bench = Bench((INTERNAL,), workers=1)
    start = time.monotonic()
    with pytest.raises(UpstreamError, match="broken"):
        bench.open()
    assert time.monotonic() - start < 20


def test_others_are_read_in_a_choices_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pausing(monkeypatch, 0.5)
    bench = Bench((chunk(1),), (), (chunk(2), None))
    generation = bench.open(choices=2)
    assert generation.take() == [(0, chunk(1))]
    bench.transport.streams[1].put(INTERNAL)
    bench.transport.streams[0].put(chunk(3))
    seen: list[Any] = []
    while not seen:
        assert generation.wait(10)
        seen += generation.take()
    assert seen == [(0, chunk(3))]
    assert not generation.exhausted
    bench.transport.streams[0].put(None)
    assert collect(generation, 2) == {0: [ENDED], 1: [chunk(2), ENDED]}
    generation.close()


def fail(bench: Bench, number: int) -> None:
    """So many requests fail in a row at the bench's one worker."""
    for _ in range(number):
        with pytest.raises((UpstreamError, NoWorkerError)):
            bench.open().close()


def phase_of(bench: Bench) -> Phase:
    """That of the first worker's breaker."""
    return bench.pool.workers[0].phase


def answered(bench: Bench) -> None:
    """A request that is answered well."""
    generation = bench.open()
    generation.finish(0, cancel=False)
    generation.close()


FAULTS: list[Answer] = [
    INTERNAL,
    (INTERNAL,),
    (RpcFailure("UNKNOWN"),),
    (RpcFailure("DATA_LOSS"),),
    (CANCELLED,),
    (RpcFailure("DEADLINE_EXCEEDED"),),
    (ABORT, None),
    (None,),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_a_row_open_the_breaker(fault: Answer) -> None:
    bench = Bench(*[fault] * 3, workers=1, breaker_failures=3, breaker_seconds=20, health_interval=100)
    fail(bench, 3)
    worker = bench.pool.workers[0]
    assert worker.phase is Phase.OPEN
    assert worker.state is State.UP
    assert not bench.pool.usable()
    with pytest.raises(NoWorkerError) as caught:
        bench.open()
    assert 18 <= caught.value.retry_after <= 20
    assert caught.value.headers()["Retry-After"] == str(caught.value.retry_after)


@pytest.mark.parametrize(
    "refusal",
    [
        "RESOURCE_EXHAUSTED",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "FAILED_PRECONDITION",
        "UNIMPLEMENTED",
    ],
)
def test_refusals_count_in_no_way(refusal: str) -> None:
    """They neither open a breaker nor end a row of failures."""
    answers: list[Answer] = [(INTERNAL,), (RpcFailure(refusal),), (INTERNAL,), (INTERNAL,)]
    bench = Bench(*answers, workers=1, breaker_failures=3)
    fail(bench, 3)
    assert phase_of(bench) is Phase.CLOSED
    fail(bench, 1)
    assert phase_of(bench) is Phase.OPEN


def test_a_client_that_leaves_counts_in_no_way() -> None:
    bench = Bench((INTERNAL,), (chunk(1),), (), (INTERNAL,), (INTERNAL,), workers=1, breaker_failures=3)
    fail(bench, 1)
    bench.open().close()
    client = Client()
    runtime.call_later(0.1, client.leave)
    with pytest.raises(ClientGone):
        bench.open(client=client.watch)
    fail(bench, 1)
    assert phase_of(bench) is Phase.CLOSED
    fail(bench, 1)
    assert phase_of(bench) is Phase.OPEN


def test_what_all_workers_drop_is_told_as_it_is() -> None:
    bench = Bench(*[(CANCELLED,)] * 3, workers=3)
    with pytest.raises(UpstreamError) as caught:
        bench.open()
    assert len(bench.transport.streams) == 3
    assert (caught.value.status, caught.value.code) == (500, "worker_error")
    assert "x-should-retry" not in caught.value.headers()


def test_what_we_drop_ourselves_counts_in_no_way() -> None:
    """A request with several choices of which one fails for good."""
    bench = Bench((chunk(1),), *[()] * 4, breaker_failures=1)
    generation = bench.open(choices=5)
    bench.transport.streams[3].put(RpcFailure("INVALID_ARGUMENT", "no such thing"))
    with pytest.raises(UpstreamError, match="no such thing"):
        collect(generation, 5)
    generation.close()
    assert [stream.closes for stream in bench.transport.streams] == [1, 1, 1, 0, 1]
    assert all(worker.record._breaker().failures == 0 for worker in bench.pool.workers)
    assert bench.pool.retries._retries == 0


def test_a_failure_in_the_midst_of_a_stream_counts() -> None:
    bench = Bench(*[(chunk(1), INTERNAL)] * 3, workers=1, breaker_failures=3)
    for _ in range(3):
        generation = bench.open()
        collect(generation)
        generation.close()
    assert phase_of(bench) is Phase.OPEN


def test_a_worker_that_falls_silent_has_failed() -> None:
    bench = Bench((), (), workers=1, breaker_failures=2, first_token_timeout=0.2, health_interval=100)
    fail(bench, 1)
    wait_until(lambda: bench.pool.workers[0].state is State.UP)
    fail(bench, 1)
    assert phase_of(bench) is Phase.OPEN


def test_a_good_answer_ends_a_row() -> None:
    answers: list[Answer] = [(INTERNAL,), (INTERNAL,), (complete(1, 1), None), (INTERNAL,), (INTERNAL,)]
    bench = Bench(*answers, workers=1, breaker_failures=3)
    fail(bench, 2)
    answered(bench)
    fail(bench, 2)
    assert phase_of(bench) is Phase.CLOSED


@pytest.mark.parametrize("loss", [UNAVAILABLE, CANCELLED])
def test_all_that_is_lost_at_one_moment_is_one_failure(loss: RpcFailure) -> None:
    """By the end of a connection, or by a worker that drops its calls as it ends."""
    bench = Bench(*[(chunk(1),)] * 20, (chunk(2), loss), workers=1, breaker_failures=3)
    generations = [bench.open() for _ in range(20)]
    for stream in bench.transport.streams:
        stream.put(loss)
    for generation in generations:
        collect(generation)
        generation.close()
    assert phase_of(bench) is Phase.CLOSED
    assert bench.pool.workers[0].record._breaker().failures == 1
    wait_until(bench.pool.workers[0].available)
    generation = bench.open()  # begun after it
    collect(generation)
    generation.close()
    assert bench.pool.workers[0].record._breaker().failures == 2


@pytest.mark.parametrize("failure", [INTERNAL, (INTERNAL,), (ABORT, None)])
def test_all_that_a_request_fails_at_a_worker_is_one_failure(failure: Answer) -> None:
    bench = Bench(*[failure] * 60, workers=3, breaker_failures=3)
    with pytest.raises((UpstreamError, WorkerAbortError)):
        bench.dispatcher.open([GenerateJob("m", body([1], 9))] * 20)
    assert [worker.record._breaker().failures for worker in bench.pool.workers] == [1, 1, 1]
    fail(bench, 1)
    assert max(worker.record._breaker().failures for worker in bench.pool.workers) == 2


def test_choices_that_fail_in_their_midst_are_one_failure() -> None:
    bench = Bench(*[(chunk(1), INTERNAL)] * 6, workers=1, breaker_failures=3)
    generation = bench.open(6)
    for index, items in collect(generation, 6).items():
        assert isinstance(items[-1], RpcFailure)
        generation.blame(index)
    generation.close()
    assert bench.pool.workers[0].record._breaker().failures == 1


def test_an_open_breaker_keeps_requests_away_and_then_tries_a_few() -> None:
    bench = Bench(*[(ABORT, None)] * 4, workers=2, breaker_failures=2, breaker_seconds=0.5, retry_attempts=1)
    one, other = bench.pool.workers
    fail(bench, 4)
    assert {one.phase, other.phase} == {Phase.OPEN}
    fail(bench, 1)
    assert len(bench.transport.streams) == 4
    wait_until(lambda: one.phase is Phase.HALF_OPEN)
    bench.transport.answers = [()] * 6
    held: list[Generation] = []
    for _ in range(6):
        threading.Thread(target=lambda: held.append(bench.open()), daemon=True).start()
    wait_until(lambda: len(bench.transport.streams) == 10)
    assert sorted(bench.asked()[4:]) == [one.url] * 3 + [other.url] * 3
    with pytest.raises(NoWorkerError):
        bench.open()
    assert bench.pool.usable()  # in a moment
    for stream in bench.transport.streams[4:]:
        stream.put(chunk(1))
    wait_until(lambda: len(held) == 6)
    assert one.record._on_trial() == other.record._on_trial() == 0
    assert {one.phase, other.phase} == {Phase.HALF_OPEN}
    for generation in held:
        generation.finish(0, cancel=True)  # a stop word has come
        generation.close()
    assert {one.phase, other.phase} == {Phase.CLOSED}
    assert one.record._on_trial() == other.record._on_trial() == 0


def test_long_streams_on_trial_hold_up_nobody() -> None:
    bench = Bench((INTERNAL,), workers=1, breaker_failures=1, breaker_seconds=0.3)
    fail(bench, 1)
    wait_until(lambda: phase_of(bench) is Phase.HALF_OPEN)
    bench.transport.answers = [(chunk(1),)] * 9
    held = [bench.open() for _ in range(9)]
    assert phase_of(bench) is Phase.HALF_OPEN
    bench.transport.streams[-1].put(INTERNAL)
    collect(held[-1])
    assert phase_of(bench) is Phase.OPEN
    for generation in held:
        generation.close()
    assert bench.pool.workers[0].record._on_trial() == 0


def half_open(bench: Bench) -> None:
    """The breakers of all workers are."""
    for worker in bench.pool.workers:
        worker.record.fail()
    wait_until(lambda: {worker.phase for worker in bench.pool.workers} == {Phase.HALF_OPEN})


@pytest.mark.parametrize("pairs", [0, 1])
@pytest.mark.parametrize("prompts", [False, True])
def test_a_request_is_let_through_as_a_whole(prompts: bool, pairs: int) -> None:
    count = 12 if pairs else 6
    answers: list[Answer] = [(chunk(1), None)] * count
    bench = Bench(*answers, workers=1 - pairs, pairs=pairs, breaker_failures=1, breaker_seconds=0.3)
    half_open(bench)
    jobs = [GenerateJob("m", body([1], 9), 1 if prompts else 6)] * (6 if prompts else 1)
    generation = bench.dispatcher.open(jobs)
    assert len(collect(generation, 6)) == 6
    assert len(bench.transport.streams) == count
    generation.close()
    assert all(worker.record._on_trial() == 0 for worker in bench.pool.workers)


def test_the_rest_of_a_request_does_not_go_where_the_breaker_is_open() -> None:
    bench = Bench(*[(chunk(1),)] * 3, workers=1, breaker_failures=1, breaker_seconds=20)
    generation = bench.open()
    (worker,) = bench.pool.workers
    worker.record.fail()
    (choice,) = generation._queue.choices.values()
    assert follow(choice, ()) is None
    generation.close()


def test_embeddings_are_let_through_as_a_whole() -> None:
    together = threading.Barrier(8)

    def answer(_request: bytes) -> bytes:
        together.wait(20)
        return b""

    bench = Bench(workers=1, breaker_failures=1, breaker_seconds=0.3)
    half_open(bench)
    bench.transport.unary_answers = {"Embed": answer}
    calls = Calls(bench.pool, bench.transport)
    assert calls.ask_for_each(Call("Embed", 30, "m"), [b"x"] * 8) == [b""] * 8
    wait_until(lambda: bench.pool.workers[0].record._on_trial() == 0)


def test_one_failure_on_trial_opens_it_again() -> None:
    bench = Bench(*[(INTERNAL,)] * 2, workers=1, breaker_failures=1, breaker_seconds=0.3)
    fail(bench, 1)
    wait_until(lambda: phase_of(bench) is Phase.HALF_OPEN)
    fail(bench, 1)
    assert phase_of(bench) is Phase.OPEN
    assert bench.pool.workers[0].record._on_trial() == 0


def test_a_change_of_the_breaker_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observability.LOGGER, "propagate", True)
    monkeypatch.setattr(observability.LOGGER, "level", 0)
    caplog.set_level("INFO")
    answers: list[Answer] = [(INTERNAL,), (INTERNAL,), *[(complete(1, 1), None)] * 3]
    bench = Bench(*answers, workers=1, breaker_failures=2, breaker_seconds=0.6)
    fail(bench, 2)
    wait_until(lambda: any("half-open" in text for text in caplog.messages), 10)
    for _ in range(3):
        answered(bench)
    said = {id(record): record.getMessage() for record in caplog.records if "breaker" in record.getMessage()}
    worker = f"worker {bench.pool.workers[0].url}: the breaker is"
    assert list(said.values()) == [f"{worker} open for 0.6 s", f"{worker} half-open", f"{worker} closed"]


def test_embeddings_count_too() -> None:
    bench = Bench(workers=1, breaker_failures=2)
    bench.transport.unary_answers = {"Embed": INTERNAL, "GetServerInfo": INTERNAL}
    calls = Calls(bench.pool, bench.transport)
    for method in ("GetServerInfo", "GetServerInfo", "Embed"):
        with pytest.raises(UpstreamError):
            calls.ask(Call(method, 5, "m"), b"")
    assert phase_of(bench) is Phase.CLOSED
    bench.transport.unary_answers["GetServerInfo"] = b""
    calls.ask(Call("GetServerInfo", 5, "m"), b"")  # that is no answer to a request
    with pytest.raises(UpstreamError):
        calls.ask(Call("Embed", 5, "m"), b"")
    assert phase_of(bench) is Phase.OPEN


def test_embeddings_of_a_request_are_one_failure() -> None:
    together = threading.Barrier(8)

    def fail_together(_request: bytes) -> RpcFailure:
        together.wait(20)
        return INTERNAL

    bench = Bench(workers=1, breaker_failures=2)
    bench.transport.unary_answers = {"Embed": fail_together}
    with pytest.raises(UpstreamError):
        Calls(bench.pool, bench.transport).ask_for_each(Call("Embed", 5, "m"), [b"x"] * 8)
    wait_until(lambda: sum(bench.in_flight()) == 0)
    assert bench.pool.workers[0].record._breaker().failures == 1


def test_an_abort_counts_at_each_worker_that_gave_up() -> None:
    bench = Bench(*[(ABORT, None)] * 2)
    with pytest.raises(WorkerAbortError):
        bench.open()
    assert [worker.record._breaker().failures for worker in bench.pool.workers] == [1, 1]
