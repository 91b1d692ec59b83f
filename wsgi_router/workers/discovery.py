"""Workers that come and go by themselves: the addresses of a name, the pods of a label (`origins`).

The leading process alone looks; what it finds goes into the list of workers, which all processes follow. A
source that cannot be asked keeps the workers it had.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from wsgi_router import runtime
from wsgi_router.errors import RouterError
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.workers.origins import Origin, origins
from wsgi_router.workers.pods import Pods
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.roles import Part

_LOG = logging.getLogger(__name__)

FIRST_SECONDS: Final = 2.0
"""Longest wait of a new process for what the sources say first."""
_LOOK_SECONDS: Final = 0.5
"""About the longest time until a process takes over from a leader that has ended."""

Tell = Callable[[Mapping[str, Part]], bool]
"""Takes all workers that there are now, by their URLs; False if nobody wants to know any more."""


class Source(Protocol):
    """What discovers workers. `name` is that of its origin."""

    name: str
    pause: float
    """Seconds between two turns."""

    def turn(self, tell: Tell) -> None:
        """Looks, tells, and may go on to tell while there are changes. Raises OSError, or another error."""

    def expects(self, error: Exception) -> bool:
        """Whether an error has its reason elsewhere, and is no fault of the router's."""


class DnsName:
    """Each address of a name; those of IPv4, if it has any, since a worker may have one of both kinds."""

    def __init__(self, origin: Origin, pause: float) -> None:
        self.name = origin.name
        self.pause = pause
        self._part = origin.part
        self._scheme, _, address = origin.address.partition("://")
        self._host, _, self._port = address.rpartition(":")

    def expects(self, error: Exception) -> bool:
        return isinstance(error, (OSError, UnicodeError))

    def turn(self, tell: Tell) -> None:
        found = socket.getaddrinfo(self._host.strip("[]"), int(self._port), type=socket.SOCK_STREAM)
        addresses = {family: set[str]() for family in (socket.AF_INET, socket.AF_INET6)}
        for family, _, _, _, address in found:
            if family in addresses:
                addresses[family].add(str(address[0]))
        of_4, of_6 = addresses.values()
        hosts = sorted(of_4) or [f"[{host}]" for host in sorted(of_6)]
        tell({f"{self._scheme}://{host}:{self._port}": self._part for host in hosts})


def _sources(settings: Settings) -> list[Source]:
    return [
        DnsName(origin, settings.discovery_interval) if origin.address else Pods(origin, settings)
        for origin in origins(settings)
    ]


class Discovery:
    """Follows the sources of the settings. One for each process, made after the fork.

    Raises SettingsError if what a source needs is not there.
    """

    def __init__(self, settings: Settings, pool: WorkerPool) -> None:
        self._sources = _sources(settings)
        self._pool = pool
        self._troubles: dict[str, str] = {}
        self._following = [self._task(source) for source in self._sources]
        self._closed = False

    def start(self) -> None:
        """Begins to look, where this process leads. Once, after the fork."""
        for task in self._following:
            task.start()

    def wait(self, seconds: float = FIRST_SECONDS) -> None:
        """Returns once all sources have told what there is, after `seconds` at the latest."""
        deadline = time.monotonic() + seconds
        while self._sources and not self._is_complete() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._pool.catch_up()

    def _is_complete(self) -> bool:
        try:
            return self._pool.membership.is_complete()
        except SettingsError:
            return False

    def close(self) -> None:
        """Ends what `start` began. Idempotent."""
        self._closed = True
        for task in self._following:
            task.stop()

    def _task(self, source: Source) -> runtime.PeriodicTask:
        def turn() -> float | None:
            if not self._pool.leads():
                return None
            self._turn(source)
            return source.pause

        return runtime.PeriodicTask(f"asking {source.name} for workers", turn, _LOOK_SECONDS)

    def _turn(self, source: Source) -> None:
        def tell(workers: Mapping[str, Part]) -> bool:
            if self._closed or not self._pool.leads():
                return False
            if self._pool.membership.discover(source.name, workers):
                _LOG.info("%s has the workers %s", source.name, ", ".join(workers) or "(none)")
                self._pool.follow()
            if self._troubles.pop(source.name, None):
                _LOG.info("%s can be asked again", source.name)
            return True

        try:
            source.turn(tell)
        except Exception as error:
            self._trouble(source, error)

    def _trouble(self, source: Source, error: Exception) -> None:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        if self._troubles.get(source.name) != text:  # it is asked again and again
            self._troubles[source.name] = text
            expected = isinstance(error, RouterError) or source.expects(error)
            _LOG.warning(
                "%s cannot be asked, and its workers are those it had: %s",
                source.name,
                text,
                exc_info=None if expected else error,
            )

    def __repr__(self) -> str:
        return f"<Discovery of {[source.name for source in self._sources]} leads={self._pool.leads()}>"
