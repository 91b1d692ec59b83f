"""Prefill and decode: both calls of a choice, with streams that the test writes, decode's first."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.bench import ABORT, Bench, chunk, complete, nothing_is_left
from tests.support.flow import Client, body, collect
from tests.support.processes import wait_until
from tests.support.transport import Answer, FakeStream
from wsgi_router import runtime
from wsgi_router.calls import Call, Calls
from wsgi_router.choices import ENDED
from wsgi_router.dispatch import Generation
from wsgi_router.errors import (
    ClientGone,
    DeadlineError,
    InvalidRequestError,
    NoWorkerError,
    RouterError,
    UpstreamError,
    WorkerAbortError,
    WorkerProtocolError,
)
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.breaker import State
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.transport import GenerateJob, RpcFailure
from wsgi_router.workers.worker import Adapter

UNAVAILABLE = RpcFailure("UNAVAILABLE", "connection reset")
INVALID = RpcFailure("INVALID_ARGUMENT", "no such thing")
BUSY = RpcFailure("RESOURCE_EXHAUSTED", "too busy")
COMPUTED: Answer = (complete(1, 1, "length"), None)
ANSWER: Answer = (chunk(1), chunk(2), None)


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


def bench_of(*answers: Answer, **options: Any) -> Bench:
    return Bench(*answers, **{"workers": 0, "pairs": 2, "first_token_timeout": 20.0, **options})


def roles(bench: Bench) -> list[str]:
    """Who was asked, by the first letter of their names."""
    return [stream.worker.address[0] for stream in bench.transport.streams]


def meeting(stream: FakeStream) -> tuple[str, int, int]:
    params = stream.request.disaggregated_params
    return params.bootstrap_host, params.bootstrap_port, params.bootstrap_room


def opened(bench: Bench, hints: Hints = NO_HINTS, adapter: str = "") -> Generation:
    return bench.dispatcher.open(GenerateJob("m", body([1, 2, 3], 9), 1, hints, adapter=adapter))


def failure_of(bench: Bench) -> RouterError:
    with pytest.raises(RouterError) as caught:
        bench.open()
    return caught.value


def test_both_get_the_request_and_the_answer_is_the_decode_workers() -> None:
    bench = bench_of(ANSWER, COMPUTED)
    generation = bench.open()
    decode, prefill = bench.transport.streams
    assert roles(bench) == ["d", "p"]
    assert decode.request == prefill.request
    assert list(decode.request.tokenized.input_ids) == [1, 2, 3]
    host, port, room = meeting(decode)
    assert (host, port) == ("p0", 8998)
    assert 0 <= room < 2**31 - 1
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    wait_until(lambda: prefill.given == 1)
    assert bench.in_flight() == [0, 0, 0, 0]
    generation.close()
    assert bench.transport.aborted == []
    assert (decode.closes, prefill.closes) == (0, 0)


def test_a_pair_holds_a_lease_on_either() -> None:
    bench = bench_of((chunk(1),), ())
    generation = bench.open()
    held = {worker.address: worker.load for worker in bench.pool.workers}
    assert held == {"p0:1": 1, "p1:1": 0, "d0:1": 1, "d1:1": 0}
    bench.transport.streams[1].put(None)  # it has handed over
    wait_until(lambda: sum(bench.in_flight()) == 1)
    generation.close()
    assert bench.in_flight() == [0, 0, 0, 0]


def test_a_port_of_its_own() -> None:
    bench = bench_of(ANSWER, COMPUTED, prefill_workers=("grpc://[::1]:1 9001",))
    bench.open().close()
    assert meeting(bench.transport.streams[0])[:2] == ("[::1]", 9001)


def test_no_room_is_used_twice() -> None:
    bench = bench_of(*itertools.chain(*[((chunk(1),), ())] * 6))
    generations = [bench.open(choices=3), bench.open(choices=3)]
    wait_until(lambda: len(bench.transport.streams) == 12)
    rooms = [meeting(stream)[2] for stream in bench.transport.streams]
    assert rooms[::2] == rooms[1::2]
    assert len(set(rooms)) == 6
    assert len({stream.request.request_id for stream in bench.transport.streams}) == 6
    for generation in generations:
        generation.close()


def test_all_choices_follow_the_first_pair() -> None:
    bench = bench_of(*itertools.chain(*[((chunk(1),), ())] * 4))
    generation = bench.open(choices=4)
    wait_until(lambda: len(bench.transport.streams) == 8)
    assert len({stream.worker.url for stream in bench.transport.streams}) == 2
    assert sorted(bench.in_flight()) == [0, 0, 4, 4]
    generation.finish(2, cancel=True)
    assert sorted(bench.in_flight()) == [0, 0, 3, 3]
    generation.close()
    assert len(bench.transport.aborted) == 8


def test_several_prompts_are_several_pairs() -> None:
    bench = bench_of(ANSWER, COMPUTED, ANSWER, COMPUTED)
    jobs = [GenerateJob("m", body([number], 9)) for number in range(2)]
    generation = bench.dispatcher.open(jobs)
    assert {index: len(items) for index, items in collect(generation, 2).items()} == {0: 3, 1: 3}
    assert len({meeting(stream) for stream in bench.transport.streams}) == 2
    generation.close()


@pytest.mark.parametrize("failure", [(UNAVAILABLE,), UNAVAILABLE, (ABORT, None), (RpcFailure("INTERNAL"),)])
def test_a_prefill_that_fails_first_ends_the_decode_and_another_pair_is_tried(failure: Answer) -> None:
    bench = bench_of((), failure, ANSWER, COMPUTED)
    generation = bench.open()
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    decodes = [stream for stream in bench.transport.streams if stream.worker.address[0] == "d"]
    assert [stream.closes for stream in decodes] == [1, 0]
    asked = {stream.worker.address for stream in bench.transport.streams}
    assert "p1:1" in asked
    assert ("p0:1" in asked) == isinstance(failure, tuple)
    assert (decodes[0].worker.url, decodes[0].request.request_id) in bench.transport.aborted
    rooms = [meeting(stream) for stream in decodes]
    assert rooms[0][0] == "p0"
    assert rooms[1][0] == "p1"
    assert rooms[0][2] != rooms[1][2]
    generation.close()


@pytest.mark.parametrize("failure", [(UNAVAILABLE,), UNAVAILABLE, (ABORT, None)])
def test_a_decode_that_fails_first_ends_the_prefill_and_another_pair_is_tried(failure: Answer) -> None:
    held: Answer = ()
    answers = (
        [failure, ANSWER, COMPUTED] if isinstance(failure, RpcFailure) else [failure, held, ANSWER, COMPUTED]
    )
    bench = bench_of(*answers)
    generation = bench.open()
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    assert bench.transport.streams[-2].worker.address == "d1:1"
    prefills = [stream for stream in bench.transport.streams if stream.worker.address[0] == "p"]
    if isinstance(failure, tuple):
        first = prefills[0]
        assert first.closes == 1
        assert (first.worker.url, first.request.request_id) in bench.transport.aborted
    generation.close()


@pytest.mark.parametrize(("failure", "status"), [(INVALID, 400), (BUSY, 429)])
@pytest.mark.parametrize("side", [0, 1])
def test_a_refusal_is_told_whoever_it_comes_from(failure: RpcFailure, status: int, side: int) -> None:
    answers: list[Answer] = [(), ()]
    answers[side] = (failure,)
    bench = bench_of(*answers)
    error = failure_of(bench)
    assert (error.status, error.message) == (status, failure.details)
    assert bench.in_flight() == [0, 0, 0, 0]
    other = bench.transport.streams[1 - side]
    assert (other.closes, len(bench.transport.aborted)) == (1, 1)
    assert bench.transport.aborted == [(other.worker.url, other.request.request_id)]
    assert all(worker.available() for worker in bench.pool.workers)


@pytest.mark.parametrize("prefills", [1, 2])
@pytest.mark.parametrize("decodes", [1, 2])
def test_a_decode_that_tells_of_a_failure_may_have_waited_for_a_dead_prefill(
    prefills: int, decodes: int
) -> None:
    bench = bench_of(
        *((RpcFailure("INTERNAL", "no prefill"),), (), ANSWER, COMPUTED),
        prefill_workers=tuple(f"grpc://p{number}:1" for number in range(prefills)),
        decode_workers=tuple(f"grpc://d{number}:1" for number in range(decodes)),
    )
    if prefills == 1:  # nobody else can be asked
        assert failure_of(bench).message == "no prefill"
        return
    generation = bench.open()
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    again = [stream.worker.address for stream in bench.transport.streams[2:]]
    assert again == [f"d{decodes - 1}:1", "p1:1"]
    generation.close()


def test_a_decode_that_fails_after_its_prefill_has_ended_is_at_fault() -> None:
    bench = bench_of((), COMPUTED, ANSWER, COMPUTED, prefill_workers=("grpc://p0:1",))

    def fail() -> None:
        wait_until(lambda: len(bench.transport.streams) == 2 and sum(bench.in_flight()) == 1)
        bench.transport.streams[0].put(RpcFailure("INTERNAL", "broken"))

    runtime.spawn(fail)
    generation = bench.open()
    assert [stream.worker.address for stream in bench.transport.streams] == ["d0:1", "p0:1", "d1:1", "p0:1"]
    generation.close()


def test_a_decode_that_ends_without_an_answer_ends_its_prefill() -> None:
    bench = bench_of((None,), (), pairs=1)
    assert isinstance(failure_of(bench), WorkerProtocolError)
    assert bench.transport.streams[1].closes == 1
    assert bench.transport.aborted[0][0].startswith("grpc://p")


def test_a_prefill_that_gives_up_is_an_aborting_worker() -> None:
    bench = bench_of((), (ABORT, None), pairs=1)
    assert isinstance(failure_of(bench), WorkerAbortError)


def test_an_unreachable_prefill_worker_is_the_suspect_not_its_decode_worker() -> None:
    bench = bench_of((), (UNAVAILABLE,), ANSWER, COMPUTED, health_interval=5)
    dead = bench.pool.workers[0]
    bench.transport.infos[dead.url] = UNAVAILABLE
    bench.open().close()
    assert {worker.address for worker in bench.pool.workers if not worker.available()} == {"p0:1"}
    wait_until(lambda: dead.state is State.DOWN)


def test_a_prefill_that_ends_well_before_anything_came_is_no_failure() -> None:
    bench = bench_of((), COMPUTED)

    def begin() -> None:
        wait_until(lambda: len(bench.transport.streams) == 2)
        wait_until(lambda: sum(bench.in_flight()) == 1)
        for item in (chunk(1), chunk(2), None):
            bench.transport.streams[0].put(item)

    runtime.spawn(begin)
    generation = bench.open()
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    assert len(bench.transport.streams) == 2
    generation.close()


@pytest.mark.parametrize("failure", [UNAVAILABLE, RpcFailure("INTERNAL", "late"), ABORT])
def test_what_becomes_of_the_prefill_later_harms_no_answer(failure: Any) -> None:
    bench = bench_of((chunk(1),), ())
    generation = bench.open()
    decode, prefill = bench.transport.streams
    prefill.put(failure)
    prefill.put(None)
    wait_until(lambda: sum(bench.in_flight()) == 1)
    for item in (chunk(2), None):
        decode.put(item)
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    assert bench.transport.aborted == []
    generation.close()
    unreachable = isinstance(failure, RpcFailure) and failure.code == "UNAVAILABLE"
    assert prefill.worker.available() or unreachable


def test_a_prefill_that_does_not_end_is_dropped_after_a_while() -> None:
    bench = bench_of((chunk(1),), (), close_timeout=0.2)
    generation = bench.open()
    decode, prefill = bench.transport.streams
    wait_until(lambda: prefill.closes == 1)
    assert bench.transport.aborted == [(prefill.worker.url, prefill.request.request_id)]
    assert sum(bench.in_flight()) == 1
    for item in (chunk(2), None):
        decode.put(item)
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    generation.close()
    assert len(bench.transport.aborted) == 1


def test_whoever_ends_a_request_ends_both_calls() -> None:
    bench = bench_of((chunk(1),), ())
    generation = bench.open()
    generation.close()
    assert [stream.closes for stream in bench.transport.streams] == [1, 1]
    assert len(bench.transport.aborted) == 2
    assert bench.in_flight() == [0, 0, 0, 0]


def test_a_stop_word_ends_what_is_open() -> None:
    bench = bench_of((chunk(1),), COMPUTED)
    generation = bench.open()
    wait_until(lambda: sum(bench.in_flight()) == 1)
    generation.finish(0, cancel=True)
    decode, prefill = bench.transport.streams
    assert (decode.closes, prefill.closes) == (1, 0)
    assert bench.transport.aborted == [(decode.worker.url, decode.request.request_id)]
    generation.close()


def test_a_choice_that_ends_early_lets_its_prefill_end_too() -> None:
    bench = bench_of((chunk(1),), (), (), (), close_timeout=0.2)
    generation = bench.open(choices=2)
    generation.finish(1, cancel=False)  # nothing has come of it
    later = bench.transport.streams[2:]
    wait_until(lambda: [stream.closes for stream in later] == [1, 1])
    generation.close()


def test_a_client_that_leaves_before_anything_came() -> None:
    bench = bench_of((), ())
    client = Client()
    client.leave()
    wait_until(client.watch.check)
    with pytest.raises(ClientGone):
        bench.open(client=client.watch)
    assert [stream.closes for stream in bench.transport.streams] == [1, 1]
    assert len(bench.transport.aborted) == 2


def test_silence_ends_both_and_either_may_be_to_blame() -> None:
    bench = bench_of((), (), first_token_timeout=0.3, health_interval=100)
    for worker in bench.pool.workers:
        bench.transport.infos[worker.url] = RpcFailure("DEADLINE_EXCEEDED")
    start = time.monotonic()
    with pytest.raises(DeadlineError):
        bench.open()
    assert time.monotonic() - start < 10
    assert len(bench.transport.aborted) == 2
    suspects = {worker.address for worker in bench.pool.workers if not worker.available()}
    assert suspects == {"p0:1", "d0:1"}


def test_a_decode_that_waits_alone_is_to_blame_alone() -> None:
    bench = bench_of((), COMPUTED, first_token_timeout=0.5, health_interval=100)
    for worker in bench.pool.workers:
        bench.transport.infos[worker.url] = RpcFailure("DEADLINE_EXCEEDED")
    with pytest.raises(DeadlineError):
        bench.open()
    assert {worker.address for worker in bench.pool.workers if not worker.available()} == {"d0:1"}


def test_without_another_prefill_worker_a_regular_one_is_tried() -> None:
    bench = bench_of((), (UNAVAILABLE,), ANSWER, workers=1, pairs=1)
    generation = bench.open()
    assert roles(bench) == ["d", "p", "w"]
    assert not bench.transport.streams[2].request.HasField("disaggregated_params")
    assert bench.transport.streams[2].request.tokenized == bench.transport.streams[0].request.tokenized
    generation.close()


def test_without_anybody_else_the_failure_is_told() -> None:
    bench = bench_of((), (RpcFailure("INTERNAL", "broken"),), pairs=1)
    error = failure_of(bench)
    assert isinstance(error, UpstreamError)
    assert error.message == "broken"


def test_pairs_come_before_regular_workers_and_need_both_halves() -> None:
    bench = bench_of(*[(chunk(1),)] * 9, workers=1, pairs=1)
    asked = []
    for draining in ("", "p", "d"):
        for worker in bench.pool.workers:
            worker.draining = worker.address[0] == draining
        bench.open().close()
        asked.append(roles(bench))
    assert asked == [["d", "p"], ["d", "p", "w"], ["d", "p", "w", "w"]]
    assert bench.pool.usable()


def test_half_a_pair_serves_nothing() -> None:
    bench = bench_of(pairs=1)
    for worker in bench.pool.workers:
        worker.draining = True
        assert not bench.pool.usable()
        with pytest.raises(NoWorkerError):
            bench.open()
        worker.draining = False
    assert bench.pool.usable()
    assert bench.in_flight() == [0, 0]
    assert bench.transport.streams == []


def test_each_side_has_its_policy() -> None:
    bench = bench_of(
        *itertools.chain(*[((chunk(1),), ())] * 6),
        prefill_policy="consistent_hashing",
        decode_policy="round_robin",
    )
    for _ in range(6):
        opened(bench, Hints(key="session")).close()
    names = [stream.worker.address for stream in bench.transport.streams]
    assert len(set(names[1::2])) == 1
    assert names[0::2] == ["d0:1", "d1:1"] * 3


@pytest.mark.parametrize(
    ("target", "expected"), [("p1:1", ["d", "p"]), ("d1:1", ["d", "p"]), ("w1:1", ["w"])]
)
def test_a_client_may_name_either(target: str, expected: list[str]) -> None:
    bench = bench_of((chunk(1),), (), workers=2)
    opened(bench, Hints(target=target)).close()
    assert roles(bench) == expected
    assert target in {stream.worker.address for stream in bench.transport.streams}
    with pytest.raises(InvalidRequestError):
        opened(bench, Hints(target="nobody:1"))


def test_each_gets_its_own_id_of_an_adapter() -> None:
    bench = bench_of((chunk(1),), ())
    for worker in bench.pool.workers:
        if worker.address.endswith("0:1"):
            worker.set_adapters({"lora": Adapter(f"id-at-{worker.address}")})
    opened(bench, adapter="lora").close()
    assert [stream.request.lora_id for stream in bench.transport.streams] == ["id-at-d0:1", "id-at-p0:1"]
    parts = [stream.request.disaggregated_params for stream in bench.transport.streams]
    assert parts[0] == parts[1] != pb.DisaggregatedParams()


def test_decode_workers_embed_nothing() -> None:
    bench = bench_of(workers=1)
    asked: list[str] = []

    def answer(request: bytes, url: str) -> bytes:
        asked.append(url)
        return b""

    bench.transport.unary_answers = {"Embed": answer, "GetServerInfo": answer}
    calls = Calls(bench.pool, bench.transport)
    for _ in range(6):
        calls.ask(Call("Embed", 5, "m"), b"")
    assert set(asked) == {"grpc://w0:1", "grpc://p0:1", "grpc://p1:1"}
    for _ in range(5):
        calls.ask(Call("GetServerInfo", 5, "m"), b"")
    assert set(asked) == {worker.url for worker in bench.pool.workers}
