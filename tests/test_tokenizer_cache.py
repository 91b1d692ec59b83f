"""Folders by digest: what is bounded, what stays, and what several processes may do at once."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.processes import ROOT, output_of
from wsgi_router.tokenizer_cache import Cache, Files, digests, folder_name

SIZE = 1000
ROOMY = 1 << 30


def files(number: int) -> Files:
    """Of SIZE bytes together."""
    return {"tokenizer.json": f"{number:0500}".encode(), "sub/more.txt": f"{number:0500}".encode()}


def name(number: int) -> str:
    return folder_name(digests(files(number)))


def filled(folder: Path, count: int) -> Cache:
    """Folders that were used one after the other, and are not any more."""
    cache = Cache(folder, ROOMY)
    for number in range(count):
        cache.put(files(number)).close()
        os.utime(folder / name(number), (number, number))
    return cache


def kept(folder: Path, count: int = 20) -> list[int]:
    there = {path.name for path in folder.iterdir()}
    assert there <= {name(number) for number in range(count)}
    return [number for number in range(count) if name(number) in there]


def test_what_is_put_is_found_as_it_was(tmp_path: Path) -> None:
    cache = Cache(tmp_path, ROOMY)
    assert cache.use(digests(files(1))) is None
    made = cache.put(files(1))
    found = Cache(tmp_path, ROOMY).use(digests(files(1)))
    assert found is not None
    assert found.path == made.path == tmp_path / name(1)
    assert (found.path / "sub/more.txt").read_bytes() == files(1)["sub/more.txt"]
    again = cache.put(files(1))
    assert again.path == made.path
    for hold in (made, found, again, again):
        hold.close()
    (made.path / "another.txt").touch()
    assert cache.use(digests(files(1))) is None


def test_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    cache = Cache(tmp_path, 3 * SIZE)
    for number in (1, 0):
        hold = cache.use(digests(files(number)))
        assert hold is not None
        os.utime(hold.path, (10 + number, 10 + number))
        hold.close()
    cache.prune()
    assert kept(tmp_path) == [0, 1, 4]
    cache.put(files(5)).close()
    assert kept(tmp_path) == [0, 1, 5]
    Cache(tmp_path, 0).prune()
    assert kept(tmp_path) == []


def test_a_use_is_the_last_one(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    hold = Cache(tmp_path, ROOMY).use(digests(files(0)))
    assert hold is not None
    hold.close()
    Cache(tmp_path, SIZE).prune()
    assert kept(tmp_path) == [0]


USE = """
import json, sys
from pathlib import Path
from wsgi_router.tokenizer_cache import Cache
hold = Cache(Path(sys.argv[1]), 0).use(json.loads(sys.argv[2]))
print(hold is not None, flush=True)
sys.stdin.read()
"""


def test_what_is_used_stays_until_its_process_ends(tmp_path: Path) -> None:
    cache = filled(tmp_path, 3)
    mine = cache.use(digests(files(2)))
    assert mine is not None
    command = [sys.executable, "-c", USE, str(tmp_path), json.dumps(digests(files(0)))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        Cache(tmp_path, 0).prune()
        assert kept(tmp_path) == [0, 2]  # beyond the bound, and in use
        mine.close()
        Cache(tmp_path, 0).prune()
        assert kept(tmp_path) == [0]
        other.kill()
    Cache(tmp_path, 0).prune()
    assert kept(tmp_path) == []


def test_what_is_being_removed_is_not_found_and_put_anew(tmp_path: Path) -> None:
    cache = filled(tmp_path, 1)
    descriptor = os.open(tmp_path / name(0), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # as who is about to rename it
    assert cache.use(digests(files(0))) is None
    (tmp_path / name(0)).rename(tmp_path / "old-1")
    hold = cache.put(files(0))
    os.close(descriptor)
    assert hold.path == tmp_path / name(0)
    Cache(tmp_path, 0).prune()
    assert kept(tmp_path) == [0]
    hold.close()


def test_what_processes_have_left_goes(tmp_path: Path) -> None:
    for left, age in (("new-stale", 7200), ("new-fresh", 0), ("old-1", 0)):
        (tmp_path / left).mkdir()
        (tmp_path / left / "tokenizer.json").write_bytes(b"{}")
        os.utime(tmp_path / left, (time.time() - age,) * 2)
    (tmp_path / "somebody's").mkdir()
    (tmp_path / "model.lock").touch()
    Cache(tmp_path, ROOMY).prune()
    assert {path.name for path in tmp_path.iterdir()} == {"new-fresh", "somebody's", "model.lock"}


def test_one_at_a_time_removes(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    Cache(tmp_path, SIZE).prune()
    assert kept(tmp_path) == [0, 1, 2, 3]
    os.close(descriptor)
    Cache(tmp_path, SIZE).prune()
    assert kept(tmp_path) == [3]


def test_who_was_turned_away_leaves_it_to_who_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 3)
    cache, other = Cache(tmp_path, SIZE), Cache(tmp_path, SIZE)
    remove = cache._remove_unused

    def and_another_comes() -> None:
        remove()
        if not (tmp_path / name(7)).exists():
            other.put(files(7)).close()  # finds the lock taken
            assert kept(tmp_path) == [2, 7]

    names = cache._names
    listed: list[set[str]] = []

    def late_names() -> set[str]:
        """Those that the remover has seen are not all."""
        found = names()
        if len(listed) == 2:
            found.discard(name(7))
        listed.append(found)
        return found

    monkeypatch.setattr(cache, "_remove_unused", and_another_comes)
    monkeypatch.setattr(cache, "_names", late_names)
    cache.prune()
    assert kept(tmp_path) == [7]


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    cache = Cache(tmp_path, 0)
    hold = cache.put(files(1))
    assert cache.use(digests(files(1))) is not None
    hold.close()
    cache.prune()
    assert kept(tmp_path) == [1]


def test_a_folder_that_is_not_as_it_was_is_replaced_though_it_is_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path, ROOMY)
    used = cache.put(files(1))
    (used.path / "tokenizer.json").write_bytes(b"broken")
    hold = cache.put(files(1))
    assert (hold.path / "tokenizer.json").read_bytes() == files(1)["tokenizer.json"]
    assert kept(tmp_path) == [1]
    used.close()
    Cache(tmp_path, 0).prune()
    assert kept(tmp_path) == [1]
    hold.close()


def test_a_link_to_the_cache(tmp_path: Path) -> None:
    filled(tmp_path, 0)
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    filled(link, 3)
    Cache(link, SIZE).prune()
    assert kept(real) == [2]


def test_a_cache_that_is_gone_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Cache(tmp_path / "gone", 0).prune()
    assert "cannot be pruned" in caplog.text


BUSY = """
import os, sys
from pathlib import Path
from tests.test_tokenizer_cache import be_busy
children = []
for seed in range(4):
    child = os.fork()
    if not child:
        try:
            be_busy(Path(sys.argv[1]), seed)
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
print("done")
"""


def be_busy(folder: Path, seed: int) -> None:
    """Puts and uses at random, in two threads; what is held is there and whole all the time."""
    chance = random.Random(seed)
    failed: list[BaseException] = []

    def work() -> None:
        cache = Cache(folder, 2 * SIZE)
        try:
            for _ in range(30):
                number = chance.randrange(6)
                hold = cache.use(digests(files(number))) or cache.put(files(number))
                for _ in range(3):
                    for file, content in files(number).items():
                        assert (hold.path / file).read_bytes() == content
                hold.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_many_processes_put_and_use_at_once(tmp_path: Path) -> None:
    assert output_of(BUSY, tmp_path) == "done\n"
    Cache(tmp_path, 2 * SIZE).prune()
    assert len(kept(tmp_path)) <= 2
