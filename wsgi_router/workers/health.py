"""What the processes of a server know of each worker together: its state, its card's number, its breaker.

A mapping beside the board's, made before the fork, has a few cells for each of the board's columns. All
processes read them without a lock. A change is rare, and made under the board's lock by whoever has seen the
reason for it; so each is made, and logged, once. Requests on trial are counted in the board's manner: a cell
for each process, that it alone writes and that is cleared when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from wsgi_router import runtime
from wsgi_router.sharing import ProcessShared, cells, zeros
from wsgi_router.workers import board
from wsgi_router.workers.board import COLUMNS, ROWS, Board, Load
from wsgi_router.workers.breaker import Breaker, Event, Limits, Phase, State, after, phase

_STATES: Final = tuple(State)
_CODES: Final = {state: code for code, state in enumerate(_STATES)}
_UP: Final = _CODES[State.UP]
_STATE: Final = 0
_LIFE: Final = 1
_CARD: Final = 2
_ASKED: Final = 3
_HEARD: Final = 4
_PROVED: Final = 5
_BREAKER: Final = 6
"""Three cells: those of a `Breaker`."""
_UNTIL: Final = _BREAKER + 1
_GONE: Final = _BREAKER + 3
_SEEN_TO: Final = _GONE + 1
_BY: Final = _GONE + 2
_FIELDS: Final = 16
_TRIALS: Final = COLUMNS * _FIELDS
_CELLS: Final = _TRIALS + COLUMNS * ROWS
_NEGLECTED: Final = 2000
"""Milliseconds after which a worker that nobody has seen to is anybody's; who leads does it every 500."""


def _now() -> int:
    """Milliseconds by the clock that all processes of a machine have."""
    return int(time.monotonic() * 1000)


class Health:
    """Of all workers; goes with a board, and is shared as that is."""

    def __init__(self, its_board: Board) -> None:
        self.board = its_board
        self._cells = cells(_CELLS)
        self._lock = runtime.brief_lock()

    def record(
        self, url: str, limits: Limits | None = None, taken: Callable[[int], object] | None = None
    ) -> tuple[Load, Record]:
        """A worker's counts and its record, which are to be closed. Raises BoardFullError.

        Nothing is known of a worker that nobody has in hand yet; `taken` is called with its column then.
        """

        def clear(column: int) -> None:
            self._clear(column)
            if taken is not None:
                taken(column)

        load = self.board.load(url, clear)
        return load, Record(self, load.column, limits or Limits())

    def free_row(self, row: int | None) -> None:
        """Ends the trials of a process that has ended. In the master."""
        if row is not None:
            self._cells[_TRIALS + row :: ROWS] = zeros(COLUMNS)

    def _clear(self, column: int) -> None:
        for start, count in ((column * _FIELDS, _FIELDS), (_TRIALS + column * ROWS, ROWS)):
            self._cells[start : start + count] = zeros(count)

    def __repr__(self) -> str:
        return f"<Health of {self.board!r}>"


