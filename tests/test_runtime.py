"""The primitives, on greenlets and on threads."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from unittest import mock

import pytest

from tests.support.flow import seconds
from tests.support.modes import MODES, run
from tests.support.processes import output_of, wait_until
from wsgi_router import runtime
from wsgi_router.runtime import Drain, PeriodicTask, call_in_pool, call_later, drain, spawn, wakeup

both = pytest.mark.parametrize("mode", MODES)


def set_soon(flag: runtime.Wakeup) -> None:
    time.sleep(0.05)
    flag.set()


def wakeup_scenario(mode: str) -> None:
    assert runtime.patched() == (mode == "gevent")
    flag = wakeup()
    flag.set()
    flag.set()
    assert flag.wait(0.01)  # set before the wait, twice: one wake-up
    assert not flag.wait(0.01)
    assert not flag.wait(0)
    assert 0.1 <= seconds(lambda: flag.wait(0.1)) < 10
    spawn(set_soon, flag)
    assert flag.wait(10)
    spawn(set_soon, flag)
    assert flag.wait()
    assert 2.4 <= seconds(lambda: flag.wait(2.5)) < 30  # a long wait, ended by the ticker


def many_wakeups_scenario() -> None:
    """Two that pass a turn to each other: no wake-up is lost, none comes twice."""
    ping, pong, turns = wakeup(), wakeup(), 2000
    seen: list[int] = []

    def answer() -> None:
        for number in range(turns):
            assert ping.wait(10)
            seen.append(number)
            pong.set()

    spawn(answer)
    for number in range(turns):
        assert len(seen) == number
        ping.set()
        assert pong.wait(10)
    assert len(seen) == turns


def interrupted_wait_scenario() -> None:
    """An exception in a wait leaves nothing behind that would switch to the greenlet later."""
    import gevent

    flag = wakeup()
    ends: list[str] = []

    def waiter(pause: float) -> None:
        try:
            flag.wait(pause)
        except gevent.Timeout:
            gevent.sleep(0.2)
            ends.append("slept through")

    for pause in (1, 100):
        greenlet = gevent.spawn(waiter, pause)
        gevent.sleep(0.05)
        greenlet.kill(gevent.Timeout(), block=False)
        flag.set()  # the exception is under way already, and comes first
        greenlet.join()
        assert flag.wait(0)
    assert ends == ["slept through"] * 2


def timers_scenario() -> None:
    order: list[str] = []
    call_later(1.0, lambda: order.append("late"))
    call_later(0.01, lambda: order.append("early"))
    call_later(0.5, lambda: order.append("middle"))
    wait_until(lambda: len(order) == 3, 20)
    assert order == ["early", "middle", "late"]
    time.sleep(0.05)
    call_later(0, lambda: order.append("again"))  # after all timers were gone
    wait_until(lambda: len(order) == 4, 5)
    refused = mock.patch.object(runtime, "spawn", side_effect=RuntimeError("can't start new thread"))
    with refused, contextlib.suppress(RuntimeError):
        call_later(0, lambda: order.append("in time"))
    call_later(0.1, lambda: order.append("with the next one"))
    wait_until(lambda: order[4:] == ["in time", "with the next one"], 5)


def pool_scenario(mode: str) -> None:
    """A long native call holds up nobody else; its exception comes back."""
    ticks: list[float] = []
    done = False

    def tick() -> None:
        while not done:
            ticks.append(time.monotonic())
            time.sleep(0.01)

    native_sleep = time.sleep
    if mode == "gevent":
        from gevent.monkey import get_original

        native_sleep = get_original("time", "sleep")

    def until_ticks() -> bool:
        """Ends well only if others run meanwhile."""
        enough, end = len(ticks) + 5, time.monotonic() + 20
        while len(ticks) < enough and time.monotonic() < end:
            native_sleep(0.01)
        return len(ticks) >= enough

    spawn(tick)
    assert call_in_pool(until_ticks)
    done = True
    with pytest.raises(ZeroDivisionError):
        call_in_pool(lambda: 1 // 0)


def hub_pool_scenario() -> None:
    import gevent

    runtime.init_process(20)
    assert gevent.get_hub().threadpool.maxsize >= 16 + 2 * 20
    runtime.init_process(5)  # a second transport of the process
    assert gevent.get_hub().threadpool.maxsize >= 16 + 2 * 20 + 2 * 5


def deferrer_scenario(mode: str) -> None:
    """A finaliser in a foreign thread can still have work done where it belongs."""
    defer = runtime.deferrer()
    ran: list[str] = []
    if mode == "gevent":
        import gevent

        gevent.get_hub().threadpool.apply(defer, (lambda: ran.append("x"),))
    else:
        defer(lambda: ran.append("x"))
    wait_until(lambda: ran == ["x"], 5)


class Logged(logging.Handler):
    """What the runtime logs, kept from standard error."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        logger = logging.getLogger(runtime.__name__)
        logger.addHandler(self)
        logger.setLevel("DEBUG")
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def told(self, level: str) -> int:
        return sum(record.levelname == level for record in self.records)


