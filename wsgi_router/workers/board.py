"""Requests in flight at each worker, as one truth over the processes of a server.

An anonymous mapping, made before the fork, has a row for each process and a column for each worker. A cell
is written by its own process alone, in one store of eight bytes, so that no process waits for another; a load
is the sum of a column. The master gives out the rows, and clears that of a process that has ended.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Collection, Sequence
from typing import Final

ROWS: Final = 64
COLUMNS: Final = 512
"""Twice as many as workers can be set: over a reload there are the old and the new ones."""
_CELL: Final = 8


class BoardFullError(Exception):
    """There is no column left for a worker."""

    def __init__(self) -> None:
        super().__init__(f"at most {COLUMNS} workers are counted")


class Board:
    """The counts. Made before the fork it is shared by the processes that follow."""

    def __init__(self) -> None:
        # One more cell tells how many rows are in use; only the master writes it.
        self._cells = memoryview(mmap.mmap(-1, (ROWS * COLUMNS + 1) * _CELL)).cast("q")
        self._columns: dict[str, int] = {}
        self._taken: set[int] = set()
        self._row: int | None = None
        self._lock = threading.Lock()

    def assign(self, urls: Collection[str]) -> None:
        """Gives each of these workers a column; those of others are given up once nobody counts in them.

        In the master, before the fork. Raises BoardFullError.
        """
        for url in self._columns.keys() - urls:
            if not any(self._column(self._columns[url])):
                del self._columns[url]
        for url in urls:
            if url not in self._columns:
                self._columns[url] = self._free_column()

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
        self._cells[row : ROWS * COLUMNS : ROWS] = memoryview(bytes(COLUMNS * _CELL)).cast("q")
        self._taken.discard(row)
        self._set_rows()

    def use_row(self, row: int | None) -> None:
        """From now on this process counts in `row`; without one, others do not see its counts."""
        self._row = row

    def load(self, url: str) -> Load:
        """The counts of a worker. Raises BoardFullError."""
        with self._lock:
            if url not in self._columns:
                self._columns[url] = self._free_column()
            return Load(self._cells, self._columns[url] * ROWS, self._row, self._lock)

    def _free_column(self) -> int:
        used = set(self._columns.values())
        column = next((column for column in range(COLUMNS) if column not in used), None)
        if column is None:
            raise BoardFullError
        return column

    def _column(self, column: int) -> Sequence[int]:
        return self._cells[column * ROWS : (column + 1) * ROWS]

    def _set_rows(self) -> None:
        self._cells[ROWS * COLUMNS] = max(self._taken, default=-1) + 1

    def __repr__(self) -> str:
        return f"<Board row={self._row} processes={len(self._taken)} workers={len(self._columns)}>"


class Load:
    """Requests in flight at one worker: this process's, which it alone changes, and those of all."""

    __slots__ = ("_cells", "_lock", "_own", "_row", "_start")

    def __init__(self, cells: memoryview, start: int, row: int | None, lock: threading.Lock) -> None:
        self._cells = cells
        self._start = start
        self._row = row
        self._lock = lock
        self._own = 0

    def add(self, count: int) -> None:
        """Counts `count` more requests of this process, or fewer."""
        with self._lock:
            self._own += count
            if self._row is not None:
                self._cells[self._start + self._row] += count

    @property
    def own(self) -> int:
        """What was added here."""
        return self._own

    def total(self) -> int:
        """The sum over all processes."""
        rows = self._cells[ROWS * COLUMNS]
        counted = sum(self._cells[self._start : self._start + rows])
        return counted if self._row is not None else counted + self._own

    def __repr__(self) -> str:
        return f"<Load own={self._own} total={self.total()}>"


_shared: Board | None = None


def share() -> Board:
    """Makes the board that all processes forked from now on share. In the master."""
    global _shared
    _shared = Board()
    return _shared


def current() -> Board:
    """The shared board, or a new one of the caller's own where no server has made one."""
    return _shared or Board()
