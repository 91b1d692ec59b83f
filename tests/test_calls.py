"""Unary calls: failover, several at once, one to each worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.bench import Bench, nothing_is_left
from tests.support.flow import Client
from tests.support.modes import MODES, run
from tests.support.processes import wait_until
from wsgi_router import runtime
from wsgi_router.calls import Call, Calls
from wsgi_router.errors import ClientGone, NoWorkerError, RouterError, UpstreamError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.breaker import State
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.slots import Slots
from wsgi_router.workers.transport import RpcFailure
from wsgi_router.workers.worker import Worker

Answer = Callable[[bytes, str], Any]


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


class Asked(Bench):
    """Workers that answer Embed as a test says; `calls` has who was asked."""

    def __init__(self, answer: Answer, workers: int = 2, **settings: Any) -> None:
        super().__init__(workers=workers, **settings)
        self.asked_of: list[str] = []

        def note(request: bytes, worker: str) -> Any:
            self.asked_of.append(worker)
            return answer(request, worker)

        self.transport.unary_answers = {"Embed": note}
        self.calls = Calls(self.pool, self.transport)


def counted(request: bytes, worker: str) -> pb.EmbedResponse:
    return pb.EmbedResponse(prompt_tokens=len(request))


def failing(*codes: str) -> Answer:
    """Fails with each code in turn, then answers."""
    left = list(codes)
    return lambda request, worker: RpcFailure(left.pop(0), "so") if left else counted(request, worker)


def test_one_worker_answers() -> None:
    bench = Asked(counted)
    answer = bench.calls.ask(Call("Embed", 5, "m"), b"abc")
    assert pb.EmbedResponse.FromString(answer).prompt_tokens == 3
    assert len(bench.asked_of) == 1


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED", "INTERNAL"])
def test_other_workers_are_asked(code: str) -> None:
    bench = Asked(failing(code))
    bench.calls.ask(Call("Embed", 5, "m"), b"abc")
    assert len(set(bench.asked_of)) == 2
    bench = Asked(failing(code, code, code), workers=4)
    with pytest.raises(UpstreamError):
        bench.calls.ask(Call("Embed", 5, "m"), b"abc")
    assert len(set(bench.asked_of)) == len(bench.asked_of) == 3


@pytest.mark.parametrize(
    "code", ["UNIMPLEMENTED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"]
)
def test_other_failures_are_told(code: str) -> None:
    bench = Asked(failing(code))
    with pytest.raises(UpstreamError):
        bench.calls.ask(Call("Embed", 5, "m"), b"abc")
    assert len(bench.asked_of) == 1


def test_an_unreachable_worker_is_passed_over() -> None:
    bench = Asked(failing("UNAVAILABLE"), health_interval=5)
    bench.transport.infos.clear()
    for _ in range(3):
        bench.calls.ask(Call("Embed", 5, "m"), b"abc")
    assert bench.asked_of[1:] == [bench.asked_of[1]] * 3


def test_nobody_serves_the_model() -> None:
    bench = Asked(counted)
    with pytest.raises(NoWorkerError):
        bench.calls.ask(Call("Embed", 5, "another"), b"")


def test_several_come_in_order_and_some_at_once() -> None:
    running, most, lock = [0], [0], threading.Lock()

    several = threading.Event()

    def slow(request: bytes, worker: str) -> pb.EmbedResponse:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] > 1:
                several.set()
        assert several.wait(20), "one after the other"
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return counted(request, worker)

    bench = Asked(slow)
    answers = bench.calls.ask_for_each(Call("Embed", 5, "m"), [b"x" * size for size in range(1, 31)])
    assert [pb.EmbedResponse.FromString(answer).prompt_tokens for answer in answers] == list(range(1, 31))
    assert 1 < most[0] <= 8


def test_one_that_fails_ends_all() -> None:
    over = threading.Event()

    def third(request: bytes, worker: str) -> Any:
        if len(request) == 3:
            return RpcFailure("INVALID_ARGUMENT", "no")
        if len(request) > 3:
            over.wait(20)
        return counted(request, worker)

    bench = Asked(third)
    with pytest.raises(UpstreamError, match="no"):
        bench.calls.ask_for_each(Call("Embed", 5, "m"), [b"x" * size for size in range(1, 200)])
    over.set()
    assert len(bench.asked_of) <= 3 + 7


def test_what_is_dropped_with_one_that_fails_counts_in_no_way() -> None:
    release, begun = threading.Event(), threading.Barrier(8)

    def third(request: bytes, worker: str) -> Any:
        begun.wait(20)
        if len(request) == 3:
            return RpcFailure("INVALID_ARGUMENT", "no")
        release.wait(20)
        return RpcFailure("CANCELLED")

    bench = Asked(third, breaker_failures=1)
    bench.transport.on_cancel = release.set
    with pytest.raises(UpstreamError, match="no"):
        bench.calls.ask_for_each(Call("Embed", 5, "m"), [b"x" * size for size in range(1, 9)])
    wait_until(lambda: sum(bench.in_flight()) == 0, 5)
    assert len(bench.asked_of) == 8
    assert [worker.record._breaker().failures for worker in bench.pool.workers] == [0, 0]
    assert bench.pool.retries._retries == 0


def test_a_batch_that_a_worker_drops_is_one_failure_and_goes_elsewhere() -> None:
    begun = threading.Barrier(8)
    dropping: list[str] = []

    def first_drops(request: bytes, worker: str) -> Any:
        if worker != (dropping or [worker])[0]:
            return counted(request, worker)
        dropping.append(worker)
        begun.wait(20)
        return RpcFailure("CANCELLED", "the server is shutting down")

    bench = Asked(first_drops, policy="consistent_hashing", breaker_failures=8)
    hints = Hints(key="k")
    answers = bench.calls.ask_for_each(Call("Embed", 5, "m", hints), [b"x" * size for size in range(1, 9)])
    assert [pb.EmbedResponse.FromString(answer).prompt_tokens for answer in answers] == list(range(1, 9))
    assert sorted(worker.record._breaker().failures for worker in bench.pool.workers) == [0, 1]


def test_the_client_leaves() -> None:
    release = threading.Event()

    def hang(request: bytes, worker: str) -> RpcFailure:
        release.wait(60)
        return RpcFailure("CANCELLED")

    bench = Asked(hang)
    bench.transport.on_cancel = release.set
    client = Client()
    runtime.call_later(0.1, client.leave)
    start = time.monotonic()
    with pytest.raises(ClientGone):
        bench.calls.ask_for_each(Call("Embed", 5, "m"), [b"x"] * 50, client.watch)
    assert time.monotonic() - start < 20
    assert release.is_set()
    wait_until(lambda: sum(bench.in_flight()) == 0, 5)
    assert len(bench.asked_of) <= 8
    assert all(worker.available() for worker in bench.pool.workers)


def test_all_workers_are_asked_each_with_its_own_result() -> None:
    def second_fails(request: bytes, worker: str) -> Any:
        return RpcFailure("UNAVAILABLE", "gone") if "w1" in worker else counted(request, worker)

    bench = Asked(second_fails, workers=3)
    answers = bench.calls.ask_all("Embed", b"ab", 5)
    assert [worker.url for worker, _ in answers] == [worker.url for worker in bench.pool.workers]
    assert [isinstance(answer, RouterError) for _, answer in answers] == [False, True, False]


def test_there_is_no_worker_to_ask() -> None:
    bench = Bench(workers=0)
    with pytest.raises(NoWorkerError):
        Calls(bench.pool, bench.transport).ask_all("Embed", b"", 5)


def _many() -> None:
    """Under gevent the calls of a batch run beside each other too."""

    together = threading.Barrier(8)

    def slow(request: bytes, worker: str) -> pb.EmbedResponse:
        together.wait(20)
        return counted(request, worker)

    bench = Asked(slow)
    assert len(bench.calls.ask_for_each(Call("Embed", 5, "m"), [b"x"] * 32)) == 32
    bench.pool.close()


@pytest.mark.parametrize("mode", MODES)
def test_greenlets_and_threads(mode: str) -> None:
    run(mode, _many)


def hanging(bench: Asked) -> Callable[[], None]:
    """The first one that is asked never answers; returns what waits until it was asked."""
    cancelled = threading.Event()
    bench.transport.on_cancel = cancelled.set

    def answer(request: bytes, worker: str) -> Any:
        bench.asked_of.append(worker)
        if worker != bench.asked_of[0]:
            return counted(request, worker)
        cancelled.wait(60)
        return RpcFailure("CANCELLED")

    bench.transport.unary_answers["Embed"] = answer
    return lambda: wait_until(lambda: bench.asked_of)


def ask_meanwhile(bench: Asked, meanwhile: Callable[[Worker], object]) -> bytes:
    """The answer to a request; `meanwhile` is told whom it waits for."""
    asked = hanging(bench)

    def end() -> None:
        asked()
        found = bench.pool.named(bench.asked_of[0])
        assert found is not None
        meanwhile(found)

    runtime.spawn(end)
    return bench.calls.ask(Call("Embed", 60, "m"), b"abc")


def die(bench: Asked, worker: Worker) -> None:
    bench.transport.infos[worker.url] = RpcFailure("UNAVAILABLE", "connection refused")


def test_a_worker_that_is_found_down_is_left() -> None:
    bench = Asked(counted)
    answer = ask_meanwhile(bench, lambda worker: die(bench, worker))
    assert pb.EmbedResponse.FromString(answer).prompt_tokens == 3
    assert len(set(bench.asked_of)) == len(bench.asked_of) == 2
    assert [worker.record._breaker().failures for worker in bench.pool.workers] == [0, 0]
    assert not any(worker._waiting for worker in bench.pool.workers)


def test_who_waits_for_a_slot_hears_of_a_worker_that_is_found_down() -> None:
    """And whoever waits for one there goes elsewhere, as if the call were under way."""
    bench = Asked(counted)
    slots, unary, held = Slots(1), bench.transport.unary, runtime.wakeup()

    def through_slots(
        worker: Worker, method: str, request: bytes, timeout: float, cancel: Any = None
    ) -> bytes:
        if method != "Embed":
            return unary(worker, method, request, timeout, cancel)
        bench.asked_of.append(worker.url)
        if worker.url != bench.asked_of[0]:
            return unary(worker, method, request, timeout, cancel)
        with slots.held(timeout, cancel):
            return b""

    def hold() -> None:
        with slots.held(60):
            held.wait(60)

    bench.transport.unary = through_slots  # type: ignore[method-assign]
    threading.Thread(target=hold, daemon=True).start()
    wait_until(lambda: "free=0" in repr(slots))

    def end() -> None:
        wait_until(lambda: "waiting=1" in repr(slots))
        found = bench.pool.named(bench.asked_of[0])
        assert found is not None
        die(bench, found)

    runtime.spawn(end)
    answer = bench.calls.ask(Call("Embed", 60, "m"), b"abc")
    assert pb.EmbedResponse.FromString(answer).prompt_tokens == 3
    assert "waiting=0" in repr(slots)
    held.set()


@pytest.mark.parametrize("settings", [{"workers": 1}, {"retry_budget": 0}])
def test_a_worker_that_is_gone_is_left_though_nobody_else_may_be_asked(settings: dict[str, Any]) -> None:
    bench = Asked(counted, **settings)
    with pytest.raises(UpstreamError) as caught:
        ask_meanwhile(bench, lambda worker: die(bench, worker))
    assert caught.value.code == "worker_unavailable"
    assert len(bench.asked_of) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_busy_engine_is_left_for_another_worker_only(workers: int) -> None:
    bench = Asked(counted, workers=workers, health_interval=0.02, engine_check_interval=0.2)

    def hang(worker: Worker) -> None:
        late = RpcFailure("DEADLINE_EXCEEDED")
        well = pb.HealthCheckResponse(healthy=True)
        bench.transport.unary_answers["HealthCheck"] = lambda _request, url: (
            late if url == worker.url else well
        )
        wait_until(lambda: worker.state is State.DOWN)
        time.sleep(0.4)
        if workers == 1:  # it has done it
            bench.transport.unary_answers["Embed"] = counted
            bench.transport.on_cancel()

    if workers == 1:
        with pytest.raises(UpstreamError, match="CANCELLED"):  # by the test, not by the router
            ask_meanwhile(bench, hang)
    else:
        assert ask_meanwhile(bench, hang)
        assert len(set(bench.asked_of)) == 2
