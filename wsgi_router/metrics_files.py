"""The files in which prometheus_client keeps each process's counts: those of ended processes are added up.

It keeps them for ever, since what was counted must not be lost; so each reload, and each process that
max_requests ends, would make /metrics slower, and its folder larger. The master adds a dead process's files
to one file of each type. A lock keeps /metrics from reading in between, when counts would be missing, or
twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)

_TYPES: Final = ("counter", "histogram")
_ENDED: Final = "ended"
"""Stands in a file's name where the process's id does."""
_LOCK: Final = "lock"
_TRIES: Final = 200
_PAUSE_SECONDS: Final = 0.005

_ROOM: Final = 1 << 16
_ENTRY_BYTES: Final = 32
"""Of an entry, besides its key, at most."""

_waiting: set[int] = set()
"""Dead processes whose files are still their own. In the master."""


def retire(folder: Path, process: int) -> None:
    """`process` has ended: what it had in flight is no more, what it counted stays. In the master.

    Never waits: while /metrics is read the files stay, until the next process ends.
    """
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(process, str(folder))  # type: ignore[no-untyped-call]
    _waiting.add(process)
    with _lock(folder, fcntl.LOCK_EX, tries=1) as held:
        if held:
            for kind in _TYPES:
                _put_together(folder, kind, [folder / f"{kind}_{dead}.db" for dead in sorted(_waiting)])
            _waiting.clear()


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Within, no counts move from file to file."""
    with _lock(folder, fcntl.LOCK_SH, _TRIES):
        yield


@contextlib.contextmanager
def _lock(folder: Path, kind: int, tries: int) -> Iterator[bool]:
    """Whether it was had: a process that stands still must not hold up the others."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        held = _acquire(descriptor, kind)
        while not held and (tries := tries - 1) > 0:
            time.sleep(_PAUSE_SECONDS)
            held = _acquire(descriptor, kind)
        yield held
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _put_together(folder: Path, kind: str, files: list[Path]) -> None:
    """The counts of `files` are in the file of the ended from here on."""
    files = [file for file in files if file.exists()]
    if not files:
        return
    ended = folder / f"{kind}_{_ENDED}.db"
    _write(ended, _sums([*files, *([ended] if ended.exists() else [])]))
    for file in files:
        file.unlink()


def _sums(files: list[Path]) -> dict[str, float]:
    """By key."""
    from prometheus_client.mmap_dict import MmapedDict

    sums: dict[str, float] = {}
    for file in files:
        try:
            values = list(MmapedDict.read_all_values_from_file(str(file)))  # type: ignore[no-untyped-call]
        except Exception:  # its process was killed while it began the file
            _LOG.warning("%s cannot be read; its counts are lost", file.name)
            continue
        for key, value, _time, _place in values:
            sums[key] = sums.get(key, 0.0) + value
    return sums


def _write(file: Path, values: dict[str, float]) -> None:
    """In one step: a master that is killed in between leaves either the old or the new."""
    from prometheus_client.mmap_dict import MmapedDict

    fresh = file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    _make_room(fresh, values)
    written = MmapedDict(str(fresh))  # type: ignore[no-untyped-call]
    for key, value in values.items():
        written.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
    written.close()  # type: ignore[no-untyped-call]
    fresh.replace(file)


def _make_room(file: Path, values: dict[str, float]) -> None:
    """Raises OSError on a full disk, where writing to the mapping would be a SIGBUS."""
    size = _ROOM
    while size < sum(len(key.encode()) + _ENTRY_BYTES for key in values) + _ENTRY_BYTES:
        size *= 2
    with file.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, size)
