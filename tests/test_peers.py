"""What processes say of themselves: over a fork, when they fall silent, drain and end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.server import Member, Server
from wsgi_router import peers
from wsgi_router.peers import STALE_SECONDS, Field, Peers
from wsgi_router.workers.board import Board


def test_outside_a_server_there_is_one() -> None:
    alone = Peers(Board())
    assert alone.alone
    assert alone.alive() == [0]
    alone.put(Field.RUNNING, 3)
    assert alone.column(Field.RUNNING) == [3]


def test_a_process_that_falls_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path)
    one, other, third = (Member(server) for _ in range(3))
    assert server.peers.alive() == [0, 1, 2]
    now = time.monotonic_ns()
    third.peers.retire()  # it drains, and is as good as alive until it ends
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + int(STALE_SECONDS * 1.1e9))
    one.peers.beat()
    assert server.peers.alive() == [0, 2]
    assert server.peers.column(Field.ACCEPTS) == [1, 1, 0]
    other.peers.beat()
    assert server.peers.alive() == [0, 1, 2]
    server.end(third)
    assert server.peers.alive() == [0, 1]


def test_a_row_is_clear_for_the_next_process(tmp_path: Path) -> None:
    server = Server(tmp_path)
    first = Member(server)
    for field in Field:
        first.peers.put(field, 7)
    server.end(first)
    assert Member(server).row == first.row
    assert [server.peers.column(field) for field in Field if field not in (Field.BEAT, Field.ACCEPTS)] == [
        [0],
        [0],
        [0],
    ]


def test_without_a_row_nothing_is_told(tmp_path: Path) -> None:
    server = Server(tmp_path)
    member = Member(server)
    member.board.use_row(None)
    member.peers.put(Field.RUNNING, 3)
    assert server.peers.column(Field.RUNNING) == [0]


def test_forked_processes_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.shared, "made", None)
    board = Board(tmp_path)
    shared = peers.share(board)
    rows = [board.take_row() for _ in range(3)]
    for row in rows:
        child = os.fork()
        if child == 0:
            board.use_row(row)
            peers.current().put(Field.RUNNING, 10 + (row or 0))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert shared.column(Field.RUNNING) == [10, 11, 12]