class Record:
    """What is known of one worker."""

    __slots__ = ("_board", "_cells", "_closed", "_limits", "_lock", "_own", "_row", "_start", "_trials")

    def __init__(self, health: Health, column: int, limits: Limits) -> None:
        self._board = health.board
        self._cells = health._cells
        self._start = column * _FIELDS
        self._trials = _TRIALS + column * ROWS
        self._row = health.board.row
        self._limits = limits
        self._own = 0
        self._lock = health._lock
        self._closed = False

    @property
    def state(self) -> State:
        return _STATES[self._cells[self._start + _STATE]]

    def note(self, event: Event) -> bool:
        """Takes an event in; True for the one who has changed the state by it."""
        before = self.state
        if after(before, event) is before:
            return False
        with self._board.locked():
            before = self.state
            follows = after(before, event)
            if follows is before or self._closed:
                return False
            if event is Event.PROBE_OK:
                self._add(_LIFE, 1)
                if before is State.DOWN:
                    self._set_breaker(self._breaker().tried(_now()))
            self._put(_STATE, _CODES[follows])
            return True

    @property
    def life(self) -> int:
        """Goes up whenever the worker has come up: it may have been started anew."""
        return self._get(_LIFE)

    @property
    def card(self) -> int:
        """Goes up with each change of the worker's card; 0: it has none yet."""
        return self._get(_CARD)

    def change_card(self) -> int:
        """The card is another one; returns its number."""
        with self._board.locked():
            if not self._closed:
                self._add(_CARD, 1)
            return self.card

    @property
    def gone(self) -> bool:
        """Whether the last probe that failed found nobody: no front that answered, of whatever engine."""
        return self._get(_GONE) > 0

    def set_gone(self, gone: bool) -> None:
        """A probe has failed, and what follows from it for the state will be noted."""
        self._put_open(_GONE, int(gone))

    @property
    def asked(self) -> bool:
        """Whether a probe has come to its end, whatever it found."""
        return self._get(_ASKED) > 0

    def set_asked(self) -> None:
        """A probe has come to its end."""
        self._put_open(_ASKED, 1)

    @property
    def heard(self) -> float:
        """When any process heard of the worker, by time.monotonic; a fraction of a second late."""
        return self._get(_HEARD) / 1000

    @property
    def proved(self) -> float:
        """When its engine was last seen at work; as `heard`."""
        return self._get(_PROVED) / 1000

    def publish(self, heard: float, proved: float) -> None:
        """Makes known when this process last heard of the worker, and saw its engine at work."""
        # Two at once may leave the earlier moment; the next time it is put right.
        for cell, moment in ((_HEARD, int(heard * 1000)), (_PROVED, int(proved * 1000))):
            if moment > self._get(cell):
                self._put_open(cell, moment)

    @property
    def phase(self) -> Phase:
        """That of the breaker."""
        until = self._cells[self._start + _UNTIL]
        return phase(until, _now()) if until else Phase.CLOSED

    @property
    def closed_for(self) -> float:
        """Seconds until a request may be tried again; 0 if it may."""
        return max(self._get(_UNTIL) - _now(), 0) / 1000

    def ready(self) -> bool:
        """Whether the worker is up, and its breaker lets one more request through."""
        cells, start = self._cells, self._start
        return cells[start + _STATE] == _UP and (not cells[start + _UNTIL] or self.admits())

    def admits(self) -> bool:
        """Whether the breaker lets one more request through."""
        until = self._cells[self._start + _UNTIL]
        return not until or (_now() >= until and self._on_trial() < self._limits.successes)

    def fail(self) -> Phase | None:
        """Counts a failed request; returns the breaker's new phase for the one who has changed it."""
        with self._board.locked():
            now = _now()
            before = self._breaker()
            return self._change(before, before.failed(now, self._limits), now)

    def succeed(self) -> Phase | None:
        """Counts a request that went well; see `fail`."""
        cells, start = self._cells, self._start + _BREAKER
        if not cells[start] and not cells[start + 1]:
            return None
        with self._board.locked():
            now = _now()
            before = self._breaker()
            return self._change(before, before.succeeded(now, self._limits), now)

    def see_to(self, leads: bool) -> bool:
        """Whether this process is to see to the worker; the others know it then. To be asked again and again.

        It is if it `leads`. Else it may be for want of another: the one that leads may not know the worker,
        as it was removed, or is of other settings than the present ones.
        """
        now = _now()
        if not (leads or self.mine or now >= self._get(_SEEN_TO) + _NEGLECTED):
            return False
        self._put_open(_SEEN_TO, now)
        self._put_open(_BY, self._me)
        return True

    @property
    def mine(self) -> bool:
        """Whether this process was the last that has seen to the worker."""
        return self._get(_BY) == self._me

    @property
    def _me(self) -> int:
        return ROWS if self._row is None else self._row + 1

    def begin_trial(self) -> bool:
        """Whether a request that goes to the worker now is on trial; if so, it is counted as such."""
        if self.phase is not Phase.HALF_OPEN:
            return False
        self._count_trial(1)
        return True

    def end_trial(self) -> None:
        """A request that was on trial has begun to be answered, or is over."""
        self._count_trial(-1)

    def close(self) -> None:
        """Gives the record up: the worker is served no more. Idempotent."""
        with self._lock:
            if not self._closed:
                self._count(-self._own)
                self._closed = True

    def _change(self, before: Breaker, follows: Breaker, now: int) -> Phase | None:
        if follows == before or self._closed:
            return None
        self._set_breaker(follows)
        changed = follows.phase(now)
        return None if changed is before.phase(now) else changed

    def _breaker(self) -> Breaker:
        start = self._start + _BREAKER
        return Breaker(*self._cells[start : start + 3].tolist())

    def _set_breaker(self, breaker: Breaker) -> None:
        for offset, value in enumerate(breaker):
            self._put(_BREAKER + offset, value)

    def _on_trial(self) -> int:
        counted: int = sum(self._cells[self._trials : self._trials + ROWS])
        return counted if self._row is not None else counted + self._own

    def _count_trial(self, count: int) -> None:
        with self._lock:
            self._own += count
            self._count(count)

    def _count(self, count: int) -> None:
        if self._row is not None and not self._closed:
            self._cells[self._trials + self._row] += count

    def _get(self, field: int) -> int:
        value: int = self._cells[self._start + field]
        return value

    def _put(self, field: int, value: int) -> None:
        self._cells[self._start + field] = value

    def _put_open(self, field: int, value: int) -> None:
        """The column is another worker's once this is closed."""
        if not self._closed:
            self._put(field, value)

    def _add(self, field: int, count: int) -> None:
        self._cells[self._start + field] += count

    def __repr__(self) -> str:
        return f"<Record {self.state} breaker={self.phase}>"


shared: Final = ProcessShared(Health, lambda: Health(board.current()))
share: Final = shared.share
current: Final = shared.current
