"""Which process takes a connection: counts of what is in hand, and turns to give way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import modes
from tests.support.server import Member, Server
from wsgi_router import spreading
from wsgi_router.peers import Field, Peers
from wsgi_router.spreading import FEW, LONGEST_PAUSE, InHand, Turns
from wsgi_router.workers.board import Board


def noted() -> tuple[InHand, Any, Any, list[int]]:
    """What is in hand, gunicorn's two methods that count, and the count within each request."""
    mine = InHand(Peers(Board()))
    counts: list[int] = []

    def handle(_listener: object, client: Any, _address: object) -> None:
        counts.append(mine.count)
        for message in client.requests:
            if message == "raise":
                raise OSError
            request("here", message, client, "there")
            counts.append(mine.count)

    def handle_request(_listener: object, message: object, _client: object, _address: object) -> str:
        counts.append(mine.count)
        if message == "break":
            raise ValueError
        return "done"

    connection, request = mine.counting(handle, handle_request)
    return mine, connection, request, counts


class _Client:
    def __init__(self, requests: Sequence[str]) -> None:
        self.requests = requests


def test_a_connection_counts_until_its_first_request_has_ended() -> None:
    mine, connection, _, counts = noted()
    connection("here", _Client(["one", "two"]), "there")
    #  accepted, first request, idle, second request, idle
    assert counts == [1, 1, 0, 1, 0]
    assert mine.count == 0
    assert mine._peers.column(Field.BUSY) == [0]


def test_a_connection_without_a_request() -> None:
    mine, connection, _, counts = noted()
    connection("here", _Client([]), "there")
    assert (counts, mine.count) == ([1], 0)


@pytest.mark.parametrize(
    ("requests", "error"), [(["break"], ValueError), (["raise"], OSError), (["one", "break"], ValueError)]
)
def test_failures_count_as_well(requests: list[str], error: type[Exception]) -> None:
    mine, connection, _, _ = noted()
    with pytest.raises(error):
        connection("here", _Client(requests), "there")
    assert mine.count == 0
    assert not mine._fresh


def load(members: Sequence[Member], *counts: int) -> list[InHand]:
    found = []
    for member, count in zip(members, counts, strict=True):
        mine = InHand(member.peers)
        mine._add(count)
        found.append(mine)
    return found


def processes(folder: Path, count: int) -> tuple[Server, list[Member]]:
    server = Server(folder)
    return server, [Member(server) for _ in range(count)]


@pytest.mark.parametrize(
    ("counts", "gives_way"),
    [
        ((100, 100, 100, 100), [False] * 4),
        ((120, 100, 100, 80), [True, False, False, False]),
        ((102, 100, 99, 99), [False] * 4),
        ((0, 0, 0, FEW - 1), [False] * 4),  # too few to mind
        ((0, 0, 0, FEW), [False, False, False, True]),
        ((10, 9, 8, 9), [False] * 4),
        ((1, 60, 60, 60), [False, True, True, True]),  # one that has just joined
    ],
)
def test_who_gives_way(tmp_path: Path, counts: tuple[int, ...], gives_way: list[bool]) -> None:
    _, members = processes(tmp_path, 4)
    hands = load(members, *counts)
    assert [hand.pause() > 0 for hand in hands] == gives_way
    assert all(hand.pause() <= LONGEST_PAUSE for hand in hands)


def test_the_more_above_the_longer_is_the_pause(tmp_path: Path) -> None:
    _, members = processes(tmp_path, 2)
    mine, _ = load(members, 106, 100)
    little = mine.pause()
    mine._add(24)
    assert 0 < little < mine.pause()


def test_nobody_gives_way_to_one_that_takes_nothing(tmp_path: Path) -> None:
    """One that has died, drains or is frozen has less in hand for ever."""
    server, members = processes(tmp_path, 2)
    busy, _ = load(members, 100, 10)
    assert busy.pause()
    members[1].peers.retire()
    assert not busy.pause()
    members[1].peers.beat()
    assert busy.pause()
    members[1].peers.put(Field.BEAT, time.monotonic_ns() - 10**10)
    assert not busy.pause()
    members[1].peers.beat()
    assert busy.pause()
    server.end(members[1])
    assert not busy.pause()


def test_a_process_that_drains_gives_no_way(tmp_path: Path) -> None:
    _, members = processes(tmp_path, 2)
    busy, _ = load(members, 100, 10)
    members[0].peers.retire()
    assert not busy.pause()


def test_after_a_pause_a_connection_is_taken() -> None:
    turns = Turns(lambda: 0.004)
    assert turns.give_way(10.0) == 0.004
    assert turns.give_way(10.0041) == 0  # it is still there: the others are busy
    assert turns.give_way(10.0042) == 0.004  # the next one
    assert turns.give_way(11.0) == 0.004  # that one was taken by another process


def test_without_others_nothing_is_done() -> None:
    worker = SimpleNamespace(handle=None, handle_request=None)
    assert spreading.spread(worker, Peers(Board())) is None


def pausing_server(folder: str) -> None:
    """A real server: one that is far above the mean takes each connection a moment later, and all of them."""
    import gevent.server
    from gevent import socket

    _, members = processes(Path(folder), 2)
    mine, _ = load(members, 100, 0)
    taken: list[float] = []
    server_class = spreading._server_class(gevent.server.StreamServer, mine)
    server = server_class(("127.0.0.1", 0), handle=lambda *_: taken.append(time.monotonic()))
    server.max_accept = 1
    server.start()
    for _ in range(3):
        asked = time.monotonic()
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            client.recv(1)  # until it was handled
        assert taken.pop() - asked > 0.001
    mine._add(-100)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            client.recv(1)
    assert len(taken) == 3
    server.stop()


def test_a_server_that_pauses(tmp_path: Path) -> None:
    modes.run("gevent", pausing_server, str(tmp_path))
