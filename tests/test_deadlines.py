"""Things that have to be over at a moment, by a clock and a timer that the tests turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.support.processes import wait_until
from wsgi_router import runtime
from wsgi_router.deadlines import Deadlines


class Clock:
    """`time.monotonic` and `runtime.call_later`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.set = 0

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        self.set += 1
        self.timers.append((self.now + seconds, function))

    def go(self, seconds: float) -> None:
        """Time passes; timers fire when they are due."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now = first[0]
            first[1]()
        self.now = end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(runtime, "call_later", clock.call_later)
    return clock


def test_a_timer_that_cannot_be_set_is_set_with_the_next(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(seconds: float, function: Callable[[], object]) -> None:
        raise RuntimeError("can't start new thread")

    late: list[str] = []
    deadlines = Deadlines(late.append)
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "call_later", refuse)
        with pytest.raises(RuntimeError, match="thread"):
            deadlines.add("a", 5)
    deadlines.add("b", 7)
    clock.go(7)
    assert late == ["a", "b"]


def test_what_is_not_over_in_time_is_late_once(clock: Clock) -> None:
    late: list[str] = []
    deadlines = Deadlines(late.append)
    deadlines.add("a", 5)
    deadlines.add("b", 7)
    deadlines.add("over", 6)
    clock.go(4.9)
    deadlines.discard("over")
    deadlines.discard("never added")
    assert (late, len(deadlines)) == ([], 2)
    clock.go(0.1)
    assert late == ["a"]
    clock.go(100)
    assert (late, len(deadlines)) == (["a", "b"], 0)
    deadlines.discard("a")
    assert clock.timers == []


def test_what_says_so_is_late_again(clock: Clock) -> None:
    late: list[float] = []
    again = iter([2.0, 0.0, None])

    def look(_thing: str) -> float | None:
        late.append(clock.now - 1000)
        return next(again)

    deadlines = Deadlines(look)
    deadlines.add("a", 5)
    clock.go(6)
    assert (late, len(deadlines)) == ([5], 1)
    clock.go(100)
    assert (late, len(deadlines)) == ([5, 7, 7], 0)
    again = iter([1.0, 1.0])
    deadlines.add("b", 1)
    clock.go(1)
    deadlines.discard("b")
    clock.go(100)
    assert len(late) == 4
    assert clock.timers == []


def test_timers_do_not_add_up(clock: Clock) -> None:
    """Each that is due sooner than all others has a timer of its own, which is the last of its kind."""
    late: list[int] = []
    deadlines = Deadlines(late.append)
    deadlines.add(0, 1000)
    for number in range(1, 200):
        deadlines.add(number, 500 - number)
    clock.go(600)
    assert len(late) == 199
    assert len(clock.timers) == 2
    deadlines.add(-1, 5)
    clock.go(1000)
    assert sorted(late) == list(range(-1, 200))
    assert clock.timers == []


def test_one_timer_for_many(clock: Clock) -> None:
    late: list[int] = []
    deadlines = Deadlines(late.append)
    for number in range(100):
        deadlines.add(number, 5)
        clock.go(0.01)
        if number != 50:
            deadlines.discard(number)
    assert (clock.set, len(clock.timers)) == (1, 1)
    clock.go(10)
    assert late == [50]
    assert clock.set == 2  # it looked once in vain, when the first would have been due
    deadlines.add(1, 5)
    clock.go(5)
    assert late == [50, 1]


def test_what_is_due_sooner_is_not_kept_waiting(clock: Clock) -> None:
    late: list[str] = []
    deadlines = Deadlines(late.append)
    deadlines.add("slow", 50)
    deadlines.add("quick", 1)
    clock.go(1)
    assert late == ["quick"]
    clock.go(49)
    assert late == ["quick", "slow"]


def test_one_that_cannot_be_ended_keeps_no_other_from_it(clock: Clock) -> None:
    late: list[str] = []

    def end(thing: str) -> None:
        late.append(thing)
        if thing == "bad":
            raise RuntimeError("can't start new thread")

    deadlines = Deadlines(end)
    for thing, seconds in (("bad", 1), ("same moment", 1), ("later", 2)):
        deadlines.add(thing, seconds)
    clock.go(2)
    assert late == ["bad", "same moment", "later"]
    deadlines.add("new", 1)
    clock.go(1)
    assert late[-1] == "new"


def test_nothing_is_late_once_it_is_discarded() -> None:
    """Else what belongs to it, a descriptor for example, could be another's already."""
    begun, end = threading.Event(), threading.Event()
    still_there: list[bool] = []
    gone = False

    def cut(_thing: str) -> None:
        begun.set()
        end.wait(10)
        still_there.append(not gone)

    deadlines = Deadlines(cut)
    deadlines.add("a", 0.01)
    assert begun.wait(10)
    threading.Timer(0.1, end.set).start()
    deadlines.discard("a")
    gone = True
    wait_until(lambda: still_there)
    assert still_there == [True]
