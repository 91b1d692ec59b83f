"""All workers of this process: which model they serve, which of them may be asked, and who is asked next."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from wsgi_router import observability, runtime
from wsgi_router.errors import InvalidRequestError, ModelNotFoundError, NoWorkerError, shown
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.workers import board
from wsgi_router.workers.breaker import SEEN, Event, State
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.membership import Membership
from wsgi_router.workers.policies import POLICIES, Policy
from wsgi_router.workers.transport import RpcFailure, Transport
from wsgi_router.workers.worker import Lease, ModelCard, Worker

_LOG = logging.getLogger(__name__)

_MODEL_CHARS: Final = 1000
"""No model's name is longer."""
FIRST_ANSWER_SECONDS: Final = 2.0
"""Longest wait of a new process for its first worker; one that is up answers in milliseconds."""
_LOOK_SECONDS: Final = 0.5
"""Longest time until a change of the list of workers, made by another process, is seen."""
_IDLE_INTERVALS: Final = 5
"""Health intervals after which a worker that is up, and was not heard of, is asked again."""


class WorkerPool:
    """Starts with no worker up; `start()` begins to ask each one what it serves until it answers.

    A worker that a call could not reach, or waited for in vain, is asked again at once, and passed over until
    it answers. One that is up is asked when nothing was heard of it for a while.
    """

    def __init__(self, settings: Settings, transport: Transport) -> None:
        self._board = board.current()
        self.membership = Membership(
            settings.workers, self._board, settings.workers_file, settings.discovery_sources()
        )
        self._generation = self.membership.generation
        self._trouble = ""  # why the list cannot be followed, as it was logged last
        self.workers: tuple[Worker, ...] = ()
        self._leaving: dict[str, Worker] = {}  # removed, with requests in hand
        self._transport = transport
        self._settings = settings
        self._policies: dict[str, Policy] = {}  # by model: turns and keys of one are not those of another
        self._probing: set[Worker] = set()
        self._unasked: set[Worker] = set()
        self._told = runtime.wakeup()
        self._cards: dict[str, ModelCard] = {}  # by served name, sorted
        self._list_lock = threading.Lock()  # which workers there are, and their cards
        self._due: dict[Worker, float] = {}
        self._wakeup: runtime.Wakeup = runtime.wakeup()
        self._started = False
        self._closed = False
        self._take_list()

    def start(self) -> None:
        """Begins to look after the workers. Once, after the fork."""
        if not self._started:
            self._started = True
            runtime.spawn(self._look_after)

    def wait_for_answer(self, seconds: float = FIRST_ANSWER_SECONDS) -> None:
        """Returns once a worker is up or each was asked, after `seconds` at the latest. Once, by one caller.

        A process that takes requests before would refuse them, though the workers are there.
        """
        if self.workers:
            self._told.wait(seconds)

    def close(self) -> None:
        """Ends what `start` began."""
        self._closed = True
        for worker in (*self.workers, *self._leaving.values()):
            worker.close()
        self._wakeup.set()

    def usable(self) -> bool:
        """Whether any worker may be asked."""
        return any(worker.usable() for worker in self.workers)

    def models(self) -> list[ModelCard]:
        """One card a served name, of all workers that have ever answered; sorted by name."""
        return list(self._cards.values())

    def resolve_model(self, name: str) -> ModelCard:
        """The card of a requested model. NoWorkerError before any worker has answered, ModelNotFoundError.

        With MODEL set all workers serve that name; their own names are understood too.
        """
        cards = self._cards
        if not cards:
            raise NoWorkerError("No worker has answered yet.")
        card = cards.get(name)
        if card is not None:
            return card
        if any(worker.card is not None and worker.card.name == name for worker in self.workers):
            return next(iter(cards.values()))
        raise ModelNotFoundError(name)

    def split_model(self, name: str) -> tuple[ModelCard, str]:
        """As `resolve_model`, with the adapter of a name such as "MODEL:ADAPTER", else ""."""
        try:
            return self.resolve_model(name), ""
        except ModelNotFoundError:
            for colon in (index for index, char in enumerate(name[:_MODEL_CHARS]) if char == ":"):
                with contextlib.suppress(ModelNotFoundError):
                    if adapter := name[colon + 1 :]:
                        return self.resolve_model(name[:colon]), adapter
            raise

    def default_model(self) -> ModelCard:
        """The card for a request that names no model. Raises NoWorkerError before any worker has answered."""
        cards = self.models()
        if not cards:
            raise NoWorkerError("No worker has answered yet.")
        return cards[0]

    def select(
        self,
        model: str,
        hints: Hints = NO_HINTS,
        exclude: Collection[Worker] = (),
        adapter: str = "",
        near: Worker | None = None,
    ) -> Lease:
        """A lease on the worker that the policy chooses for `model` and `adapter`.

        `near` has another choice of the same request; it is taken, unless the policy bounds loads. One that
        is draining or was removed goes on with what it has begun. A worker that the hints name is the only
        one. Raises NoWorkerError; InvalidRequestError if the hints name one that is not there, or cannot do
        it.
        """
        policy = self._policies.get(model)
        if policy is None:
            policy = self._policies.setdefault(model, POLICIES[self._settings.policy](self._settings))
        stay = near is not None and (near.draining or hints.target or not policy.bounded)
        if near is not None and stay and near.state is State.UP:
            return near.lease()
        if hints.target:
            return self._target(hints.target, model, exclude, adapter).lease()
        return policy.select(self.candidates(model, exclude, adapter), hints).lease()

    def _target(self, name: str, model: str, exclude: Collection[Worker], adapter: str) -> Worker:
        worker = self._named(name)
        if worker is None:
            raise _bad_target(f"There is no worker '{shown(name)}'.")
        if worker in exclude or not worker.usable():
            raise NoWorkerError(f"The worker '{shown(name)}' cannot be asked now.")
        if not self._serves(worker, model) or (adapter and adapter not in worker.adapters):
            raise _bad_target(f"The worker '{shown(name)}' does not serve '{shown(adapter or model)}'.")
        return worker

    def _named(self, name: str) -> Worker | None:
        """The worker with this id, URL, HOST:PORT, or place (from 0) in the list of workers."""
        for place, worker in enumerate(self.workers):
            if name in (worker.id, worker.url, worker.address, str(place)):
                return worker
        return None

    def candidates(self, model: str, exclude: Collection[Worker] = (), adapter: str = "") -> Sequence[Worker]:
        """Those that may be asked, at least one; of an adapter those that are known to have it.

        A suspect worker is one only if no other is up: it may well be alive. Raises NoWorkerError.
        """
        serving = [worker for worker in self.workers if worker not in exclude and self._serves(worker, model)]
        if adapter:
            serving = [worker for worker in serving if adapter in worker.adapters]
        candidates = [worker for worker in serving if worker.available()]
        candidates = candidates or [worker for worker in serving if worker.usable()]
        if not candidates:
            raise NoWorkerError
        return candidates

    def report(self, worker: Worker, event: Event) -> None:
        """Takes in what a call has seen of a worker."""
        if worker.note(event):
            _LOG.warning("worker %s is %s", worker.url, worker.state)
            if worker.state is State.SUSPECT and worker in self._due:
                self._due[worker] = 0.0
                self._wakeup.set()

    def report_failure(self, worker: Worker, failure: RpcFailure) -> None:
        """Takes in how a unary call has failed."""
        if failure.code in SEEN:
            self.report(worker, SEEN[failure.code])

    def _serves(self, worker: Worker, model: str) -> bool:
        if worker.card is None:
            return False
        return model in (self._settings.model, worker.card.name)

    def _look_after(self) -> None:
        while not self._closed:
            self.catch_up()
            self._let_leave()
            self._wakeup.wait(min(self._probe_due(time.monotonic()), _LOOK_SECONDS))

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
            self._wakeup.set()

    def _take_list(self) -> None:
        generation = self.membership.generation
        entries = self.membership.entries()
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
                worker.draining = entries[worker.url]
            self._gather_cards()
            self._generation = generation

    def _join_all(self, urls: Sequence[str]) -> dict[str, Worker]:
        """New workers by URL: all of them, or none and SettingsError."""
        joining: dict[str, Worker] = {}
        try:
            for url in urls:
                joining[url] = Worker(url, self._board.load(url))
        except SettingsError:
            for worker in joining.values():
                worker.close()
            raise
        for worker in joining.values():
            self._due[worker] = 0.0
            self._unasked.add(worker)
        return joining

    def _let_leave(self) -> None:
        """Drops the connection to a removed worker once its last request here has ended."""
        with self._list_lock:  # or one that comes back at this moment would be dropped
            idle = [one for one in self._leaving.values() if one.in_flight == 0 and one not in self._probing]
            for worker in idle:
                del self._leaving[worker.url], self._due[worker]
                self._unasked.discard(worker)
        for worker in idle:
            worker.close()
            self._transport.forget(worker)
            _LOG.info("worker %s is served no more", worker.url)

    def _probe_due(self, now: float) -> float:
        """Begins the probes that are due; returns the seconds until the next one may be."""
        idle = pause = _IDLE_INTERVALS * self._settings.health_interval
        for worker in self.workers:
            if worker in self._probing:
                continue  # its end wakes us
            due = self._heard(worker) + idle if worker.state is State.UP else self._due[worker]
            if due > now:
                pause = min(pause, due - now)
            else:
                self._probing.add(worker)
                runtime.spawn(self._probe, worker)
        return pause

    def _heard(self, worker: Worker) -> float:
        return max(worker.heard, self._transport.heard(worker))

    def _probe(self, worker: Worker) -> None:
        """Asks what the worker serves; the cheapest call that a live engine alone can answer."""
        asked = time.monotonic()
        try:
            card = self._ask(worker)
            self._set_card(worker, card)
            if worker.state is not State.UP:
                worker.forget_adapters()  # it may have been started anew
            if worker.note(Event.PROBE_OK):
                _LOG.info(
                    "worker %s is up and serves %s", worker.url, observability.printable(card.name, 100)
                )
        except Exception as error:  # whatever it is, the worker is asked again
            self._probe_failed(worker, error, asked)
        finally:
            self._probing.discard(worker)
            self._unasked.discard(worker)
            if not self._unasked or worker.available():
                self._told.set()
            self._wakeup.set()

    def _set_card(self, worker: Worker, card: ModelCard) -> None:
        if card == worker.card:
            return
        with self._list_lock:
            worker.card = card
            self._gather_cards()

    def _gather_cards(self) -> None:
        cards: dict[str, ModelCard] = {}
        for one in self.workers:
            if one.card is not None:
                name = self._settings.model or one.card.name
                cards[name] = _narrower(cards.get(name), one.card, name)
        self._cards = dict(sorted(cards.items()))

    def _ask(self, worker: Worker) -> ModelCard:
        request = pb.GetModelInfoRequest().SerializeToString()
        answer = self._transport.unary(worker, "GetModelInfo", request, self._settings.health_timeout)
        return _card(pb.GetModelInfoResponse.FromString(answer))

    def _probe_failed(self, worker: Worker, error: Exception, asked: float) -> None:
        self._due[worker] = time.monotonic() + self._settings.health_interval
        late = isinstance(error, RpcFailure) and error.code == "DEADLINE_EXCEEDED"
        if late and self._heard(worker) > asked:
            return  # its streams flow
        if worker.note(Event.PROBE_LATE if late else Event.PROBE_FAILED) or worker in self._unasked:
            trace = None if isinstance(error, (RpcFailure, DecodeError)) else error
            _LOG.warning("worker %s is %s: %s", worker.url, worker.state, error, exc_info=trace)

    def __repr__(self) -> str:
        return f"<WorkerPool {list(self.workers)!r}>"

    def stats(self) -> observability.WorkerStats:
        """For metrics: each worker's URL to (1 if up else 0, requests in flight of all processes)."""
        return {worker.url: (int(worker.state is State.UP), worker.load) for worker in self.workers}


def _bad_target(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, code="worker_not_found")


def _narrower(known: ModelCard | None, card: ModelCard, name: str) -> ModelCard:
    """One card for several workers of a name: the shortest known context, as any of them may be chosen."""
    lengths = [one.context_length for one in (known, card) if one is not None and one.context_length]
    return dataclasses.replace(known or card, name=name, context_length=min(lengths, default=0))


def _card(info: pb.GetModelInfoResponse) -> ModelCard:
    return ModelCard(
        name=info.served_model_name or info.model_path,
        context_length=max(info.max_context_length, 0),
        weight_version=info.weight_version,
        eos_token_ids=tuple(info.eos_token_ids),
        default_sampling_params=info.default_sampling_params_json,
        preferred_sampling_params=info.preferred_sampling_params,
        model_path=info.model_path,
        tokenizer_path=info.tokenizer_path,
        vocab_size=info.vocab_size,
        model_type=info.model_type,
        is_generation=info.is_generation,
        supports_vision=info.supports_vision,
        architectures=tuple(info.architectures),
    )
