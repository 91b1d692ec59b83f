"""Random ids."""

from __future__ import annotations

import os
import re

from wsgi_router import ids


def test_ids_differ() -> None:
    made = [ids.random_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)


def test_no_two_processes_give_out_the_same() -> None:
    ids.random_id()  # the next ones are there already
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, ids.random_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 32
    assert theirs not in {ids.random_id() for _ in range(1000)}
