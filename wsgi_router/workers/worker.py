"""One SGLang worker as the router sees it, and the lease that a request holds on it."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from wsgi_router import runtime
from wsgi_router.workers.board import Board
from wsgi_router.workers.breaker import ANSWERED, Event, Limits, Phase, State
from wsgi_router.workers.health import Health
from wsgi_router.workers.reports import Reported
from wsgi_router.workers.roles import REGULAR, Part

_LOG = logging.getLogger(__name__)
_USABLE: Final = (State.UP, State.SUSPECT)
_TELL_SECONDS: Final = 2.0
"""So often those who still wait for a worker that is down are told again: there may be another one by now."""
_SCHEMES: Final = {"grpc": False, "grpcs": True}
"""Those of workers' URLs, and whether they mean TLS."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is served under one name, from GetModelInfo. Lengths in tokens, 0 where the worker says none."""

    name: str
    context_length: int = 0
    weight_version: str = ""
    eos_token_ids: tuple[int, ...] = ()
    default_sampling_params: str = ""
    """JSON object of what to use for parameters the client left out, or empty."""
    preferred_sampling_params: str = ""
    """As above, set by whoever runs the worker, or empty."""
    model_path: str = ""
    tokenizer_path: str = ""
    vocab_size: int = 0
    model_type: str = ""
    is_generation: bool = True
    supports_vision: bool = False
    architectures: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that a worker has loaded. `id` is that worker's own name for it."""

    id: str
    path: str = ""


