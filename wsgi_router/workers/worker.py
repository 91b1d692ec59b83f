"""One SGLang worker as the router sees it, and the lease that a request holds on it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wsgi_router import runtime
from wsgi_router.workers.board import Board, Load
from wsgi_router.workers.breaker import ANSWERED, Event, State, after
from wsgi_router.workers.reports import Reported

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

    def __init__(self, url: str, load: Load | None = None) -> None:
        scheme, _, address = url.partition("://")
        if scheme not in _SCHEMES or not address:
            raise ValueError(f"worker {url!r} must be grpc://HOST:PORT or grpcs://HOST:PORT")
        self.url = url
        self.id = worker_id(url)
        self.address = address
        self.tls = _SCHEMES[scheme]
        self.state = State.UNKNOWN
        self.draining = False
        """Takes no new requests, as the operator wants it."""
        self.card: ModelCard | None = None
        self._load = load or Board().load(url)
        self.heard = time.monotonic()
        """When it last answered, or a stream of its gave a message; by time.monotonic."""
        self.adapters: Mapping[str, Adapter] = {}
        """The loaded ones by name, as far as it was asked; replaced as a whole."""
        self.adapters_at = -math.inf
        """When it was asked; by time.monotonic."""
        self.reported: Reported | None = None
        """What it says of its own load, where it is asked for that."""
        self._lock = runtime.brief_lock()

    @property
    def column(self) -> int:
        """Its place in what the processes share; another worker may have it once this one is closed."""
        return self._load.column

    @property
    def in_flight(self) -> int:
        """Requests of this process that it has in hand."""
        return self._load.own

    @property
    def load(self) -> int:
        """Requests that it has in hand, of all processes of this server."""
        return self._load.total()

    @property
    def load_with_others(self) -> int:
        """`load`, and the requests of others than this server, as far as the worker tells."""
        own = self._load.total()
        return own if self.reported is None else own + self.reported.others()

    def available(self) -> bool:
        """Whether it may be chosen without reserve."""
        return self.state is State.UP and not self.draining

    def usable(self) -> bool:
        """Whether it may be chosen if need be."""
        return self.state in (State.UP, State.SUSPECT) and not self.draining

    def note(self, event: Event) -> bool:
        """Takes an event in; True if the state has changed."""
        if event in ANSWERED:
            self.heard = time.monotonic()
        with self._lock:
            before = self.state
            self.state = after(before, event)
            return self.state is not before

    def forget_adapters(self) -> None:
        """What it has loaded is in doubt."""
        self.adapters_at, self.adapters = -math.inf, {}

    def close(self) -> None:
        """It is served no more."""
        self._load.close()

    def lease(self) -> Lease:
        """Counts one more request in flight until the lease is released."""
        self._load.add(1)
        return Lease(self)

    def _return(self, lease: Lease) -> None:
        with self._lock:
            if lease.released:
                return
            lease.released = True
        self._load.add(-1)

    def __repr__(self) -> str:
        name = self.card.name if self.card else "?"
        return f"<Worker {self.url} {self.state} model={name} in_flight={self.in_flight}>"


class Lease:
    """A request's hold on a worker. `release` may be called any number of times; it counts once."""

    __slots__ = ("released", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.released = False

    def release(self) -> None:
        if not self.released:
            self.worker._return(self)

    def __repr__(self) -> str:
        return f"<Lease {self.worker.url} {'released' if self.released else 'held'}>"
