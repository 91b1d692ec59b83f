"""Who makes a pair and when; and the prompt's own log probabilities, which are the prefill worker's."""

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
from tests.test_dispatch_pairs import bench_of, opened, roles
from tests.test_workers_policies_cache import FakePrompt
from wsgi_router import pairs
from wsgi_router.choices import ENDED
from wsgi_router.dispatch import Generation
from wsgi_router.errors import ClientGone, DeadlineError, NoWorkerError, RouterError, UpstreamError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.breaker import Event, Limits, State
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.transport import GenerateJob, RpcFailure


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


@pytest.mark.parametrize("half", ["p", "d"])
def test_an_open_breaker_of_either_half_tells_when_it_will_be_tried(half: str) -> None:
    bench = bench_of(pairs=1, breaker_failures=1, breaker_seconds=30)
    for worker in bench.pool.workers:
        if worker.address[0] == half:
            worker.record.fail()
    with pytest.raises(NoWorkerError) as caught:
        bench.open()
    assert 25 <= caught.value.retry_after <= 30
    assert bench.in_flight() == [0, 0]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((40, 60, 10, 60), 40), ((10, 60, 40, 60), 40), ((60, 20, 30, 10), 20), ((40, 0, 20, 60), 20)],
)
@pytest.mark.parametrize("target", ["", "d0:1", "p0:1"])
def test_both_halves_have_to_be_tried(seconds: tuple[int, ...], expected: int, target: str) -> None:
    """The later of the two; each half's is its earliest worker, or the one that the client has named."""
    bench = bench_of(breaker_failures=1)
    for worker, wait in zip(bench.pool.workers, seconds, strict=True):  # p0, p1, d0, d1
        if wait:
            worker.record._limits = Limits(1, wait * 1000)
            worker.record.fail()
    prefills, decodes = list(seconds[:2]), list(seconds[2:])
    if target:
        del (decodes if target[0] == "d" else prefills)[1]
        expected = max(min(prefills), min(decodes))
    with pytest.raises(NoWorkerError) as caught:
        opened(bench, Hints(target=target))
    assert expected - 5 <= caught.value.retry_after <= expected
    assert bench.in_flight() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((40, 10, 60), 40),  # w0, p0, d0
        ((60, 10, 40), 40),
        ((60, 40, 0), 40),
        ((-1, 40, 20), 40),
        ((50, -1, 40), 40),
        ((50, -1, -1), 50),
        ((-1, -1, -1), 1),
    ],
)
def test_pairs_or_regular_workers_whoever_is_first(seconds: tuple[int, ...], expected: int) -> None:
    """-1: down, so that nobody knows when it comes back."""
    bench = bench_of(workers=1, pairs=1, breaker_failures=1, health_interval=100)
    for worker, wait in zip(bench.pool.workers, seconds, strict=True):
        if wait > 0:
            worker.record._limits = Limits(1, wait * 1000)
            worker.record.fail()
        elif wait < 0:
            worker.note(Event.PROBE_FAILED)
    with pytest.raises(NoWorkerError) as caught:
        bench.open()
    assert expected - 5 <= caught.value.retry_after <= expected
    assert bench.in_flight() == [0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "streamed", "queued"),
    [
        ({"workers": 1}, True, [10]),
        ({"workers": 1}, False, [0]),  # its one event is its end
        ({"workers": 0, "pairs": 1}, True, [10, 0]),  # p0, d0
        ({"workers": 0, "pairs": 1}, False, [10, 0]),
    ],
)
def test_prompts_count_where_they_are_computed_as_far_as_it_can_be_told(
    settings: dict[str, int], streamed: bool, queued: list[int]
) -> None:
    bench = Bench(policy="cache_aware", **settings)
    job = GenerateJob("", b"", hints=Hints(prompt=FakePrompt(10, {})), streamed=streamed)
    legs = pairs.select(bench.pool, job, ())
    assert [worker.queued for worker in bench.pool.workers] == queued
    legs.release()
    assert [worker.queued for worker in bench.pool.workers] == [0] * len(queued)


