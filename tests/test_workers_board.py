"""Counts that processes share."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.processes import output_of
from wsgi_router.workers import board
from wsgi_router.workers.board import COLUMNS, ROWS, Board, BoardFullError

A, B = "grpc://a:1", "grpc://b:1"


def shared(folder: Path) -> tuple[Board, list[int]]:
    """A board with four processes' rows."""
    made = Board(folder)
    rows = [made.take_row() for _ in range(4)]
    assert rows == [0, 1, 2, 3]
    return made, [row for row in rows if row is not None]


def test_alone_a_load_is_its_own() -> None:
    load = Board().load(A)
    load.add(3)
    load.add(-1)
    assert (load.own, load.total()) == (2, 2)


def test_a_load_is_the_sum_of_all_processes(tmp_path: Path) -> None:
    made, rows = shared(tmp_path)
    loads = []
    for row in rows:
        made.use_row(row)
        loads.append((made.load(A), made.load(B)))
    for count, (a, b) in enumerate(loads, 1):
        a.add(count)
        b.add(10 * count)
    assert [a.own for a, _ in loads] == [1, 2, 3, 4]
    assert {a.total() for a, _ in loads} == {10}
    assert {b.total() for _, b in loads} == {100}


def test_an_ended_process_counts_no_more(tmp_path: Path) -> None:
    made, rows = shared(tmp_path)
    loads = []
    for row in rows:
        made.use_row(row)
        loads.append(made.load(A))
        loads[-1].add(5)
    made.free_row(rows[1])
    assert loads[0].total() == 15
    assert made.take_row() == rows[1]
    made.free_row(rows[3])
    assert loads[0].total() == 10


def test_what_is_queued_is_counted_beside_requests(tmp_path: Path) -> None:
    made, rows = shared(tmp_path)
    loads = []
    for row in rows:
        made.use_row(row)
        loads.append((made.load(A), made.load(B)))
    for count, (a, b) in enumerate(loads, 1):
        a.add(1, 10 * count)
        b.add(1)
    loads[0][0].add(0, -10)
    assert {(load.total(), load.queued()) for load, _ in loads} == {(4, 90)}
    assert {(load.total(), load.queued()) for _, load in loads} == {(4, 0)}
    made.free_row(rows[3])
    assert (loads[0][0].total(), loads[0][0].queued()) == (3, 50)
    loads[2][0].close()
    assert (loads[0][0].queued(), loads[2][0].queued()) == (20, 30)
    loads[2][0].add(-1, -30)
    assert (loads[0][0].queued(), loads[2][0].queued()) == (20, 0)
    made.use_row(None)
    lonely = made.load(A)
    lonely.add(1, 7)
    assert (lonely.queued(), loads[0][0].queued()) == (27, 20)
    assert repr(lonely) == "<Load own=1 total=3 queued=27>"


def test_one_process_leads_and_another_follows_it(tmp_path: Path) -> None:
    made = Board(tmp_path)
    asked = """
        import sys
        from pathlib import Path
        from wsgi_router.workers.board import Board
        print(Board(Path(sys.argv[1])).leads())
    """

    def other_leads() -> bool:
        return output_of(asked, tmp_path) == "True\n"

    assert made.leads()
    assert made.leads()
    assert not other_leads()
    made.resign()
    assert not made.leads()
    assert other_leads()


def test_alone_a_process_leads() -> None:
    made = Board()
    made.resign()
    assert made.leads()


def test_two_apps_of_a_process_add_up(tmp_path: Path) -> None:
    made, rows = shared(tmp_path)
    made.use_row(rows[0])
    one, other = made.load(A), made.load(A)
    one.add(2)
    other.add(3)
    assert (one.own, other.own, one.total(), other.total()) == (2, 3, 5, 5)


def test_a_process_without_a_row_sees_the_others_and_itself(tmp_path: Path) -> None:
    made, rows = shared(tmp_path)
    made.use_row(rows[0])
    seen = made.load(A)
    seen.add(4)
    made.use_row(None)
    lonely = made.load(A)
    lonely.add(1)
    assert (lonely.total(), seen.total()) == (5, 4)


def test_rows_run_out(tmp_path: Path) -> None:
    made = Board(tmp_path)
    assert [made.take_row() for _ in range(ROWS)] == list(range(ROWS))
    assert made.take_row() is None
    made.free_row(None)
    made.free_row(7)
    assert made.take_row() == 7


def test_a_column_is_kept_while_somebody_uses_it(tmp_path: Path) -> None:
    made, rows = shared(tmp_path)
    made.use_row(rows[0])
    a, b = made.load(A), made.load(B)
    made.use_row(rows[1])
    other = made.load(B)
    a.add(1)
    others = [made.load(f"grpc://new:{number}") for number in range(COLUMNS - 2)]
    with pytest.raises(BoardFullError):
        made.load("grpc://one-too-many:1")
    b.close()
    b.close()
    with pytest.raises(BoardFullError):  # another process still has it
        made.load("grpc://one-too-many:1")
    other.add(2)
    other.close()
    last = made.load("grpc://one-too-many:1")
    other.add(-2)
    assert (last.total(), other.total(), a.total(), others[-1].total()) == (0, 0, 1, 0)


def test_a_dead_processs_columns_are_free_again(tmp_path: Path) -> None:
    made, rows = shared(tmp_path)
    made.use_row(rows[2])
    loads = [made.load(f"grpc://old:{number}") for number in range(COLUMNS)]
    loads[0].add(9)
    made.free_row(rows[2])
    made.use_row(rows[3])
    assert [made.load(f"grpc://new:{number}").total() for number in range(COLUMNS)] == [0] * COLUMNS


def test_threads_lose_no_count(tmp_path: Path) -> None:
    made, rows = shared(tmp_path)
    made.use_row(rows[0])
    load = made.load(A)

    def work() -> None:
        for _ in range(5000):
            load.add(1)
            load.add(-1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (load.own, load.total()) == (0, 0)


FORKED = """
    import os, sys
    from pathlib import Path
    from wsgi_router.workers import board
    made = board.share(Path(sys.argv[1]))
    begun, go = os.pipe(), os.pipe()
    children = []
    for _ in range(4):
        row = made.take_row()
        child = os.fork()
        if not child:
            board.current().use_row(row)
            load = board.current().load("grpc://a:1")
            load.add(3)
            for _ in range(200):
                with board.current().locked():
                    board.current().advance()
            os.write(begun[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
        children.append((child, row))
    for _ in children:
        os.read(begun[0], 1)
    print(made.generation)
    print(made.load("grpc://a:1").total())
    os.kill(children[2][0], 9)
    os.waitpid(children[2][0], 0)
    made.free_row(children[2][1])
    print(made.load("grpc://a:1").total())
    os.write(go[1], b"xxx")
    for child, row in children:
        if row != children[2][1]:
            os.waitpid(child, 0)
            made.free_row(row)
    print(made.load("grpc://a:1").total())
"""


def test_forked_processes_share_it(tmp_path: Path) -> None:
    assert output_of(FORKED, tmp_path).split() == ["800", "12", "9", "0"]


def test_without_a_server_each_pool_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(board.shared, "made", None)
    assert board.current() is not board.current()
    assert board.share(tmp_path) is board.current()
