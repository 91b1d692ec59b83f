"""Zips of workers: what is refused, and the folders in which the others are kept."""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.processes import ROOT
from wsgi_router import tokenizer_store
from wsgi_router.settings import SettingsError
from wsgi_router.tokenizer_store import Store, UnusableZipError, check, unpack
from wsgi_router.workers.board import Board

FILES = {"tokenizer.json": b"{}" * 1000, "additional_chat_templates/rag.jinja": b"x"}


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


def entry(name: str, attributes: int = 0, flags: int = 0) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = attributes << 16
    made.flag_bits = flags
    return made


def test_files_and_folders_are_unpacked() -> None:
    data = zipped(("additional_chat_templates/", b""), *FILES.items())
    assert unpack(data) == FILES
    assert unpack(zipped(*FILES.items(), method=zipfile.ZIP_STORED)) == FILES


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "./x",
        "a\\..\\x",
        "C:x",
        "x\n",
        "",
        "x" * 201,
        "é" * 101,
        "a/./b",
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(UnusableZipError, match="with the name"):
        unpack(zipped(("tokenizer.json", b"{}"), (entry(name), b"x")))


def test_a_name_with_a_nul_is_refused() -> None:
    data = zipped(("tokenizer.json", b"{}"), ("xxyy", b"x")).replace(b"xxyy", b"xx\0y")
    with pytest.raises(UnusableZipError, match="with the name"):
        unpack(data)


@pytest.mark.parametrize("kind", [0o120777, 0o020666, 0o010666, 0o140666])
def test_links_and_devices_are_refused(kind: int) -> None:
    with pytest.raises(UnusableZipError, match="a link, or no file"):
        unpack(zipped((entry("tokenizer.json", kind), b"/etc/passwd")))


def test_a_regular_file_of_a_unix_system_is_taken() -> None:
    assert unpack(zipped((entry("tokenizer.json", 0o100644), b"{}"))) == {"tokenizer.json": b"{}"}


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compression_is_refused(method: int) -> None:
    with pytest.raises(UnusableZipError, match="unusual"):
        unpack(zipped(("tokenizer.json", b"{}"), method=method))


def test_an_encrypted_file_is_refused() -> None:
    data = bytearray(zipped(("tokenizer.json", b"{}")))
    start = data.index(b"PK\x01\x02")
    data[start + 8] |= 1
    with pytest.raises(UnusableZipError, match="encrypted"):
        unpack(bytes(data))


def test_a_bomb_is_refused_whatever_it_says_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_store, "MOST_UNPACKED", 3 << 20)
    content = bytes(2 << 20)
    with pytest.raises(UnusableZipError, match="unpacked it has more"):
        unpack(zipped(("a", content), ("b", content)))
    liar = zipped(("a", bytes(8 << 20))).replace(struct.pack("<I", 8 << 20), struct.pack("<I", 1))
    with pytest.raises(UnusableZipError):
        unpack(liar)


def test_too_many_files_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [(f"f{index}", b"x") for index in range(3 * tokenizer_store.MOST_FILES)]
    with pytest.raises(UnusableZipError, match="more than 100 files"):
        unpack(zipped(*many[:101]))
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("was read"))
    data = b"PK\x01\x02" * (2 * tokenizer_store.MOST_FILES + 1)
    with pytest.raises(UnusableZipError, match="more than 100 files"):
        unpack(data)
    with pytest.raises(UnusableZipError, match="bytes"):
        unpack(bytes(tokenizer_store.MOST_PACKED + 1))


def test_one_name_twice_is_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        data = zipped(("a", b"1"), ("a", b"2"))
    with pytest.raises(UnusableZipError, match="two files"):
        unpack(data)


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b/c", "a")])
def test_a_file_that_is_a_folder_too_is_refused(names: tuple[str, str]) -> None:
    with pytest.raises(UnusableZipError, match="is a file, too"):
        unpack(zipped(*((name, b"x") for name in names)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"no zip",
        lambda data: data[:-30],
        lambda data: data[:40] + bytes(20) + data[60:],
        lambda data: zipped(),
        lambda data: zipped(("only/a/folder/", b"")),
    ],
)
def test_what_is_broken_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(UnusableZipError):
        unpack(spoil(zipped(*FILES.items())))