def test_half_a_pair_promises_nothing() -> None:
    bench = Bench(workers=1, prefill_workers=("grpc://p0:1",), breaker_failures=1)
    for worker, wait in zip(bench.pool.workers, (50, 20), strict=True):
        worker.record._limits = Limits(1, wait * 1000)
        worker.record.fail()
    with pytest.raises(NoWorkerError) as caught:
        bench.open()
    assert 45 <= caught.value.retry_after <= 50


def scores(ids: list[int]) -> pb.InputLogProbs:
    values = [pb.InputTokenLogProb(value=-0.5) for _ in ids[1:]]
    return pb.InputLogProbs(token_ids=ids, token_logprobs=[pb.InputTokenLogProb(), *values])


def lead(ids: list[int]) -> bytes:
    """How the prompt's log probabilities are handed on."""
    message = pb.GenerateStreamChunk(input_logprobs=scores(ids))
    return pb.GenerateResponse(chunk=message).SerializeToString()


def computed(ids: list[int], reason: str = "length") -> bytes:
    """The prefill worker's last message."""
    message = pb.GenerateComplete(output_ids=[1], finish_reason=reason, input_logprobs=scores(ids))
    return pb.GenerateResponse(complete=message).SerializeToString()


SCORED = computed([1, 2, 3])
LEAD = lead([1, 2, 3])


def ask(bench: Bench, choices: int = 1, client: Client | None = None) -> Generation:
    job = GenerateJob("m", body([1, 2, 3], 9), choices, scored=True)
    return bench.dispatcher.open(job, None if client is None else client.watch)


