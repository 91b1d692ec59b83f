"""How each router under test is started, all before the same worker and with the same tokenizer."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import assets
from harness.paths import BENCH, ROOT
from harness.processes import CORES, Service, free_port

MODEL = "bench-model"
"""A neutral name, or peers would choose a reasoning parser from it and do other work."""
SGLANG_ROUTER = ("sglang-router", "0.3.2")
SMG = ("smg", "1.13.0")


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


def own(transport: str, processes: int = 1, *, name_processes: bool = False) -> Start:
    """This project's router as deployed: gunicorn with `processes`; `transport` "" is its default."""
    marks = [transport] if transport else []
    if name_processes or processes > 1:
        marks.append("1 process" if processes == 1 else f"{processes} processes")
    name = "wsgi-router" + (f" ({', '.join(marks)})" if marks else "")

    def start(label: str, worker_port: int) -> Running:
        port = free_port()
        env = {
            "WSGI_ROUTER_WORKERS": f"grpc://127.0.0.1:{worker_port}",
            "WSGI_ROUTER_TOKENIZER_PATH": str(assets.model()),
            "WSGI_ROUTER_MODEL": MODEL,
            "WSGI_ROUTER_BIND": f"127.0.0.1:{port}",
            "WSGI_ROUTER_LOG_LEVEL": "warning",
            "WEB_CONCURRENCY": str(processes),
        }
        if transport:
            env["WSGI_ROUTER_TRANSPORT"] = transport
        # A process takes 4,096 connections by default; the largest scenario opens 5,000.
        command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py", "--worker-connections", "8192"]
        service = Service(label, command, env=env, cwd=ROOT, cores=CORES.router)
        return Running(name, f"http://127.0.0.1:{port}", service, "/readiness")

    return start


def _rust_gateway(package: tuple[str, str], module: list[str], *more: str) -> Start:
    """A Rust gateway out of its wheel, in gRPC mode, quiet; `more` options, the others as it ships."""

    def start(label: str, worker_port: int) -> Running:
        port, metrics_port = free_port(), free_port()
        tokenizer = str(assets.model())
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
        python = str(assets.package_python(package[0], [f"{package[0]}=={package[1]}"]))
        command = [python, "-m", *module, *(word for pair in options.items() for word in pair), *more]
        env = {"TIKTOKEN_ENCODINGS_BASE": str(assets.tiktoken_folder()), "HF_HUB_OFFLINE": "1"}
        service = Service(label, command, env=env, cores=CORES.router)
        return Running(" ".join(package), f"http://127.0.0.1:{port}", service, "/readiness")

    return start


# smg admits 4,096 requests at once by default, fewer than the largest scenario has.
PEERS: dict[str, Start] = {
    "sglang-router": _rust_gateway(SGLANG_ROUTER, ["sglang_router.launch_router"]),
    "smg": _rust_gateway(SMG, ["smg", "launch"], "--max-concurrent-requests", "0"),
}


def is_peer(name: str) -> bool:
    """Whether a router of that name in the report is a peer, and no variant of this project's."""
    return name.split(" ")[0] in PEERS


def wsgi_floor(label: str) -> Running:
    """gunicorn's gevent worker and Flask with bytes that are ready: no worker, no tokenizer."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "gunicorn", "-k", "gevent", "-w", "1", "-b", f"127.0.0.1:{port}"),
        *("--worker-connections", "4000", "--chdir", str(BENCH), "--no-control-socket", "wsgi_floor:app"),
    ]
    service = Service(label, command, cwd=Path(BENCH), cores=CORES.router)
    return Running("gunicorn + Flask, ready bytes", f"http://127.0.0.1:{port}", service, "/readiness")
