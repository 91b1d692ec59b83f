"""What each process would import for itself is imported once, in gunicorn's master: its pages are shared.

Nothing here starts a thread, opens a channel or patches the standard library. gevent does that later, in each
process: a name taken here from a module that it patches (`from time import sleep`) stays the original, and to
wait by it would hold up all streams (tests/test_preloading.py).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from importlib import metadata
from typing import Any, Final

_PATCHING: Final = (
    "_threading",
    "events",
    "local",
    f"monkey._patch_thread_{'lt' if sys.version_info < (3, 13) else 'gte'}313",
    "os",
    "queue",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "thread",
    "threading",
    "threadpool",
    "time",
)
"""Modules of gevent that patching imports; other versions of it may have others."""
_OURS: Final = ("wsgi_router.serving", "prometheus_client", "prometheus_client.multiprocess")
_PLUGINS: Final = "gevent.plugins."


def import_servers(worker_class: type[Any]) -> None:
    """Imports what gunicorn's workers of `worker_class` need of gevent, if anything."""
    from gunicorn.workers.base_async import AsyncWorker

    if issubclass(worker_class, AsyncWorker):
        # First: as Python ends, it empties modules in reverse, and locks are needed to the last.
        for name in ("_threading_local", *(f"gevent.{name}" for name in _PATCHING)):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        look_for_plugins()


def import_ours() -> None:
    """Imports what the application needs in each process."""
    for name in _OURS:
        importlib.import_module(name)


def look_for_plugins() -> None:
    """Finds gevent's plugins once for all processes.

    It looks for them nine times as it patches, and each time reads the metadata of all packages that are
    installed: a quarter of a second, and 2 MiB, of each process.
    """
    from gevent import events

    packages = metadata.distributions()
    points = (point for package in packages for point in package.entry_points)
    plugins = dict.fromkeys(point for point in points if point.group.startswith(_PLUGINS))

    def notify(event: Any) -> None:
        events.notify(event)
        for point in plugins:
            if point.group == event.ENTRY_POINT_NAME:
                point.load()(event)

    events.notify_and_call_entry_points = notify