def periodic_task_scenario() -> None:
    turns: list[float] = []
    task = PeriodicTask("counting", lambda: turns.append(time.monotonic()), 0.05)
    assert not turns
    task.start()
    task.start()
    wait_until(lambda: len(turns) >= 5)
    assert all(after - before > 0.01 for before, after in itertools.pairwise(turns)), "one takes the turns"
    task.stop()
    task.stop()
    assert task.stopped
    time.sleep(0.2)
    count = len(turns)
    task.wake()
    time.sleep(0.2)
    assert len(turns) == count


@pytest.mark.parametrize(
    ("now", "left"),
    [(100.0, 0.5), (100.125, 0.375), (100.25, 0.25), (100.375, 0.625), (100.49, 0.51), (7.125, 0.375)],
)
def test_common_moments(now: float, left: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same for all; a timer that has ended a bit early is not followed by a pause of nothing."""
    monkeypatch.setattr("wsgi_router.runtime.time.monotonic", lambda: now)
    pause = runtime.until_common_moment(0.5)
    assert pause == pytest.approx(left)
    assert (now + pause) % 0.5 == pytest.approx(0.0)


def woken_task_scenario() -> None:
    """The turn's own pause counts, and `wake` and `stop` end it."""
    turns: list[float] = []

    def turn() -> float:
        turns.append(time.monotonic())
        return 1000

    task = PeriodicTask("counting", turn, 0.01)
    task.start()
    wait_until(lambda: len(turns) == 1)
    time.sleep(0.2)
    assert len(turns) == 1
    task.wake()
    wait_until(lambda: len(turns) == 2)
    threads = threading.active_count()
    task.stop()
    if not runtime.patched():
        wait_until(lambda: threading.active_count() < threads)


def failing_task_scenario() -> None:
    """It goes on whatever is raised; each kind is told once with its traceback."""
    log = Logged()
    turns = 0

    def turn() -> float:
        nonlocal turns
        turns += 1
        if turns % 3 == 0:
            raise ValueError(f"the {turns}. time")
        if turns % 3 == 1:
            raise OSError("no")
        return 0.001

    task = PeriodicTask("counting", turn, 0.01)
    task.start()
    wait_until(lambda: turns >= 30)
    task.stop()
    assert log.told("ERROR") == 2
    assert log.told("DEBUG") >= 16
    kinds = {type(record.exc_info[1]) for record in log.records if record.exc_info}
    assert kinds == {ValueError, OSError}
    assert {record.getMessage() for record in log.records if record.exc_info} == {"counting failed"}


def drain_scenario() -> None:
    flag, other = wakeup(), wakeup()
    drain.subscribe(flag)
    drain.subscribe(other)
    drain.unsubscribe(other)
    assert not drain.begun
    drain.begin(100)
    assert drain.begun
    assert not drain.due()
    drain.begin(0.2)
    drain.begin(50)  # the least time counts
    assert flag.wait(5)
    assert drain.due()
    assert not other.wait(0)
    quick = Drain()
    quick.begin(100)
    quick.subscribe(flag)
    quick.begin(0.0)
    assert flag.wait(0), "at once"
    assert quick.waiting()
    quick.unsubscribe(flag)
    assert not quick.waiting()


@both
def test_wakeup(mode: str) -> None:
    run(mode, wakeup_scenario, mode)


@both
def test_no_wakeup_is_lost(mode: str) -> None:
    run(mode, many_wakeups_scenario)


def test_an_interrupted_wait_leaves_nothing() -> None:
    run("gevent", interrupted_wait_scenario)


@both
def test_timers(mode: str) -> None:
    run(mode, timers_scenario)


@both
def test_a_periodic_task(mode: str) -> None:
    run(mode, periodic_task_scenario)


@both
def test_a_periodic_task_is_woken(mode: str) -> None:
    run(mode, woken_task_scenario)


@both
def test_a_periodic_task_that_fails_goes_on(mode: str) -> None:
    run(mode, failing_task_scenario)


@both
def test_pool(mode: str) -> None:
    run(mode, pool_scenario, mode)


def test_hub_pool_grows_only() -> None:
    run("gevent", hub_pool_scenario)


@both
def test_deferrer(mode: str) -> None:
    run(mode, deferrer_scenario, mode)


@both
def test_drain(mode: str) -> None:
    run(mode, drain_scenario)


MADE = """
import sys, threading
from wsgi_router.app import create_app
from wsgi_router.settings import Settings
create_app(Settings(workers=("grpc://127.0.0.1:1",)))
print(threading.active_count(), "gevent" in sys.modules)
"""


def test_making_an_application_starts_nothing() -> None:
    """What is started before a fork does not survive it."""
    assert output_of(MADE).split() == ["1", "False"]


def test_repr_tells_the_state() -> None:
    assert repr(Drain()) == "<Drain begun=False due=False waiters=0>"


def test_what_cannot_begin_is_not_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: set[str] = set()
    begun: list[tuple[str, ...]] = []

    def function(thing: str) -> None:
        begun.append((thing, *under_way))
        under_way.discard(thing)

    runtime.spawn_noted(under_way, "a", function)
    wait_until(lambda: not under_way)
    assert begun == [("a", "a")]

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runtime, "spawn", refused)
    with pytest.raises(RuntimeError):
        runtime.spawn_noted(under_way, "b", function)
    assert not under_way
