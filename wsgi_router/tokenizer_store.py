"""Tokenizers that came from workers: zips that are checked and unpacked, and folders that keep them.

A zip of a worker is somebody else's data: names that lead out of the folder, links, too many files and too
many bytes are refused, by what is really there and not by what the zip says of itself.

The folders are those of a cache (`tokenizer_cache`). For each model stands in the server's own folder which
of them is its own; all processes of a server go by that.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from wsgi_router import setting_sources
from wsgi_router.settings import Settings
from wsgi_router.sharing import try_lock
from wsgi_router.tokenizer_cache import Cache, Files, Hold, digests
from wsgi_router.workers.board import Board

MOST_PACKED: Final = 128 << 20
MOST_UNPACKED: Final = 512 << 20
"""Bytes. The largest tokenizers of today have 40 MB."""
MOST_FILES: Final = 100
_MOST_NAME: Final = 200
"""Bytes."""
_ENTRY: Final = b"PK\x01\x02"
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Others may take much memory."""
_ENCRYPTED: Final = 1
_PIECE: Final = 1 << 20
_LOOK_SECONDS: Final = 0.1
_RECORDS: Final = "tokenizers"
_MOST_MIB: Final = Settings().tokenizer_cache_mib


class UnusableZipError(ValueError):
    """A zip that is not what it should be; the text says why."""


class Record(msgspec.Struct, frozen=True):
    """Which tokenizer a model has. `files`: hex digests by names."""

    model: str
    worker: str
    """URL of the worker that it came from."""
    folder: str
    files: dict[str, str]


def unpack(data: bytes) -> Files:
    """What is in the zip. Raises UnusableZipError."""
    if len(data) > MOST_PACKED:
        raise UnusableZipError(f"it has more than {MOST_PACKED} bytes")
    # Each entry of the directory becomes an object. The four bytes may stand in a file by chance.
    if data.count(_ENTRY) > 2 * MOST_FILES:
        raise UnusableZipError(f"it has more than {MOST_FILES} files")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _contents(archive)
    except UnusableZipError:
        raise
    except Exception as error:  # zipfile fails in many ways over broken data
        raise UnusableZipError(f"it cannot be read: {error}") from None


def _contents(archive: zipfile.ZipFile) -> Files:
    entries = [entry for entry in archive.infolist() if not entry.filename.endswith("/")]
    if not entries:
        raise UnusableZipError("it has no files")
    if len(entries) > MOST_FILES:
        raise UnusableZipError(f"it has more than {MOST_FILES} files")
    files: dict[str, bytes] = {}
    room = MOST_UNPACKED
    for entry in entries:
        _check(entry)
        if entry.filename in files:
            raise UnusableZipError(f"it has two files {entry.filename!r}")
        files[entry.filename] = _content(archive, entry, room)
        room -= len(files[entry.filename])
    for name in files:
        if any(str(folder) in files for folder in PurePosixPath(name).parents):
            raise UnusableZipError(f"a folder of {name!r} in it is a file, too")
    return files


def _check(entry: zipfile.ZipInfo) -> None:
    name = entry.filename
    parts = name.split("/")
    unsafe = any(part in ("", ".", "..") for part in parts) or any(char in name for char in "\\:\0")
    long = len(name.encode()) > _MOST_NAME
    if unsafe or long or not name.isprintable() or entry.orig_filename != name:
        raise UnusableZipError(f"it has a file with the name {entry.orig_filename[:_MOST_NAME]!r}")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise UnusableZipError(f"{name!r} in it is a link, or no file")
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
        raise UnusableZipError(f"{name!r} in it is encrypted, or compressed in an unusual way")


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, room: int) -> bytes:
    pieces: list[bytes] = []
    with archive.open(entry) as source:
        while piece := source.read(_PIECE):
            room -= len(piece)
            if room < 0:
                raise UnusableZipError(f"unpacked it has more than {MOST_UNPACKED} bytes")
            pieces.append(piece)
    return b"".join(pieces)