@given(st.integers(0, 3), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6))
@settings(max_examples=500)
def test_whatever_is_broken_nothing_but_a_refusal_comes_of_it(
    kind: int, changes: list[tuple[int, int]]
) -> None:
    """Of these bytes some stand in the directory, whose numbers point anywhere then."""
    data = bytearray(zipped(*FILES.items(), method=(zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[kind % 2]))
    start = data.index(b"PK\x01\x02") if kind > 1 else 0
    for place, value in changes:
        data[start + place % (len(data) - start)] = value
    with contextlib.suppress(UnusableZipError):
        unpack(bytes(data))


HOLD = """
import sys
from pathlib import Path
from wsgi_router.tokenizer_store import Store
from wsgi_router.workers.board import Board
store = Store(Board(Path(sys.argv[1])))
with store.locked("m", 5) as record:
    assert record is None
    print("held", flush=True)
    sys.stdin.readline()
    store.keep(store.put("m", "grpc://w:1", {"tokenizer.json": b"{}"}))
"""


def test_processes_wait_for_the_one_that_fetches(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    store = Store(Board(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(TimeoutError), store.locked("m", 0.2):
            pass
        with store.locked("n", 0.2) as record:  # another model
            assert record is None
        threading.Timer(0.3, other.stdin.close).start()  # it goes on
        with store.locked("m", 10) as record:
            assert record is not None
            assert record.worker == "grpc://w:1"


def test_a_process_that_dies_holds_nobody_up(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        threading.Timer(0.3, other.kill).start()
        with Store(Board(tmp_path)).locked("m", 10) as record:
            assert record is None


def test_what_is_kept_is_found_by_all_and_only_as_it_was(tmp_path: Path) -> None:
    board = Board(tmp_path)
    cache = tmp_path / "cache"
    first, second = Store(board, str(cache)), Store(board, str(cache))
    assert first.record("m") is None
    made = first.keep(first.put("m", "grpc://w:1", FILES))
    assert second.record("m") == made
    folder = second.folder(made)
    assert folder is not None
    assert folder.parent == cache
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")} == FILES
    assert [path.name for path in cache.iterdir()] == [made.folder]
    assert second.keep(second.put("n", "grpc://w:2", FILES)).folder == made.folder

    (folder / "tokenizer.json").write_bytes(b"[]")
    assert first.folder(made) is None
    first.keep(first.put("m", "grpc://w:1", FILES))
    assert first.folder(made) == folder
    (folder / "chat_template.jinja").write_bytes(b"")
    assert first.folder(made) is None
    first.keep(first.put("m", "grpc://w:1", FILES))
    assert first.folder(made) == folder
    tokenizer_store.forget(board)
    assert first.record("m") is None
    assert first.folder(made) == folder


def test_many_keep_the_same_at_once(tmp_path: Path) -> None:
    board = Board(tmp_path)
    failed: list[Exception] = []

    def keep(number: int) -> None:
        try:
            store = Store(board)
            store.keep(store.put("m", f"grpc://w:{number}", FILES))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    store = Store(board)
    record = store.record("m")
    assert record is not None
    assert store.folder(record) is not None
    assert not list((tmp_path / "tokenizers").glob("new-*"))


def test_without_a_server_the_folder_goes_with_the_store() -> None:
    store = Store(Board())
    record = store.keep(store.put("m", "grpc://w:1", FILES))
    folder = store.folder(record)
    assert folder is not None
    store.close()
    assert not folder.exists()
    assert store.folder(record) is None


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        Store(Board(tmp_path), str(tmp_path / "file")).put("m", "grpc://w:1", FILES)


def test_a_cache_that_cannot_be_is_told_at_the_start(tmp_path: Path) -> None:
    check("")
    check(str(tmp_path / "deep" / "cache"))
    assert (tmp_path / "deep" / "cache").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match="TOKENIZER_CACHE"):
        check(str(tmp_path / "file" / "cache"))
