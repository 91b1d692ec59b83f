"""Leases, failover and ends, with streams that the test writes. test_dispatch_live.py has real ones."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.bench import ABORT, Bench, chunk, nothing_is_left
from tests.support.flow import Client, collect
from tests.support.processes import wait_until
from tests.support.transport import Answer
from wsgi_router import runtime
from wsgi_router.choices import ENDED
from wsgi_router.dispatch import Generation
from wsgi_router.errors import (
    ClientGone,
    DeadlineError,
    DrainingError,
    NoWorkerError,
    UpstreamError,
    WorkerAbortError,
    WorkerProtocolError,
)
from wsgi_router.workers.breaker import State
from wsgi_router.workers.transport import GenerateJob, RpcFailure

UNAVAILABLE = RpcFailure("UNAVAILABLE", "connection reset")
INVALID = RpcFailure("INVALID_ARGUMENT", "no such thing")


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


def test_an_answer_comes_in_order_and_returns_its_lease() -> None:
    bench = Bench((chunk(1), chunk(2), None))
    generation = bench.open()
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    assert bench.in_flight() == [0, 0]
    assert generation.exhausted
    assert generation.wait()  # nothing can come any more
    assert generation.take() == []
    generation.close()
    assert bench.transport.aborted == []
    assert bench.transport.streams[0].closes == 0


def test_the_request_has_an_id_of_ours() -> None:
    bench = Bench((chunk(1), None), (chunk(1), None))
    generations = [bench.open(), bench.open()]
    requests = [stream.request for stream in bench.transport.streams]
    assert all(len(request.request_id) == 32 for request in requests)
    assert requests[0].request_id != requests[1].request_id
    assert list(requests[0].tokenized.input_ids) == [1, 2, 3]
    for generation in generations:
        generation.close()


@pytest.mark.parametrize("failure", [(UNAVAILABLE,), UNAVAILABLE, (ABORT, None), (RpcFailure("INTERNAL"),)])
def test_a_first_failure_goes_to_another_worker_once(failure: Answer) -> None:
    bench = Bench(failure, (chunk(7), None))
    generation = bench.open()
    assert collect(generation) == {0: [chunk(7), ENDED]}
    assert len({*bench.asked(), "failed to open"}) == 2 + isinstance(failure, tuple)
    generation.close()


def test_an_unreachable_worker_is_passed_over_until_it_answers() -> None:
    bench = Bench((UNAVAILABLE,), (chunk(7), None), (chunk(8), None), (chunk(9), None), health_interval=5)
    bad = bench.pool.workers[0]
    bench.transport.infos[bad.url] = UNAVAILABLE
    for _ in range(3):
        bench.open().close()
    assert bench.asked() == [bad.url] + [bench.pool.workers[1].url] * 3
    wait_until(lambda: bad.state is State.DOWN)


@pytest.mark.parametrize(
    ("settings", "attempts"), [({}, 3), ({"retry_attempts": 2}, 2), ({"retry_budget": 0}, 1)]
)
def test_so_many_failures_are_the_end(settings: dict[str, Any], attempts: int) -> None:
    bench = Bench(*[(ABORT, None)] * 4, (chunk(1), None), workers=5, **settings)
    with pytest.raises(WorkerAbortError):
        bench.open()
    assert len(set(bench.asked())) == len(bench.transport.streams) == attempts


def test_without_another_worker_the_failure_is_told() -> None:
    bench = Bench((RpcFailure("INTERNAL", "broken"),), workers=1)
    with pytest.raises(UpstreamError, match="broken"):
        bench.open()


@pytest.mark.parametrize(
    "failure", [INVALID, RpcFailure("RESOURCE_EXHAUSTED"), RpcFailure("DEADLINE_EXCEEDED")]
)
def test_other_failures_are_not_tried_again(failure: RpcFailure) -> None:
    bench = Bench((failure,), (chunk(1), None))
    with pytest.raises(UpstreamError):
        bench.open()
    assert len(bench.transport.streams) == 1
    assert all(worker.available() for worker in bench.pool.workers)


def test_an_end_without_an_answer_is_a_failure() -> None:
    bench = Bench((None,), (None,))
    with pytest.raises(WorkerProtocolError):
        bench.open()
    assert len(set(bench.asked())) == 2


def test_a_failure_after_the_first_event_is_passed_on() -> None:
    bench = Bench((chunk(1), UNAVAILABLE), (chunk(2), None))
    generation = bench.open()
    message, failure = collect(generation)[0]
    assert (message, failure.code) == (chunk(1), "UNAVAILABLE")
    assert len(bench.transport.streams) == 1
    generation.close()
    assert bench.transport.aborted == []  # the worker has nothing left to abort


def test_before_an_end_can_be_seen_its_lease_is_back_and_its_worker_judged() -> None:
    """Else who asks again at once would come to the same worker."""
    bench = Bench((chunk(1),), health_interval=100)
    generation = bench.open()
    worker = bench.transport.streams[0].worker
    bench.transport.infos[worker.url] = UNAVAILABLE
    seen: list[tuple[list[int], bool]] = []

    class Watched(list[Any]):
        def append(self, item: Any) -> None:
            seen.append((bench.in_flight(), worker.available()))
            super().append(item)

    generation._queue.ready = Watched(generation._queue.ready)
    bench.transport.streams[0].put(UNAVAILABLE)
    wait_until(lambda: seen)
    assert seen == [([0, 0], False)]
    generation.close()


def test_no_worker() -> None:
    bench = Bench()
    with pytest.raises(NoWorkerError):
        bench.dispatcher.open(GenerateJob("another", b""))


def test_nothing_late_of_a_failed_attempt_comes_into_the_answer() -> None:
    bench = Bench((ABORT, chunk(66), chunk(67)), (chunk(1),))
    generation = bench.open()
    bench.transport.streams[0].put(chunk(68))
    bench.transport.streams[1].put(None)
    assert collect(generation) == {0: [chunk(1), ENDED]}
    bench.transport.streams[0].put(None)
    generation.close()


def test_the_other_choices_start_after_the_first_event_on_the_same_worker() -> None:
    bench = Bench((), (chunk(2), None), (chunk(3), None))
    generations: list[Generation] = []
    runtime.spawn(lambda: generations.append(bench.open(choices=3)))
    wait_until(lambda: bench.transport.streams)
    time.sleep(0.1)
    assert len(bench.transport.streams) == 1
    bench.transport.streams[0].put(chunk(1))
    wait_until(lambda: generations)
    bench.transport.streams[0].put(None)
    assert collect(generations[0], 3) == {n: [chunk(n + 1), ENDED] for n in range(3)}
    assert len(set(bench.asked())) == 1
    assert len({stream.request.request_id for stream in bench.transport.streams}) == 3
    generations[0].close()


def test_the_other_choices_start_though_their_worker_is_draining() -> None:
    bench = Bench((), (chunk(2), None), workers=1)
    generations: list[Generation] = []
    runtime.spawn(lambda: generations.append(bench.open(choices=2)))
    wait_until(lambda: bench.transport.streams)
    bench.pool.membership.drain(bench.asked()[0], True)
    bench.pool.follow()
    bench.transport.streams[0].put(chunk(1))
    wait_until(lambda: generations)
    bench.transport.streams[0].put(None)
    assert collect(generations[0], 2) == {n: [chunk(n + 1), ENDED] for n in range(2)}
    generations[0].close()


def test_a_failed_choice_leaves_the_others_to_close() -> None:
    bench = Bench((chunk(1),), (chunk(2), UNAVAILABLE), (chunk(3),))
    generation = bench.open(choices=3)
    assert sum(bench.in_flight()) >= 2
    seen: list[Any] = []
    while not any(isinstance(item, RpcFailure) for item in seen):
        assert generation.wait(5)
        seen += [item for _, item in generation.take()]
    generation.close()
    assert bench.in_flight() == [0, 0]
    assert [stream.closes for stream in bench.transport.streams] == [1, 0, 1]
    assert len(bench.transport.aborted) == 2


@pytest.mark.parametrize("failure", [INVALID, RpcFailure("RESOURCE_EXHAUSTED")])
def test_a_choice_that_cannot_be_opened_ends_all(failure: RpcFailure) -> None:
    bench = Bench((chunk(1),), (chunk(2),), failure)
    with pytest.raises(UpstreamError):
        bench.open(choices=3)
    assert [stream.closes for stream in bench.transport.streams] == [1, 1]


@pytest.mark.parametrize("failure", [(UNAVAILABLE,), UNAVAILABLE, (ABORT, chunk(66), None)])
def test_each_choice_may_go_to_another_worker_once(failure: Answer) -> None:
    bench = Bench((chunk(1), None), failure, (chunk(2), None))
    generation = bench.open(choices=2)
    assert collect(generation, 2) == {0: [chunk(1), ENDED], 1: [chunk(2), ENDED]}
    assert bench.asked()[-1] != bench.asked()[0]
    generation.close()
    assert bench.transport.aborted == []


def test_a_choice_fails_over_while_another_one_is_read() -> None:
    bench = Bench((chunk(1),), (), (chunk(2), None))
    generation = bench.open(choices=2)
    assert generation.take() == [(0, chunk(1))]
    bench.transport.streams[1].put(UNAVAILABLE)
    bench.transport.streams[0].put(None)
    assert collect(generation, 2) == {0: [ENDED], 1: [chunk(2), ENDED]}
    generation.close()


def test_a_choice_that_fails_twice_ends_all() -> None:
    bench = Bench((chunk(1),), (UNAVAILABLE,), (ABORT, None))
    generation = bench.open(choices=2)
    with pytest.raises(WorkerAbortError):
        collect(generation, 2)
    generation.close()
    assert bench.in_flight() == [0, 0]
    assert bench.transport.streams[0].closes == 1


def test_close_cancels_and_aborts_once() -> None:
    bench = Bench((chunk(1),))
    generation = bench.open()
    generation.close()
    generation.close()
    stream = bench.transport.streams[0]
    assert stream.closes == 1
    assert bench.transport.aborted == [(stream.worker.url, stream.request.request_id)]
    assert bench.in_flight() == [0, 0]
    assert generation.closed
    assert generation.wait(5)


def test_finish_with_cancel_ends_one_choice_only() -> None:
    bench = Bench((chunk(1),), (chunk(2),))
    generation = bench.open(choices=2)
    generation.finish(0, cancel=True)
    generation.finish(0, cancel=True)
    assert [stream.closes for stream in bench.transport.streams] == [1, 0]
    assert sum(bench.in_flight()) == 1
    assert not generation.exhausted
    generation.close()
    assert len(bench.transport.aborted) == 2


def test_a_finished_choice_is_left_to_end_by_itself() -> None:
    bench = Bench((chunk(1),), close_timeout=5)
    generation = bench.open()
    generation.finish(0, cancel=False)
    assert bench.in_flight() == [0, 0]
    generation.close()
    stream = bench.transport.streams[0]
    assert stream.closes == 0
    stream.put(None)
    assert bench.transport.aborted == []


def test_a_finished_choice_that_does_not_end_is_cancelled_after_a_while() -> None:
    bench = Bench((chunk(1),), close_timeout=0.1)
    generation = bench.open()
    generation.finish(0, cancel=False)
    generation.close()
    wait_until(lambda: bench.transport.streams[0].closes == 1, 5)
    assert bench.transport.aborted == []


def test_close_from_elsewhere_ends_a_wait() -> None:
    bench = Bench((chunk(1),))
    generation = bench.open()
    generation.take()
    runtime.call_later(0.1, generation.close)
    start = time.monotonic()
    assert generation.wait(20)
    assert time.monotonic() - start < 15
    assert generation.take() == []


def test_a_dropped_generation_is_closed() -> None:
    bench = Bench((chunk(1),))
    generation = bench.open()
    assert sum(bench.in_flight()) == 1
    del generation
    gc.collect()
    wait_until(lambda: sum(bench.in_flight()) == 0, 5)
    wait_until(lambda: bench.transport.streams[0].closes == 1, 5)


def test_client_gone_before_the_first_event() -> None:
    bench = Bench(())
    client = Client()
    runtime.call_later(0.1, client.leave)
    start = time.monotonic()
    with pytest.raises(ClientGone):
        bench.open(client=client.watch)
    assert time.monotonic() - start < 20
    assert bench.in_flight() == [0, 0]
    assert len(bench.transport.aborted) == 1


def test_client_gone_while_messages_flow() -> None:
    bench = Bench((chunk(0),))
    client = Client()
    generation = bench.open(client=client.watch)
    client.leave()
    deadline = time.monotonic() + 30
    while not generation.client_gone:
        assert time.monotonic() < deadline
        generation.wait(0.05)
        generation.take()
        bench.transport.streams[0].put(chunk(1))
    generation.close()


def test_no_first_token_in_time() -> None:
    bench = Bench((), (chunk(1), None), first_token_timeout=0.2, health_interval=100)
    start = time.monotonic()
    with pytest.raises(DeadlineError):
        bench.open()
    assert 0.2 <= time.monotonic() - start < 20
    assert len(bench.transport.streams) == 1
    assert bench.transport.streams[0].closes == 1
    wait_until(lambda: len(bench.transport.probes) == 3)
    assert bench.transport.probes[2] == bench.asked()[0]  # is it still there?


def test_an_answer_that_is_not_streamed_has_a_bound_of_its_own() -> None:
    bench = Bench((), (), first_token_timeout=0.2, answer_timeout=1, health_interval=100)
    for streamed, least in ((True, 0.2), (False, 1)):
        start = time.monotonic()
        with pytest.raises(DeadlineError):
            bench.dispatcher.open(GenerateJob("m", b"", streamed=streamed))
        assert time.monotonic() - start >= least


def test_a_stream_that_flows_proves_its_worker_alive() -> None:
    bench = Bench((chunk(1),), health_interval=100)
    worker = bench.pool.workers[0]
    worker.heard = 0.0
    generation = bench.open()
    assert worker.heard > 0
    generation.close()


def test_a_client_that_leaves_casts_no_suspicion() -> None:
    bench = Bench((), health_interval=100)
    client = Client()
    runtime.call_later(0.1, client.leave)
    with pytest.raises(ClientGone):
        bench.open(client=client.watch)
    assert all(worker.available() for worker in bench.pool.workers)
    assert len(bench.transport.probes) == 2


def test_a_stream_that_ends_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    later: list[float] = []
    monkeypatch.setattr(runtime, "call_later", lambda seconds, _function: later.append(seconds))
    bench = Bench(*[(chunk(1),)] * 20)
    generations = [bench.open() for _ in range(20)]
    for generation in generations:
        generation.finish(0, cancel=False)
    assert len(bench.dispatcher.shared.endings) == 20
    for stream in bench.transport.streams:
        stream.put(None)
    wait_until(lambda: len(bench.dispatcher.shared.endings) == 0)
    assert later == [bench.settings.close_timeout]  # one timer for all of them
    for generation in generations:
        generation.close()
    assert [stream.closes for stream in bench.transport.streams] == [0] * 20


def test_a_stream_that_does_not_end_is_cancelled() -> None:
    bench = Bench((chunk(1),), (chunk(1),), close_timeout=0.2)
    for number in range(2):
        generation = bench.open()
        generation.finish(0, cancel=False)
        wait_until(lambda n=number: bench.transport.streams[n].closes == 1)  # type: ignore[misc]
        generation.close()
    assert bench.transport.aborted == []


def test_a_silent_worker_fails_its_choice() -> None:
    bench = Bench((chunk(1),), (chunk(2),), token_timeout=100, first_token_timeout=100)
    generation = bench.open(choices=2)
    found: list[Any] = []
    deadline = time.monotonic() + 30
    while not found:
        assert time.monotonic() < deadline
        generation._queue.choices[0].last -= 10  # seconds pass; the other one keeps talking
        bench.transport.streams[1].put(chunk(2))
        generation.wait(1)
        found = [(index, item) for index, item in generation.take() if isinstance(item, RpcFailure)]
    ((index, failure),) = found
    assert (index, failure.code) == (0, "DEADLINE_EXCEEDED")
    assert sum(bench.in_flight()) == 1
    generation.close()


def test_wait_returns_false_when_nothing_comes() -> None:
    bench = Bench((chunk(1),))
    generation = bench.open()
    generation.take()
    start = time.monotonic()
    assert not generation.wait(0.2)
    assert 0.2 <= time.monotonic() - start < 20
    generation.close()


def test_a_slow_client_holds_the_worker_back() -> None:
    messages = [chunk(number) for number in range(100)]
    bench = Bench((*messages, None), queue_size=5, token_timeout=100)
    generation = bench.open()
    stream = bench.transport.streams[0]
    choice = generation._queue.choices[0]
    wait_until(lambda: choice.blocked)
    choice.last -= 1000  # longer than the token timeout: the silence is ours
    assert generation._queue.expire(time.monotonic()) < 1
    assert generation._queue.choices
    assert stream.given <= 6
    assert collect(generation) == {0: [*messages, ENDED]}
    generation.close()


def test_closing_frees_a_reader_that_waits_for_room() -> None:
    bench = Bench(tuple(chunk(number) for number in range(100)), queue_size=5)
    generation = bench.open()
    wait_until(lambda: bench.transport.streams[0].given >= 5)
    generation.close()


def test_drain_ends_waits() -> None:
    bench = Bench((chunk(1),))
    generation = bench.open()
    generation.take()
    runtime.drain.begin(0.2)
    assert generation.wait(20)
    assert generation.take() == []
    assert runtime.drain.due()
    generation.close()


def test_drain_before_the_first_event() -> None:
    bench = Bench(())
    runtime.call_later(0.1, lambda: runtime.drain.begin(0.1))
    with pytest.raises(DrainingError):
        bench.open()


def test_repr_tells_the_state() -> None:
    bench = Bench((chunk(1),))
    generation = bench.open()
    assert "open choices=[<choice 0 open <Lease grpc://w0:1 held>>]" in repr(generation)
    generation.close()
    assert "closed choices=[]" in repr(generation)
