"""Real processes for live tests: on free ports, stopped by their own process ids, output kept in a file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import httpx
import psutil

from wsgi_router.cli import gunicorn_command
from wsgi_router.pb import sglang_scheduler_pb2 as pb

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
SMOLLM2 = CACHE / "smollm2"
QWEN3 = CACHE / "models" / "qwen3"
LLAMA3_1 = CACHE / "models" / "llama3_1"
START_SECONDS = 60.0
STOP_SECONDS = 15.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_INFO_SECONDS = 120.0
"""A worker that floods its clients has little time for a question."""
_LEAST_WAIT = 60.0
"""A crowded machine is slow; how fast something is, is no test's question."""


def wait_until(condition: Callable[[], object], seconds: float = 10.0, what: str = "") -> None:
    """Returns once ``condition`` holds; fails after ``seconds``, or a minute if that is longer."""
    seconds = max(seconds, _LEAST_WAIT)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(0.02)


def output_of(code: str, *arguments: object) -> str:
    """What Python code prints in a process of its own, where it may fork; fails as that does."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Process:
    """A child process in a group of its own, whose output goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self.log = tempfile.NamedTemporaryFile(prefix="wsgi-router-test-", suffix=".log")  # noqa: SIM115
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        self.child = subprocess.Popen(
            self.command,
            env=self.environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def wait_ready(self) -> None:
        """Returns once the process serves."""

    def output(self) -> str:
        return Path(self.log.name).read_text("utf-8", "replace")

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def send(self, number: int) -> None:
        assert self.child is not None
        self.child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the process and its children, as a machine that loses power."""
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def stop(self, number: int = signal.SIGINT) -> int | None:
        """Ends the process as its user would and returns its exit code; kills it when it does not end."""
        if self.child is None:
            return None
        if self.running():
            self.send(number)
            try:
                self.child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.child.returncode

    def require(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            if not self.running() or time.monotonic() > deadline:
                raise AssertionError(f"{self.command[:4]}: no {what}\n{self.output()[-4000:]}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is not None:
            print(f"--- output of {self.command[:4]}\n{self.output()[-6000:]}")
        self.log.close()


class Worker(Process):
    """The simulator, or another worker that says where it listens. ``port`` 0 takes a free one."""

    def __init__(
        self, *flags: str, port: int = 0, module: str = "wsgi_router.simulator", host: str = "127.0.0.1"
    ) -> None:
        super().__init__([sys.executable, "-m", module, "--bind", f"{host}:{port}", *flags])
        self.host = host
        self.port = port
        self.scheme = "grpc"

    def wait_ready(self) -> None:
        self.require(lambda: "worker ready on" in self.output(), "word of readiness")
        found = re.search(r"worker ready on (grpcs?)://[^:]+:(\d+)", self.output())
        assert found is not None
        self.scheme, self.port = found[1], int(found[2])

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    def server_info(self) -> dict[str, Any]:
        """scheduler_info of the worker: running, waiting, finished, … requests."""
        with grpc.insecure_channel(f"{self.host}:{self.port}") as channel:
            call = channel.unary_unary(
                "/sglang.grpc.scheduler.SglangScheduler/GetServerInfo",
                request_serializer=pb.GetServerInfoRequest.SerializeToString,
                response_deserializer=pb.GetServerInfoResponse.FromString,
            )
            return dict(call(pb.GetServerInfoRequest(), timeout=_INFO_SECONDS).scheduler_info)


class Router(Process):
    """gunicorn with the project's own configuration in front of ``workers``."""

    def __init__(
        self,
        *workers: str,
        tokenizer: Path = QWEN3,
        processes: int = 1,
        flags: Sequence[str] = (),
        **settings: str,
    ) -> None:
        self.port = free_port()
        environment = {
            "WSGI_ROUTER_WORKERS": ",".join(workers),
            "WSGI_ROUTER_TOKENIZER_PATH": str(tokenizer),
            "WSGI_ROUTER_BIND": f"127.0.0.1:{self.port}",
            "WEB_CONCURRENCY": str(processes),
            # Tests make workers fail on purpose, more often than a breaker would bear.
            "WSGI_ROUTER_BREAKER_FAILURES": "10000",
            **{f"WSGI_ROUTER_{name.upper()}": value for name, value in settings.items()},
        }
        super().__init__([*gunicorn_command(), "-c", "gunicorn.conf.py", *flags], environment)

    def wait_ready(self) -> None:
        self.require(lambda: self.status("/health") == 200, "answer on /health")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self, path: str) -> int:
        """Status of a GET, 0 when nobody listens."""
        try:
            return httpx.get(self.url + path, timeout=30).status_code
        except httpx.TransportError:
            return 0

    def wait_serving(self, times: int = 8) -> None:
        """Returns once a worker is usable; each process finds out by itself, so it is asked ``times``."""
        wait_until(lambda: all(self.status("/readiness") == 200 for _ in range(times)), 30, "readiness 200")

    def processes(self) -> list[psutil.Process]:
        """gunicorn's worker processes."""
        return psutil.Process(self.pid).children()

    def settled_metric(self, name: str, **labels: str) -> float:
        """As ``metric``, once it stands still: each process hands its counts over a moment after."""
        seen = [self.metric(name, **labels)]

        def stands() -> bool:
            time.sleep(0.3)
            seen.append(self.metric(name, **labels))
            return seen[-2] == seen[-1]

        wait_until(stands, what=f"{name} stands still")
        return seen[-1]

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry ``labels``."""
        text = httpx.get(self.url + "/metrics", timeout=30).text
        total = 0.0
        for line in text.splitlines():
            found = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
            if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
                total += float(found[2])
        return total
