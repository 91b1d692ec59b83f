"""Greenlets or threads: the few primitives the router waits with, the same under both.

Under gevent (the standard library is patched) everything runs in one thread's hub, and a wake-up is one
switch. Without gevent the same names stand for threads. Nothing is started on import; `init_process` is
called once in each process, after the fork.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import heapq
import itertools
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

TICK_SECONDS: Final = 0.5
"""Grain of long waits under gevent: one greenlet a process looks after them, so that none needs a timer."""

_LONG_WAIT_SECONDS: Final = 4 * TICK_SECONDS
_POOL_THREADS: Final = 2
_SPARE_HUB_THREADS: Final = 16


def patched() -> bool:
    """Whether gevent has patched the standard library, so that sockets and locks yield to other greenlets.

    Asked each time: gunicorn's master is not patched, its children are, after the fork.
    """
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def spawn(function: Callable[..., object], *args: Any) -> None:
    """Runs `function(*args)` beside the caller: a greenlet, or a daemon thread."""
    if patched():
        import gevent

        gevent.spawn(function, *args)
    else:
        threading.Thread(target=function, args=args, daemon=True).start()


_process = os.getpid()


def spawn_noted(under_way: set[_T], thing: _T, function: Callable[[_T], object]) -> None:
    """As `spawn`, of `function(thing)`; `thing` is in `under_way`, until the function takes it out again.

    Raises what `spawn` does, where no thread is to be had; it is not under way then.
    """
    under_way.add(thing)
    try:
        spawn(function, thing)
    except BaseException:
        under_way.discard(thing)
        raise


def process_id() -> int:
    """`os.getpid()` without a call of the system, as it is asked for many times a request."""
    return _process


def _system_lock() -> Callable[[], threading.Lock]:
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return _thread.allocate_lock
    return monkey.get_original("_thread", "allocate_lock")  # type: ignore[no-any-return]


brief_lock: Final = _system_lock()
"""Makes a lock for a few statements that neither wait nor log: for threads alone, as greenlets do not meet
there. gevent's own lock costs many times as much."""


def breathe() -> None:
    """Lets the other greenlets run, between two pieces of work that each hold them up."""
    if patched():
        time.sleep(0)


def deferrer() -> Callable[[Callable[[], object]], None]:
    """A `spawn` for finalisers: it may be called at any moment, from any thread.

    Under gevent the greenlets run in the hub of whoever has called `deferrer`.
    """
    if not patched():
        return spawn
    import gevent

    loop = gevent.get_hub().loop
    return lambda function: loop.run_callback_threadsafe(gevent.spawn, function)


def call_later(seconds: float, function: Callable[[], object]) -> None:
    """Runs `function()` once, `seconds` from now, unless the process ends before. It must not block."""
    _timers().add(seconds, function)


