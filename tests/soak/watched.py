"""The application with a route of the tests' own, that tells what a process holds."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import psutil
from gevent import Greenlet

from wsgi_router import native
from wsgi_router.app import services
from wsgi_router.workers import board
from wsgi_router.wsgi import application as router

PATH = "/-/held"


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if environ["PATH_INFO"] != PATH:
        return router(environ, start_response)
    body = json.dumps(held()).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def held() -> dict[str, Any]:
    """What this process has once cycles are gone: counts, and the resident size in bytes."""
    gc.collect()
    process = psutil.Process()
    return {
        "pid": os.getpid(),
        "handles": native.live_handles(),
        "files": process.num_fds(),
        "threads": process.num_threads(),
        "python_threads": threading.active_count(),
        "greenlets": sum(isinstance(thing, Greenlet) and not thing.dead for thing in gc.get_objects()),
        "resident": process.memory_info().rss,
        "loads": {worker.url: worker.in_flight for worker in services(router).pool.workers},
        "row": board.current().row,
    }
