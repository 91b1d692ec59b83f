"""How each router under test is started, all before the same worker and with the same tokenizer."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import assets
from harness.paths import BENCH, ROOT
from harness.processes import Service, free_port

MODEL = "bench-model"
"""A neutral name, or peers would choose a reasoning parser from it and do other work."""
SGLANG_ROUTER = ("sglang-router", "0.3.2")


@dataclass(frozen=True, slots=True)
class Running:
    """A started router: its name in the report, where it listens, its process."""

    name: str
    url: str
    service: Service
    ready_path: str

    def wait(self) -> None:
        self.service.wait_for_ok(self.url + self.ready_path)


Start = Callable[[str, int], Running]
"""Starts a router (label for its log, the worker's port)."""


def own(transport: str) -> Start:
    """This project's router as deployed: gunicorn, one process; `transport` "" is its default."""
    name = "wsgi-router" + (f" ({transport})" if transport else "")

    def start(label: str, worker_port: int) -> Running:
        port = free_port()
        env = {
            "WSGI_ROUTER_WORKERS": f"grpc://127.0.0.1:{worker_port}",
            "WSGI_ROUTER_TOKENIZER_PATH": str(assets.tokenizer()),
            "WSGI_ROUTER_MODEL": MODEL,
            "WSGI_ROUTER_BIND": f"127.0.0.1:{port}",
            "WSGI_ROUTER_LOG_LEVEL": "warning",
            "WEB_CONCURRENCY": "1",
        }
        if transport:
            env["WSGI_ROUTER_TRANSPORT"] = transport
        command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py"]
        return Running(
            name, f"http://127.0.0.1:{port}", Service(label, command, env=env, cwd=ROOT), "/readiness"
        )

    return start


def sglang_router(label: str, worker_port: int) -> Running:
    """The `sglang-router` wheel in gRPC mode, quiet, its other settings as it ships."""
    port, metrics_port = free_port(), free_port()
    tokenizer = str(assets.tokenizer())
    options = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": str(metrics_port),
        "--worker-urls": f"grpc://127.0.0.1:{worker_port}",
        "--model-path": tokenizer,
        "--tokenizer-path": tokenizer,
        "--policy": "round_robin",
        "--log-level": "warn",
    }
    python = str(assets.peer_python(*SGLANG_ROUTER))
    command = [
        python,
        "-m",
        "sglang_router.launch_router",
        *(word for pair in options.items() for word in pair),
    ]
    env = {"TIKTOKEN_ENCODINGS_BASE": str(assets.tiktoken_folder()), "HF_HUB_OFFLINE": "1"}
    name = " ".join(SGLANG_ROUTER)
    return Running(name, f"http://127.0.0.1:{port}", Service(label, command, env=env), "/readiness")


PEERS: dict[str, Start] = {"sglang-router": sglang_router}


def wsgi_floor(label: str) -> Running:
    """gunicorn's gevent worker and Flask with bytes that are ready: no worker, no tokenizer."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "gunicorn", "-k", "gevent", "-w", "1", "-b", f"127.0.0.1:{port}"),
        *("--worker-connections", "4000", "--chdir", str(BENCH), "--no-control-socket", "wsgi_floor:app"),
    ]
    service = Service(label, command, cwd=Path(BENCH))
    return Running("gunicorn + Flask, ready bytes", f"http://127.0.0.1:{port}", service, "/readiness")
