"""How a process of gunicorn's starts, drains and ends; called by the hooks in gunicorn_conf.py."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Final

from wsgi_router import lending, observability, runtime
from wsgi_router.api.services import close_all, start_all
from wsgi_router.workers import board

_LOG = logging.getLogger(__name__)

LAST_WORDS_SECONDS: Final = 3.0
"""Streams end so long before graceful_timeout, at which gunicorn's master kills."""

_LOOK_SECONDS: Final = 0.25
_QUICK_SECONDS: Final = 1.0


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
    runtime.spawn(_watch, worker)


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


def _watch(worker: Any) -> None:
    process = os.getpid()
    while worker.alive:
        time.sleep(_LOOK_SECONDS)
    board.current().resign()
    if runtime.drain.begun:
        return  # it ends at once
    seconds = max(worker.cfg.graceful_timeout - LAST_WORDS_SECONDS - _LOOK_SECONDS, 0.0)
    _LOG.info("process %d takes no new connections; open streams may run %.0f s more", process, seconds)
    runtime.drain.begin(seconds)
