"""How many requests generate at once, over all processes of a server, and who waits for it.

    arrive ──▶ (tokenise) ──▶ enter ──▶ Slot ──▶ the generation ──▶ Slot.release
      │ 429 if the queue is full        │ waits its turn: 503 after QUEUE_TIMEOUT
      │ 503 if all workers are full     └ leaves at once when its client does, or the drain ends

A request is looked at twice. `arrive` comes after its body was checked and before it is tokenised: bad input
gets its 400 whatever the load is, and a full queue refuses before anything costly was done. `enter` comes
after it was tokenised, so that what waits can start at once, and what can never start has not waited.

The limit is one for the server. Each process counts what it runs in a cell that all can read, and takes a
slot only if the sum of all cells stays within the limit: it counts first and then looks, so that of two that
take the last slot at once one gives it back, or both do and try again. A process has a right to its share,
the limit divided by those that live; beyond that it takes what is free, unless another one that has less than
its share has somebody waiting. So no slot lies idle for long, wherever the requests have come in, and a
process that joins, dies or drains changes nothing but the sums.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wsgi_router import observability, runtime
from wsgi_router.errors import (
    ClientGone,
    DeadlineError,
    DrainingError,
    QueueFullError,
    QueueTimeoutError,
    RouterError,
)
from wsgi_router.fair_queue import FairQueue, Flow
from wsgi_router.peers import Field, Peers
from wsgi_router.settings import Settings
from wsgi_router.workers.board import ROWS

if TYPE_CHECKING:
    from wsgi_router.client_watch import ClientWatch

LOOK_SECONDS: Final = 0.01
"""Longest time until a slot that another process has freed is seen, while somebody waits here."""
_LONGEST_RETRY_AFTER: Final = 60
_WEIGHT: Final = 0.1
"""Of the last request in the mean time that a slot is held."""


class Slot:
    """The right of one request to run. `release` may be called any number of times, from anywhere."""

    __slots__ = ("_admission", "held", "since")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.held = True
        self.since = time.monotonic()

    def release(self) -> None:
        if self.held:
            self._admission._return(self)

    def __del__(self) -> None:
        if self.held:  # a finaliser may run anywhere, so the work is done elsewhere
            admission, seconds = self._admission, time.monotonic() - self.since
            admission.defer(lambda: admission._give_back(seconds))

    def __repr__(self) -> str:
        return f"<Slot {'held' if self.held else 'released'}>"


class _Ticket:
    """A place in the queue."""

    __slots__ = ("error", "slot", "wakeup")

    def __init__(self) -> None:
        self.wakeup = runtime.wakeup()
        self.slot: Slot | None = None
        self.error: RouterError | None = None


class Admission:
    """The slots and the queue of this process. One for each process, made after the fork."""

    def __init__(self, settings: Settings, peers: Peers, shed: Callable[[str], object] | None = None) -> None:
        priorities = dict(settings.key_priorities)
        self._priorities = [priorities.get(key, 0) for key in settings.api_keys]
        self._shed = shed
        self._limit = settings.max_concurrent_requests
        self._queue_limit = settings.queue_limit
        self._timeout = settings.queue_timeout
        self._peers = peers
        self._queue: FairQueue[_Ticket] = FairQueue()
        self._running = 0
        self._told = 0  # how many wait, as the others were told
        self._held_seconds = 1.0
        self._looking = False
        self._lock = runtime.brief_lock()
        self.defer: Callable[[Callable[[], object]], None] = runtime.deferrer()
        """Runs a function elsewhere; for finalisers."""

    @property
    def running(self) -> int:
        """Requests that run in this process."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait in this process."""
        return len(self._queue)

    def stats(self) -> observability.AdmissionStats | None:
        """For metrics: requests that run and that wait, in all processes; None without a limit."""
        if not self._limit:
            return None
        return sum(self._peers.column(Field.RUNNING)), sum(self._peers.column(Field.WAITING))

    def arrive(self, key: int | None, user: str | None, model: str) -> Flow | None:
        """Whose request it is, for `enter`; None if that is not needed.

        `key` is the place of its API key; where there are no keys, users take turns. Raises QueueFullError if
        `enter` would, as things are now; OverloadedError if all workers of `model` are full.
        """
        if self._shed is not None:
            self._shed(model)
        if not self._limit:
            return None
        flow = Flow(user or "") if key is None else Flow(key, self._priorities[key])
        with self._lock:
            refused = not (self._free_now() or self._room_for(flow))
        if refused:
            raise self._full()
        return flow

    def enter(self, flow: Flow, client: ClientWatch | None = None, until: float = math.inf) -> Slot:
        """Returns once the request may run. Else closes `client`, and raises QueueFullError,
        QueueTimeoutError, ClientGone, DrainingError, or DeadlineError if it is `until`, by time.monotonic."""
        try:
            return self._enter(flow, client, until)
        except BaseException:
            if client is not None:
                client.close()
            raise

    def _enter(self, flow: Flow, client: ClientWatch | None, until: float) -> Slot:
        begun = time.monotonic()
        ticket = ousted = None
        with self._lock:
            slot = Slot(self) if self._free_now() and self._take() else None
            if slot is None:
                ticket, ousted = self._queue_up(flow)
        if ousted is not None:
            ousted.error = self._full()
            ousted.wakeup.set()
        if slot is None:
            if ticket is None:
                raise self._full()
            slot = self._wait(flow, ticket, client, begun + self._timeout, until)
        metrics = observability.metrics()
        metrics.note(metrics.queued_for(time.monotonic() - begun))
        return slot

    def _wait(
        self, flow: Flow, ticket: _Ticket, client: ClientWatch | None, end: float, until: float
    ) -> Slot:
        try:
            runtime.drain.subscribe(ticket.wakeup)
            if client is not None:
                client.subscribe(ticket.wakeup)
            self._look_later()
            while ticket.slot is None:
                if ticket.error is not None:
                    raise ticket.error
                now = time.monotonic()
                pause = min(end, until) - now
                if client is not None and client.poll_seconds is not None:
                    client.poll(now)
                    pause = min(pause, client.poll_seconds)
                if client is not None and client.gone:
                    raise ClientGone
                if runtime.drain.due():
                    raise DrainingError
                if now >= until:
                    raise DeadlineError("The request was not answered in time.")
                if now >= end:
                    raise self._too_late()
                ticket.wakeup.wait(pause)
            if client is not None and client.gone:
                raise ClientGone
        except BaseException:
            self._leave(flow, ticket)
            raise
        finally:
            runtime.drain.unsubscribe(ticket.wakeup)
            if client is not None:
                client.subscribe(None)
        return ticket.slot

    def _leave(self, flow: Flow, ticket: _Ticket) -> None:
        with self._lock:
            if self._queue.remove(flow, ticket):
                self._tell_waiting()
        if ticket.slot is not None:
            ticket.slot.release()

    # Under the lock:

    def _free_now(self) -> bool:
        """Whether a request that comes now need not wait, as far as can be told without taking a slot."""
        return not self._queue and self._may_take()

    def _may_take(self) -> bool:
        peers = self._peers
        if peers.row is None:
            return self._running < max(self._limit // ROWS, 1)
        running = peers.column(Field.RUNNING)
        if sum(running) >= self._limit:
            return False
        waiting = peers.column(Field.WAITING)
        if sum(waiting) == waiting[peers.row]:  # nobody else waits
            return True
        alive = peers.alive()
        share = max(self._limit // max(len(alive), 1), 1)
        if running[peers.row] < share:
            return True
        return not any(waiting[row] and running[row] < share for row in alive if row != peers.row)

    def _take(self) -> bool:
        self._count(1)
        if self._peers.row is not None and sum(self._peers.column(Field.RUNNING)) > self._limit:
            self._count(-1)
            return False
        return True

    def _count(self, count: int) -> None:
        self._running += count
        self._peers.add(Field.RUNNING, count)

    def _tell_waiting(self) -> None:
        told, self._told = self._told, len(self._queue)
        self._peers.add(Field.WAITING, self._told - told)

    def _has_room(self) -> bool:
        places = self._queue_limit and max(self._queue_limit // max(len(self._peers.alive()), 1), 1)
        return len(self._queue) < places

    def _room_for(self, flow: Flow) -> bool:
        return self._has_room() or self._queue.unfairer_than(flow) is not None

    def _queue_up(self, flow: Flow) -> tuple[_Ticket | None, _Ticket | None]:
        """A place in the queue, if there is one, and who has lost theirs for it, if anyone has."""
        ousted = None
        if not self._has_room():
            found = self._queue.unfairer_than(flow)
            if found is None:
                return None, None
            self._queue.remove(*found)
            ousted = found[1]
        ticket = _Ticket()
        self._queue.push(flow, ticket)
        self._tell_waiting()
        return ticket, ousted

    def _serve(self) -> list[_Ticket]:
        """Gives the free slots to those whose turn it is, who are to be woken."""
        served = []
        while self._queue and self._may_take() and self._take():
            ticket = self._queue.pop()
            ticket.slot = Slot(self)
            served.append(ticket)
        if served:
            self._tell_waiting()
        return served

    # Not under the lock:

    def _return(self, slot: Slot) -> None:
        with self._lock:
            if not slot.held:
                return
            slot.held = False
        self._give_back(time.monotonic() - slot.since)

    def _give_back(self, seconds: float) -> None:
        with self._lock:
            self._held_seconds += _WEIGHT * (seconds - self._held_seconds)
            self._count(-1)
            served = self._serve()
        for ticket in served:
            ticket.wakeup.set()

    def _look_later(self) -> None:
        """Looks for slots that other processes have freed, as long as somebody waits here."""
        with self._lock:
            if self._looking or self._peers.alone:
                return
            self._looking = True
        runtime.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        with self._lock:
            served = self._serve()
            again = self._looking = bool(self._queue)
        for ticket in served:
            ticket.wakeup.set()
        if again:
            runtime.call_later(LOOK_SECONDS, self._look)

    def _retry_after(self) -> int:
        """Seconds until those who wait now may all have begun."""
        turns = (len(self._queue) + 1) / max(self._running, 1)
        return min(max(math.ceil(turns * self._held_seconds), 1), _LONGEST_RETRY_AFTER)

    def _full(self) -> QueueFullError:
        observability.metrics().count_refusal(QueueFullError.code)
        return QueueFullError(self._retry_after())

    def _too_late(self) -> QueueTimeoutError:
        observability.metrics().count_refusal(QueueTimeoutError.code)
        return QueueTimeoutError(self._retry_after())

    def __repr__(self) -> str:
        return f"<Admission running={self._running} of {self._limit} waiting={len(self._queue)}>"
