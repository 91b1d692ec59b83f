"""What processes know of workers together."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.processes import output_of
from wsgi_router.workers import board, health
from wsgi_router.workers.board import COLUMNS, Board
from wsgi_router.workers.breaker import Event, Limits, Phase, State
from wsgi_router.workers.health import Health, Record

A = "grpc://a:1"


def records(folder: Path, count: int, limits: Limits | None = None) -> tuple[Health, list[Record]]:
    """The records of a worker that so many processes have."""
    on = Board(folder)
    shared = Health(on)
    made = []
    for _ in range(count):
        on.use_row(on.take_row())
        made.append(shared.record(A, limits)[1])
    return shared, made


def test_a_state_is_that_of_all_and_one_alone_has_changed_it(tmp_path: Path) -> None:
    _, (one, other) = records(tmp_path, 2)
    assert {one.state, other.state} == {State.UNKNOWN}
    assert one.note(Event.PROBE_OK)
    assert not other.note(Event.PROBE_OK)
    assert other.state is State.UP
    assert other.life == 1
    assert other.note(Event.CALL_UNREACHABLE)
    assert not one.note(Event.CALL_UNREACHABLE)
    assert repr(one) == "<Record suspect breaker=closed>"


def test_a_worker_that_comes_up_again_may_be_another_one(tmp_path: Path) -> None:
    _, (one, other) = records(tmp_path, 2)
    for event, life in (
        (Event.PROBE_OK, 1),
        (Event.PROBE_OK, 1),
        (Event.CALL_SILENT, 1),
        (Event.PROBE_OK, 2),
    ):
        one.note(event)
        assert other.life == life


def test_failures_of_all_processes_open_the_breaker_once(tmp_path: Path) -> None:
    _, all_of_them = records(tmp_path, 4, Limits(10, 60_000, 3))
    changes = [all_of_them[number % 4].fail() for number in range(14)]
    assert changes == [None] * 9 + [Phase.OPEN] + [None] * 4
    assert {record.phase for record in all_of_them} == {Phase.OPEN}
    assert not any(record.admits() for record in all_of_them)
    assert 59 < all_of_them[0].closed_for <= 60


def test_a_success_anywhere_ends_a_row_of_failures(tmp_path: Path) -> None:
    _, (one, other) = records(tmp_path, 2, Limits(3, 60_000, 3))
    for _ in range(5):
        assert [one.fail(), other.fail(), other.succeed()] == [None] * 3
    assert one.phase is Phase.CLOSED


def test_a_few_requests_at_a_time_are_let_through_on_trial(tmp_path: Path) -> None:
    shared, (one, other) = records(tmp_path, 2, Limits(1, 50, 3))
    assert not one.begin_trial()
    assert one.fail() is Phase.OPEN
    time.sleep(0.06)
    assert {one.phase} == {Phase.HALF_OPEN}
    assert [record.begin_trial() for record in (one, other, other)] == [True] * 3
    assert not one.admits()
    other.end_trial()
    assert one.admits()
    assert one.begin_trial()
    shared.free_row(1)  # the other process has ended
    assert one.admits()
    assert [one.succeed(), other.succeed(), one.succeed()] == [None, None, Phase.CLOSED]
    assert one.phase is Phase.CLOSED


def test_a_failure_on_trial_is_told_once(tmp_path: Path) -> None:
    _, (one, other) = records(tmp_path, 2, Limits(1, 200, 3))
    assert one.fail() is Phase.OPEN
    time.sleep(0.22)
    assert [other.fail(), one.fail()] == [Phase.OPEN, None]


def test_a_worker_that_was_down_and_is_up_again_is_on_trial(tmp_path: Path) -> None:
    _, (one, other) = records(tmp_path, 2, Limits(1, 60_000, 3))
    one.note(Event.PROBE_OK)
    one.fail()
    for event in (Event.CALL_UNREACHABLE, Event.PROBE_OK):  # it was never down
        one.note(event)
    assert {other.phase} == {Phase.OPEN}
    for event in (Event.PROBE_FAILED, Event.PROBE_OK):
        one.note(event)
    assert other.phase is Phase.HALF_OPEN
    assert other.admits()


def test_nothing_is_known_of_a_worker_that_all_have_given_up(tmp_path: Path) -> None:
    board = Board(tmp_path)
    shared = Health(board)
    board.use_row(board.take_row())
    load, record = shared.record(A, Limits(1, 60_000, 3))
    record.note(Event.PROBE_OK)
    record.set_asked()
    record.change_card()
    record.fail()
    same_load, same = shared.record(A)
    assert (same.state, same.card, same.phase, same.asked) == (State.UP, 1, Phase.OPEN, True)
    for one in (record, same):
        one.close()
        one.close()
    load.close()
    same_load.close()
    _, anew = shared.record(A)
    assert (anew.state, anew.card, anew.phase, anew.asked) == (State.UNKNOWN, 0, Phase.CLOSED, False)
    assert not record.note(Event.PROBE_OK)  # a late answer
    assert record.fail() is None
    assert anew.state is State.UNKNOWN


def test_the_last_column_is_a_whole_one(tmp_path: Path) -> None:
    board = Board(tmp_path)
    shared = Health(board)
    board.use_row(board.take_row())
    made = [shared.record(f"grpc://w:{number}") for number in range(COLUMNS)]
    for _, record in made:
        record.note(Event.PROBE_OK)
        record.publish(1.5, 2.5)
    assert {(record.state, record.heard, record.proved) for _, record in made} == {(State.UP, 1.5, 2.5)}
    assert sorted(load.column for load, _ in made) == list(range(COLUMNS))


def test_later_moments_are_kept(tmp_path: Path) -> None:
    _, (one, other) = records(tmp_path, 2)
    one.publish(5, 3)
    other.publish(4, 6)
    assert (one.heard, other.proved) == (5, 6)


def test_threads_change_it_one_after_the_other(tmp_path: Path) -> None:
    _, all_of_them = records(tmp_path, 4, Limits(2001, 60_000, 3))

    def work(record: Record) -> None:
        for _ in range(500):
            record.fail()

    threads = [threading.Thread(target=work, args=(record,)) for record in all_of_them]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all_of_them[0].phase is Phase.CLOSED
    assert all_of_them[0].fail() is Phase.OPEN


FORKED = """
    import os, sys
    from pathlib import Path
    from wsgi_router.workers import board, health
    from wsgi_router.workers.breaker import Event, Limits
    made = board.share(Path(sys.argv[1]))
    health.share(made)
    children = []
    for _ in range(4):
        row = made.take_row()
        child = os.fork()
        if not child:
            made.use_row(row)
            _, record = health.current().record("grpc://a:1", Limits(801, 60_000, 3))
            record.note(Event.PROBE_OK)
            for _ in range(200):
                record.fail()
            os._exit(0)
        children.append(child)
    made.use_row(made.take_row())
    _, record = health.current().record("grpc://a:1", Limits(801, 60_000, 3))
    for child in children:
        os.waitpid(child, 0)
    print(record.state, record.phase, record.fail())
"""


def test_forked_processes_lose_no_failure(tmp_path: Path) -> None:
    assert output_of(FORKED, tmp_path).split() == ["up", "closed", "open"]


def test_it_goes_with_its_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board.shared, "made", Board(tmp_path))
    monkeypatch.setattr(health.shared, "made", None)
    assert health.current() is not health.current()
    assert health.current().board is board.current()
    assert health.share(board.current()) is health.current()
    assert health.current().board is board.current()
