"""Processes a run starts: each with a log, waited for until it answers, stopped by its own process id."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.paths import WORK

STOP_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ServiceError(Exception):
    """A process did not come up, or ended early; the message has the end of its log."""


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    # So that not even a killed bench leaves a server behind.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += [int(word) for word in task.read_text().split()]
    return pids


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    pids = [pid]
    for member in pids:
        pids += _children(member)
    return pids


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores each side may use; empty: all."""

    worker: frozenset[int] = frozenset()
    client: frozenset[int] = frozenset()
    router: frozenset[int] = frozenset()


def share_cores(cores: Collection[int]) -> Cores:
    """A core each for load worker and load client, the rest for the router; under 4 none is pinned."""
    if len(cores) < 4:
        return Cores()
    first, second, *rest = sorted(cores)
    return Cores(frozenset({first}), frozenset({second}), frozenset(rest))


CORES = share_cores(os.sched_getaffinity(0))


def begin(cores: Collection[int]) -> None:
    """Runs in a new process before its program: pinned, and so that it ends with the bench."""
    _end_with_parent()
    if cores:
        os.sched_setaffinity(0, cores)


class Service:
    """One started process (and what it forks), on `cores` alone if any are given."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        cores: Collection[int] = (),
    ) -> None:
        WORK.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = WORK / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: begin(cores),
            )

    def __repr__(self) -> str:
        state = "running" if self._process.poll() is None else f"ended with {self._process.returncode}"
        return f"<Service {self.name} pid {self.pid} {state}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:].strip()

    def last_line(self) -> str:
        """The last line of its log: a load worker's counts, once it has ended."""
        return self.log.read_text(errors="replace").strip().rpartition("\n")[2]

    def _check(self, deadline: float, what: str) -> None:
        if self._process.poll() is not None:
            raise ServiceError(f"{self.name} ended with {self._process.returncode}:\n{self._tail()}")
        if time.monotonic() > deadline:
            raise ServiceError(f"{self.name}: {what} did not come:\n{self._tail()}")
        time.sleep(0.1)

    def wait_for_line(self, text: str, seconds: float = 20.0) -> None:
        """Waits until its log has `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.log.read_text(errors="replace"):
            self._check(deadline, repr(text))

    def wait_for_ok(self, url: str, seconds: float = 120.0) -> None:
        """Waits until `url` answers 200."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5):
                return
            self._check(deadline, f"200 from {url}")

    def stop(self) -> None:
        """SIGTERM, then after a while SIGKILL, to this process and what it started."""
        pids = tree(self.pid)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
                return
            except subprocess.TimeoutExpired:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self._process.wait()


@contextlib.contextmanager
def started(service: Service) -> Iterator[Service]:
    """The service, stopped at the end whatever happens."""
    try:
        yield service
    finally:
        service.stop()