class _Timers:
    """Short functions to run later; one greenlet or thread for all of them, alive while there are any."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._wakeup = wakeup()
        self._running = False

    def add(self, seconds: float, function: Callable[[], object]) -> None:
        with self._lock:
            entry = (time.monotonic() + seconds, next(self._count), function)
            heapq.heappush(self._heap, entry)
            start, self._running = not self._running, True
        if start:
            try:
                spawn(self._run)
            except BaseException:  # no thread is to be had: the next one tries again
                self._running = False
                raise
        elif self._heap[0] is entry:
            self._wakeup.set()

    def _run(self) -> None:
        while (pause := self._run_due()) is not None:
            self._wakeup.wait(pause)

    def _run_due(self) -> float | None:
        """Runs what is due; returns the seconds until the next one, None if there is none."""
        while True:
            with self._lock:
                if not self._heap:
                    self._running = False
                    return None
                pause = self._heap[0][0] - time.monotonic()
                if pause > 0:
                    return pause
                function = heapq.heappop(self._heap)[2]
            try:
                function()
            except Exception:
                _LOG.exception("a timed call failed")


@functools.cache
def _timers() -> _Timers:
    return _Timers()


def call_in_pool(function: Callable[..., _T], *args: Any) -> _T:
    """`function(*args)` without holding up the other requests, for native calls that release the GIL.

    Under gevent it runs in a small thread pool of its own: the hub's pool carries gRPC and DNS.
    """
    if not patched():
        return function(*args)
    result, error = _native_pool().apply(_outcome, (function, args))
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def _outcome(function: Callable[..., _T], args: tuple[Any, ...]) -> tuple[_T | None, Exception | None]:
    """Errors go back as values: the pool prints the traceback of one that is raised in it."""
    try:
        return function(*args), None
    except Exception as error:
        return None, error


@functools.cache
def _native_pool() -> Any:
    from gevent.threadpool import ThreadPool

    return ThreadPool(_POOL_THREADS)


def init_process(workers: int) -> None:
    """Makes room in gevent's hub pool: every channel with calls holds one of its threads, and DNS needs some.

    Called after the fork and before the first call, by each transport of a process. `workers` is the number
    of workers it may have.
    """
    if patched():
        import gevent

        pool = gevent.get_hub().threadpool
        pool.maxsize = max(pool.maxsize, _SPARE_HUB_THREADS) + 2 * workers


class Wakeup(Protocol):
    """A flag that one waiter waits for. `wait` takes the flag down again when it returns True."""

    def set(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """True once `set` was called, False after `timeout` seconds.

        Waits of a few seconds and more are ended up to TICK_SECONDS late.
        """


def wakeup() -> Wakeup:
    """A Wakeup of this process's kind."""
    return _GreenletWakeup() if patched() else _ThreadWakeup()


class _ThreadWakeup:
    """A lock used as a binary semaphore: any thread may set, one waits."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # already set
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))


class _GreenletWakeup:
    """One switch through the hub; no lock, and no timer for long waits. For one hub's greenlets only."""

    __slots__ = ("_callback", "_current", "_flag", "_hub", "_switch")

    def __init__(self) -> None:
        from gevent import get_hub, getcurrent

        self._hub = get_hub()
        self._current = getcurrent
        self._flag = False
        self._switch: Callable[..., object] | None = None
        self._callback: Any = None

    def set(self) -> None:
        if not self._flag:
            self._flag = True
            self._resume()

    def _resume(self) -> None:
        """Switches to the waiter from the hub. A wait that ends by an exception takes the callback back."""
        switch = self._switch
        if switch is not None:
            self._switch = None
            self._callback = self._hub.loop.run_callback(switch)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._flag and (timeout is None or timeout > 0):
            if timeout is None:
                self._pause()
            elif timeout >= _LONG_WAIT_SECONDS:
                _ticker().watch(self, time.monotonic() + timeout)
                try:
                    self._pause()
                finally:
                    _ticker().forget(self)
            else:
                self._pause_briefly(timeout)
        flag = self._flag
        self._flag = False
        return flag

    def _pause(self) -> None:
        self._switch = self._current().switch
        try:
            self._hub.switch()
        except BaseException:
            self._switch = None
            if self._callback is not None:
                self._callback.stop()
            raise
        finally:
            self._callback = None

    def _pause_briefly(self, timeout: float) -> None:
        timer = self._hub.loop.timer(timeout)
        timer.start(self._resume)
        try:
            self._pause()
        finally:
            timer.stop()
            timer.close()


class _Ticker:
    """Ends long waits: one greenlet, alive only while somebody waits."""

    def __init__(self) -> None:
        self._deadlines: dict[_GreenletWakeup, float] = {}
        self._running = False

    def watch(self, waiter: _GreenletWakeup, deadline: float) -> None:
        self._deadlines[waiter] = deadline
        if not self._running:
            self._running = True
            spawn(self._run)

    def forget(self, waiter: _GreenletWakeup) -> None:
        self._deadlines.pop(waiter, None)

    def _run(self) -> None:
        idle_ticks = 0
        try:
            while idle_ticks < 10:
                time.sleep(until_common_moment(TICK_SECONDS))
                idle_ticks = 0 if self._deadlines else idle_ticks + 1
                now = time.monotonic()
                for waiter in [waiter for waiter, end in self._deadlines.items() if end <= now]:
                    waiter._resume()
        finally:
            self._running = False


