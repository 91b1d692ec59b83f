"""Folders of files, each named by the digest of what is in it, and whole or not there; and a bound for all.

The processes of several servers may share a cache. Who uses a folder holds a lock on it, which ends with the
process. Beyond the bound what nobody holds is removed, what was used longest ago first. It is renamed before,
so that nobody finds a part of it; and who opens it at that moment does not find it at all, and puts it anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)

_NEW: Final = "new-"
_OLD: Final = "old-"
_FORGOTTEN_SECONDS: Final = 3600.0
"""A folder is written in less; one that is older and not in place was left by a process that has ended."""

_TRIES: Final = 20
_PAUSE: Final = 0.05
"""Seconds. Others may put the same, and be about to remove it, between a look and the next step."""

Files = Mapping[str, bytes]
"""Contents by relative names with slashes."""
Digests = Mapping[str, str]
"""Hex digests of contents, by names."""


def digests(files: Files) -> dict[str, str]:
    """Hex digests of the contents, by names in order."""
    return {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}


def folder_name(of_files: Digests) -> str:
    """The name of the folder with such files."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(of_files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


class Hold:
    """A folder in use: it stays until this is closed, or the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __repr__(self) -> str:
        return f"<Hold {self.path.name[:12]} held={self._descriptor is not None}>"


class Cache:
    """One for each process. Its methods may be called from any thread, and wait a second at most."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder: Final = folder
        self._most = most_bytes

    def use(self, of_files: Digests) -> Hold | None:
        """The folder with these files, if it is there and as it was."""
        path = self.folder / folder_name(of_files)
        descriptor = _lock(path, fcntl.LOCK_SH)
        if descriptor is None:
            return None
        if not _has(path, of_files):
            os.close(descriptor)
            return None
        with contextlib.suppress(OSError):
            os.utime(descriptor)  # the moment of its last use
        return Hold(path, descriptor)

    def put(self, files: Files) -> Hold:
        """Makes a folder of the files, if there is none yet, within the cache's own. Raises OSError."""
        of_files = digests(files)
        held = self.use(of_files)
        if held is None:
            held = self._make(files, of_files)
            self.prune()
        return held

    def _make(self, files: Files, of_files: Digests) -> Hold:
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.folder))
        descriptor = _lock(new, fcntl.LOCK_SH)  # goes with it when it is renamed
        try:
            _write(new, files)
            if descriptor is not None and _has(new, of_files):
                for _ in range(_TRIES):
                    path = self.folder / folder_name(of_files)
                    if self._place(new, path, of_files):
                        made, descriptor = Hold(path, descriptor), None
                        return made
                    if theirs := self.use(of_files):
                        return theirs
                    time.sleep(_PAUSE)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if descriptor is not None:
                os.close(descriptor)
        raise OSError(f"{self.folder} cannot be written")

    def _place(self, new: Path, path: Path, of_files: Digests) -> bool:
        """Gives a new folder its name; False if another process was faster."""
        with contextlib.suppress(OSError):  # there is one
            new.rename(path)
            return True
        with self._alone() as alone:
            if not alone or _has(path, of_files):  # who is not might take a good one away
                return False
            with contextlib.suppress(OSError):
                _discard(path)
                new.rename(path)
                return True
        return False

    def prune(self) -> None:
        """Removes what is beyond the bound and in nobody's use, and what processes that died have left."""
        left: set[str] | None = None
        try:
            while self._names() != left:  # again, where others have come and left it to this one
                with self._alone() as alone:
                    if not alone:
                        return
                    self._remove_forgotten()
                    self._remove_unused()
                    left = self._names()
        except OSError as error:
            _LOG.warning("%s cannot be pruned: %s", self.folder, error)

    def _remove_forgotten(self) -> None:
        since = time.time() - _FORGOTTEN_SECONDS
        for path in self.folder.iterdir():
            left = path.name.startswith(_OLD) or (path.name.startswith(_NEW) and _used(path) < since)
            if left and path.is_dir():
                _remove(path)

    def _remove_unused(self) -> None:
        paths = [self.folder / name for name in self._names()]
        sizes = {path: _size(path) for path in sorted(paths, key=_used)}
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total <= self._most:
                return
            if _remove(path):
                total -= size

    def _names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if _is_digest(path.name) and path.is_dir()}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process removes anything meanwhile."""
        descriptor = _lock(self.folder.resolve(), fcntl.LOCK_EX)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def __repr__(self) -> str:
        return f"<Cache {self.folder}>"


def _lock(path: Path, kind: int) -> int | None:
    """A descriptor of the folder that holds the lock; None if it is not there, or locked by another.

    On file systems without locks nothing can be removed, so that who uses a folder needs none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        locked = os.path.samestat(os.fstat(descriptor), path.stat())  # else it was renamed meanwhile
    except (BlockingIOError, FileNotFoundError):
        locked = False
    except OSError:
        locked = kind == fcntl.LOCK_SH
    if locked:
        return descriptor
    os.close(descriptor)
    return None


def _remove(path: Path) -> bool:
    """Whether a folder that nobody uses is no more."""
    descriptor = _lock(path, fcntl.LOCK_EX)
    if descriptor is None:
        return False
    try:
        _discard(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _discard(path: Path) -> None:
    """Raises OSError."""
    old = path.with_name(_OLD + secrets.token_hex(8))
    path.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def _write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)


def _has(folder: Path, of_files: Digests) -> bool:
    """Whether these files are there, and no others."""
    try:
        return (
            digests({name: (folder / name).read_bytes() for name in of_files}) == of_files
            and _inside(folder) == of_files.keys()
        )
    except OSError:
        return False


def _inside(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def _is_digest(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _used(path: Path) -> float:
    """When a folder was used last; 0 if it is not there any more."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    """Bytes in the folder's files."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size
