"""All workers of this process: which model they serve, which of them may be asked, and who is asked next."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from wsgi_router import observability, runtime
from wsgi_router.errors import InvalidRequestError, ModelNotFoundError, NoWorkerError, shown
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.workers import cards, health
from wsgi_router.workers.breaker import FAULTS, LOSSES, SEEN, Event, Limits, Phase
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.membership import Membership, parts
from wsgi_router.workers.origins import origins
from wsgi_router.workers.policies import Policy, make_policy
from wsgi_router.workers.probing import Prober
from wsgi_router.workers.retries import Retries
from wsgi_router.workers.roles import EVERY_ROLE, Role
from wsgi_router.workers.transport import RpcFailure, Transport
from wsgi_router.workers.worker import Lease, ModelCard, Worker

_LOG = logging.getLogger(__name__)

_MODEL_CHARS: Final = 1000
"""No model's name is longer."""
FIRST_ANSWER_SECONDS: Final = 2.0
"""Longest wait of a new process for its first worker; one that is up answers in milliseconds."""
_LOOK_SECONDS: Final = 0.5
"""About the time until what another process has changed is seen: the list of workers, a card, a suspicion."""
_QUICK_SECONDS: Final = 0.05
"""The same while a worker is about to be asked for the first time."""
_LEAST_PAUSE: Final = 0.001


