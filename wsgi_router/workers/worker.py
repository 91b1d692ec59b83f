"""One SGLang worker as the router sees it, and the lease that a request holds on it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wsgi_router import runtime
from wsgi_router.workers.breaker import ANSWERED, Event, State, after

_SCHEME: Final = "grpc://"


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


class Worker:
    """A worker's address, state and requests in flight."""

    def __init__(self, url: str) -> None:
        if not url.startswith(_SCHEME):
            raise ValueError(f"worker {url!r} must be grpc://HOST:PORT")
        self.url = url
        self.address = url.removeprefix(_SCHEME)
        self.state = State.UNKNOWN
        self.card: ModelCard | None = None
        self.in_flight = 0
        self.failures = 0
        """Failed probes since the last good one."""
        self.heard = time.monotonic()
        """When it last answered, or a stream of its gave a message; by time.monotonic."""
        self.adapters: Mapping[str, Adapter] = {}
        """The loaded ones by name, as far as it was asked; replaced as a whole."""
        self.adapters_at = -math.inf
        """When it was asked; by time.monotonic."""
        self._lock = runtime.brief_lock()

    def available(self) -> bool:
        """Whether it may be chosen without reserve."""
        return self.state is State.UP

    def note(self, event: Event) -> bool:
        """Takes an event in; True if the state has changed."""
        if event in ANSWERED:
            self.heard = time.monotonic()
        before = self.state
        self.state = after(before, event)
        return self.state is not before

    def forget_adapters(self) -> None:
        """What it has loaded is in doubt."""
        self.adapters, self.adapters_at = {}, -math.inf

    def lease(self) -> Lease:
        """Counts one more request in flight until the lease is released."""
        with self._lock:
            self.in_flight += 1
        return Lease(self)

    def _return(self, lease: Lease) -> None:
        with self._lock:
            if not lease.released:
                lease.released = True
                self.in_flight -= 1

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