def worker_id(url: str) -> str:
    """16 hex digits that name a worker, in paths; the same in all processes and after a restart."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


class Worker:
    """A worker's address, state and requests in flight."""

    def __init__(
        self,
        url: str,
        health: Health | None = None,
        limits: Limits | None = None,
        taken: Callable[[int], object] | None = None,
    ) -> None:
        """`taken` is called with its column if nobody has had it in hand yet."""
        scheme, _, address = url.partition("://")
        if scheme not in _SCHEMES or not address:
            raise ValueError(f"worker {url!r} must be grpc://HOST:PORT or grpcs://HOST:PORT")
        self.url = url
        self.id = worker_id(url)
        self.address = address
        self.tls = _SCHEMES[scheme]
        self.draining = False
        """Takes no new requests, as the operator wants it."""
        self.part: Part = REGULAR
        self.card: ModelCard | None = None
        self.card_number = 0
        """The record's, when `card` was taken from there."""
        self._load, self.record = (health or Health(Board())).record(url, limits, taken)
        self.heard = 0.0
        """When it last answered, or a stream of its gave a message, in this process; by time.monotonic."""
        self.proved = 0.0
        """When a request began to be answered, or was answered well, in this process; by time.monotonic."""
        self.lost = -math.inf
        """When this process last lost requests, all that were there (`breaker.LOSSES`); by time.monotonic."""
        self._waiting: dict[Lease, Callable[[], object]] = {}
        self._told = -math.inf
        self._life = self.record.life
        self._adapters: Mapping[str, Adapter] = {}
        self._adapters_at = -math.inf
        self.reported: Reported | None = None
        """What it says of its own load, where it is asked for that."""
        self._lock = runtime.brief_lock()

    @property
    def column(self) -> int:
        """Its place in what the processes share; another worker may have it once this one is closed."""
        return self._load.column

    @property
    def state(self) -> State:
        """What is known of it, in all processes."""
        return self.record.state

    @property
    def phase(self) -> Phase:
        """That of its breaker, in all processes."""
        return self.record.phase

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The loaded ones by name, as far as it was asked."""
        self._follow_life()
        return self._adapters

    @property
    def adapters_at(self) -> float:
        """When it was asked for them; by time.monotonic."""
        self._follow_life()
        return self._adapters_at

    def set_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        """What it has loaded, as it has just said."""
        self._follow_life()
        self._adapters_at, self._adapters = time.monotonic(), adapters

    def forget_adapters(self) -> None:
        """What it has loaded is in doubt."""
        self._adapters_at, self._adapters = -math.inf, {}

    def _follow_life(self) -> None:
        life = self.record.life
        if life != self._life:  # it may have been started anew
            self._life = life
            self.forget_adapters()

    @property
    def in_flight(self) -> int:
        """Requests of this process that it has in hand."""
        return self._load.own

    @property
    def load(self) -> int:
        """Requests that it has in hand, of all processes of this server."""
        return self._load.total()

    @property
    def queued(self) -> int:
        """Blocks of prompts that it is still to compute, of all processes, as far as leases tell."""
        return self._load.queued()

    @property
    def load_with_others(self) -> int:
        """`load`, and the requests of others than this server, as far as the worker tells."""
        own = self._load.total()
        return own if self.reported is None else own + self.reported.others()

    def available(self) -> bool:
        """Whether it may be chosen without reserve."""
        return not self.draining and self.record.ready()

    def usable(self) -> bool:
        """Whether it may be chosen if need be."""
        return self.record.state in _USABLE and not self.draining and self.record.admits()

    def closed_for(self) -> float | None:
        """Seconds until its breaker lets a request through; None if it is not usable for other reasons."""
        if self.record.state not in _USABLE or self.draining:
            return None
        return self.record.closed_for

    def note(self, event: Event) -> bool:
        """Takes an event in; True for the one who has changed the state by it."""
        if event in ANSWERED:
            self.heard = time.monotonic()
        return self.record.note(event)

    @property
    def gone(self) -> bool:
        """Down, and nobody answers there; else a worker that is down may be one whose engine is busy."""
        return self.record.gone and self.record.state is State.DOWN

    @property
    def awaited(self) -> bool:
        """Whether anybody here is to be told if it is down; see `Lease.watch`."""
        return bool(self._waiting)

    def tell_if_down(self, now: float) -> None:
        """Tells those who wait for an answer's beginning, if it is down; see `Lease.watch`.

        To be called again and again: they are told soon after it is found down, and now and then after that.
        """
        if self.record.state is not State.DOWN:
            self._told = -math.inf
        elif now >= self._told + _TELL_SECONDS:
            self._told = now
            for tell in tuple(self._waiting.values()):
                try:
                    tell()
                except Exception:  # the others are told all the same
                    _LOG.exception("telling that %s is down failed", self.url)

    def close(self) -> None:
        """It is served no more."""
        self.record.close()
        self._load.close()

    def may_go_on(self) -> bool:
        """Whether a request that is under way here may ask for more, though others would have to wait."""
        return self.record.state is State.UP and self.record.phase is not Phase.OPEN

    def lease(self, queued: int = 0) -> Lease:
        """Counts one more request in flight until the lease is released.

        `queued`: blocks of its prompt that are to be computed, counted until its answer begins.
        """
        self._load.add(1, queued)
        return Lease(self, self.record.begin_trial(), queued)

    def _return(self, lease: Lease) -> None:
        with self._lock:
            if lease.released:
                return
            lease.released = True
        self._waiting.pop(lease, None)
        self._computed(lease)
        self._load.add(-1)
        self._end_trial(lease)

    def _begun(self, lease: Lease) -> None:
        self._waiting.pop(lease, None)
        self._computed(lease)
        if lease.trial:
            self._end_trial(lease)

    def _computed(self, lease: Lease) -> None:
        if lease.queued:
            with self._lock:
                queued, lease.queued = lease.queued, 0
            self._load.add(0, -queued)

    def _end_trial(self, lease: Lease) -> None:
        with self._lock:
            trial, lease.trial = lease.trial, False
        if trial:
            self.record.end_trial()

    def __repr__(self) -> str:
        name = self.card.name if self.card else "?"
        return f"<Worker {self.url} {self.state} model={name} in_flight={self.in_flight}>"


class Lease:
    """A request's hold on a worker. `release` may be called any number of times; it counts once.

    `trial`: the worker's breaker was half-open, and nothing has come yet. `began`: by time.monotonic.
    `queued`: blocks of the prompt that are to be computed yet.
    """

    __slots__ = ("began", "queued", "released", "trial", "worker")

    def __init__(self, worker: Worker, trial: bool, queued: int = 0) -> None:
        self.worker = worker
        self.trial = trial
        self.queued = queued
        self.began = time.monotonic()
        self.released = False

    def release(self) -> None:
        if not self.released:
            self.worker._return(self)

    def watch(self, tell: Callable[[], object]) -> None:
        """`tell()` is called once the worker is found down, maybe several times; it must not block.

        Before anything is asked of the worker; it ends with what `begun` says, or with the lease.
        """
        self.worker._waiting[self] = tell

    def computed(self) -> None:
        """Its prompt is not counted any more as one that is to be computed. May be called again."""
        self.worker._computed(self)

    def begun(self) -> None:
        """The answer has begun, and may take long: another request may be tried. May be called again."""
        self.worker._begun(self)

    def __repr__(self) -> str:
        return f"<Lease {self.worker.url} {'released' if self.released else 'held'}>"
