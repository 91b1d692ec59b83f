"""How a process of gunicorn's starts, drains and ends; called by the hooks in gunicorn_conf.py."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Final

from wsgi_router import lending, observability, peers, plain_http, refusals, runtime, spreading, threaded
from wsgi_router.api.services import close_all, start_all
from wsgi_router.workers import board

_LOG = logging.getLogger(__name__)
_connections: Final = threaded.Connections()

LAST_WORDS_SECONDS: Final = 3.0
"""Streams end so long before graceful_timeout, at which gunicorn's master kills."""

_QUICK_SECONDS: Final = 1.0
_TO_READ_SECONDS: Final = 1.5
"""For a client to take those words, until its connection is cut, where a thread stands in a write to it."""


def start(worker: Any) -> None:
    """Starts what each process has for itself. Raises SettingsError.

    Begins the drain once `worker`, one of gunicorn's, has been told to end.

    gunicorn has no hook for SIGTERM, and none for the end that max_requests brings. In both cases the
    worker's `alive` becomes false, its listener closes, and open requests are given graceful_timeout.
    """
    start_all()
    lending.keep_settings(worker.cfg)
    lending.share_error_stream(worker.cfg)
    lending.lend_sockets(worker)
    plain_http.install(worker)
    refusals.answer_in_json()
    remember_names(worker)
    _connections.follow(worker)
    mine = peers.current()
    spreading.spread(worker, mine)
    mine.beat()
    runtime.spawn(_watch, worker)


class _Listener:
    """A listening socket's name, which it has no more once it is closed."""

    __slots__ = ("_name",)

    def __init__(self, listener: Any) -> None:
        self._name = listener.getsockname()

    def getsockname(self) -> Any:
        return self._name


def remember_names(worker: Any) -> None:
    """Keeps the names of `worker`'s listeners, beyond their end.

    gunicorn asks for the name when a connection's turn comes, and drops the connection if that fails: one
    that was taken just before the listener closed, at a reload, would be lost.
    """
    from gunicorn.workers.base_async import AsyncWorker

    if not isinstance(worker, AsyncWorker):
        return
    named = {listener: _Listener(listener) for listener in worker.sockets}
    handle = worker.handle
    worker.handle = lambda listener, *connection: handle(named.get(listener, listener), *connection)


def close() -> None:
    """Drops the connections to the workers."""
    close_all()
    observability.metrics().flush()


def end_streams() -> None:
    """Ends the open streams with an error event and [DONE]; waits a moment until they have."""
    runtime.drain.begin(0.0)
    end = time.monotonic() + _QUICK_SECONDS
    while runtime.drain.waiting() and time.monotonic() < end:
        time.sleep(0.02)
    _connections.cut()


def _watch(worker: Any) -> None:
    process, mine = os.getpid(), peers.current()
    while worker.alive:
        time.sleep(runtime.until_common_moment(peers.BEAT_SECONDS))
        mine.beat()
    mine.retire()
    board.current().resign()
    if runtime.drain.begun:
        return  # it ends at once
    seconds = max(worker.cfg.graceful_timeout - LAST_WORDS_SECONDS - peers.BEAT_SECONDS, 0.0)
    _LOG.info("process %d takes no new connections; open streams may run %.0f s more", process, seconds)
    runtime.drain.begin(seconds)
    time.sleep(seconds + _TO_READ_SECONDS)
    _connections.cut()
