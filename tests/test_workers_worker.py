"""A worker's states and leases."""

from __future__ import annotations

import threading

import pytest

from wsgi_router.workers.breaker import TRANSITIONS, Event, State, after
from wsgi_router.workers.worker import ModelCard, Worker


def test_a_lease_counts_once() -> None:
    worker = Worker("grpc://host:1")
    first, second = worker.lease(), worker.lease()
    assert worker.in_flight == 2
    first.release()
    first.release()
    assert worker.in_flight == 1
    second.release()
    assert worker.in_flight == 0


@pytest.mark.parametrize("times", [0, 1, 2])
def test_what_is_queued_counts_until_the_answer_begins(times: int) -> None:
    worker = Worker("grpc://host:1")
    first, second = worker.lease(30), worker.lease()
    assert (worker.load, worker.queued) == (2, 30)
    for _ in range(times):
        first.begun()
        assert (worker.load, worker.queued) == (2, 0)
    second.begun()
    first.release()
    first.begun()
    first.release()
    assert (worker.load, worker.queued) == (1, 0)


def test_leases_under_threads() -> None:
    worker = Worker("grpc://host:1")

    def work() -> None:
        for _ in range(2000):
            lease = worker.lease()
            racers = [threading.Thread(target=lease.release) for _ in range(2)] if _ % 100 == 0 else []
            for racer in racers:
                racer.start()
            lease.release()
            for racer in racers:
                racer.join()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.in_flight == 0


def test_states() -> None:
    worker = Worker("grpc://host:1")
    assert not worker.available()
    assert not worker.note(Event.CALL_UNREACHABLE)  # not listed: no change
    assert worker.note(Event.PROBE_OK)
    assert worker.available()
    assert worker.note(Event.CALL_SILENT)
    assert worker.note(Event.CALL_OK)
    assert worker.note(Event.CALL_UNREACHABLE)
    assert str(worker.state) == "suspect"
    assert not worker.available()
    assert worker.note(Event.PROBE_FAILED)
    assert not worker.note(Event.CALL_OK)  # an old call's good end does not bring a dead worker back
    assert str(worker.state) == "down"
    assert worker.note(Event.PROBE_OK)
    assert worker.available()


def test_one_late_probe_is_forgiven_and_a_second_is_not() -> None:
    worker = Worker("grpc://host:1")
    worker.note(Event.PROBE_OK)
    assert worker.note(Event.PROBE_LATE)
    assert str(worker.state) == "suspect"
    assert worker.note(Event.PROBE_OK)
    for _ in range(2):
        assert worker.note(Event.PROBE_LATE)
    assert worker.state is State.DOWN


def test_only_answers_count_as_heard() -> None:
    worker = Worker("grpc://host:1")
    for event in Event:
        worker.heard = 0.0
        worker.note(event)
        assert (worker.heard > 0) == (event in (Event.PROBE_OK, Event.CALL_OK))


def test_every_state_can_come_up_again() -> None:
    assert all(after(state, Event.PROBE_OK) is State.UP for state in State)
    assert {state for state, _ in TRANSITIONS} == set(State)


def test_repr_tells_the_state() -> None:
    worker = Worker("grpc://host:1")
    worker.card = ModelCard("m")
    worker.note(Event.PROBE_OK)
    lease = worker.lease()
    assert repr(worker) == "<Worker grpc://host:1 up model=m in_flight=1>"
    assert repr(lease) == "<Lease grpc://host:1 held>"
    lease.release()
    assert repr(lease) == "<Lease grpc://host:1 released>"


def test_the_scheme_tells_whether_to_encrypt() -> None:
    plain, encrypted = Worker("grpc://host:1"), Worker("grpcs://host:1")
    assert (plain.address, plain.tls) == ("host:1", False)
    assert (encrypted.address, encrypted.tls) == ("host:1", True)


def test_other_schemes_are_refused() -> None:
    with pytest.raises(ValueError, match="grpc://"):
        Worker("http://host:1")
