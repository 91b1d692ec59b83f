"""Requests that wait for a worker which is found down, or removed and then found down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.bench import Bench, chunk, complete, nothing_is_left
from tests.support.flow import Client, body, collect
from tests.support.processes import wait_until
from tests.support.transport import Answer
from wsgi_router import observability
from wsgi_router.choices import ENDED
from wsgi_router.dispatch import Generation
from wsgi_router.errors import ClientGone, RouterError
from wsgi_router.workers import worker as worker_module
from wsgi_router.workers.breaker import State
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.retries import Retries
from wsgi_router.workers.transport import GenerateJob, RpcFailure
from wsgi_router.workers.worker import Worker

REFUSED = RpcFailure("UNAVAILABLE", "connection refused")
LATE = RpcFailure("DEADLINE_EXCEEDED", "Deadline Exceeded")
WHOLE: tuple[bytes | None, ...] = (chunk(1), chunk(2), None)
COMPUTED: Answer = (complete(1, 1, "length"), None)


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


@pytest.fixture(autouse=True)
def _told_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_TELL_SECONDS", 0.1)


def quick(*answers: Answer, **settings: Any) -> Bench:
    """Whose workers are checked often."""
    return Bench(*answers, **{"health_interval": 0.02, "engine_check_interval": 0.2, **settings})


class Asked:
    """A request in a thread of its own, which waits for its first event."""

    def __init__(self, bench: Bench, streams: int = 1, **options: Any) -> None:
        self.bench = bench
        self.generation: Generation | None = None
        self.error: RouterError | None = None
        self._options = options
        before = len(bench.transport.streams)
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._thread.start()
        wait_until(lambda: len(bench.transport.streams) >= before + streams, what="a worker that is asked")

    def _open(self) -> None:
        options = {"choices": 1, "hints": Hints(), "streamed": True, **self._options}
        client = options.pop("client", None)
        try:
            self.generation = self.bench.dispatcher.open(
                GenerateJob("m", body([1, 2, 3], 9), **options), client
            )
        except RouterError as error:
            self.error = error

    def waits(self) -> bool:
        return self._thread.is_alive()

    def collect(self, choices: int = 1) -> dict[int, list[Any]]:
        self.join()
        assert self.generation is not None, self.error
        found = collect(self.generation, choices)
        self.generation.close()
        return found

    def join(self) -> None:
        wait_until(lambda: not self.waits(), what="the request goes on")


def named(bench: Bench, place: int) -> Worker:
    """Who got the stream of this number."""
    return bench.transport.streams[place].worker


def die(bench: Bench, worker: Worker) -> None:
    """Nobody is there any more, and no connection breaks."""
    bench.transport.infos[worker.url] = REFUSED
    wait_until(lambda: worker.state is State.DOWN)


def hang(bench: Bench, *workers: Worker) -> None:
    """The engines do nothing any more, though the workers answer."""
    hung = {worker.url for worker in workers}
    bench.transport.unary_answers["HealthCheck"] = lambda _request, url: LATE if url in hung else b"\x08\x01"
    wait_until(lambda: all(worker.state is State.DOWN for worker in workers))


def counted() -> tuple[float, float]:
    metrics = observability.metrics()
    return metrics.retries._value.get(), metrics.retry_budget_exhausted._value.get()


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("end", [die, hang])
def test_another_worker_is_asked(end: Callable[..., None], streamed: bool) -> None:
    retries, _ = counted()
    bench = quick((), WHOLE)
    asked = Asked(bench, streamed=streamed)
    first = named(bench, 0)
    end(bench, first)
    assert asked.collect() == {0: [chunk(1), chunk(2), ENDED]}
    assert bench.transport.streams[0].closes == 1
    assert bench.transport.aborted == [(first.url, bench.transport.streams[0].request.request_id)]
    assert bench.asked() == [first.url, named(bench, 1).url]
    assert named(bench, 1) is not first
    requests = [stream.request for stream in bench.transport.streams]
    assert requests[0].tokenized == requests[1].tokenized
    assert counted()[0] == retries + 1
    assert first.record._breaker().failures == 0
    assert bench.in_flight() == [0, 0]


def test_all_that_wait_there_go() -> None:
    bench = quick(*[()] * 6, *[WHOLE] * 3)
    waiting = [Asked(bench) for _ in range(6)]
    first = named(bench, 0)
    die(bench, first)
    there = [one for number, one in enumerate(waiting) if named(bench, number) is first]
    for one in there:
        assert one.collect() == {0: [chunk(1), chunk(2), ENDED]}
    for number in range(6):
        if named(bench, number) is not first:
            for item in WHOLE:
                bench.transport.streams[number].put(item)
    for one in set(waiting) - set(there):
        assert one.collect() == {0: [chunk(1), chunk(2), ENDED]}
    assert len(there) == 3


def test_what_has_begun_stays() -> None:
    """The worker may still be at work, whatever its checks find; TOKEN_TIMEOUT ends it."""
    bench = quick((chunk(1),))
    generation = bench.open()
    die(bench, named(bench, 0))
    time.sleep(0.4)
    bench.transport.streams[0].put(chunk(2))
    bench.transport.streams[0].put(None)
    assert collect(generation) == {0: [chunk(1), chunk(2), ENDED]}
    generation.close()


def test_a_first_event_that_nobody_has_taken_stays() -> None:
    bench = quick((chunk(1),), ())
    generation = bench.open(choices=2)
    bench.transport.streams[1].put(chunk(3))
    wait_until(lambda: len(generation._queue.ready) == 2)
    die(bench, named(bench, 1))
    wait_until(lambda: generation._queue.lost, what="word of its end")
    for stream in bench.transport.streams:
        stream.put(None)
    assert collect(generation, 2) == {0: [chunk(1), ENDED], 1: [chunk(3), ENDED]}
    generation.close()


def test_a_worker_that_misses_one_check_keeps_what_it_has() -> None:
    """And so does a slow one, whose checks are answered."""
    bench = quick(())
    asked = Asked(bench)
    worker = named(bench, 0)
    checks = iter([LATE])
    bench.transport.unary_answers["HealthCheck"] = lambda _request: next(checks, b"\x08\x01")
    wait_until(lambda: next(checks, None) is None, what="a check")
    wait_until(lambda: worker.available() and bench.transport.checks.count(worker.url) >= 3)
    assert asked.waits()
    for item in WHOLE:
        bench.transport.streams[0].put(item)
    assert asked.collect() == {0: [chunk(1), chunk(2), ENDED]}


def test_nobody_else_is_there() -> None:
    bench = quick((), workers=1)
    asked = Asked(bench)
    die(bench, named(bench, 0))
    asked.join()
    assert asked.error is not None
    assert (asked.error.status, asked.error.code) == (503, "worker_unavailable")
    assert "Retry-After" in asked.error.headers()


@pytest.mark.parametrize("settings", [{"workers": 1}, {"retry_budget": 0}, {"retry_attempts": 1}])
def test_a_busy_engine_is_left_for_another_worker_only(settings: dict[str, Any]) -> None:
    """It may have no time for checks because of this very prompt."""
    bench = quick((), **settings)
    asked = Asked(bench)
    hang(bench, named(bench, 0))
    time.sleep(0.4)
    assert asked.waits()
    for item in WHOLE:
        bench.transport.streams[0].put(item)
    assert asked.collect() == {0: [chunk(1), chunk(2), ENDED]}


def test_a_prompt_that_keeps_engines_busy_stays_with_the_last() -> None:
    bench = quick(*[()] * 3, workers=4)
    asked = Asked(bench)
    for attempt in range(2):
        hang(bench, *{stream.worker for stream in bench.transport.streams})
        wait_until(lambda seen=attempt: len(bench.transport.streams) == seen + 2)  # type: ignore[misc]
    hang(bench, *{stream.worker for stream in bench.transport.streams})
    time.sleep(0.4)
    assert len({stream.worker.url for stream in bench.transport.streams}) == 3
    for item in WHOLE:
        bench.transport.streams[2].put(item)
    assert asked.collect() == {0: [chunk(1), chunk(2), ENDED]}


def test_a_busy_engine_that_dies() -> None:
    bench = quick((), workers=1)
    asked = Asked(bench)
    worker = named(bench, 0)
    hang(bench, worker)
    time.sleep(0.4)
    assert asked.waits()
    bench.transport.infos[worker.url] = REFUSED
    asked.join()
    assert asked.error is not None
    assert asked.error.code == "worker_unavailable"


def test_another_worker_that_comes_up_later_is_asked_then() -> None:
    bench = quick((), WHOLE)
    one, other = bench.pool.workers
    die(bench, other)
    asked = Asked(bench)
    hang(bench, one)
    time.sleep(0.4)
    assert asked.waits()
    bench.transport.infos[other.url] = bench.transport.infos[one.url]
    assert asked.collect() == {0: [chunk(1), chunk(2), ENDED]}
    assert bench.asked() == [one.url, other.url]


def test_the_client_has_named_it() -> None:
    bench = quick(())
    asked = Asked(bench, hints=Hints(target="w0:1"))
    die(bench, named(bench, 0))
    asked.join()
    assert asked.error is not None
    assert len(bench.transport.streams) == 1


def test_the_budget_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsgi_router.workers.retries._FREE", 2.0)
    _, exhausted = counted()
    bench = quick(*[()] * 10, *[WHOLE] * 2, retry_budget=0.001)
    waiting = [Asked(bench) for _ in range(10)]
    first = named(bench, 0)
    there = [one for number, one in enumerate(waiting) if named(bench, number) is first]
    die(bench, first)
    wait_until(lambda: sum(one.waits() for one in there) == 3, what="two that go")
    time.sleep(0.6)  # the others are told once more, in time
    assert sum(one.waits() for one in there) == 3
    assert counted()[1] == exhausted
    for stream in bench.transport.streams:
        for item in WHOLE:
            stream.put(item)
    for one in waiting:
        if one.error is None:
            one.collect()


def test_each_choice_goes_by_itself() -> None:
    bench = quick((chunk(1),), (), (chunk(3),), WHOLE)
    generation = bench.open(choices=3)
    first = named(bench, 0)
    wait_until(lambda: len(generation._queue.ready) == 2)
    bench.pool.workers[1].proved = time.monotonic()
    die(bench, first)
    for place in (0, 2):
        bench.transport.streams[place].put(None)
    assert collect(generation, 3) == {
        0: [chunk(1), ENDED],
        1: [chunk(1), chunk(2), ENDED],
        2: [chunk(3), ENDED],
    }
    assert [stream.worker is first for stream in bench.transport.streams] == [True, True, True, False]
    generation.close()


def test_a_client_that_leaves_in_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retries, "pause", staticmethod(lambda tried: 60))
    bench = quick((), WHOLE)
    client = Client()
    asked = Asked(bench, client=client.watch)
    die(bench, named(bench, 0))
    wait_until(lambda: sum(bench.in_flight()) == 0)
    client.leave()
    asked.join()
    assert isinstance(asked.error, ClientGone)


def test_a_removed_worker_that_dies() -> None:
    bench = quick((), (), WHOLE)
    asked, other = Asked(bench), Asked(bench)
    first = named(bench, 0)
    bench.pool.membership.remove(first.url)
    bench.pool.follow()
    assert first not in bench.pool.workers
    time.sleep(0.4)  # it is asked, and answers
    assert asked.waits()
    bench.transport.infos[first.url] = REFUSED
    assert asked.collect() == {0: [chunk(1), chunk(2), ENDED]}
    wait_until(lambda: bench.transport.forgotten == [first.url], what="its connection is dropped")
    bench.transport.streams[1].put(chunk(5))
    bench.transport.streams[1].put(None)
    assert other.collect() == {0: [chunk(5), ENDED]}


@pytest.mark.parametrize("side", ["d", "p"])
@pytest.mark.parametrize("end", [die, hang])
def test_either_half_of_a_pair(side: str, end: Callable[..., None]) -> None:
    bench = quick((), (), WHOLE, COMPUTED, workers=0, pairs=2)
    asked = Asked(bench, streams=2)
    lost = next(stream.worker for stream in bench.transport.streams if stream.worker.address[0] == side)
    end(bench, lost)
    assert asked.collect() == {0: [chunk(1), chunk(2), ENDED]}
    assert len(bench.transport.streams) == 4
    assert lost not in (named(bench, 2), named(bench, 3))
    assert [stream.closes for stream in bench.transport.streams[:2]] == [1, 1]
    assert {url for url, _ in bench.transport.aborted} == {named(bench, 0).url, named(bench, 1).url}
    wait_until(lambda: sum(bench.in_flight()) == 0)


def test_a_prefill_that_has_done_its_part_is_not_missed() -> None:
    bench = quick((), COMPUTED, workers=0, pairs=2)
    asked = Asked(bench, streams=2)
    decode, prefill = bench.transport.streams
    wait_until(lambda: prefill.given == 1)
    die(bench, prefill.worker)
    time.sleep(0.4)
    assert asked.waits()
    for item in WHOLE:
        decode.put(item)
    assert asked.collect() == {0: [chunk(1), chunk(2), ENDED]}
    assert len(bench.transport.streams) == 2


def test_both_halves() -> None:
    bench = quick((), (), workers=0, pairs=1)
    asked = Asked(bench, streams=2)
    for worker in bench.pool.workers:
        bench.transport.infos[worker.url] = REFUSED
    asked.join()
    assert asked.error is not None
    assert asked.error.code == "worker_unavailable"
    assert len(bench.transport.aborted) == 2


def test_nothing_is_kept_of_who_waited() -> None:
    bench = quick(WHOLE, (), (chunk(1),))
    bench.open().close()
    asked = Asked(bench)
    assert sum(len(worker._waiting) for worker in bench.pool.workers) == 1
    generation = bench.open()
    assert sum(len(worker._waiting) for worker in bench.pool.workers) == 1
    generation.close()
    bench.transport.streams[1].put(RpcFailure("INVALID_ARGUMENT", "no such thing"))
    asked.join()
    assert sum(len(worker._waiting) for worker in bench.pool.workers) == 0
