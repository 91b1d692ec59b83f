"""What a router's processes hold, once all is quiet, against what they held before.

The router has to serve `tests.soak.watched:application`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import psutil

from tests.soak.watched import PATH
from tests.support.processes import Router, Worker, wait_until

WAIT_SECONDS: Final = 90.0
"""A busy machine takes its time."""
SLACK: Final = 8
"""So many more files, threads or greenlets than before are no leak: those who ask are among them."""
_COUNTS: Final = ("files", "threads", "python_threads", "greenlets")
_AT_ONCE: Final = 4
"""Askers for each process: while one process looks through its objects another takes the next connection."""

Held = dict[int, dict[str, Any]]
"""By process."""


class Watch:
    """Asks all processes of `router`, and the simulators behind it."""

    def __init__(self, router: Router, workers: Sequence[Worker] = (), processes: int | None = None) -> None:
        self.router = router
        self.workers = workers
        self.processes = processes or int(router.environment["WEB_CONCURRENCY"])

    def live(self) -> set[int]:
        """Process ids."""
        found = set()
        for process in self.router.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process.pid)
        return found

    def held(self) -> Held:
        """What each process holds now."""
        wait_until(lambda: len(self.live()) == self.processes, WAIT_SECONDS, "the usual number of processes")
        found: Held = {}
        lock = threading.Lock()

        def ask(_: int) -> None:
            with contextlib.suppress(httpx.TransportError):
                held = httpx.get(self.router.url + PATH, timeout=30).json()
                with lock:
                    found[held["pid"]] = _least(found.get(held["pid"]), held)

        with ThreadPoolExecutor(_AT_ONCE * self.processes) as pool:

            def asked() -> bool:
                list(pool.map(ask, range(_AT_ONCE * self.processes)))
                return self.live() <= found.keys()

            wait_until(asked, WAIT_SECONDS, "each process to be asked")
        return {pid: found[pid] for pid in self.live()}

    def settled(self) -> Held:
        """The same, once nothing runs any more, neither here nor on the simulators."""
        router = self.router
        wait_until(lambda: not self.running(), WAIT_SECONDS, "nothing runs on the workers")
        wait_until(lambda: self._quiet("wsgi_router_requests_in_flight"), WAIT_SECONDS, "nothing in flight")
        wait_until(lambda: self._quiet("wsgi_router_worker_requests_in_flight"), WAIT_SECONDS, "no lease")
        held: Held = {}

        def idle() -> bool:
            held.clear()
            held.update(self.held())
            return not any(busy(one) for one in held.values())

        try:
            wait_until(idle, WAIT_SECONDS, "no live handle, no lease of a process")
        except AssertionError as error:
            error.add_note(f"{held}\n{router.output()[-2000:]}")
            raise
        return held

    def _quiet(self, name: str) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.router.metric(name) == 0
        return False

    def running(self) -> int:
        """Requests on the simulators that run."""
        infos = [worker.server_info() for worker in self.workers if worker.running()]
        return sum(int(info[name]) for info in infos for name in ("running", "waiting"))

    def check(self, before: Held, growth: int = 64 << 20) -> Held:
        """Waits until all is quiet; fails if a process holds more than the most that one held before."""
        after = self.settled()
        if before.keys() & after.keys() == before.keys():
            pairs = [(before[pid], after[pid]) for pid in before]
        else:  # others have taken their place
            pairs = [(_most(before), now) for now in after.values()]
        for then, now in pairs:
            shown = f"process {now['pid']}: {then} -> {now}"
            for name in _COUNTS:
                assert now[name] <= then[name] + SLACK, f"more {name}: {shown}"
            assert now["resident"] <= then["resident"] + growth, f"more memory: {shown}"
        return after


def busy(held: dict[str, Any]) -> bool:
    """Whether a process has a request in hand, or what is left of one."""
    handles = held["handles"]
    # A call may be a probe.
    return bool(
        handles["streams"] or handles["prepared"] or handles["calls"] > SLACK or any(held["loads"].values())
    )


def _least(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """Of two answers of a process the later, with the lower counts: those who ask at one time count too."""
    return other if one is None else {**other, **{name: min(one[name], other[name]) for name in _COUNTS}}


def _most(held: Held) -> dict[str, Any]:
    return {name: max(one[name] for one in held.values()) for name in (*_COUNTS, "resident")}
