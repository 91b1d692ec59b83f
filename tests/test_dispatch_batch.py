"""Several jobs as one generation: leases, failover of each, and ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.bench import ABORT, Bench, chunk, nothing_is_left
from tests.support.flow import Client, body, collect
from tests.support.processes import wait_until
from tests.support.transport import Answer
from wsgi_router import runtime
from wsgi_router.choices import ENDED
from wsgi_router.dispatch import Generation
from wsgi_router.errors import ClientGone, DeadlineError, UpstreamError
from wsgi_router.workers.transport import GenerateJob, RpcFailure

UNAVAILABLE = RpcFailure("UNAVAILABLE", "connection reset")


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


def jobs(count: int, choices: int = 1) -> list[GenerateJob]:
    return [GenerateJob("m", body([number], 9), choices) for number in range(count)]


def prompts(bench: Bench) -> list[int]:
    return [stream.request.tokenized.input_ids[0] for stream in bench.transport.streams]


def test_each_job_has_its_own_request_and_lease() -> None:
    bench = Bench(*((chunk(number),) for number in range(4)))
    generation = bench.dispatcher.open(jobs(4))
    assert bench.in_flight() == [2, 2]
    assert prompts(bench) == [0, 1, 2, 3]
    assert len({stream.request.request_id for stream in bench.transport.streams}) == 4
    for stream in bench.transport.streams:
        stream.put(None)
    assert collect(generation, 4) == {n: [chunk(n), ENDED] for n in range(4)}
    generation.close()
    assert bench.transport.aborted == []


def test_the_choices_of_each_job_start_after_its_own_first_event() -> None:
    bench = Bench((), (chunk(20), None), (chunk(21), None), (chunk(11), None))
    generation = bench.dispatcher.open(jobs(2, choices=2))
    assert prompts(bench) == [0, 1, 1]
    bench.transport.streams[0].put(chunk(10))
    bench.transport.streams[0].put(None)
    found = collect(generation, 4)
    assert prompts(bench) == [0, 1, 1, 0]
    assert [found[index][0] for index in range(4)] == [chunk(10), chunk(11), chunk(20), chunk(21)]
    first, second = (bench.transport.streams[index].worker for index in (1, 2))
    assert first is second
    generation.close()


@pytest.mark.parametrize("failure", [(UNAVAILABLE,), UNAVAILABLE, (ABORT, None), (ABORT, chunk(66), None)])
def test_each_job_may_go_to_another_worker_once(failure: Answer) -> None:
    bench = Bench((chunk(10),), failure, (chunk(11), None))
    generation = bench.dispatcher.open(jobs(2))
    bench.transport.streams[0].put(None)
    assert collect(generation, 2) == {0: [chunk(10), ENDED], 1: [chunk(11), ENDED]}
    generation.close()


def test_failover_when_another_job_has_begun() -> None:
    bench = Bench((chunk(10),), (), (chunk(11), None))
    generation = bench.dispatcher.open(jobs(2))
    assert generation.take() == [(0, chunk(10))]
    bench.transport.streams[1].put(UNAVAILABLE)
    bench.transport.streams[0].put(None)
    assert collect(generation, 2) == {0: [ENDED], 1: [chunk(11), ENDED]}
    assert bench.asked()[1] != bench.asked()[2]
    generation.close()


@pytest.mark.parametrize("failure", [RpcFailure("INVALID_ARGUMENT", "no such thing"), RpcFailure("INTERNAL")])
def test_a_job_that_cannot_be_served_ends_all(failure: RpcFailure) -> None:
    bench = Bench((chunk(10),), (), (failure,))
    generation = bench.dispatcher.open(jobs(2))
    assert generation.take() == [(0, chunk(10))]
    bench.transport.streams[1].put(failure)
    with pytest.raises(UpstreamError):
        collect(generation, 2)
    generation.close()
    assert bench.in_flight() == [0, 0]
    assert bench.transport.streams[0].closes == 1


def test_a_failure_before_any_event_is_raised_at_once() -> None:
    bench = Bench((RpcFailure("INVALID_ARGUMENT", "no such thing"),), (), ())
    with pytest.raises(UpstreamError, match="no such thing"):
        bench.dispatcher.open(jobs(3))
    assert [stream.closes for stream in bench.transport.streams] == [0, 1, 1]
    assert len(bench.transport.aborted) == 2


def test_the_client_leaves_while_all_wait() -> None:
    bench = Bench((), (), ())
    client = Client()
    runtime.call_later(0.1, client.leave)
    with pytest.raises(ClientGone):
        bench.dispatcher.open(jobs(3), client.watch)
    assert len(bench.transport.aborted) == 3


def test_patience_is_the_callers() -> None:
    bench = Bench(())
    start = time.monotonic()
    with pytest.raises(DeadlineError):
        bench.dispatcher.open(jobs(1), patience=0.2)
    assert time.monotonic() - start < 5


def test_a_generation_that_is_dropped_is_closed() -> None:
    bench = Bench((chunk(10),), ())
    generations: list[Generation] = [bench.dispatcher.open(jobs(2))]
    generations.clear()
    wait_until(lambda: sum(bench.in_flight()) == 0)