def check(cache: str) -> None:
    """Makes the folder of TOKENIZER_CACHE, if one is named. Raises SettingsError."""
    if not cache:
        return
    with setting_sources.writing("TOKENIZER_CACHE", cache):
        Path(cache).mkdir(mode=0o700, parents=True, exist_ok=True)


def prune(cache: str, most_mib: int) -> None:
    """Brings TOKENIZER_CACHE, if one is named, to what it may have. In the master."""
    if cache:
        Cache(Path(cache), most_mib << 20).prune()


class Store:
    """One for each process. Its methods may be called from any thread; none but `locked` waits for long."""

    def __init__(self, board: Board, cache: str = "", most_mib: int = _MOST_MIB) -> None:
        self._own = None if board.folder else tempfile.TemporaryDirectory(prefix="wsgi-router-tokenizers-")
        self._records = (board.folder or Path(self._own.name if self._own else "")) / _RECORDS
        self._cache = Cache(Path(cache) if cache else self._records, most_mib << 20)
        self._holds: dict[str, Hold] = {}

    def close(self) -> None:
        """Removes what no other process uses. Idempotent."""
        for model in tuple(self._holds):
            self.release(model)
        if self._own is not None:
            self._own.cleanup()

    def record(self, model: str) -> Record | None:
        """What was recorded last of a model."""
        try:
            return msgspec.json.decode(self._path(model, "json").read_bytes(), type=Record)
        except (OSError, ValueError):  # msgspec's errors are ValueErrors
            return None

    def put(self, model: str, worker: str, files: Files) -> Record:
        """Makes a folder of the files, which stays until `release`. Raises OSError."""
        folder = self._cache.folder
        # What has ended is not begun anew: the records' folder lies in one that goes with the server.
        folder.mkdir(mode=0o700, parents=folder != self._records, exist_ok=True)
        hold = self._cache.put(files)
        self._keep_hold(model, hold)
        return Record(model, worker, hold.path.name, digests(files))

    def keep(self, record: Record) -> Record:
        """Makes what was put the model's own, for all processes. Raises OSError."""
        self._records.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._records, prefix="new-", delete=False) as new:
            new.write(msgspec.json.encode(record))
        os.replace(new.name, self._path(record.model, "json"))
        return record

    def folder(self, record: Record) -> Path | None:
        """The folder of a recorded tokenizer, if it is there and as it was; it stays until `release`."""
        hold = self._cache.use(record.files)
        self._keep_hold(record.model, hold)
        return None if hold is None else hold.path

    def release(self, model: str) -> None:
        """The model's tokenizer is not in use any more: its folder may be removed. Idempotent."""
        self._keep_hold(model, None)

    def _keep_hold(self, model: str, hold: Hold | None) -> None:
        before = self._holds.pop(model, None)
        if hold is not None:
            self._holds[model] = hold
        if before is not None:
            before.close()

    @contextlib.contextmanager
    def locked(self, model: str, seconds: float) -> Iterator[Record | None]:
        """Holds off the other processes that want the same tokenizer; gives what they have recorded.

        Raises TimeoutError, OSError.
        """
        self._records.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._path(model, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + seconds
            while not try_lock(descriptor) and self.record(model) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError("another process has been fetching it for too long")
                time.sleep(_LOOK_SECONDS)
            yield self.record(model)
        finally:
            os.close(descriptor)  # the lock ends with it

    def _path(self, model: str, suffix: str) -> Path:
        return self._records / f"{hashlib.sha256(model.encode()).hexdigest()[:32]}.{suffix}"

    def __repr__(self) -> str:
        return f"<Store {self._cache.folder}>"


def forget(board: Board) -> None:
    """Processes forked from now on ask the workers anew which tokenizers they have. In the master."""
    if board.folder is not None:
        for record in (board.folder / _RECORDS).glob("*.json"):
            record.unlink(missing_ok=True)
