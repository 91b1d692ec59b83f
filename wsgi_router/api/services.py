"""What the views work with: the things each process has once."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from flask import current_app

from wsgi_router import native, observability, peers, runtime
from wsgi_router.adapters import Adapters
from wsgi_router.admission import Admission
from wsgi_router.api.routing import Routing
from wsgi_router.calls import Calls
from wsgi_router.dispatch import Dispatcher
from wsgi_router.kv_events import KvEvents
from wsgi_router.native_client import NativeTransport
from wsgi_router.settings import Settings
from wsgi_router.tokenizers import Tokenizers
from wsgi_router.worker_loads import WorkerLoads
from wsgi_router.workers.discovery import Discovery
from wsgi_router.workers.policies import reads_prompt
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import GenerateTransport
from wsgi_router.workers.worker import ModelCard

_LOG = logging.getLogger(__name__)
_KEY: Final = "wsgi_router"


MakeTransport = Callable[[Settings], GenerateTransport]


def _grpcio(settings: Settings) -> GenerateTransport:
    # Imported by who uses it: it takes 14 MiB of each process.
    from wsgi_router.grpc_client import GrpcTransport

    return GrpcTransport(settings)


TRANSPORTS: Final[Mapping[str, MakeTransport]] = {
    "auto": NativeTransport,
    "native": NativeTransport,
    "grpcio": _grpcio,
}
"""By the names that the setting TRANSPORT takes."""


class Services:
    """Tokenizers, workers and dispatcher of this process, made by `start` after the fork."""

    def __init__(self, settings: Settings, make_transport: MakeTransport | None = None) -> None:
        self.settings = settings
        self.routing = Routing(settings)
        self._make_transport = make_transport or TRANSPORTS[settings.transport]
        self.started_at = int(time.time())
        _ALL.add(self)
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._known: native.Tokenizers | None = None
        self.tokenizers: Tokenizers
        self._discovery: Discovery
        self.pool: WorkerPool
        self.dispatcher: Dispatcher
        self.calls: Calls
        self.adapters: Adapters
        self.admission: Admission | None = None
        """None where nothing is limited; made by `start`."""
        self._loads: WorkerLoads | None = None
        self._transport: GenerateTransport
        self._kv_events: KvEvents | None = None

    def renew(self) -> None:
        """To be called after a fork: a lock from before gevent has patched would hold up all that waits."""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Loads the tokenizers and begins to look after the workers. Idempotent; raises SettingsError.

        Called by the server's hook, or else by the first request: never before a fork, as channels, threads
        and hubs do not survive one.
        """
        if self._pid == runtime.process_id():
            return
        with self._lock:
            if self._pid != runtime.process_id():
                self._start()
                self._pid = runtime.process_id()

    def _start(self) -> None:
        if self._known is None:
            self._known = native.load_tokenizers(self.settings)
        self._transport = self._make_transport(self.settings)
        table = self.prefix_table
        self.pool = WorkerPool(self.settings, self._transport, table.clear if table else None)
        self.dispatcher = Dispatcher(self.pool, self._transport, self.settings, native.first_failure)
        self.calls = Calls(self.pool, self._transport)
        self.adapters = Adapters(self.pool, self._transport, self.settings)
        self._loads = None
        if self.settings.loads_interval:
            self._loads = WorkerLoads(self.pool, self._transport, self.settings)
            self._loads.start()
        shed = self._loads.check if self._loads is not None and self._loads.sheds else None
        limited = self.settings.max_concurrent_requests or shed is not None
        self.admission = Admission(self.settings, peers.current(), shed) if limited else None
        self.tokenizers = Tokenizers(self.settings, self.pool, self._transport, self._known)
        self._discovery = Discovery(self.settings, self.pool)
        self._discovery.start()
        self._discovery.wait()
        self.pool.start()
        if table is not None:
            self._kv_events = KvEvents(self.pool, self._transport, table, self.settings.cache_events)
            self._kv_events.start()
        self.pool.wait_for_answer()
        self.tokenizers.start()
        self.tokenizers.wait()
        _LOG.debug("process %d serves with %r", runtime.process_id(), self.pool)

    def close(self) -> None:
        """Drops the connections to the workers, if this process has any. Idempotent."""
        with self._lock:
            if self._pid == runtime.process_id():
                self._pid = None
                if self._loads is not None:
                    self._loads.close()
                if self._kv_events is not None:
                    self._kv_events.close()
                self._discovery.close()
                self.tokenizers.close()
                self.pool.close()
                self._transport.close()

    def deadline(self, record: observability.RequestRecord) -> float:
        """When a request has to be over, by time.monotonic."""
        return record.started + (self.settings.request_timeout or math.inf)

    def tokenizer_of(self, card: ModelCard) -> native.Tokenizer:
        """Raises NoTokenizerError."""
        return self.tokenizers.of(card.name)

    @property
    def prefix_table(self) -> native.PrefixTable | None:
        """What is known of the workers' KV caches, if the policy goes by it."""
        return native.prefix_table(self.settings) if reads_prompt(self.settings) else None

    def __repr__(self) -> str:
        state = "started" if self._pid == runtime.process_id() else "not started"
        return f"<Services {state}>"


_ALL: Final[weakref.WeakSet[Services]] = weakref.WeakSet()


def start_all() -> None:
    """Starts the services of every app of this process, wherever it is mounted. Raises SettingsError."""
    for services in tuple(_ALL):
        services.start()


def close_all() -> None:
    """Closes what this process has started."""
    for services in tuple(_ALL):
        services.close()


def forget(services: Services) -> None:
    """Its app serves nobody: these are not started with the others any more."""
    _ALL.discard(services)


def attach(app: Any, services: Services) -> None:
    """Makes `services` those of `app`."""
    app.extensions[_KEY] = services


def services_of(app: Any) -> Services:
    """The services of `app`."""
    services: Services = app.extensions[_KEY]
    return services


def current() -> Services:
    """The services of the app that answers this request."""
    return services_of(current_app)