class WorkerPool:
    """Starts with no worker known; `start()` begins to look after them.

    In one process of a server, the one that leads, each worker is asked what it serves until it answers. One
    that a call could not reach, or waited for in vain, is asked again at once, and passed over until it
    answers; one that is up is asked when nothing was heard of it for a while. What the leading process does
    not know, another one asks whose requests wait there. All processes go by what is found out, and by what
    each of them sees in its calls.
    """

    def __init__(
        self, settings: Settings, transport: Transport, taken: Callable[[int], None] | None = None
    ) -> None:
        """`taken` is called with the column of a worker that nobody has had yet."""
        self._health = health.current()
        self._board = self._health.board
        self._shared_cards = cards.Cards(self._board.folder)
        self._limits = Limits(
            settings.breaker_failures, int(settings.breaker_seconds * 1000), settings.breaker_successes
        )
        self.retries = Retries(settings)
        """The rules by which requests go to other workers."""
        self._looking = runtime.PeriodicTask("looking after the workers", self._look, _LOOK_SECONDS)
        self._prober = Prober(transport, settings, self._sees_to, self._take_answer, self._looking.wake)
        self._phases: dict[Worker, Phase] = {}
        self._unshared: set[Worker] = set()  # their cards are there, and cannot be read or kept
        known = parts(settings)
        self.membership = Membership(
            tuple(known),
            self._board,
            settings.workers_file,
            known,
            tuple(origin.name for origin in origins(settings)),
        )
        self._taken = taken
        self._generation = self.membership.generation
        self._trouble = ""  # why the list cannot be followed, as it was logged last
        self.workers: tuple[Worker, ...] = ()
        self._leaving: dict[str, Worker] = {}  # removed, with requests in hand, of whatever process
        self._halves = False  # whether any worker is one
        self._transport = transport
        self._settings = settings
        self._policies: dict[tuple[str, Role], Policy] = {}  # turns and keys of one are not those of another
        self._told = runtime.wakeup()
        self._cards: dict[str, ModelCard] = {}  # by served name, sorted
        self._list_lock = threading.Lock()  # which workers there are, and their cards
        self._take_list()

    def start(self) -> None:
        """Begins to look after the workers. After the fork; idempotent."""
        self._looking.start()

    def wait_for_answer(self, seconds: float = FIRST_ANSWER_SECONDS) -> None:
        """Returns once a worker is up or each was asked, after `seconds` at the latest. Once, by one caller.

        A process that takes requests before would refuse them, though the workers are there.
        """
        if self.workers:
            self._told.wait(seconds)

    def close(self) -> None:
        """Ends what `start` began."""
        self._looking.stop()
        for worker in (*self.workers, *self._leaving.values()):
            worker.close()

    def leads(self) -> bool:
        """Whether this process does what one alone need do for all."""
        return self._board.leads()

    def _sees_to(self, worker: Worker) -> bool:
        return self.leads() or (worker.awaited and worker.record.mine)

    def usable(self) -> bool:
        """Whether any model can be served, by a regular worker or by one of either half.

        Now, or as soon as others on trial have ended.
        """
        halves: set[tuple[str, Role]] = set()
        for worker in self.workers:
            if worker.closed_for() == 0 and worker.card is not None:
                if worker.part.role is Role.REGULAR:
                    return True
                halves.add((self._settings.model or worker.card.name, worker.part.role))
        return any((model, Role.DECODE) in halves for model, role in halves if role is Role.PREFILL)

    def paired(self, model: str, exclude: Collection[Worker] = (), adapter: str = "") -> bool:
        """Whether workers of either half may be asked for `model`."""
        return self._halves and all(
            self.can_serve(model, exclude, adapter, {role}) for role in (Role.PREFILL, Role.DECODE)
        )

    def apart(self, model: str, exclude: Collection[Worker] = (), adapter: str = "") -> bool:
        """Whether pairs serve `model`: they can, or no regular worker would if all were well."""
        return self.paired(model, exclude, adapter) or (
            self._halves
            and not any(
                worker.part.role is Role.REGULAR and self._can(worker, model, adapter)
                for worker in self.workers
            )
        )

    def can_serve(
        self, model: str, exclude: Collection[Worker], adapter: str, roles: Collection[Role]
    ) -> bool:
        """Whether any worker of these roles may be asked."""
        return any(
            worker.part.role in roles
            and worker.usable()
            and worker not in exclude
            and self._can(worker, model, adapter)
            for worker in self.workers
        )

    def models(self) -> list[ModelCard]:
        """One card a served name, of all workers that have ever answered; sorted by name."""
        if not self._cards:
            self._take_cards(self.workers)
        return list(self._cards.values())

    def resolve_model(self, name: str) -> ModelCard:
        """The card of a requested model. NoWorkerError before any worker has answered, ModelNotFoundError.

        With MODEL set all workers serve that name; their own names are understood too.
        """
        card = self._cards.get(name)
        if card is not None:
            return card
        self._take_cards(self.workers)
        if not self._cards:
            raise NoWorkerError("No worker has answered yet.")
        card = self._named_card(name)
        if card is None:
            raise ModelNotFoundError(name)
        return card

    def _named_card(self, name: str) -> ModelCard | None:
        """The card of a served name, or of a name that a worker has for itself; None of others."""
        known = self._cards
        card = known.get(name)
        if card is None and any(one.card is not None and one.card.name == name for one in self.workers):
            return next(iter(known.values()), None)
        return card

    def split_model(self, name: str) -> tuple[ModelCard, str]:
        """As `resolve_model`, with the adapter of a name such as "MODEL:ADAPTER", else ""."""
        try:
            return self.resolve_model(name), ""
        except ModelNotFoundError:
            for colon in (index for index, char in enumerate(name[:_MODEL_CHARS]) if char == ":"):
                card = self._named_card(name[:colon])
                # Only now: a name may be as long as a request, and full of colons.
                if card is not None and (adapter := name[colon + 1 :]):
                    return card, adapter
            raise

    def default_model(self, *, generating: bool = False) -> ModelCard:
        """The card for a request that names no model; with `generating` rather one of those that make text.

        Raises NoWorkerError before any worker has answered.
        """
        cards = self.models()
        if not cards:
            raise NoWorkerError("No worker has answered yet.")
        return next((card for card in cards if card.is_generation), cards[0]) if generating else cards[0]

    def select(
        self,
        model: str,
        hints: Hints = NO_HINTS,
        exclude: Collection[Worker] = (),
        adapter: str = "",
        near: Worker | None = None,
        roles: Collection[Role] = EVERY_ROLE,
    ) -> Lease:
        """A lease on the worker that the policy chooses for `model` and `adapter`, one of these `roles`.

        `near` has another choice of the same request; it is taken, unless the policy bounds loads. One that
        is draining or was removed goes on with what it has begun. A worker that the hints name is the only
        one. Raises NoWorkerError; InvalidRequestError if the hints name one that is not there, or cannot do
        it.
        """
        role = next(iter(roles)) if len(roles) == 1 else Role.REGULAR
        policy = self._policies.get((model, role))
        if policy is None:
            policy = self._policies.setdefault((model, role), make_policy(self._settings, role))
        stay = near is not None and (near.draining or hints.target or not policy.bounded)
        if near is not None and stay and near.record.ready():
            return near.lease()
        if hints.target:
            return self._target(hints.target, model, exclude, adapter).lease()
        return policy.lease(self.candidates(model, exclude, adapter, roles), hints)

    def _target(self, name: str, model: str, exclude: Collection[Worker], adapter: str) -> Worker:
        worker = self.named(name)
        if worker is None:
            raise _bad_target(f"There is no worker '{shown(name)}'.")
        if worker in exclude or not worker.usable():
            raise NoWorkerError(f"The worker '{shown(name)}' cannot be asked now.", _seconds_until([worker]))
        if not self._can(worker, model, adapter):
            raise _bad_target(f"The worker '{shown(name)}' does not serve '{shown(adapter or model)}'.")
        return worker

    def named(self, name: str) -> Worker | None:
        """The worker with this id, URL, HOST:PORT, or place (from 0) in the list of workers."""
        for place, worker in enumerate(self.workers):
            if name in (worker.id, worker.url, worker.address, str(place)):
                return worker
        return None

    def candidates(
        self,
        model: str,
        exclude: Collection[Worker] = (),
        adapter: str = "",
        roles: Collection[Role] = EVERY_ROLE,
    ) -> Sequence[Worker]:
        """Those that may be asked, at least one; of an adapter those that are known to have it.

        A suspect worker is one only if no other is up: it may well be alive. Raises NoWorkerError.
        """
        serving = self._serving(model, exclude, adapter, roles)
        candidates = [worker for worker in serving if worker.available()]
        candidates = candidates or [worker for worker in serving if worker.usable()]
        if not candidates:
            raise NoWorkerError(retry_after=_seconds_until(serving))
        return candidates

    def closed_for(
        self, model: str, hints: Hints, exclude: Collection[Worker], adapter: str, roles: Collection[Role]
    ) -> float | None:
        """Seconds until `select` may find somebody, as far as breakers tell.

        None where they tell nothing, infinity where there is nobody at all.
        """
        named = self.named(hints.target) if hints.target else None
        serving = [named] if named else self._serving(model, exclude, adapter, roles)
        there = [worker for worker in serving if worker.part.role in roles]
        return _closed_for(there) if there else math.inf

    def _serving(
        self, model: str, exclude: Collection[Worker], adapter: str, roles: Collection[Role]
    ) -> list[Worker]:
        return [
            worker
            for worker in self.workers
            if worker not in exclude and worker.part.role in roles and self._can(worker, model, adapter)
        ]

    def report(self, worker: Worker, event: Event) -> None:
        """Takes in what a call has seen of a worker."""
        if worker.note(event):
            _LOG.warning("worker %s is %s", worker.url, worker.state)
            self._looking.wake()

    def report_failure(self, worker: Worker, failure: RpcFailure) -> None:
        """Takes in how a unary call has failed."""
        if failure.code in SEEN:
            self.report(worker, SEEN[failure.code])

    def credit(self, worker: Worker) -> None:
        """Takes in that a request was answered well."""
        worker.proved = time.monotonic()
        if worker.record.succeed() is Phase.CLOSED:
            _LOG.info("worker %s: the breaker is closed", worker.url)

    def blame(self, lease: Lease, code: str = "INTERNAL") -> None:
        """Takes in that a request has failed, with this status of gRPC; not every status is a worker's fault.

        All that a lost connection ends is one failure, and so is all that a worker drops as it ends.
        """
        worker = lease.worker
        if code not in FAULTS:
            return
        if code in LOSSES:
            if lease.began < worker.lost:
                return
            worker.lost = time.monotonic()
        if worker.record.fail() is Phase.OPEN:
            seconds = self._limits.milliseconds / 1000
            _LOG.warning("worker %s: the breaker is open for %g s", worker.url, seconds)

    def _serves(self, worker: Worker, model: str) -> bool:
        if worker.card is None:
            self._take_cards((worker,))  # another process may have been told since this one has looked
        card = worker.card
        return card is not None and model in (self._settings.model, card.name)

    def _can(self, worker: Worker, model: str, adapter: str) -> bool:
        return self._serves(worker, model) and (not adapter or adapter in worker.adapters)

    def _look(self) -> float | None:
        """Returns the seconds until it is to be done again, if that is soon."""
        self.catch_up()
        self._let_leave()
        known = (*self.workers, *self._leaving.values())
        now = time.monotonic()
        for worker in known:
            worker.record.publish(max(worker.heard, self._transport.heard(worker)), worker.proved)
            worker.tell_if_down(now)
        leads = self.leads()
        mine = [one for one in known if (leads or one.awaited) and one.record.see_to(leads)]
        pause = self._prober.look(mine)
        if leads:
            pause = min(pause, self._tell_half_open())
        self._take_cards(self.workers)
        asked = all(worker.record.asked for worker in self.workers)
        if asked or (any(worker.available() for worker in self.workers) and self.usable()):
            self._told.set()
        if not asked:
            pause = min(pause, _QUICK_SECONDS)
        return pause if pause < _LOOK_SECONDS else None

    def _tell_half_open(self) -> float:
        """Time alone lets requests through again, so that nobody else could tell.

        Returns the seconds until that may be.
        """
        pause = math.inf
        for worker in self.workers:
            phase = worker.phase
            if phase is Phase.HALF_OPEN and self._phases.get(worker) is Phase.OPEN:
                _LOG.info("worker %s: the breaker is half-open", worker.url)
            elif phase is Phase.OPEN:
                pause = min(pause, max(worker.record.closed_for, _LEAST_PAUSE))
            self._phases[worker] = phase
        return pause

    def catch_up(self) -> None:
        """Takes in what another process may have changed of the list of workers."""
        if self.membership.generation != self._generation:
            self.follow()

    def follow(self) -> None:
        """Takes in what has become of the list of workers."""
        try:
            self._take_list()
        except SettingsError as error:
            if str(error) != self._trouble:  # it is tried again and again
                self._trouble = str(error)
                _LOG.error("%s", error)
        else:
            self._trouble = ""
            self._looking.wake()

    def _take_list(self) -> None:
        generation = self.membership.generation
        entries = self.membership.members()
        with self._list_lock:
            known = {worker.url: worker for worker in self.workers} | self._leaving
            joining = self._join_all([url for url in entries if url not in known])
            for url in known.keys() & entries.keys():
                self._leaving.pop(url, None)
            for url in known.keys() - entries.keys():
                self._leaving[url] = known[url]
                known[url].draining = True
            self.workers = tuple(known.get(url) or joining[url] for url in entries)
            for worker in self.workers:
                worker.part, worker.draining = entries[worker.url]
            self._halves = any(worker.part.role is not Role.REGULAR for worker in self.workers)
            self._cards = cards.by_name(self.workers, self._settings.model)
            self._generation = generation

    def _join_all(self, urls: Sequence[str]) -> dict[str, Worker]:
        """New workers by URL: all of them, or none and SettingsError."""
        joining: dict[str, Worker] = {}
        try:
            for url in urls:
                joining[url] = Worker(url, self._health, self._limits, self._taken)
        except BaseException:
            for worker in joining.values():
                worker.close()
            raise
        self._take_each(joining.values())
        return joining

    def _let_leave(self) -> None:
        """Drops the connection to a removed worker once its last request has ended.

        Until then it is asked whether it is there: those who wait for it are to know.
        """
        busy = self._prober.under_way
        with self._list_lock:  # or one that comes back at this moment would be dropped
            idle = [one for one in self._leaving.values() if one.load == 0 and one not in busy]
            for worker in idle:
                del self._leaving[worker.url]
        for worker in idle:
            self._prober.forget(worker)
            self._phases.pop(worker, None)
            self._unshared.discard(worker)
            worker.close()
            self._transport.forget(worker)
            _LOG.info("worker %s is served no more", worker.url)

    def _take_answer(self, worker: Worker, answer: bytes) -> None:
        """Takes in what the prober was told. Raises DecodeError; OSError, if the worker has no card yet."""
        with self._list_lock:
            try:
                news = self._shared_cards.give(worker, answer)
            except OSError as error:
                if worker.card is None:
                    raise
                self._tell_unshared(worker, error)  # the worker is well all the same
                return
            self._unshared.discard(worker)
            if news:
                self._cards = cards.by_name(self.workers, self._settings.model)

    def _take_cards(self, workers: Iterable[Worker]) -> None:
        """Takes in what other processes were told."""
        if any(worker.record.card != worker.card_number for worker in workers):
            with self._list_lock:
                self._take_each(workers)
                self._cards = cards.by_name(self.workers, self._settings.model)

    def _take_each(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            try:
                self._shared_cards.take(worker)
                self._unshared.discard(worker)
            except (OSError, DecodeError) as error:
                self._tell_unshared(worker, error)

    def _tell_unshared(self, worker: Worker, error: Exception) -> None:
        if worker not in self._unshared:  # it is tried again and again
            self._unshared.add(worker)
            _LOG.error("what worker %s serves cannot be shared: %s", worker.url, error)

    def __repr__(self) -> str:
        return f"<WorkerPool {list(self.workers)!r}>"

    def stats(self) -> observability.WorkerStats:
        """For metrics: what is to be told of each worker, by its URL."""
        return {
            worker.url: observability.WorkerStat(worker.load, worker.state, worker.phase)
            for worker in self.workers
        }


def _bad_target(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, code="worker_not_found")


def _closed_for(workers: Iterable[Worker]) -> float | None:
    """Seconds until the first of those that are kept back by their breakers alone may be asked."""
    return min((wait for worker in workers if (wait := worker.closed_for()) is not None), default=None)


def _seconds_until(workers: Iterable[Worker]) -> int:
    """The same in whole seconds, at least one."""
    return max(math.ceil(_closed_for(workers) or 0.0), 1)
