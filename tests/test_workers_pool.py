"""Which workers may be asked, and for what."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until
from tests.support.transport import FakeTransport
from wsgi_router import observability, runtime
from wsgi_router.errors import ModelNotFoundError, NoWorkerError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers import board
from wsgi_router.workers.breaker import Event, State
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import Cancel, RpcFailure
from wsgi_router.workers.worker import Adapter, Worker

A, B, C = "grpc://a:1", "grpc://b:1", "grpc://c:1"
DOWN = RpcFailure("UNAVAILABLE", "connection refused")
LATE = RpcFailure("DEADLINE_EXCEEDED", "Deadline Exceeded")

_open: list[WorkerPool] = []


@pytest.fixture(autouse=True)
def _close_pools() -> Iterator[None]:
    yield
    pools, _open[:] = _open[:], []
    for pool in pools:
        pool.close()
    # A probe that is still under way would speak into the next test's log.
    wait_until(lambda: not any(pool._prober.under_way for pool in pools), what="no probe under way")


class SlowTransport(FakeTransport):
    """A worker answers once its event in `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = {url: threading.Event() for url in (A, B, C)}

    def unary(
        self, worker: Worker, method: str, request: bytes, timeout: float, cancel: Cancel | None = None
    ) -> bytes:
        self.go[worker.url].wait()
        return super().unary(worker, method, request, timeout, cancel)


def info(name: str, context: int = 100, **fields: Any) -> pb.GetModelInfoResponse:
    return pb.GetModelInfoResponse(served_model_name=name, max_context_length=context, **fields)


def pool_of(transport: FakeTransport, **settings: Any) -> WorkerPool:
    """A started pool of A, B, C; probes every 0.1 s."""
    values: dict[str, Any] = {"workers": (A, B, C), "health_interval": 0.1, "policy": "round_robin"}
    pool = WorkerPool(Settings(**{**values, **settings}), transport)
    _open.append(pool)
    pool.start()
    return pool


def up(pool: WorkerPool) -> list[str]:
    return [worker.url for worker in pool.workers if worker.available()]


def test_nothing_is_up_at_first() -> None:
    pool = pool_of(FakeTransport())
    assert not pool.usable()
    assert pool.models() == []
    with pytest.raises(NoWorkerError):
        pool.resolve_model("m")
    with pytest.raises(NoWorkerError):
        pool.select("m")


def test_workers_come_up_one_by_one() -> None:
    transport = FakeTransport()
    pool = pool_of(transport)
    transport.infos[B] = info("m")
    wait_until(lambda: up(pool) == [B])
    assert pool.usable()
    assert [pool.select("m").worker.url for _ in range(3)] == [B, B, B]
    transport.infos[A] = info("m")
    wait_until(lambda: up(pool) == [A, B])
    assert {pool.select("m").worker.url for _ in range(4)} == {A, B}


def test_a_worker_that_answers_is_left_alone() -> None:
    class Talking(FakeTransport):
        def heard(self, worker: Worker) -> float:
            return time.monotonic()

    transport = Talking()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A, C), health_interval=0.02)
    wait_until(lambda: up(pool) == [A])
    wait_until(lambda: transport.probes.count(C) > 20, 60)
    assert transport.probes.count(A) == 1


def test_a_call_that_ends_well_is_heard() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A,))
    wait_until(lambda: up(pool) == [A])
    before = time.monotonic()
    pool.report(pool.workers[0], Event.CALL_OK)
    assert pool.workers[0].heard >= before


def test_an_idle_worker_that_dies_is_found_down() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A,))
    wait_until(lambda: up(pool) == [A])
    transport.infos[A] = DOWN
    wait_until(lambda: pool.workers[0].state is State.DOWN)
    assert not pool.usable()
    assert pool.stats() == {A: (0, "down", "closed")}
    transport.infos[A] = info("m")
    wait_until(lambda: up(pool) == [A])


def test_a_card_is_made_anew_only_when_it_changes() -> None:
    transport = FakeTransport()
    transport.infos = dict.fromkeys((A, B), info("m", 100))
    pool = pool_of(transport, workers=(A, B))
    wait_until(lambda: up(pool) == [A, B])
    card = pool.resolve_model("m")
    probes = len(transport.probes)
    wait_until(lambda: len(transport.probes) > probes)
    assert pool.resolve_model("m") is card
    transport.infos[B] = info("m", 50)
    wait_until(lambda: pool.resolve_model("m").context_length == 50)
    assert pool.models() == [pool.resolve_model("m")]


def test_unreachable_is_passed_over_and_comes_back() -> None:
    transport = FakeTransport()
    transport.infos = dict.fromkeys((A, B), info("m"))
    pool = pool_of(transport, workers=(A, B), health_interval=0.3)
    wait_until(lambda: up(pool) == [A, B])
    transport.infos[A] = DOWN
    pool.report(pool.workers[0], Event.CALL_UNREACHABLE)
    assert {pool.select("m").worker.url for _ in range(4)} == {B}
    wait_until(lambda: pool.workers[0].state is State.DOWN)
    transport.infos[A] = info("m")
    wait_until(lambda: up(pool) == [A, B])


def test_a_suspect_is_asked_if_nobody_else_is_up() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A,), health_interval=100)
    wait_until(lambda: up(pool) == [A])
    pool.workers[0].note(Event.CALL_UNREACHABLE)
    assert pool.select("m").worker.url == A
    assert pool.usable()
    pool.report(pool.workers[0], Event.CALL_OK)
    assert up(pool) == [A]


def test_one_failed_call_costs_a_live_worker_one_probe() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A,), health_interval=100)
    wait_until(lambda: up(pool) == [A])
    pool.report(pool.workers[0], Event.CALL_UNREACHABLE)
    wait_until(lambda: up(pool) == [A], 5)
    assert transport.probes == [A, A]


def test_a_new_process_waits_until_a_worker_is_up() -> None:
    transport = SlowTransport()
    transport.infos = dict.fromkeys((A, B), info("m"))
    pool = pool_of(transport, workers=(A, B))
    runtime.call_later(0.2, transport.go[B].set)
    pool.wait_for_answer(30)
    assert up(pool) == [B]
    transport.go[A].set()


def test_a_new_process_waits_for_no_worker_that_refuses() -> None:
    pool = pool_of(FakeTransport(), health_interval=100)
    start = time.monotonic()
    pool.wait_for_answer(60)
    assert time.monotonic() - start < 30
    assert not pool.usable()


def test_a_new_process_waits_for_a_silent_worker_for_a_while_only() -> None:
    transport = SlowTransport()
    pool = pool_of(transport, workers=(A,))
    start = time.monotonic()
    pool.wait_for_answer(0.2)
    assert 0.2 <= time.monotonic() - start < 30
    pool_of(FakeTransport(), workers=()).wait_for_answer(60)
    assert time.monotonic() - start < 30
    transport.go[A].set()


def test_a_busy_worker_is_still_asked_if_nobody_else_is_up() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A,))
    wait_until(lambda: up(pool) == [A])
    seen: list[State] = []

    def late() -> None:
        seen.append(pool.workers[0].state)
        transport.infos[A] = LATE

    transport.on_unary = late
    wait_until(lambda: len(seen) >= 3)
    assert seen[:3] == [State.UP, State.SUSPECT, State.DOWN]


def test_a_late_probe_says_nothing_while_streams_flow() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A,), health_interval=0.02)
    wait_until(lambda: up(pool) == [A])
    worker = pool.workers[0]

    def late() -> None:
        worker.heard = time.monotonic()  # a message, while it is asked
        transport.infos[A] = LATE

    transport.on_unary = late
    before = len(transport.probes)
    wait_until(lambda: len(transport.probes) > before + 3)
    assert worker.available()


@pytest.mark.parametrize("error", [OverflowError("too large"), ValueError("strange")])
def test_a_probe_that_breaks_is_a_failed_one(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise error

    transport = FakeTransport()
    transport.infos = {A: info("m")}
    transport.on_unary = fail
    monkey = pytest.MonkeyPatch()
    monkey.setattr(observability.LOGGER, "propagate", True)
    pool = pool_of(transport, workers=(A,), health_interval=0.02)
    wait_until(lambda: len(transport.probes) > 3)
    monkey.undo()
    # pytest may listen in two places; a record is told once, whoever hears it.
    assert len({id(record) for record in caplog.records if A in record.getMessage()}) == 1
    transport.on_unary = None
    wait_until(lambda: up(pool) == [A])


def test_models_are_grouped_by_name() -> None:
    transport = FakeTransport()
    transport.infos = {
        A: info(
            "m", 200, weight_version="7", eos_token_ids=[1, 2], default_sampling_params_json='{"top_k":5}'
        ),
        B: info("m", 100),
        C: pb.GetModelInfoResponse(model_path="/models/other"),
    }
    pool = pool_of(transport)
    wait_until(lambda: len(up(pool)) == 3)
    other, m = pool.models()
    assert (other.name, other.context_length) == ("/models/other", 0)
    assert (m.name, m.context_length, m.weight_version, m.eos_token_ids) == ("m", 100, "7", (1, 2))
    assert m.default_sampling_params == '{"top_k":5}'
    assert pool.resolve_model("m") == m
    assert {pool.select("m").worker.url for _ in range(6)} == {A, B}
    assert {pool.select("/models/other").worker.url for _ in range(3)} == {C}
    with pytest.raises(ModelNotFoundError):
        pool.resolve_model("nothing")
    with pytest.raises(NoWorkerError):
        pool.select("nothing")


class Copied(str):
    """Counts the characters that are taken out of it."""

    __slots__ = ("copied",)
    copied: int

    def __getitem__(self, key: Any) -> str:
        piece = super().__getitem__(key)
        self.copied += len(piece)
        return piece


def test_a_name_full_of_colons_is_not_copied_for_each() -> None:
    """It may be as long as a request: 57 MB of them once held up a process for 43 s."""
    transport = FakeTransport()
    transport.infos = {A: info("m:x")}
    pool = pool_of(transport, workers=(A,))
    wait_until(lambda: up(pool) == [A])
    name = Copied("a:" * 1_000_000)
    name.copied = 0
    with pytest.raises(ModelNotFoundError):
        pool.split_model(name)
    assert name.copied < len(name)
    card, adapter = pool.split_model("m:x:" + ":y" * 1000)
    assert (card.name, adapter) == ("m:x", ":y" * 1000)
    with pytest.raises(ModelNotFoundError):
        pool.split_model("m:x:")


def test_a_request_for_text_that_names_no_model_gets_one_that_makes_text() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("embedding"), B: info("m", is_generation=True)}
    pool = pool_of(transport, workers=(A, B))
    wait_until(lambda: len(up(pool)) == 2)
    assert pool.default_model().name == "embedding"
    assert pool.default_model(generating=True).name == "m"
    del transport.infos[B]
    pool = pool_of(transport, workers=(A,))
    wait_until(lambda: up(pool) == [A])
    assert pool.default_model(generating=True).name == "embedding"


def test_a_model_stays_known_while_its_worker_is_down() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A,))
    wait_until(lambda: up(pool) == [A])
    transport.infos[A] = DOWN
    pool.report(pool.workers[0], Event.CALL_UNREACHABLE)
    wait_until(lambda: not pool.usable())
    assert pool.resolve_model("m").name == "m"
    with pytest.raises(NoWorkerError):
        pool.select("m")


def test_the_setting_names_the_model() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("theirs", 5), B: info("theirs", 7)}
    pool = pool_of(transport, workers=(A, B), model="ours")
    wait_until(lambda: len(up(pool)) == 2)
    assert [card.name for card in pool.models()] == ["ours"]
    assert pool.resolve_model("ours").context_length == 5
    assert pool.resolve_model("theirs").name == "ours"
    assert {pool.select("ours").worker.url for _ in range(4)} == {A, B}


def test_excluded_workers_are_not_chosen() -> None:
    transport = FakeTransport()
    transport.infos = dict.fromkeys((A, B), info("m"))
    pool = pool_of(transport, workers=(A, B))
    wait_until(lambda: len(up(pool)) == 2)
    assert {pool.select("m", exclude=[pool.workers[0]]).worker.url for _ in range(4)} == {B}
    with pytest.raises(NoWorkerError):
        pool.select("m", exclude=pool.workers)


def test_turns_of_one_model_are_not_those_of_another() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m"), B: info("m"), C: info("other")}
    pool = pool_of(transport)
    wait_until(lambda: len(up(pool)) == 3)
    seen = []
    for _ in range(4):
        seen.append(pool.select("m").worker.url)
        assert pool.select("other").worker.url == C
    assert seen == [A, B, A, B]


def test_a_sticky_key_of_one_model_is_not_that_of_another() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m"), B: info("other"), C: info("other")}
    pool = pool_of(transport, policy="sticky")
    wait_until(lambda: len(up(pool)) == 3)
    key = Hints(key="k")
    transport.infos[C] = info("m")
    one = pool.select("m", key).worker
    pool.report(pool.workers[2], Event.CALL_SILENT)  # it was started anew, with another model
    wait_until(lambda: len(up(pool)) == 3 and len(pool.candidates("m")) == 2)
    for _ in range(3):
        assert pool.select("other", key).worker.url == B
        assert pool.select("m", key).worker is one


def test_a_worker_beside_is_taken_while_it_is_up() -> None:
    transport = FakeTransport()
    transport.infos = dict.fromkeys((A, B), info("m"))
    pool = pool_of(transport, workers=(A, B))
    wait_until(lambda: len(up(pool)) == 2)
    near = pool.workers[1]
    assert {pool.select("m", near=near).worker for _ in range(4)} == {near}
    transport.infos[B] = DOWN
    pool.report(near, Event.CALL_UNREACHABLE)
    assert {pool.select("m", near=near).worker.url for _ in range(4)} == {A}


@pytest.mark.parametrize("policy", ["round_robin", "prefix_hash"])
def test_what_a_leaving_worker_has_begun_goes_on_there(policy: str) -> None:
    transport = FakeTransport()
    transport.infos = dict.fromkeys((A, B), info("m"))
    pool = pool_of(transport, workers=(A, B), policy=policy)
    wait_until(lambda: len(up(pool)) == 2)
    near = pool.workers[1]
    lease = near.lease()
    for removed in (False, True):
        if removed:
            pool.membership.remove(B)
        else:
            pool.membership.drain(B, True)
        pool.follow()
        assert {pool.select("m", near=near).worker for _ in range(4)} == {near}
        assert {pool.select("m").worker.url for _ in range(4)} == {A}
    transport.infos[B] = DOWN  # it is asked at once
    pool.report(near, Event.CALL_UNREACHABLE)
    assert pool.select("m", near=near).worker.url == A
    lease.release()


def test_a_worker_that_comes_back_as_it_leaves_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(Settings(workers=(A,)), FakeTransport())
    pool.membership.remove(A)
    pool.follow()

    def come_back() -> None:
        pool.membership.add(A)
        pool.follow()

    back = threading.Thread(target=come_back)

    def found_idle(_worker: Worker) -> int:
        if back.ident is None:
            back.start()
            back.join(0.3)
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "load", property(found_idle))
        pool._let_leave()
        back.join(10)
    (worker,) = pool.workers
    worker.lease()
    assert pool._board.load(A).total() == 1  # others see it
    assert not pool._leaving
    assert worker in pool.workers


def test_a_draining_worker_is_not_taken_for_one_that_was_started_anew() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A,), health_interval=0.02)
    wait_until(lambda: up(pool) == [A])
    worker = pool.workers[0]
    pool.membership.drain(A, True)
    pool.follow()
    worker.set_adapters({"sql": Adapter("0a")})
    probes = len(transport.probes)
    wait_until(lambda: len(transport.probes) > probes + 2)
    assert worker.adapters == {"sql": Adapter("0a")}


def test_stats_and_repr() -> None:
    transport = FakeTransport()
    transport.infos = {A: info("m")}
    pool = pool_of(transport, workers=(A, B))
    wait_until(lambda: up(pool) == [A])
    lease = pool.select("m")
    assert pool.stats() == {A: (1, "up", "closed"), B: (0, "unknown", "closed")}
    assert "grpc://a:1 up model=m in_flight=1" in repr(pool)
    lease.release()
    assert pool.stats()[A] == (0, "up", "closed")


def test_a_name_of_several_lines_is_logged_as_one(caplog: pytest.LogCaptureFixture) -> None:
    transport = FakeTransport()
    transport.infos[A] = info("a\nforged line")

    def said() -> list[str]:
        return [text for text in caplog.messages if "is up and serves" in text]

    with caplog.at_level("INFO", "wsgi_router.workers.probing"):
        pool_of(transport, workers=(A,))
        wait_until(said)  # a worker is usable before the log says so
    assert said() == [f"worker {A} is up and serves a?forged line"]


def test_a_list_that_cannot_be_followed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, nothing is half done, and the pool looks for it at its own pace."""
    shared = board.Board(tmp_path)
    shared.use_row(shared.take_row())
    monkeypatch.setattr(board.shared, "made", shared)
    pool = WorkerPool(Settings(workers=(A,)), FakeTransport())
    _open.append(pool)
    held = [shared.load(f"grpc://held:{number}") for number in range(board.COLUMNS - 2)]
    tries: list[float] = []
    take_list = pool._take_list

    def count() -> None:
        tries.append(time.monotonic())
        take_list()

    monkeypatch.setattr(pool, "_take_list", count)
    pool.membership.add(B)
    pool.membership.add(C)
    pool.start()
    wait_until(lambda: len(tries) >= 3, what="several tries")
    assert tries[2] - tries[0] > 0.1  # a loop without a pause would be at its third within a millisecond
    assert [worker.url for worker in pool.workers] == [A]
    assert len([record for record in caplog.records if "workers are counted" in record.message]) == 1
    held.pop().close()
    wait_until(lambda: [worker.url for worker in pool.workers] == [A, B, C], what="the new list")
