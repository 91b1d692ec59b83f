"""Who asks the workers, what for, and how the others come to know of it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until
from tests.support.transport import FakeTransport
from wsgi_router import observability, runtime
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers import board, health
from wsgi_router.workers.breaker import Event, State
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import RpcFailure
from wsgi_router.workers.worker import Adapter

A, B = "grpc://a:1", "grpc://b:1"
DOWN = RpcFailure("UNAVAILABLE", "connection refused")
LATE = RpcFailure("DEADLINE_EXCEEDED", "Deadline Exceeded")


def info(name: str = "m", context: int = 100) -> pb.GetModelInfoResponse:
    return pb.GetModelInfoResponse(served_model_name=name, max_context_length=context)


class Server:
    """The pools of a server's processes, all in this one; those in `leaders` lead."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        values: dict[str, Any] = {"workers": (A, B), "health_interval": 0.1, "policy": "round_robin"}
        self._settings = Settings(**{**values, **settings})
        self._board = board.Board(folder)
        self._health = health.Health(self._board)
        self._monkeypatch = monkeypatch
        self.leaders: set[int] = {0}
        self.transports: list[FakeTransport] = []
        self.pools: list[WorkerPool] = []

    def start(self, **infos: Any) -> tuple[WorkerPool, FakeTransport]:
        """One more process."""
        number = len(self.pools)
        own_board, own_health = copy.copy(self._board), copy.copy(self._health)
        own_health.board = own_board
        self._monkeypatch.setattr(own_board, "leads", lambda: number in self.leaders)
        self._monkeypatch.setattr(board.shared, "made", own_board)
        self._monkeypatch.setattr(health.shared, "made", own_health)
        own_board.use_row(self._board.take_row())
        transport = FakeTransport()
        transport.infos = {A: info(), B: info(), **infos}
        pool = WorkerPool(self._settings, transport)
        self.transports.append(transport)
        self.pools.append(pool)
        pool.start()
        return pool, transport

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
        wait_until(lambda: not any(pool._prober.under_way for pool in self.pools), what="no probe under way")


