"""Whether a worker may be asked: a table of states and events, and a breaker beside it.

The state says whether a worker answers. The breaker says whether what it answers is of any use: one that
fails request after request is given none for a while, then a few on trial.

    CLOSED ──failures in a row──▶ OPEN ──time──▶ HALF_OPEN ──successes──▶ CLOSED
                                    ▲───────one failure──────┘
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """What is known about a worker."""

    UNKNOWN = "unknown"  # has never answered
    UP = "up"
    SUSPECT = "suspect"  # not reached, or waited for in vain: asked only if nobody is up; a probe will tell
    DOWN = "down"


class Event(StrEnum):
    """What was seen of a worker."""

    PROBE_OK = "probe_ok"
    PROBE_FAILED = "probe_failed"  # refused, or answered with an error
    PROBE_LATE = "probe_late"  # no answer before its deadline: dead, or busy with a large prompt
    CALL_OK = "call_ok"
    CALL_UNREACHABLE = "call_unreachable"
    CALL_SILENT = "call_silent"  # nothing came before its deadline


ANSWERED: Final = frozenset({Event.PROBE_OK, Event.CALL_OK})
"""Events that prove a worker alive."""

SEEN: Final = {"UNAVAILABLE": Event.CALL_UNREACHABLE, "DEADLINE_EXCEEDED": Event.CALL_SILENT}
"""What a failed unary call says of its worker, by the names of gRPC's statuses."""

TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.UNKNOWN, Event.PROBE_OK): State.UP,
    (State.UP, Event.PROBE_FAILED): State.DOWN,
    (State.UP, Event.PROBE_LATE): State.SUSPECT,
    (State.UP, Event.CALL_UNREACHABLE): State.SUSPECT,
    (State.UP, Event.CALL_SILENT): State.SUSPECT,
    (State.SUSPECT, Event.PROBE_OK): State.UP,
    (State.SUSPECT, Event.CALL_OK): State.UP,
    (State.SUSPECT, Event.PROBE_FAILED): State.DOWN,
    (State.SUSPECT, Event.PROBE_LATE): State.DOWN,
    (State.DOWN, Event.PROBE_OK): State.UP,
}
"""Events that are not listed change nothing: a call that still runs on a worker found down, for example."""


def after(state: State, event: Event) -> State:
    """The state that follows."""
    return TRANSITIONS.get((state, event), state)


LOSSES: Final = frozenset({"UNAVAILABLE", "CANCELLED"})
"""Statuses of gRPC that end many calls at one moment: a connection is lost, a worker that ends drops them.

CANCELLED, too, is the worker's doing: our own cancels are left out before.
"""

FAULTS: Final = LOSSES | {"DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "DATA_LOSS"}
"""Statuses of gRPC that count as a worker's failure. Refusals of a request do not, nor does a full queue."""


class Phase(StrEnum):
    """What the breaker of a worker lets through."""

    CLOSED = "closed"  # all requests
    OPEN = "open"  # none
    HALF_OPEN = "half_open"  # a few at a time


class Limits(NamedTuple):
    """Failures in a row that open a breaker, for how many milliseconds, and successes that close it again.

    As many requests as these successes wait for an answer's beginning at a time while it is half-open.
    """

    failures: int = 10
    milliseconds: int = 60_000
    successes: int = 3


class Breaker(NamedTuple):
    """A breaker at a moment; times in milliseconds, of any clock that does not go back."""

    failures: int = 0
    """In a row, while it is closed."""
    until: int = 0
    """When it is open no more; 0 while it is closed."""
    successes: int = 0
    """In a row, while it is half-open."""

    def phase(self, now: int) -> Phase:
        return phase(self.until, now)

    def failed(self, now: int, limits: Limits) -> Breaker:
        """What follows a failure. While it is open they are those of requests from before."""
        if self.phase(now) is Phase.OPEN:
            return self
        failures = self.failures + 1
        if self.until or failures >= limits.failures:
            return Breaker(until=now + limits.milliseconds)
        return Breaker(failures)

    def succeeded(self, now: int, limits: Limits) -> Breaker:
        """What follows a success."""
        if self.phase(now) is Phase.OPEN:
            return self
        successes = self.successes + 1
        if not self.until or successes >= limits.successes:
            return Breaker()
        return Breaker(until=self.until, successes=successes)

    def tried(self, now: int) -> Breaker:
        """Half-open, if it was open: the worker was down and has come back, it may be another one."""
        return self if self.phase(now) is Phase.CLOSED else Breaker(until=min(self.until, now))


def phase(until: int, now: int) -> Phase:
    """The phase of a breaker that is open `until` then."""
    if not until:
        return Phase.CLOSED
    return Phase.OPEN if now < until else Phase.HALF_OPEN