class Asked:
    """A request in a thread of its own."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.generation: Generation | None = None
        self.error: RouterError | None = None
        self._thread = threading.Thread(target=self._open, args=(bench, options), daemon=True)
        self._thread.start()
        wait_until(lambda: len(bench.transport.streams) >= 2, what="both calls")

    def _open(self, bench: Bench, options: dict[str, Any]) -> None:
        try:
            self.generation = ask(bench, **options)
        except RouterError as error:
            self.error = error

    def waits(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        wait_until(lambda: not self.waits(), what="an end")

    def collect(self) -> dict[int, list[Any]]:
        self.join()
        assert self.generation is not None, self.error
        found = collect(self.generation)
        self.generation.close()
        return found


def test_pairs_serve_who_asks_for_the_prompts_log_probabilities() -> None:
    bench = bench_of((chunk(1), None), (SCORED, None), workers=1)
    generation = ask(bench)
    assert roles(bench) == ["d", "p"]
    assert collect(generation) == {0: [LEAD, chunk(1), ENDED]}
    generation.close()


def test_they_come_in_a_chunk_or_in_the_last_message_and_count_once() -> None:
    bench = bench_of((chunk(1), None), (LEAD, SCORED, None))
    generation = ask(bench)
    assert collect(generation) == {0: [LEAD, chunk(1), ENDED]}
    generation.close()


def test_nothing_of_the_answer_is_read_before_them() -> None:
    bench = bench_of((chunk(1), chunk(2), None), (chunk(7),))
    asked = Asked(bench)
    decode, prefill = bench.transport.streams
    wait_until(lambda: decode.given == 1)
    time.sleep(0.1)
    assert asked.waits()
    assert decode.given == 1
    prefill.put(SCORED)
    assert asked.collect() == {0: [LEAD, chunk(1), chunk(2), ENDED]}


def test_an_answer_that_is_one_message_waits_too() -> None:
    whole = complete(5, 1)
    bench = bench_of((whole, None), ())
    asked = Asked(bench)
    wait_until(lambda: bench.transport.streams[0].given == 1)
    bench.transport.streams[1].put(SCORED)
    bench.transport.streams[1].put(None)
    assert asked.collect() == {0: [LEAD, whole, ENDED]}


def test_each_choice_has_its_own() -> None:
    bench = bench_of(
        (chunk(1), None), (SCORED, None), (chunk(2), None), (SCORED, None), (chunk(3), None), (LEAD, None)
    )
    generation = ask(bench, choices=3)
    expected = {index: [LEAD, chunk(index + 1), ENDED] for index in range(3)}
    assert collect(generation, 3) == expected
    generation.close()


def test_who_does_not_ask_for_them_waits_for_nothing() -> None:
    bench = bench_of((chunk(1), None), ())
    generation = bench.open()
    assert collect(generation) == {0: [chunk(1), ENDED]}
    generation.close()


@pytest.mark.parametrize(
    "failure",
    [
        (RpcFailure("UNAVAILABLE", "reset"),),
        (RpcFailure("CANCELLED"),),
        (ABORT, None),
        RpcFailure("INTERNAL"),
    ],
)
def test_a_prefill_that_dies_while_the_answer_waits(failure: Answer) -> None:
    """Nothing was said yet, so another pair is asked."""
    first: Answer = failure if isinstance(failure, RpcFailure) else ()
    bench = bench_of((chunk(1),), first, (chunk(2), None), (SCORED, None))
    if isinstance(failure, RpcFailure):
        generation = ask(bench)
    else:
        asked = Asked(bench)
        wait_until(lambda: bench.transport.streams[0].given == 1)
        for item in failure:
            bench.transport.streams[1].put(item)
        asked.join()
        assert asked.generation is not None
        generation = asked.generation
    assert collect(generation) == {0: [LEAD, chunk(2), ENDED]}
    generation.close()
    failures = {worker.address: worker.record._breaker().failures for worker in bench.pool.workers}
    assert [failures[f"d{number}:1"] for number in range(2)] == [0, 0]
    assert sum(failures.values()) == 1


def test_a_prefill_that_stands_still_keeps_nobody_for_ever() -> None:
    bench = bench_of((chunk(1),), (), pairs=1, first_token_timeout=0.3, health_interval=100)
    with pytest.raises(DeadlineError):
        ask(bench)
    states = {worker.address: worker.state for worker in bench.pool.workers}
    assert states["d0:1"] is State.UP, "it has said something"
    wait_until(lambda: len(bench.transport.aborted) == 2)


def test_a_prefill_that_tells_none_is_no_fault_of_the_request() -> None:
    bench = bench_of((chunk(1),), (complete(1, 1, "length"), None))
    with pytest.raises(UpstreamError) as caught:
        ask(bench)
    assert (caught.value.status, caught.value.code) == (501, "not_implemented")
    assert len(bench.transport.streams) == 2
    assert all(worker.record._breaker().failures == 0 for worker in bench.pool.workers)


def test_what_cannot_be_read_is_waited_for_no_longer_than_the_call() -> None:
    bench = bench_of((chunk(1),), (b"\xff\xff", None))
    with pytest.raises(UpstreamError):
        ask(bench)


@pytest.mark.parametrize("failure", [(ABORT, None), (RpcFailure("INTERNAL", "broken"),)])
def test_a_decode_that_fails_first_waits_for_nothing(failure: Answer) -> None:
    bench = bench_of(failure, (), (chunk(2), None), (SCORED, None))
    generation = ask(bench)
    assert collect(generation) == {0: [LEAD, chunk(2), ENDED]}
    assert bench.transport.streams[1].closes == 1
    generation.close()


def test_a_client_that_leaves_meanwhile() -> None:
    bench = bench_of((chunk(1), chunk(2)), ())
    client = Client()
    asked = Asked(bench, client=client)
    wait_until(lambda: bench.transport.streams[0].given == 1)
    client.leave()
    asked.join()
    assert isinstance(asked.error, ClientGone)
    assert [stream.closes for stream in bench.transport.streams] == [1, 1]


def test_a_regular_worker_takes_over_with_its_own() -> None:
    own = pb.GenerateStreamChunk(token_ids=[4], input_logprobs=scores([1, 2, 3]))
    message = pb.GenerateResponse(chunk=own).SerializeToString()
    bench = bench_of((), (RpcFailure("UNAVAILABLE"),), (message, None), workers=1, pairs=1)
    generation = ask(bench)
    assert roles(bench) == ["d", "p", "w"]
    assert collect(generation) == {0: [message, ENDED]}
    generation.close()
