"""The list of workers, as it is changed while running."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from wsgi_router.errors import InternalError, InvalidRequestError
from wsgi_router.setting_casts import MOST_WORKERS
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.workers import membership as module
from wsgi_router.workers.board import Board
from wsgi_router.workers.membership import Membership, WorkerExistsError
from wsgi_router.workers.roles import REGULAR, Part, Role

A, B, C = "grpc://a:1", "grpc://b:1", "grpc://c:1"


@pytest.fixture(params=["memory", "folder", "file"])
def membership(request: pytest.FixtureRequest, tmp_path: Path) -> Membership:
    board = Board(None if request.param == "memory" else tmp_path)
    path = str(tmp_path / "kept.json") if request.param == "file" else ""
    return Membership((A, B), board, path)


def test_it_begins_with_the_settings(membership: Membership) -> None:
    assert dict(membership.entries()) == {A: False, B: False}


def test_changes(membership: Membership) -> None:
    generations = [membership.generation]

    def entries() -> dict[str, bool]:
        generations.append(membership.generation)
        return dict(membership.entries())

    membership.add(C)
    assert entries() == {A: False, B: False, C: False}
    membership.drain(B, True)
    membership.drain(C, True)
    membership.drain(B, True)
    assert entries() == {A: False, B: True, C: True}
    membership.drain(B, False)
    assert entries() == {A: False, B: False, C: True}
    membership.remove(A)
    membership.remove(C)
    assert entries() == {B: False}
    membership.add(A)
    membership.add(C)
    assert entries() == {A: False, B: False, C: False}  # C drains no longer
    assert sorted(set(generations)) == generations


def test_parts(tmp_path: Path) -> None:
    """Those of the settings, those of added workers, and what is added again as something else."""
    settings = Settings(
        workers=(A,), prefill_workers=("grpc://p:1 9001", "grpc://q:1"), decode_workers=("grpc://d:1",)
    )
    known = module.parts(settings)
    path = str(tmp_path / "workers.json")

    def membership() -> Membership:
        return Membership(tuple(known), Board(), path, known)

    def shown() -> dict[str, tuple[object, ...]]:
        return {url: tuple(member.part) for url, member in membership().members().items()}

    regular, prefill, decode = ("regular", 8998), ("prefill", 8998), ("decode", 8998)
    first = {A: regular, "grpc://p:1": ("prefill", 9001), "grpc://q:1": prefill, "grpc://d:1": decode}
    assert shown() == first
    membership().add(B, Part(Role.PREFILL, 9002))
    membership().add(C, Part(Role.DECODE))
    added = {B: ("prefill", 9002), C: decode}
    assert shown() == first | added
    for url, part in (("grpc://d:1", Part(Role.PREFILL)), (B, Part(Role.DECODE)), ("grpc://p:1", Part())):
        membership().remove(url)
        assert url not in shown()
        membership().add(url, part)
    assert shown() == first | added | {"grpc://d:1": prefill, B: decode, "grpc://p:1": regular}
    for url in ("grpc://d:1", "grpc://p:1"):
        membership().remove(url)
        membership().add(url)
    assert shown() == first | added | {B: decode}
    assert "d:1" not in Path(path).read_text()
    known[B] = Part(Role.PREFILL, 9003)  # now the settings say so
    assert shown()[B] == ("prefill", 9003)


def test_refusals(membership: Membership) -> None:
    for url in (A, B, A.replace("grpc://", "grpcs://")):
        with pytest.raises(WorkerExistsError):
            membership.add(url)
    before = membership.generation
    for number in range(MOST_WORKERS - 2):
        membership.add(f"grpc://x{number}:1")
    with pytest.raises(InvalidRequestError, match="no more"):
        membership.add(C)
    assert membership.generation == before + MOST_WORKERS - 2
    membership.remove("grpc://x5:1")
    membership.add(C)
    membership.remove("grpc://nobody:1")
    membership.drain("grpc://nobody:1", True)
    assert len(membership.entries()) == MOST_WORKERS


def test_other_processes_see_it(tmp_path: Path) -> None:
    board = Board(tmp_path)
    one, other = Membership((A,), board), Membership((A,), board)
    seen = other.generation
    one.add(B)
    assert other.generation != seen
    assert list(other.entries()) == [A, B]


def test_a_file_outlives_the_server_and_follows_the_settings(tmp_path: Path) -> None:
    path = str(tmp_path / "workers.json")
    first = Membership((A, B), Board(), path)
    first.add(C)
    first.remove(A)
    assert list(Membership((A, B), Board(), path).entries()) == [B, C]
    assert list(Membership((C, "grpc://new:1", A), Board(), path).entries()) == [C, "grpc://new:1"]


def test_a_file_may_be_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    path.write_text(
        '{"added": ["c:1/", "grpcs://d:1"], "removed": ["a:1"], "draining": ["c:1"],'
        ' "halves": {"c:1": {"role": "decode"}}}'
    )
    membership = Membership((A, B), Board(), str(path))
    assert dict(membership.entries()) == {B: False, C: True, "grpcs://d:1": False}
    assert membership.members()[C] == (Part(Role.DECODE), True)


TOO_MANY = json.dumps({"added": [f"grpc://x{number}:1" for number in range(MOST_WORKERS)]}).encode()
UNUSABLE = [
    *(b"", b"{", b"[]", b'{"added":[1]}', b'{"more":[]}', b"\xff"),
    *(b'{"halves":{"a:1":{"role":"both"}}}', b'{"halves":{"a":{"role":"decode"}}}'),
    *(b'{"added":["a"]}', b'{"removed":["http://a:1"]}', b'{"draining":["c:70000"]}', TOO_MANY),
]


@pytest.mark.parametrize("text", UNUSABLE)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "workers.json"
    path.write_bytes(text)
    with pytest.raises(SettingsError, match=r"WORKERS_FILE.*workers\.json"):
        Membership((A,), Board(), str(path))
    with pytest.raises(SettingsError, match=r"WORKERS_FILE.*workers\.json"):
        module.read(Settings(workers=(A,), workers_file=str(path)))
    assert path.read_bytes() == text


@pytest.mark.parametrize("text", UNUSABLE)
@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_breaks_while_running_does_no_harm(tmp_path: Path, text: bytes, shared: bool) -> None:
    """All goes on with what there was, in new processes too, and the next change mends the file."""
    path = tmp_path / "kept.json"
    board = Board(tmp_path if shared else None)
    membership = Membership((A,), board, str(path))
    membership.add(B)
    path.write_bytes(text)
    assert list(membership.entries()) == [A, B]
    if shared:
        assert list(Membership((A,), board, str(path)).entries()) == [A, B]
    membership.add(C)
    assert list(membership.entries()) == [A, B, C]
    assert list(Membership((A,), Board(), str(path)).entries()) == [A, B, C]


def test_a_file_that_is_gone_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    membership = Membership((A,), Board(tmp_path), str(path))
    membership.add(B)
    path.unlink()
    membership.add(C)
    assert list(membership.entries()) == [A, B, C]
    assert list(Membership((A,), Board(), str(path)).entries()) == [A, B, C]


def test_the_start_and_a_reload_take_the_file_in(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    settings = Settings(workers=(A,), workers_file=str(path))
    board = Board(tmp_path)
    module.share(board, module.read(settings))
    membership = Membership((A,), board, str(path))
    assert list(membership.entries()) == [A]
    path.write_bytes(b'{"added":["b:1","grpcs://a:1","grpc://b:1"],"draining":["grpc://a:1"]}')
    before = membership.generation
    module.share(board, module.read(settings))
    assert membership.generation != before
    assert dict(membership.entries()) == {A: True, B: False}  # a worker is there once
    assert module.read(Settings(workers=(A,))) is None
    module.share(board, None)
    assert list(membership.entries()) == [A, B]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """Somebody has cleaned up the folder for temporary files."""
    folder = tmp_path / "state"
    folder.mkdir()
    board = Board(folder)
    membership = Membership((A,), board)
    membership.add(B)
    shutil.rmtree(folder)
    with pytest.raises(InternalError, match="cannot be kept"):
        membership.add(C)
    with pytest.raises(SettingsError, match="cannot be written"):
        module.share(board, module.Changes())


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    membership = Membership((A,), Board(), str(tmp_path / "nowhere" / "workers.json"))
    with pytest.raises(InternalError, match="No such file"):
        membership.add(B)
    assert list(membership.entries()) == [A]
    assert membership.generation == 0


def test_no_change_is_lost_between_threads(tmp_path: Path) -> None:
    board = Board(tmp_path)

    def add(thread: int) -> None:
        membership = Membership((), board)
        for number in range(20):
            membership.add(f"grpc://host{thread}:{number + 1}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Membership((), board).entries()) == 80


D, E = "grpc://d:1", "grpc://e:1"


def of(*urls: str, part: Part = REGULAR) -> dict[str, Part]:
    return dict.fromkeys(urls, part)


@pytest.fixture(params=["memory", "folder", "file"])
def discovering(request: pytest.FixtureRequest, tmp_path: Path) -> Membership:
    board = Board(None if request.param == "memory" else tmp_path)
    path = str(tmp_path / "kept.json") if request.param == "file" else ""
    return Membership((A, B), board, path, sources=("dns", "pods"))


def test_what_is_discovered_is_added_to_the_settings(discovering: Membership) -> None:
    assert not discovering.is_complete()
    generation = discovering.generation
    assert discovering.discover("pods", of(D, B.replace("grpc", "grpcs")))
    assert discovering.generation > generation
    generation = discovering.generation
    assert not discovering.discover("pods", of(D, B.replace("grpc", "grpcs")))
    assert discovering.generation == generation
    assert discovering.discover("dns", of(C))
    assert discovering.is_complete()
    assert list(discovering.entries()) == [A, B, C, D]
    discovering.add(E)
    assert list(discovering.entries()) == [A, B, E, C, D]
    discovering.discover("dns", of(E, D))
    assert list(discovering.entries()) == [A, B, E, D]
    discovering.discover("dns", {})
    discovering.discover("pods", {})
    assert list(discovering.entries()) == [A, B, E]
    discovering.discover("unknown", of(C))  # of settings before a reload
    assert list(discovering.entries()) == [A, B, E]


def test_a_change_of_a_discovered_worker_holds_as_long_as_it_is_discovered(discovering: Membership) -> None:
    discovering.discover("dns", of(C, D))
    discovering.discover("pods", of(D))
    discovering.remove(C)
    discovering.drain(D, True)
    discovering.discover("dns", of(C, D, E))
    assert dict(discovering.entries()) == {A: False, B: False, D: True, E: False}
    discovering.discover("dns", of(E))  # the other source still has D
    assert dict(discovering.entries()) == {A: False, B: False, E: False, D: True}
    discovering.discover("pods", {})
    discovering.discover("dns", of(C, D))
    assert dict(discovering.entries()) == {A: False, B: False, C: False, D: False}
    discovering.remove(C)
    with pytest.raises(WorkerExistsError):
        discovering.add(D)
    discovering.add(C)
    assert dict(discovering.entries()) == {A: False, B: False, D: False, C: False}
    discovering.remove(A)
    discovering.drain(B, True)
    discovering.discover("dns", of(A, B))
    discovering.discover("dns", {})
    assert dict(discovering.entries()) == {B: True}  # those of the settings stay as they were


def test_parts_of_what_is_discovered(discovering: Membership) -> None:
    """An operator may say otherwise, as long as the worker is there."""
    prefill, decode = Part(Role.PREFILL, 9001), Part(Role.DECODE)

    def part(url: str) -> Part:
        return discovering.members()[url].part

    assert discovering.discover("pods", of(A, C, part=decode) | of(D))
    assert discovering.discover("dns", of(C, part=prefill))
    assert [part(url) for url in (A, C, D)] == [REGULAR, prefill, REGULAR]
    assert discovering.discover("dns", of(C, part=Part(Role.PREFILL)))
    assert part(C).bootstrap_port == 8998
    assert not discovering.discover("dns", of(C, part=Part(Role.PREFILL)))
    for asked, found in ((None, Part(Role.PREFILL)), (REGULAR, REGULAR), (None, Part(Role.PREFILL))):
        discovering.remove(C)
        discovering.add(C, asked)
        assert part(C) == found
    discovering.remove(C)
    discovering.add(C, decode)
    discovering.discover("dns", of(C, part=prefill))
    assert part(C) == decode
    for source in ("dns", "pods"):
        discovering.discover(source, {})
    discovering.discover("dns", of(C, part=prefill))
    assert part(C) == prefill
    discovering.add(E)
    discovering.discover("dns", of(E, part=decode))  # the operator has said nothing of it
    assert part(E) == decode


def test_a_worker_is_added_that_was_removed_when_it_was_discovered(tmp_path: Path) -> None:
    """Its removal outlives a restart, after which nothing is discovered yet."""
    path = tmp_path / "kept.json"
    first = Membership((), Board(), str(path), sources=("dns",))
    first.discover("dns", of(C))
    first.remove(C)
    second = Membership((), Board(), str(path), sources=("dns",))
    second.discover("dns", of(C, D))
    assert list(second.entries()) == [D]
    third = Membership((), Board(), str(path), sources=("dns",))
    third.add(C)
    assert list(third.entries()) == [C]
    assert json.loads(path.read_text()) == {"added": [C]}


def test_more_are_discovered_than_can_be_served(
    discovering: Membership, caplog: pytest.LogCaptureFixture
) -> None:
    discovering.add(C)
    discovering.discover("dns", of(*(f"grpc://d{number}:1" for number in range(MOST_WORKERS))))
    entries = list(discovering.entries())
    assert len(entries) == MOST_WORKERS
    assert entries[:3] == [A, B, C]
    assert f"{MOST_WORKERS + 3} workers were discovered or named" in caplog.text
    with pytest.raises(InvalidRequestError):
        discovering.add(E)


def test_all_processes_see_what_one_has_discovered(tmp_path: Path) -> None:
    one, other = (Membership((), Board(tmp_path), sources=("dns",)) for _ in range(2))
    one.discover("dns", of(C))
    assert list(other.entries()) == [C]
    (tmp_path / "discovered.json").write_text("{")
    with pytest.raises(SettingsError):
        other.entries()
    with pytest.raises(InternalError):
        one.discover("dns", of(D))
