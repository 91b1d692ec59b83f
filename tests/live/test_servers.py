"""The same application under other servers, and mounted under a prefix."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from tests.live.script import TEXT
from tests.live.test_chat import ask, stream
from tests.support import sse
from tests.support.processes import Process, Router, Worker, wait_until

MOUNTED = """
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from wsgi_router.wsgi import application as router

def other(environ, start_response):
    start_response("404 Not Found", [("Content-Type", "text/plain")])
    return [b"another application"]

application = DispatcherMiddleware(other, {"/llm": router})
"""


def both_modes(router: Router) -> None:
    router.wait_serving()
    assert sse.content(stream(router, ask("say-text"))) == TEXT
    answer = httpx.post(f"{router.url}/v1/chat/completions", json=ask("say-text"), timeout=30)
    assert answer.json()["choices"][0]["message"]["content"] == TEXT


def test_gthread(worker: Worker) -> None:
    with Router(worker.url, flags=("-k", "gthread", "--threads", "8")) as router:
        both_modes(router)


def test_waitress(worker: Worker) -> None:
    router = Router(worker.url)
    router.command = [
        sys.executable,
        "-m",
        "waitress",
        f"--listen=127.0.0.1:{router.port}",
        "wsgi_router.wsgi:application",
    ]
    with router:
        both_modes(router)


class Mounted(Router):
    """The router under /llm, beside another application."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/llm"


def test_mounted_under_a_prefix(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "mounted.py").write_text(MOUNTED)
    router = Mounted(worker.url, flags=("--pythonpath", str(tmp_path), "mounted:application"))
    with router:
        both_modes(router)
        assert router.metric("wsgi_router_requests_total") > 0
        assert httpx.get(f"http://127.0.0.1:{router.port}/").text == "another application"


def test_two_routers_side_by_side(worker: Worker) -> None:
    with Router(worker.url) as first, Router(worker.url) as second:
        both_modes(first)
        both_modes(second)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"WSGI_ROUTER_POLICY": "fastest"}, "WSGI_ROUTER_POLICY"),
        (
            {"WSGI_ROUTER_WORKERS_FILE": "/proc/none/workers.json", "WSGI_ROUTER_ADMIN_KEY": "k"},
            "WORKERS_FILE: /proc/none cannot be",
        ),
        ({"WSGI_ROUTER_BIND": f"unix:{__file__}"}, __file__),
        ({"WSGI_ROUTER_BIND": "unix:/proc/none/router.sock"}, "/proc/none/router.sock"),
        ({"PROMETHEUS_MULTIPROC_DIR": "/proc/none"}, "PROMETHEUS_MULTIPROC_DIR: /proc/none cannot be"),
    ],
)
def test_a_bad_setting_stops_the_start(tmp_path: Path, environment: dict[str, str], named: str) -> None:
    """A bad setting stops the start with one clear line, and nothing is left behind."""
    router = Router("grpc://127.0.0.1:1")
    process = Process(router.command, {**router.environment, "TMPDIR": str(tmp_path), **environment})
    process.start()
    assert process.child is not None
    wait_until(lambda: not process.running(), 30, "the end")
    output = process.output()
    assert process.child.returncode != 0
    assert named in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []
