"""What the workers say of their own load, told to all processes by the one that asks them.

A worker may serve other routers too, and its scheduler may hold requests back; only the worker knows. The
figures stand in an anonymous mapping, made before the fork, at the worker's column of the board.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from wsgi_router.sharing import ProcessShared, cells
from wsgi_router.workers.board import COLUMNS

INTERVALS_KEPT: Final = 3
"""Figures older than so many intervals say nothing."""
_MILLION: Final = 1_000_000


class Report(NamedTuple):
    """One worker's figures at a moment."""

    waiting: int
    """Requests in its queue."""
    free: int
    """Requests that it would run at once."""
    token_usage: float
    """Part of its token memory in use, 0 to 1."""
    ours: int
    """Requests of this server that it had."""
    others: int
    """Those of anybody else."""


_WIDTH: Final = len(Report._fields) + 1


class Reports:
    """Figures by column. One process writes, all read."""

    def __init__(self) -> None:
        self._cells = cells(COLUMNS * _WIDTH)

    def put(self, column: int, report: Report) -> None:
        start = column * _WIDTH
        usage = round(report.token_usage * _MILLION)
        for place, value in enumerate(report._replace(token_usage=usage), start + 1):
            self._cells[place] = int(value)
        self._cells[start] = time.monotonic_ns()

    def clear(self, column: int) -> None:
        self._cells[column * _WIDTH] = 0

    def written(self) -> list[int]:
        """The columns that hold anything."""
        return [column for column, at in enumerate(self._cells[::_WIDTH].tolist()) if at]

    def get(self, column: int, seconds: float) -> Report | None:
        """The figures, if they are not older than `seconds`."""
        start = column * _WIDTH
        at, waiting, free, usage, ours, others = self._cells[start : start + _WIDTH].tolist()
        if at < time.monotonic_ns() - int(seconds * 1e9):
            return None
        return Report(waiting, free, usage / _MILLION, ours, others)

    def __repr__(self) -> str:
        return f"<Reports of {len(self.written())} workers>"


class Reported:
    """Where the figures of one worker stand."""

    __slots__ = ("_column", "_reports", "_seconds")

    def __init__(self, reports: Reports, column: int, interval: float) -> None:
        self._reports = reports
        self._column = column
        self._seconds = INTERVALS_KEPT * interval

    def latest(self) -> Report | None:
        """None if the worker does not tell, or has not done so for a while."""
        return self._reports.get(self._column, self._seconds)

    def others(self) -> int:
        """Requests that others than this server have there; 0 if that is not known."""
        report = self.latest()
        return 0 if report is None else report.others

    def __repr__(self) -> str:
        return f"<Reported {self.latest()}>"


shared: Final = ProcessShared(Reports, Reports)
share: Final = shared.share
current: Final = shared.current
