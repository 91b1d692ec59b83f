"""What the processes of a server tell one another of themselves: that they live, and what they have in hand.

An anonymous mapping, made before the fork beside the board, whose rows it shares. A cell is written by its
own process alone. The master clears the row of a process that has ended; one that is frozen is told by its
heartbeat, which stops.
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Final

from wsgi_router import runtime
from wsgi_router.sharing import ProcessShared, cells
from wsgi_router.workers import board
from wsgi_router.workers.board import ROWS, Board

BEAT_SECONDS: Final = 0.5
STALE_SECONDS: Final = 2.0
"""A process that has not beaten for so long is frozen, or busy beyond measure: the others do without it."""
_FOR_GOOD: Final = 2**62


class Field(IntEnum):
    """What stands in a row."""

    BEAT = 0
    """When the process last said that it lives, in nanoseconds of the machine's monotonic clock."""
    ACCEPTS = 1
    """1 if it takes new connections, 0 once it drains."""
    RUNNING = 2
    """Requests that it was allowed to run."""
    WAITING = 3
    """Requests that wait in it for that."""
    BUSY = 4
    """Connections with a request in hand, or about to send their first one."""


class Peers:
    """The rows of all processes. Outside a server there is one process, and it lives."""

    def __init__(self, its_board: Board) -> None:
        self._board = its_board
        self._cells = cells(len(Field) * ROWS)
        self._lock = runtime.brief_lock()

    @property
    def row(self) -> int | None:
        """This process's own; None if it has none, and nobody else sees what it puts down."""
        return self._board.row

    @property
    def alone(self) -> bool:
        """Whether there is no other process, and never will be."""
        return self._board.folder is None

    def put(self, field: Field, value: int) -> None:
        row = self._board.row
        if row is not None:
            self._cells[field * ROWS + row] = value

    def add(self, field: Field, count: int) -> None:
        """Several applications of one process may count in a cell; `count` may be below 0."""
        row = self._board.row
        if row is not None:
            with self._lock:
                self._cells[field * ROWS + row] += count

    def column(self, field: Field) -> list[int]:
        """One figure of all processes, by row; 0 for rows without one."""
        start = field * ROWS
        return self._cells[start : start + self._board.rows].tolist()

    def beat(self) -> None:
        """This process lives, and takes new connections."""
        self.put(Field.ACCEPTS, 1)
        self.put(Field.BEAT, time.monotonic_ns())

    def retire(self) -> None:
        """This process takes no new connections any more; it lives until its row is cleared."""
        self.put(Field.ACCEPTS, 0)
        self.put(Field.BEAT, _FOR_GOOD)

    def alive(self) -> list[int]:
        """The rows of those that live, also of those that drain."""
        if self.alone:
            return [0]
        since = time.monotonic_ns() - int(STALE_SECONDS * 1e9)
        return [row for row, beat in enumerate(self.column(Field.BEAT)) if beat > since]

    def clear(self, row: int | None) -> None:
        """The process of this row is no more. In the master."""
        if row is not None:
            for field in Field:
                self._cells[field * ROWS + row] = 0

    def __repr__(self) -> str:
        return f"<Peers row={self.row} alive={self.alive()}>"


shared: Final = ProcessShared(Peers, lambda: Peers(board.current()))
share: Final = shared.share
current: Final = shared.current
