"""The limit of requests that run, the queue for it, and how processes divide it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.flow import Client
from tests.support.processes import wait_until
from tests.support.server import Member, Server
from wsgi_router import runtime
from wsgi_router.admission import Admission, Slot
from wsgi_router.errors import (
    ClientGone,
    DrainingError,
    OverloadedError,
    QueueFullError,
    QueueTimeoutError,
    RouterError,
)
from wsgi_router.fair_queue import FairQueue, Flow
from wsgi_router.peers import Field, Peers
from wsgi_router.settings import Settings
from wsgi_router.workers.board import Board

ANY = Flow("")


def make(peers: Peers | None = None, **settings: Any) -> Admission:
    given = {"max_concurrent_requests": 1, "queue_timeout": 20.0, **settings}
    made = Admission(Settings(**given), peers or Peers(Board()))
    made._queue = _Noting()
    return made


class _Noting(FairQueue[Any]):
    """Counts all that ever waited."""

    pushed = 0

    def push(self, flow: Flow, thing: Any) -> None:
        super().push(flow, thing)
        self.pushed += 1


class Entering:
    """A request that enters, in a thread of its own."""

    def __init__(self, where: Admission, flow: Flow = ANY, client: Client | None = None) -> None:
        self.slot: Slot | None = None
        self.error: RouterError | None = None
        self._where, self._flow, self._client = where, flow, client
        self._thread = threading.Thread(target=self._enter)
        queue = where._queue
        assert isinstance(queue, _Noting)
        pushed = queue.pushed
        self._thread.start()
        wait_until(lambda: not self._thread.is_alive() or queue.pushed > pushed, 10, "a place")

    def _enter(self) -> None:
        try:
            self.slot = self._where.enter(self._flow, self._client.watch if self._client else None)
        except RouterError as error:
            self.error = error

    def over(self) -> Entering:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self


def test_a_slot_is_counted_once() -> None:
    where = make()
    slot = where.enter(ANY)
    assert (where.running, where.stats()) == (1, (1, 0))
    for _ in range(3):
        slot.release()
    assert (where.running, where.stats()) == (0, (0, 0))


def test_those_that_wait_begin_as_others_end() -> None:
    where = make(max_concurrent_requests=2)
    slots = [where.enter(ANY) for _ in range(2)]
    waiting = [Entering(where) for _ in range(2)]
    assert where.stats() == (2, 2)
    slots[0].release()
    assert waiting[0].over().slot is not None
    assert where.stats() == (2, 1)
    slots[1].release()
    assert waiting[1].over().slot is not None
    assert where.stats() == (2, 0)


def test_keys_take_turns() -> None:
    where = make()
    slot = where.enter(ANY)
    waiting = [Entering(where, Flow(key)) for key in "aaab"]
    begun = []
    for _ in waiting:
        slot.release()
        wait_until(lambda: any(one.slot and one.slot.held for one in waiting), 10, "the next")
        (place,) = [place for place, one in enumerate(waiting) if one.slot and one.slot.held]
        begun.append(place)
        found = waiting[place].slot
        assert found is not None
        slot = found
    assert begun == [0, 3, 1, 2]


def test_a_full_queue_refuses() -> None:
    where = make(queue_limit=1)
    slot = where.enter(ANY)
    assert where.arrive(None, None, "") == ANY
    waiting = Entering(where)
    with pytest.raises(QueueFullError) as caught:
        where.arrive(None, None, "")
    with pytest.raises(QueueFullError):
        where.enter(ANY)
    assert caught.value.status == 429
    assert int(caught.value.headers()["Retry-After"]) >= 1
    assert "x-should-retry" not in caught.value.headers()
    slot.release()
    found = waiting.over().slot
    assert found is not None
    found.release()
    assert where.stats() == (0, 0)


def test_no_queue() -> None:
    where = make(queue_limit=0)
    slot = where.enter(ANY)
    with pytest.raises(QueueFullError):
        where.arrive(None, None, "")
    slot.release()
    assert where.arrive(None, None, "") == ANY


def test_nobody_fills_the_queue_for_the_others() -> None:
    where = make(queue_limit=2)
    slot = where.enter(ANY)
    greedy = [Entering(where, Flow("greedy")) for _ in range(2)]
    with pytest.raises(QueueFullError):
        where.arrive(None, "greedy", "")
    assert where.arrive(None, "modest", "") == Flow("modest")
    other = Entering(where, Flow("modest"))
    assert isinstance(greedy[1].over().error, QueueFullError)
    for one in (greedy[0], other):
        slot.release()
        found = one.over().slot
        assert found is not None
        slot = found
    slot.release()


def test_priorities_are_those_of_the_keys() -> None:
    where = make(api_keys=("a", "b"), key_priorities=(("b", 7),))
    assert where.arrive(0, "someone", "") == Flow(0, 0)
    assert where.arrive(1, "someone", "") == Flow(1, 7)


def test_a_wait_that_is_too_long() -> None:
    where = make(queue_timeout=0.05)
    slot = where.enter(ANY)
    with pytest.raises(QueueTimeoutError) as caught:
        where.enter(ANY)
    assert caught.value.status == 503
    assert int(caught.value.headers()["Retry-After"]) >= 1
    assert where.stats() == (1, 0)
    slot.release()


def test_retry_after_follows_how_long_slots_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    where = make(queue_limit=0)
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    for _ in range(60):
        slot = where.enter(ANY)
        clock += 20
        slot.release()
    slot = where.enter(ANY)
    with pytest.raises(QueueFullError) as caught:
        where.enter(ANY)
    slot.release()
    assert 15 < int(caught.value.headers()["Retry-After"]) <= 20


def test_a_client_that_leaves_leaves_the_queue() -> None:
    where = make()
    slot = where.enter(ANY)
    client = Client()
    waiting = Entering(where, client=client)
    client.leave()
    assert isinstance(waiting.over().error, ClientGone)
    assert where.stats() == (1, 0)
    slot.release()
    assert where.stats() == (0, 0)


def test_a_slot_for_a_client_that_has_left_goes_back() -> None:
    where = make()
    slot = where.enter(ANY)
    client = Client()
    waiting = Entering(where, client=client)
    client.watch.gone = True  # it was noticed as the slot was given
    slot.release()
    assert isinstance(waiting.over().error, ClientGone)
    assert where.stats() == (0, 0)


def test_the_drains_end_refuses_those_that_wait(drain: runtime.Drain) -> None:
    where = make()
    slot = where.enter(ANY)
    waiting = Entering(where)
    drain.begin(60)
    time.sleep(0.05)
    assert where.stats() == (1, 1)  # until then it may still be served
    drain.begin(0)
    assert isinstance(waiting.over().error, DrainingError)
    assert not drain.waiting()
    slot.release()
    assert where.stats() == (0, 0)


def test_a_forgotten_slot_comes_back() -> None:
    where = make()
    where.enter(ANY)
    gc.collect()
    wait_until(lambda: where.stats() == (0, 0), 10, "the slot")


def test_shedding_comes_first() -> None:
    def shed(model: str) -> None:
        if model == "full":
            raise OverloadedError(3)

    where = Admission(Settings(), Peers(Board()), shed)
    assert where.arrive(None, None, "idle") is None  # no limit: nothing to enter
    assert where.stats() is None
    with pytest.raises(OverloadedError) as caught:
        where.arrive(None, None, "full")
    assert caught.value.headers()["Retry-After"] == "3"


# Several processes


class Process(Member):
    """A process with a limit."""

    def __init__(self, server: Server, **settings: Any) -> None:
        super().__init__(server)
        self.admission = make(self.peers, **settings)

    def enter(self) -> Slot:
        return self.admission.enter(ANY)

    def full(self) -> bool:
        try:
            self.enter().release()
        except QueueFullError:
            return True
        return False


Make = Callable[..., list[Process]]


@pytest.fixture
def board(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.fixture
def server(board: Server) -> Iterator[Make]:
    made: list[Process] = []

    def processes(count: int, **settings: Any) -> list[Process]:
        made.extend(Process(board, **settings) for _ in range(count))
        return made

    yield processes
    for process in made:
        assert process.admission.waiting == 0


def test_the_sum_over_processes_is_bounded(server: Make) -> None:
    one, other = server(2, max_concurrent_requests=5, queue_limit=0)
    slots = [one.enter() for _ in range(3)] + [other.enter() for _ in range(2)]
    assert one.full()
    assert other.full()
    slots[0].release()
    assert not other.full()
    assert one.admission.stats() == (4, 0)


def test_a_process_may_use_what_the_others_do_not(server: Make) -> None:
    one, other = server(2, max_concurrent_requests=4, queue_limit=0)
    slots = [one.enter() for _ in range(4)]
    assert one.full()
    assert other.full()
    slots[0].release()
    assert not other.full()


def test_a_process_that_has_its_share_leaves_the_rest_to_others_that_wait(server: Make) -> None:
    one, other = server(2, max_concurrent_requests=4)
    slots = [one.enter() for _ in range(4)]
    first, late = Entering(other.admission), Entering(one.admission)
    slots.pop().release()
    assert first.over().slot is not None
    assert late.slot is None
    slots.pop().release()
    assert late.over().slot is not None
    assert one.admission.stats() == (4, 0)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_each_process_gets_on_however_low_the_limit_is(server: Make, count: int) -> None:
    """Fewer slots than processes: none is kept out for good, and the limit still holds."""
    processes = server(count, max_concurrent_requests=1)
    slot = processes[0].enter()
    waiting = [Entering(process.admission) for process in processes]
    for _ in waiting:
        slot.release()
        wait_until(lambda: any(one.slot and one.slot.held for one in waiting), 10, "the next")
        assert processes[0].admission.stats()[0] == 1  # type: ignore[index]
        (slot,) = [one.slot for one in waiting if one.slot and one.slot.held]
    slot.release()


def test_slots_of_a_process_that_died_are_free(server: Make, board: Server) -> None:
    one, other = server(2, max_concurrent_requests=2, queue_limit=0)
    held = [one.enter(), one.enter()]
    assert other.full()
    board.end(one)
    held += [other.enter(), other.enter()]
    assert other.full()


def test_a_draining_process_counts_until_it_ends(server: Make) -> None:
    one, other = server(2, max_concurrent_requests=2, queue_limit=0)
    held = [one.enter()]
    one.peers.retire()
    held.append(other.enter())
    assert other.full()
    held[0].release()
    assert not other.full()


def test_nobody_waits_for_a_frozen_process(server: Make) -> None:
    """It has somebody waiting and runs nothing, so that the slot is its own by right; but it is still."""
    one, other = server(2, max_concurrent_requests=2, queue_limit=0)
    held = other.enter()
    one.peers.put(Field.WAITING, 1)
    assert other.full()
    one.peers.put(Field.BEAT, time.monotonic_ns() - 10**10)
    assert not other.full()
    held.release()
    one.peers.put(Field.WAITING, 0)


def test_the_queue_is_divided(server: Make, board: Server) -> None:
    one, other = server(2, max_concurrent_requests=1, queue_limit=4)
    slot = one.enter()
    waiting = [Entering(one.admission) for _ in range(2)]
    assert one.full()
    board.end(other)
    waiting += [Entering(one.admission) for _ in range(2)]
    assert one.full()
    for entering in waiting:
        slot.release()
        found = entering.over().slot
        assert found is not None
        slot = found
    slot.release()


def test_two_applications_of_a_process_share_the_limit(server: Make) -> None:
    (one,) = server(1, max_concurrent_requests=3, queue_limit=0)
    other = make(one.peers, max_concurrent_requests=3, queue_limit=0)
    slots = [one.enter(), other.enter(ANY), other.enter(ANY)]
    assert one.full()
    assert other.stats() == (3, 0)
    for slot in slots:
        slot.release()
    assert other.stats() == (0, 0)


def test_a_process_without_a_row_keeps_a_limit_of_its_own(server: Make) -> None:
    (one,) = server(1, max_concurrent_requests=1000, queue_limit=0)
    one.board.use_row(None)
    slots = [one.enter() for _ in range(7)]
    assert one.full()
    slots[0].release()
    assert not one.full()


def test_many_threads_of_many_processes_keep_to_the_limit(server: Make) -> None:
    limit, each = 3, 40
    processes = server(4, max_concurrent_requests=limit, queue_limit=1000)
    held: list[Slot] = []
    most = 0
    failures: list[BaseException] = []

    def work(process: Process) -> None:
        nonlocal most
        try:
            for _ in range(each):
                slot = process.enter()
                held.append(slot)
                most = max(most, len(held))
                time.sleep(0.0002)
                held.remove(slot)
                slot.release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(process,)) for process in processes for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures
    assert processes[0].admission.stats() == (0, 0)
    assert 1 < most <= limit
