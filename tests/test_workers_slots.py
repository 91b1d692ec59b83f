"""Slots for calls: how many there are, whose turn it is, and waits that end without one."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.modes import MODES, run
from tests.support.processes import wait_until
from wsgi_router import runtime
from wsgi_router.workers.slots import Slots
from wsgi_router.workers.transport import Cancel, RpcFailure


class Holder:
    """Holds a slot until it is told to end."""

    def __init__(self, slots: Slots, cancel: Cancel | None = None, timeout: float = 30) -> None:
        self.began = self.done = False
        self.code = ""
        self.left = 0.0
        self._end = runtime.wakeup()
        runtime.spawn(self._run, slots, cancel, timeout)

    def _run(self, slots: Slots, cancel: Cancel | None, timeout: float) -> None:
        try:
            with slots.held(timeout, cancel) as self.left:
                self.began = True
                self._end.wait()
        except RpcFailure as failure:
            self.code = failure.code
        self.done = True

    def end(self) -> None:
        self._end.set()
        wait_until(lambda: self.done)


def waiting(slots: Slots, count: int) -> None:
    wait_until(lambda: f"waiting={count}>" in repr(slots))


def turns_scenario() -> None:
    slots = Slots(2)
    holders = []
    for number in range(5):
        holders.append(Holder(slots))
        waiting(slots, max(number - 1, 0))
    wait_until(lambda: [one.began for one in holders] == [True, True, False, False, False])
    holders[1].end()
    wait_until(lambda: holders[2].began)
    holders[0].end()
    wait_until(lambda: holders[3].began)
    assert not holders[4].began
    for one in holders:
        one.end()
    assert repr(slots) == "<Slots free=2 waiting=0>"
    assert [one.code for one in holders] == [""] * 5


def late_scenario() -> None:
    """Who has waited long for a slot has little time for a call: its late end says nothing of the worker."""
    slots = Slots(1)
    first = Holder(slots)
    wait_until(lambda: first.began)
    ended: list[str] = []

    def call(code: str) -> None:
        try:
            with slots.held(5):
                raise RpcFailure(code, "")
        except RpcFailure as failure:
            ended.append(failure.code)

    runtime.spawn(call, "DEADLINE_EXCEEDED")
    waiting(slots, 1)
    runtime.spawn(call, "UNAVAILABLE")
    waiting(slots, 2)
    time.sleep(1)
    first.end()
    wait_until(lambda: len(ended) == 2)
    call("DEADLINE_EXCEEDED")
    assert ended == ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"]


def ends_scenario() -> None:
    slots, cancel = Slots(1), Cancel()
    first = Holder(slots)
    wait_until(lambda: first.began)
    late, left = Holder(slots, timeout=0.2), [Holder(slots, cancel) for _ in range(2)]
    last = Holder(slots)
    wait_until(lambda: late.code == "RESOURCE_EXHAUSTED")
    waiting(slots, 3)
    cancel()
    wait_until(lambda: [one.code for one in left] == ["CANCELLED"] * 2)
    after = Holder(slots, cancel)
    wait_until(lambda: after.code == "CANCELLED")
    time.sleep(0.3)
    first.end()
    wait_until(lambda: last.began)
    assert last.left < 29.8
    last.end()
    assert repr(slots) == "<Slots free=1 waiting=0>"


def both_scenario() -> None:
    turns_scenario()
    late_scenario()
    ends_scenario()


@pytest.mark.parametrize("mode", MODES)
def test_greenlets_and_threads(mode: str) -> None:
    run(mode, both_scenario)


def test_many_threads_lose_no_slot() -> None:
    """Whether a turn comes, is given up, or both at one moment."""
    slots, running, most = Slots(3), [0], [0]
    lock = threading.Lock()

    def work(seed: int) -> None:
        for number in range(60):
            cancel = Cancel()
            if (seed + number) % 3 == 0:
                runtime.call_later(0.001, cancel)
            try:
                with slots.held(0.01, cancel):
                    with lock:
                        running[0] += 1
                        most[0] = max(most[0], running[0])
                    time.sleep(0.0005)
                    with lock:
                        running[0] -= 1
            except RpcFailure:
                pass

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [3]
    assert repr(slots) == "<Slots free=3 waiting=0>"
