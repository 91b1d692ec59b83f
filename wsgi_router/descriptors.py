"""Descriptors that are watched without anybody who waits: in gevent's hub, or by a thread."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable

from wsgi_router import runtime

_LOG = logging.getLogger(__name__)


def watch_readable(descriptor: int, function: Callable[[], object]) -> Callable[[], None]:
    """Calls `function()` whenever `descriptor` is readable, in the hub or in a thread; it must not block.

    Returns what ends that, to be called before the descriptor is closed.
    """
    if runtime.patched():
        import gevent

        watcher = gevent.get_hub().loop.io(descriptor, 1)
        watcher.start(_logged(function))

        def stop() -> None:
            watcher.stop()
            watcher.close()

        return stop
    watch = _ReadableWatch(descriptor, _logged(function))
    return watch.stop


def _logged(function: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        try:
            function()
        except Exception:
            _LOG.exception("delivering events failed")

    return run


class _ReadableWatch:
    """A daemon thread that waits for a descriptor."""

    def __init__(self, descriptor: int, function: Callable[[], None]) -> None:
        self._stopped, self._stop = os.pipe()
        self._function = function
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._poll.register(self._stopped, select.POLLIN)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            ready = self._poll.poll()
            if any(descriptor == self._stopped for descriptor, _ in ready):
                return
            self._function()

    def stop(self) -> None:
        os.write(self._stop, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        os.close(self._stop)
        os.close(self._stopped)