@functools.cache
def _ticker() -> _Ticker:
    return _Ticker()


def until_common_moment(period: float) -> float:
    """Seconds until the next of the moments, `period` apart, that are the same for all who ask.

    What is done now and then in a process is done in one go so: each waking up costs an idle one more than
    what it wakes up for. A moment that is very near is passed over: a timer may have ended a bit early.
    """
    left = period - time.monotonic() % period
    return left if left > period / 4 else left + period


class PeriodicTask:
    """Takes a turn again and again, in a greenlet or thread of its own, with a pause after each.

    `turn()` returns the seconds until the next one, above 0; None: at the next common moment, about `period`
    later. One that raises is logged, as "`doing` failed", and the next one follows as after None: it may go
    well, and nobody else would take it.
    """

    def __init__(self, doing: str, turn: Callable[[], float | None], period: float) -> None:
        self._doing = doing
        self._turn = turn
        self._period = period
        self._wakeup = wakeup()
        self._told: set[str] = set()
        self._started = False
        self.stopped = False  # no turn begins any more

    def start(self) -> None:
        """Begins with a turn. After the fork; idempotent."""
        if not self._started:
            spawn(self._take_turns)
            self._started = True

    def wake(self) -> None:
        """Has the next turn taken without a pause; the one after it, if a turn is being taken."""
        self._wakeup.set()

    def stop(self) -> None:
        """Ends it, after the turn that is being taken. Idempotent."""
        self.stopped = True
        self._wakeup.set()

    def _take_turns(self) -> None:
        while not self.stopped:
            self._wakeup.wait(self._take_turn())

    def _take_turn(self) -> float:
        pause = None
        try:
            pause = self._turn()
        except Exception as error:
            self._tell(error)
        return until_common_moment(self._period) if pause is None else pause

    def _tell(self, error: Exception) -> None:
        """With its traceback once for each kind: an error may come back several times a second, for ever."""
        kind = f"{type(error)} {traceback.extract_tb(error.__traceback__)[-1]}"
        if kind in self._told:
            _LOG.debug("%s failed again: %r", self._doing, error)
        else:
            self._told.add(kind)
            _LOG.error("%s failed", self._doing, exc_info=error)

    def __repr__(self) -> str:
        return f"<PeriodicTask {self._doing} started={self._started} stopped={self.stopped}>"


class Drain:
    """The moment at which open streams of this process have to end, once SIGTERM has come."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._waiters: set[Wakeup] = set()

    @property
    def begun(self) -> bool:
        """Whether the process takes no new requests any more."""
        return self.deadline is not None

    def due(self) -> bool:
        """Whether what is still open has to end now."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def begin(self, seconds: float) -> None:
        """Streams may run for `seconds` more. Of several calls the one that gives the least time counts."""
        deadline = time.monotonic() + seconds
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline
            if seconds > 0:
                call_later(seconds, self._wake_all)
            else:  # maybe in a signal's handler, where no lock must be taken
                self._wake_all()

    def waiting(self) -> bool:
        """Whether anything is still open."""
        return bool(self._waiters)

    def subscribe(self, waiter: Wakeup) -> None:
        """`waiter` is set when the moment has come."""
        self._waiters.add(waiter)

    def unsubscribe(self, waiter: Wakeup) -> None:
        self._waiters.discard(waiter)

    def _wake_all(self) -> None:
        for waiter in tuple(self._waiters):
            waiter.set()

    def __repr__(self) -> str:
        return f"<Drain begun={self.begun} due={self.due()} waiters={len(self._waiters)}>"


drain: Final = Drain()


def _forget_parent() -> None:
    """What runs in greenlets and threads stays behind in a fork."""
    global _process
    _process = os.getpid()
    for made in (_native_pool, _ticker, _timers):
        made.cache_clear()


os.register_at_fork(after_in_child=_forget_parent)
