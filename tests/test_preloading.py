"""What gunicorn's master imports for all processes: nothing is left to import after the fork, and nothing
that was imported before gevent patched waits by the original names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import free_port
from wsgi_router import app
from wsgi_router.api import services
from wsgi_router.settings import Settings

ROOT = Path(__file__).parents[1]

_HOOKS = """
from wsgi_router.gunicorn_conf import *
from wsgi_router import gunicorn_conf
import json, os, sys

def post_fork(server, worker):
    gunicorn_conf.post_fork(server, worker)
    worker.known = set(sys.modules)

def post_worker_init(worker):
    gunicorn_conf.post_worker_init(worker)
    from wsgi_router import app, wsgi
    told = {"new": sorted(set(sys.modules) - worker.known), "shared": wsgi.application in app._shared}
    print("TOLD", json.dumps(told), flush=True)
    os.kill(os.getppid(), 15)
"""
_BY_ITSELF = {"gevent": set(), "gthread": {"concurrent.futures.thread"}}
"""What else a worker imports; neither the router's nor much."""


@pytest.mark.parametrize("worker_class", ["gevent", "gthread"])
def test_nothing_is_left_to_import_after_the_fork(worker_class: str, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks.py"
    hooks.write_text(_HOOKS)
    settings = {
        "WSGI_ROUTER_WORKERS": f"grpc://127.0.0.1:{free_port()}",
        "WSGI_ROUTER_BIND": f"127.0.0.1:{free_port()}",
        "WEB_CONCURRENCY": "1",
    }
    command = [sys.executable, "-m", "gunicorn", "-c", str(hooks), "-k", worker_class]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, ended.stderr
    told = json.loads(lines[0].removeprefix("TOLD "))
    assert told["shared"]
    assert set(told["new"]) <= {"wsgi_router.wsgi", *_BY_ITSELF[worker_class]}
    assert "Traceback" not in ended.stderr


_LOOK = """
import json, sys, types
from gunicorn.workers.ggevent import GeventWorker
from wsgi_router import preloading
preloading.import_servers(GeventWorker)
preloading.import_ours()
import threading
from gevent import _hub_local, monkey
assert _hub_local.get_hub_if_exists() is None and threading.active_count() == 1
assert not monkey.is_module_patched("threading")
monkey.patch_all()
from gevent.monkey._state import saved
originals = {
    id(value): value for module, names in saved.items() for name, value in names.items()
    if callable(value) and value is not getattr(sys.modules.get(module), name, None)
}
found = []
for module in tuple(sys.modules.values()):
    name = getattr(module, "__name__", "")
    if isinstance(module, types.ModuleType) and name.split(".")[0] not in ("gevent", "__main__"):
        found += [f"{name}.{key}" for key, value in vars(module).items() if id(value) in originals]
json.dump(sorted(found), sys.stdout)
"""
_STANDARD = {
    "_posixsubprocess",
    "_queue",
    "_signal",
    "_socket",
    "_thread",
    "posix",
    "ssl",
    "subprocess",
    "threading",
}
"""Modules that the patched ones are made of."""
_BRIEF = {
    "click.globals.local",  # of the command line
    "functools.RLock",  # of cached_property: one thread takes it as often as it likes
    "jinja2.utils.Lock",  # no template is rendered by it
    "prometheus_client.metrics.Lock",  # held for a few statements
    "prometheus_client.registry.Lock",
    "prometheus_client.values.Lock",
    "reprlib.get_ident",
    "tempfile._allocate_lock",
    "werkzeug.routing.map.Lock",
    "wsgi_router.runtime.brief_lock",
}
"""Nothing waits while one of these is held."""


def test_no_original_that_waits_is_kept_from_before_the_patching() -> None:
    looked = subprocess.run(
        [sys.executable, "-c", _LOOK], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    kept = {name for name in json.loads(looked.stdout) if name.rpartition(".")[0] not in _STANDARD}
    assert kept <= _BRIEF
    assert "wsgi_router.runtime.brief_lock" in kept


_PLUGINS = """
import sys
from importlib import metadata
from wsgi_router import preloading
preloading.look_for_plugins()
read = []
metadata.distributions = metadata.entry_points = lambda **given: read.append(given) or ()
from gevent import events, monkey
told = []
events.subscribers.append(told.append)
import signal
monkey.patch_all()
assert any(isinstance(event, events.GeventWillPatchAllEvent) for event in told), told
assert not read, read
"""


def test_plugins_of_gevent_are_looked_for_once() -> None:
    subprocess.run([sys.executable, "-c", _PLUGINS], cwd=ROOT, timeout=120, check=True)


def test_an_application_that_was_made_before_the_fork_has_locks_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One from before the patching would hold up the hub."""
    monkeypatch.setattr(app, "_shared", [])
    app.share(Settings(workers=("grpc://127.0.0.1:1",)))
    its = app.services(app._shared[0])
    before = its._lock
    assert app.services(app.application()) is its
    assert its._lock is not before
    app.unshare()
    assert app._shared == []
    monkeypatch.setattr(
        services.Services, "start", lambda one: pytest.fail("it serves nobody") if one is its else None
    )
    services.start_all()


def test_after_a_reload_the_new_application_alone_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_shared", [])
    started: list[services.Services] = []
    monkeypatch.setattr(services.Services, "start", lambda its: started.append(its))
    app.share(Settings(workers=("grpc://127.0.0.1:1",)))
    old = app.application()
    assert app.application() is old
    app.share(Settings(workers=("grpc://127.0.0.1:2",)))
    new = app.application()
    services.start_all()
    assert app.services(new) in started
    assert app.services(old) not in started
    services.forget(app.services(new))
