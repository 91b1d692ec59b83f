"""The workers' own loads: who asks, what is made of the figures, and what is too much."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.app import App, error_of
from tests.support.processes import wait_until
from tests.support.transport import FakeTransport
from wsgi_router.errors import NoWorkerError, OverloadedError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.worker_loads import WorkerLoads
from wsgi_router.workers.hints import NO_HINTS
from wsgi_router.workers.policies import POLICIES
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.reports import Report, Reported, Reports
from wsgi_router.workers.transport import RpcFailure
from wsgi_router.workers.worker import Worker

A, B = "grpc://a:1", "grpc://b:1"
MODEL = "m"
IDLE = (0, 0, 0.0)


def loads(*ranks: tuple[int, int, float], most: int = 10) -> pb.GetLoadsResponse:
    """Of each rank: running, waiting, token usage."""
    answer = pb.GetLoadsResponse()
    for running, waiting, usage in ranks:
        answer.loads.add(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            token_usage=usage,
            max_running_requests=most,
        )
    return answer


class Asked:
    """Workers A and B, both up, with figures that a test sets; `turn` asks and waits for the answers."""

    def __init__(self, **settings: Any) -> None:
        self.transport = FakeTransport()
        for url in (A, B):
            self.transport.infos[url] = pb.GetModelInfoResponse(served_model_name=MODEL)
        self.figures: dict[str, Any] = {A: loads(IDLE), B: loads(IDLE)}
        # A function, which is given the request and the worker's URL.
        self.transport.unary_answers = {"GetLoads": lambda _request, url: self.figures[url]}
        given = Settings(**{"workers": (A, B), "loads_interval": 5.0, "health_interval": 0.1, **settings})
        self.pool = WorkerPool(given, self.transport)
        self.pool.start()
        wait_until(lambda: all(worker.available() for worker in self.pool.workers), 10, "workers")
        self.loads = WorkerLoads(self.pool, self.transport, given)
        self.a, self.b = self.pool.workers

    def turn(self) -> None:
        self.loads.turn()
        wait_until(lambda: not self.loads._asking, 10, "answers")

    def sheds(self) -> bool:
        try:
            self.loads.check(MODEL)
        except OverloadedError as error:
            return (error.status, error.retry_after) == (503, 5)
        return False


Make = Callable[..., Asked]


@pytest.fixture
def asked() -> Iterator[Make]:
    made: list[Asked] = []

    def make(**settings: Any) -> Asked:
        made.append(Asked(**settings))
        return made[-1]

    yield make
    for one in made:
        one.loads.close()
        one.pool.close()
        wait_until(lambda one=one: not one.pool._prober.under_way, 10, "no probe")  # type: ignore[misc]


def latest(worker: Worker) -> Report | None:
    assert worker.reported is not None
    return worker.reported.latest()


def test_figures_of_a_worker(asked: Make) -> None:
    one = asked()
    lease = one.a.lease()
    one.figures[A] = loads((3, 0, 0.25), (4, 0, 0.75))
    one.figures[B] = loads((10, 7, 0.5))
    one.turn()
    assert latest(one.a) == Report(waiting=0, free=13, token_usage=0.5, ours=1, others=6)
    assert latest(one.b) == Report(waiting=7, free=0, token_usage=0.5, ours=0, others=17)
    assert (one.a.load, one.a.load_with_others) == (1, 7)
    lease.release()


def test_figures_grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = Reports()
    told = Reported(reports, 3, interval=2.0)
    assert told.latest() is None
    reports.put(3, Report(1, 0, 0.5, 2, 4))
    assert told.latest() == Report(1, 0, 0.5, 2, 4)
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + 5_900_000_000)
    assert told.others() == 4
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + 6_100_000_000)
    assert told.latest() is None
    assert told.others() == 0
    reports.clear(3)
    assert reports.written() == []


def test_a_worker_that_was_removed_leaves_no_figures(asked: Make) -> None:
    one = asked()
    one.turn()
    column = one.b.column
    assert column in one.loads._reports.written()
    one.pool.membership.remove(B)
    one.pool.follow()
    one.turn()
    assert one.loads._reports.written() == [one.a.column]


def test_figures_of_another_application_are_left_alone(asked: Make) -> None:
    one = asked()
    theirs = max(one.a.column, one.b.column) + 1
    one.loads._reports.put(theirs, Report(1, 0, 0.5, 2, 4))
    one.turn()
    one.turn()
    assert theirs in one.loads._reports.written()


def test_one_that_cannot_tell_is_left_in_peace(asked: Make) -> None:
    one = asked(shed_waiting_requests=1)
    one.figures = {A: RpcFailure("UNIMPLEMENTED", "?"), B: loads((10, 5, 0.1))}
    one.turn()
    one.turn()
    assert one.transport.asked.count("GetLoads") == 3
    assert latest(one.a) is None
    assert one.a.available()
    assert not one.sheds()


@pytest.mark.parametrize(
    "answer", [RpcFailure("DEADLINE_EXCEEDED", "late"), RpcFailure("UNAVAILABLE", "?"), b"\xff", loads()]
)
def test_one_that_fails_to_tell_is_asked_again(asked: Make, answer: Any) -> None:
    one = asked()
    one.turn()
    one.figures[A] = answer
    one.turn()
    assert latest(one.a) is not None  # the last figures, until they are old
    assert one.a.available()
    one.figures[A] = loads((1, 0, 0.0))
    one.turn()
    found = latest(one.a)
    assert found is not None
    assert found.others == 1


def test_only_the_leader_asks(asked: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = asked()
    monkeypatch.setattr(one.pool, "leads", lambda: False)
    one.turn()
    assert one.transport.asked == []
    assert one.a.reported is not None  # it reads what the leader writes


FULL = (10, 5, 0.9)


@pytest.mark.parametrize(
    ("settings", "a", "b", "sheds"),
    [
        ({"shed_waiting_requests": 5}, [FULL], [FULL], True),
        ({"shed_waiting_requests": 6}, [FULL], [FULL], False),
        ({"shed_waiting_requests": 5}, [FULL], [IDLE], False),
        ({"shed_waiting_requests": 5}, [FULL], None, False),  # unknown
        ({"shed_waiting_requests": 10}, [FULL, FULL], [FULL, FULL], True),
        ({"shed_token_usage": 0.9}, [FULL], [FULL], True),
        ({"shed_token_usage": 0.95}, [FULL], [FULL], False),
        ({"shed_token_usage": 0.9, "shed_waiting_requests": 50}, [FULL], [(0, 50, 0.0)], True),
        ({}, [FULL], [FULL], False),
    ],
)
def test_what_is_too_much(
    asked: Make,
    settings: dict[str, Any],
    a: list[tuple[int, int, float]],
    b: list[tuple[int, int, float]] | None,
    sheds: bool,
) -> None:
    one = asked(**settings)
    assert not one.sheds()  # nobody was asked yet
    one.figures = {A: loads(*a), B: RpcFailure("UNAVAILABLE", "?") if b is None else loads(*b)}
    one.turn()
    assert one.sheds() is sheds


def test_what_was_sent_since_counts(asked: Make) -> None:
    """A burst between two questions: what cannot begin at once will wait."""
    one = asked(shed_waiting_requests=4)
    one.figures = {A: loads((8, 0, 0.1)), B: loads((8, 0, 0.1))}
    one.turn()
    leases = [worker.lease() for worker in (one.a, one.b) for _ in range(5)]
    assert not one.sheds()
    leases.append(one.a.lease())
    assert not one.sheds()
    leases.append(one.b.lease())
    assert one.sheds()
    for lease in leases:
        lease.release()
    assert not one.sheds()


@pytest.mark.parametrize(
    ("prefill", "decode", "sheds"),
    [(FULL, IDLE, True), (IDLE, FULL, True), (IDLE, IDLE, False), (FULL, FULL, True)],
)
def test_a_pair_is_full_if_either_half_is(
    asked: Make, prefill: tuple[int, int, float], decode: tuple[int, int, float], sheds: bool
) -> None:
    one = asked(shed_waiting_requests=5, workers=(), prefill_workers=(A,), decode_workers=(B,))
    one.figures = {A: loads(prefill), B: loads(decode)}
    one.turn()
    assert one.sheds() is sheds


def test_a_worker_that_does_not_say_how_many_it_runs(asked: Make) -> None:
    one = asked(shed_waiting_requests=1)
    one.figures = {A: loads(IDLE, most=0), B: loads(IDLE, most=0)}
    one.turn()
    leases = [worker.lease() for worker in (one.a, one.b) for _ in range(50)]
    assert not one.sheds()
    for lease in leases:
        lease.release()


def test_nobody_to_ask(asked: Make) -> None:
    with pytest.raises(NoWorkerError):
        asked(shed_waiting_requests=1).loads.check("other")


@pytest.mark.parametrize("name", ["least_load", "power_of_two"])
def test_policies_count_others_in(asked: Make, name: str) -> None:
    random.seed(3)
    one = asked()
    policy = POLICIES[name](Settings())
    one.figures[A] = loads((6, 0, 0.1))
    one.turn()
    lease = one.b.lease()
    assert {policy.select(one.pool.workers, NO_HINTS) for _ in range(10)} == {one.b}
    lease.release()


def test_a_route_sheds(make: Callable[..., App]) -> None:
    app = make(loads_interval=60, shed_waiting_requests=3)
    app.transport.unary_answers["GetLoads"] = loads((10, 3, 0.1))
    (worker,) = app.services.pool.workers
    asks = app.services._loads
    assert asks is not None
    asks.turn()
    wait_until(lambda: latest(worker) is not None, 10, "figures")
    for fields in ({}, {"stream": True}):
        answer = app.chat(**fields)
        assert error_of(answer, 503)["code"] == "workers_overloaded"
        assert answer.headers["Retry-After"] == "60"
    assert not app.transport.streams
    error_of(app.chat(temperature=9), 400)
    assert "wsgi_router_requests_running" not in app.client.get("/metrics").text
    app.services.close()
