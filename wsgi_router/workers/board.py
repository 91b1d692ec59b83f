"""What the processes of a server know of the workers together: their loads, and which list is served.

An anonymous mapping, made before the fork, has a row for each process and a column for each worker, twice:
requests in flight, and blocks of prompts that are still to be computed. A cell is written by its own process
alone, in one store of eight bytes, so that no process waits for another; a load is the sum of a column. The
master gives out the rows, and clears that of a process that has ended. Columns are found by the workers'
names, and taken under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from wsgi_router.setting_casts import MOST_WORKERS
from wsgi_router.settings import SettingsError
from wsgi_router.sharing import ProcessShared, cells, try_lock, zeros

ROWS: Final = 128
"""Of 64 processes: while a reload goes on there are the old ones and the new ones."""
COLUMNS: Final = 2 * MOST_WORKERS
"""Of a list that has changed there are the old workers and the new ones."""
_HELD: Final = 1 << 40
"""Added to a cell for each that uses the column, so that one nobody uses is told from an idle worker's."""
_QUEUED: Final = ROWS * COLUMNS
_NAMES: Final = 2 * _QUEUED
_ROWS_USED: Final = _NAMES + COLUMNS
_GENERATION: Final = _ROWS_USED + 1
_CELLS: Final = _GENERATION + 1


class BoardFullError(SettingsError):
    """There is no column left for a worker."""

    def __init__(self) -> None:
        super().__init__(f"at most {COLUMNS} workers are counted")


class Board:
    """Made before the fork, with a folder that outlives the processes, it is shared by those that follow."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._cells = cells(_CELLS)
        self._taken: set[int] = set()
        self._row: int | None = None if folder else 0
        if folder is None:
            self._cells[_ROWS_USED] = 1
        self._lock = threading.RLock()
        self._files: dict[str, tuple[int, int]] = {}
        self._resigned = False

    @property
    def row(self) -> int | None:
        """This process's own; None if it has none."""
        return self._row

    @property
    def rows(self) -> int:
        """All rows in use are before this one."""
        used: int = self._cells[_ROWS_USED]
        return used

    def leads(self) -> bool:
        """Whether this process is the one that does what one alone need do for all; it may become so later.

        It stays so until it ends or resigns. Never blocks.
        """
        if self.folder is None:
            return True
        if self._resigned:
            return False
        return try_lock(self._descriptor(self.folder, "leader"))

    def resign(self) -> None:
        """Leaves to another process, for good, what one does for all."""
        if self.folder is not None:
            self._resigned = True
            fcntl.lockf(self._descriptor(self.folder, "leader"), fcntl.LOCK_UN)

    def take_row(self) -> int | None:
        """A row for a process about to be forked; None if all are taken. In the master."""
        row = next((row for row in range(ROWS) if row not in self._taken), None)
        if row is not None:
            self._taken.add(row)
            self._set_rows()
        return row

    def free_row(self, row: int | None) -> None:
        """Clears the row of a process that has ended. In the master."""
        if row is None:
            return
        self._cells[row:_NAMES:ROWS] = zeros(2 * COLUMNS)
        self._taken.discard(row)
        self._set_rows()

    def use_row(self, row: int | None) -> None:
        """From now on this process counts in `row`; without one, others do not see its counts."""
        self._row = row

    def load(self, url: str, clear: Callable[[int], object] | None = None) -> Load:
        """A worker's counts, which are to be closed. Raises BoardFullError.

        `clear(column)` is called under the lock if nobody counts in that column yet: what else is known of
        its worker is of another time, or another worker.
        """
        with self.locked():
            column = self._column(_name(url))
            if clear is not None and not any(self._cells[column * ROWS : (column + 1) * ROWS]):
                clear(column)
            return Load(self._cells, column * ROWS, self._row, self._lock)

    @property
    def generation(self) -> int:
        """Goes up with each change of the list of workers."""
        generation: int = self._cells[_GENERATION]
        return generation

    def advance(self) -> None:
        """The list of workers has changed. Under the lock."""
        self._cells[_GENERATION] += 1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds all others off, of this process and of the others. For what takes no time."""
        with self._lock:
            if self.folder is None:
                yield
                return
            # Locks of this kind belong to a process, and end with it.
            fcntl.lockf(self._descriptor(self.folder, "lock"), fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor(self.folder, "lock"), fcntl.LOCK_UN)

    def _descriptor(self, folder: Path, name: str) -> int:
        process = os.getpid()
        opened = self._files.get(name)
        if opened is None or opened[0] != process:
            descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened = self._files[name] = (process, descriptor)
        return opened[1]

    def _column(self, name: int) -> int:
        names = self._cells[_NAMES : _NAMES + COLUMNS].tolist()
        if name in names:
            return names.index(name)
        for column in range(COLUMNS):
            if not any(self._cells[column * ROWS : (column + 1) * ROWS]):
                self._cells[_NAMES + column] = name
                return column
        raise BoardFullError

    def _set_rows(self) -> None:
        self._cells[_ROWS_USED] = max(self._taken, default=-1) + 1

    def __repr__(self) -> str:
        return f"<Board row={self._row} generation={self.generation}>"


def _name(url: str) -> int:
    """Eight bytes that stand for a worker; never 0."""
    return int.from_bytes(hashlib.sha256(url.encode()).digest()[:8], signed=True) or 1


class Load:
    """What one worker has in hand: of this process, which it alone changes, and of all.

    Requests in flight, and `queued`: blocks of their prompts (of any size that all agree on) that are to be
    computed before their answers begin.
    """

    __slots__ = ("_cells", "_closed", "_lock", "_own", "_own_queued", "_row", "_start")

    def __init__(self, cells: memoryview, start: int, row: int | None, lock: threading.RLock) -> None:
        self._cells = cells
        self._start = start
        self._row = row
        self._lock = lock
        self._own = 0
        self._own_queued = 0
        self._closed = False
        self._put(_HELD, 0)

    def add(self, count: int, queued: int = 0) -> None:
        """Counts `count` more requests of this process, or fewer, and `queued` more blocks, or fewer."""
        with self._lock:
            self._own += count
            self._own_queued += queued
            self._put(count, queued)

    def close(self) -> None:
        """Gives the column up; counts what is added later here alone. Idempotent."""
        with self._lock:
            if not self._closed:
                self._put(-_HELD - self._own, -self._own_queued)
                self._closed = True

    def _put(self, count: int, queued: int) -> None:
        if self._row is not None and not self._closed:
            self._cells[self._start + self._row] += count
            if queued:
                self._cells[_QUEUED + self._start + self._row] += queued

    @property
    def column(self) -> int:
        """The worker's place in mappings of this kind, until this is closed."""
        return self._start // ROWS

    @property
    def own(self) -> int:
        """Requests that were added here."""
        return self._own

    def total(self) -> int:
        """Requests of all processes."""
        return self._sum(self._start, self._own) % _HELD

    def queued(self) -> int:
        """Blocks that are to be computed, of all processes."""
        return self._sum(_QUEUED + self._start, self._own_queued)

    def _sum(self, start: int, own: int) -> int:
        if self._closed:
            return own
        counted: int = sum(self._cells[start : start + self._cells[_ROWS_USED]])
        return counted if self._row is not None else counted + own

    def __repr__(self) -> str:
        return f"<Load own={self._own} total={self.total()} queued={self.queued()}>"


shared: Final = ProcessShared(Board, Board)
share: Final = shared.share
current: Final = shared.current