MakeServer = Callable[..., Server]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeServer]:
    made: list[Server] = []

    def make(**settings: Any) -> Server:
        made.append(Server(tmp_path, monkeypatch, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def up(pool: WorkerPool) -> list[str]:
    return [worker.url for worker in pool.workers if worker.available()]


def test_one_process_asks_and_all_know(server: MakeServer) -> None:
    made = server()
    (first, asks), (second, silent) = made.start(), made.start()
    second.wait_for_answer(30)
    wait_until(lambda: up(first) == up(second) == [A, B])
    wait_until(lambda: all(worker.card for worker in second.workers))
    assert second.resolve_model("m") == first.resolve_model("m")
    assert len(second.candidates("m")) == 2
    count = len(asks.probes)
    asks.infos[A] = DOWN
    wait_until(lambda: up(second) == [B], what="what the first has found out")
    assert len(asks.probes) > count
    assert silent.probes == silent.checks == []


def test_a_new_process_knows_all_at_once(server: MakeServer) -> None:
    made = server(health_interval=100)
    first, _ = made.start()
    wait_until(lambda: up(first) == [A, B])
    made.leaders.clear()
    second, _ = made.start()
    assert up(second) == [A, B]
    assert second.resolve_model("m").context_length == 100


def test_a_card_that_changes_is_known_to_all(server: MakeServer) -> None:
    made = server()
    (_, asks), (second, _) = made.start(), made.start()
    wait_until(lambda: len(second.models()) == 1)
    asks.infos[B] = info("other", 7)
    wait_until(lambda: [card.name for card in second.models()] == ["m", "other"])
    assert second.resolve_model("other").context_length == 7
    assert [worker.url for worker in second.candidates("other")] == [B]


def test_a_process_need_not_look_to_know_what_was_just_told(server: MakeServer) -> None:
    """Between two looks of its own it may be asked for a model that another process has just heard of."""
    made = server(health_interval=100)
    first, _ = made.start()
    wait_until(lambda: up(first) == [A, B])
    made.leaders.clear()
    second, _ = made.start()
    second._looking.stop()  # it looks no more
    first._take_answer(first.workers[1], info("other").SerializeToString())
    assert second.resolve_model("other").name == "other"
    assert second.workers[1].card_number == 2


def test_a_worker_that_another_process_has_just_heard_of_is_asked(server: MakeServer) -> None:
    """Of a model that this process knows by others: it would be refused until the next look."""
    made = server(health_interval=100)
    first, _ = made.start(**{B: DOWN})
    wait_until(lambda: up(first) == [A] and first.workers[1].record.asked)
    made.leaders.clear()
    second, _ = made.start(**{B: DOWN})
    wait_until(lambda: second.models() != [])
    second._looking.stop()
    first._take_answer(first.workers[1], info().SerializeToString())
    first.workers[1].note(Event.PROBE_OK)
    assert [worker.url for worker in second.candidates("m")] == [A, B]


def test_a_card_that_cannot_be_read_is_tried_again(
    server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server(health_interval=100)
    first, _ = made.start()
    wait_until(lambda: up(first) == [A, B])
    files = sorted(tmp_path.glob("card-*"))
    kept = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(b"\xff")
    made.leaders.clear()
    second, _ = made.start()
    assert second.models() == []
    for file, content in zip(files, kept, strict=True):
        whole = tmp_path / "whole"
        whole.write_bytes(content)
        whole.replace(file)
    wait_until(lambda: all(worker.card for worker in second.workers))
    assert len(second.candidates("m")) == 2


def test_another_process_follows_the_one_that_led(server: MakeServer) -> None:
    made = server()
    (first, _), (second, asks) = made.start(), made.start()
    wait_until(lambda: up(first) == up(second) == [A, B])
    assert asks.probes == []
    made.leaders = {1}
    asks.infos[B] = DOWN
    wait_until(lambda: up(first) == [A], what="found out by the second")
    count = len(made.transports[0].probes)
    wait_until(lambda: asks.probes.count(B) > 5)
    assert len(made.transports[0].probes) == count


def test_what_one_sees_in_its_calls_all_know_and_the_prober_acts_on(server: MakeServer) -> None:
    made = server(health_interval=100)
    (first, asks), (second, _) = made.start(), made.start()
    wait_until(lambda: up(first) == up(second) == [A, B])
    before = len(asks.probes)
    asks.infos[A] = DOWN
    second.report(second.workers[0], Event.CALL_UNREACHABLE)
    assert first.workers[0].state is not State.UP
    assert up(first) == [B]
    wait_until(lambda: first.workers[0].state is State.DOWN, 10)
    assert asks.probes[before:] == [A]


def test_a_worker_that_another_process_hears_of_is_left_alone(server: MakeServer) -> None:
    made = server(health_interval=0.1, workers=(A,))
    (first, asks), (second, _) = made.start(), made.start()
    wait_until(lambda: up(first) == up(second) == [A])
    end = time.monotonic() + 1
    count = len(asks.probes)
    while time.monotonic() < end:
        second.workers[0].note(Event.CALL_OK)
        time.sleep(0.02)
    assert len(asks.probes) <= count + 1


def test_a_worker_that_was_started_anew_has_no_adapters_anywhere(server: MakeServer) -> None:
    made = server()
    (first, asks), (second, _) = made.start(), made.start()
    wait_until(lambda: up(first) == up(second) == [A, B])
    second.workers[0].set_adapters({"sql": Adapter("0a")})
    asks.infos[A] = DOWN
    wait_until(lambda: first.workers[0].state is State.DOWN)
    assert second.workers[0].adapters == {"sql": Adapter("0a")}
    asks.infos[A] = info()
    wait_until(lambda: first.workers[0].state is State.UP)
    assert second.workers[0].adapters == {}


def unhealthy(message: str = "stuck") -> pb.HealthCheckResponse:
    return pb.HealthCheckResponse(healthy=False, message=message)


def test_an_engine_that_stands_still_behind_a_live_front_is_found(server: MakeServer) -> None:
    """It answers GetModelInfo all the while."""
    made = server(engine_check_interval=1, workers=(A,))
    pool, asks = made.start()
    wait_until(lambda: up(pool) == [A])
    assert asks.checks == []  # to begin with its word is taken
    asks.unary_answers["HealthCheck"] = LATE
    wait_until(lambda: pool.workers[0].state is State.SUSPECT, 10)
    wait_until(lambda: pool.workers[0].state is State.DOWN, 10)
    count = len(asks.checks)
    wait_until(lambda: len(asks.checks) > count + 1)
    assert up(pool) == []
    del asks.unary_answers["HealthCheck"]
    wait_until(lambda: up(pool) == [A])


def test_an_engine_that_is_seen_at_work_is_not_checked(server: MakeServer) -> None:
    made = server(engine_check_interval=1, workers=(A,))
    (pool, asks), (second, _) = made.start(), made.start()
    wait_until(lambda: up(pool) == up(second) == [A])
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        second.credit(second.workers[0])
        time.sleep(0.05)
    assert asks.checks == []
    wait_until(lambda: asks.checks == [A], 10, "a check, as nothing was seen any more")
    assert up(pool) == [A]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (pb.HealthCheckResponse(healthy=True), State.UP),
        (RpcFailure("UNIMPLEMENTED"), State.UP),
        (unhealthy(), State.DOWN),
        (RpcFailure("INTERNAL"), State.DOWN),
        (b"\xff", State.DOWN),
    ],
)
def test_a_suspect_has_to_prove_its_engine(server: MakeServer, answer: Any, state: State) -> None:
    made = server(health_interval=100, workers=(A,))
    pool, asks = made.start()
    wait_until(lambda: up(pool) == [A])
    asks.unary_answers["HealthCheck"] = answer
    pool.report(pool.workers[0], Event.CALL_SILENT)
    wait_until(lambda: pool.workers[0].state is state, 10)
    assert (asks.probes, asks.checks) == ([A, A], [A])


@pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL"])
def test_a_front_that_answers_is_there(server: MakeServer, code: str) -> None:
    """What asking the engine comes to says nothing of it."""
    made = server(health_interval=100, workers=(A,))
    pool, asks = made.start()
    wait_until(lambda: up(pool) == [A])
    asks.unary_answers["HealthCheck"] = RpcFailure(code)
    pool.report(pool.workers[0], Event.CALL_SILENT)
    wait_until(lambda: pool.workers[0].state is State.DOWN, 10)
    assert not pool.workers[0].gone


def test_one_that_cannot_be_told_keeps_nobody_else_from_hearing(
    server: MakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observability.LOGGER, "propagate", True)
    pool, asks = server(workers=(A,)).start()
    wait_until(lambda: up(pool) == [A])
    leases = [pool.workers[0].lease() for _ in range(3)]
    told: list[int] = []
    for number, lease in enumerate(leases):
        lease.watch(lambda number=number: told.append(7 // number))  # type: ignore[misc]
    asks.infos[A] = DOWN
    pool.report(pool.workers[0], Event.CALL_UNREACHABLE)
    wait_until(lambda: told[:2] == [7, 3], what="word of its end")
    assert "ZeroDivisionError" in caplog.text
    for lease in leases:
        lease.release()


def test_why_it_is_unhealthy_is_logged_once_on_one_line(
    server: MakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observability.LOGGER, "propagate", True)
    made = server(engine_check_interval=1)
    (pool, asks), (_second, _) = made.start(), made.start()
    wait_until(lambda: up(pool) == [A, B])
    caplog.clear()
    asks.unary_answers["HealthCheck"] = lambda _request, url: (
        unhealthy("out\nof order") if url == A else pb.HealthCheckResponse(healthy=True)
    )
    wait_until(lambda: pool.workers[0].state is State.DOWN)
    count = len(asks.checks)
    wait_until(lambda: len(asks.checks) > count + 3)
    said = {id(record): record.getMessage() for record in caplog.records if A in record.getMessage()}
    assert list(said.values()) == [f"worker {A} is down: it says: out?of order"]


def test_what_a_process_learns_after_it_has_led_is_dropped(server: MakeServer) -> None:
    made = server(workers=(A,))
    pool, asks = made.start()
    wait_until(lambda: up(pool) == [A])

    def resign() -> None:
        made.leaders.clear()
        asks.infos[A] = DOWN

    asks.on_unary = resign
    wait_until(lambda: A in asks.infos and asks.infos[A] is DOWN)
    wait_until(lambda: not pool._prober.under_way)
    assert up(pool) == [A]


def test_too_many_calls_are_no_sign_of_death(server: MakeServer) -> None:
    made = server()
    pool, transport = made.start()
    wait_until(lambda: up(pool) == [A, B])
    asked = len(transport.probes)
    transport.infos[A] = RpcFailure("RESOURCE_EXHAUSTED", "too many calls to workers at once")
    wait_until(lambda: transport.probes[asked:].count(A) > 3)
    assert up(pool) == [A, B]
    asked, began = len(transport.probes), time.monotonic()
    time.sleep(0.5)
    most = 1 + (time.monotonic() - began) / 0.1
    assert transport.probes[asked:].count(A) <= most, "who has too much to do is not asked without a pause"


def test_a_card_that_cannot_be_kept_keeps_no_worker_down(
    server: MakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full as a card changes: what is known of the worker holds."""
    made = server()
    pool, transport = made.start()
    wait_until(lambda: up(pool) == [A, B])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("wsgi_router.workers.cards.replace_file", full)
    asked = len(transport.probes)
    transport.infos[A] = info(context=50)
    wait_until(lambda: transport.probes[asked:].count(A) > 2)
    assert up(pool) == [A, B]
    assert [one.getMessage() for one in caplog.records if "cannot be shared" in one.getMessage()] == [
        f"what worker {A} serves cannot be shared: [Errno 28] No space left on device"
    ]


def test_a_new_process_has_heard_of_nobody(server: MakeServer) -> None:
    made = server()
    first, _ = made.start()
    wait_until(lambda: up(first) == [A, B])
    heard = [worker.record.heard for worker in first.workers]
    second, _ = made.start()
    assert [worker.heard for worker in second.workers] == [0.0, 0.0]
    assert [worker.record.heard for worker in second.workers] >= heard


def test_what_breaks_once_is_done_again(server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[object] = []
    spawn = runtime.spawn

    def sometimes(function: Any, *args: Any) -> object:
        if getattr(function, "__name__", "") == "_probe" and len(broken) < 3:
            broken.append(function)
            raise RuntimeError("can't start new thread")
        return spawn(function, *args)

    monkeypatch.setattr(runtime, "spawn", sometimes)
    pool, _ = server().start()
    wait_until(lambda: up(pool) == [A, B])
    assert len(broken) == 3


def test_what_waits_at_a_removed_worker_hears_of_its_end(server: MakeServer) -> None:
    """Though the process that asks has sent it nothing."""
    made = server()
    (first, asks), (second, silent) = made.start(), made.start()
    wait_until(lambda: up(second) == [A, B])
    worker = second.workers[0]
    lease = worker.lease()
    told: list[float] = []
    lease.watch(lambda: told.append(time.monotonic()))
    for pool in (first, second):
        pool.membership.remove(A)
        pool.follow()
    count = len(asks.probes)
    wait_until(lambda: asks.probes[count:].count(A) >= 2, what="questions to it")
    assert not told
    assert asks.forgotten == []
    asks.infos[A] = DOWN
    wait_until(lambda: told, what="word of it")
    lease.release()
    wait_until(lambda: asks.forgotten == silent.forgotten == [A], what="its connections are dropped")


def test_what_the_leading_process_does_not_know_is_asked_by_one_whose_requests_wait(
    server: MakeServer,
) -> None:
    """As after a reload: the worker was removed before, or is none of the settings' any more."""
    made = server()
    old, others = [made.start() for _ in range(3)], []
    wait_until(lambda: all(up(pool) == [A, B] for pool, _ in old))
    told: list[int] = []
    leases = [pool.workers[0].lease() for pool, _ in old]
    for number, lease in enumerate(leases[:2]):
        lease.watch(lambda number=number: told.append(number))  # type: ignore[misc]
    old[0][0].membership.remove(A)
    others.append(made.start())
    made.leaders = {3}
    wait_until(lambda: up(others[0][0]) == [B])
    counts = [len(asks.probes) for _, asks in old]

    def asked() -> list[int]:
        return [asks.probes[count:].count(A) for (_, asks), count in zip(old, counts, strict=True)]

    wait_until(lambda: max(asked()) >= 2, what="questions to it")
    assert sorted(asked())[:2] == [0, 0]  # by one of those where somebody waits
    assert not told
    for _, asks in old:
        asks.infos[A] = DOWN
    wait_until(lambda: {0, 1} <= set(told), what="word of it")
    assert A not in others[0][1].probes
    for lease in leases:
        lease.release()
    wait_until(lambda: all(asks.forgotten == [A] for _, asks in old), what="its connections are dropped")


def test_a_process_that_comes_to_lead_sees_to_all(server: MakeServer) -> None:
    made = server()
    (first, asks), (second, others) = made.start(), made.start()
    wait_until(lambda: up(second) == [A, B])
    lease = first.workers[0].lease()
    lease.watch(lambda: None)
    made.leaders = {1}
    wait_until(lambda: others.probes.count(A) >= 1)
    time.sleep(0.3)
    count = len(asks.probes)
    wait_until(lambda: others.probes.count(A) >= 6)
    assert len(asks.probes) == count
    lease.release()
