"""Whether a worker may be asked: a table of states and events."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


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
