"""What all processes of a server have in common, made in gunicorn's master before it forks them.

And how they replace files and lock them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_CELL_BYTES: Final = 8


def cells(count: int) -> memoryview:
    """Integers in an anonymous mapping, all 0: one for all processes that are forked from now on.

    Each is read and written in one go. They take room only as they are used.
    """
    return memoryview(mmap.mmap(-1, count * _CELL_BYTES)).cast("q")


def zeros(count: int) -> memoryview:
    """To clear so many cells with."""
    return memoryview(bytes(count * _CELL_BYTES)).cast("q")


def replace_file(path: Path, data: bytes) -> None:
    """A file's new content, as a whole: whoever reads has the old or the new. For one writer of a process.

    Raises OSError.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_bytes(data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def try_lock(descriptor: int) -> bool:
    """Locks a file for this process, until that ends or closes it; False where another one has. Never blocks.

    To a process that has it, it is given again.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


class ProcessShared(Generic[_P, _T]):
    """One thing for all processes that are forked from now on; outside a server, one for each who asks.

    `make` makes it; `alone` makes what one has who shares with nobody.
    """

    def __init__(self, make: Callable[_P, _T], alone: Callable[[], _T]) -> None:
        self._make = make
        self._alone = alone
        self.made: _T | None = None
        """What is shared, if anything is."""

    def share(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Makes what the processes forked from now on share. In the master."""
        self.made = self._make(*args, **kwargs)
        return self.made

    def current(self) -> _T:
        """What the processes share, or a new one of the caller's own where no server has made any."""
        return self._alone() if self.made is None else self.made

    def __repr__(self) -> str:
        return f"<ProcessShared {self.made!r}>"
