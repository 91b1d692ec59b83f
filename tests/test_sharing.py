"""What is made before the fork is the same for all; without a server each has its own."""

from __future__ import annotations

import os
from pathlib import Path

from wsgi_router.sharing import ProcessShared, cells, replace_file, zeros


class Thing:
    def __init__(self, size: int, name: str = "") -> None:
        self.size = size
        self.name = name


def test_it_is_everybodys_own_until_it_is_shared() -> None:
    things = ProcessShared(Thing, lambda: Thing(0))
    assert things.made is None
    alone = things.current()
    assert alone.size == 0
    assert things.current() is not alone
    made = things.share(3, name="x")
    assert (made.size, made.name) == (3, "x")
    assert things.current() is things.current() is things.made is made
    again = things.share(4)
    assert things.current() is again


def test_cells_are_one_for_the_processes_forked_later() -> None:
    shared = cells(4)
    shared[:] = memoryview(bytes([1] * 32)).cast("q")
    child = os.fork()
    if child == 0:
        shared[1:3] = zeros(2)
        os._exit(0)
    os.waitpid(child, 0)
    assert [bool(cell) for cell in shared] == [True, False, False, True]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    replace_file(path, b"old and long")
    with path.open("rb") as opened:
        replace_file(path, b"new")
        assert opened.read() == b"old and long"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["list.json"]
