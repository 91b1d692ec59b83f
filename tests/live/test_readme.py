"""README's examples, as they stand there, against what `make run` starts: a real model."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.support import sse
from tests.support.processes import ROOT, SMOLLM2, Process, free_port, wait_until

README = (ROOT / "README.md").read_text("utf-8")


def example(name: str) -> str:
    """The block of code below a marker."""
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found is not None, name
    return found[1]


def shown(name: str) -> str:
    """The output that README shows below a marker."""
    found = re.search(rf"<!-- output: {name} -->\n```\w*\n(.*?)```", README, re.DOTALL)
    assert found is not None, name
    return found[1]


class Quickstart(Process):
    """What `make run` starts once everything is built."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "wsgi_router.quickstart", "--port", str(self.port)]
        super().__init__([*command, "--model-dir", str(SMOLLM2)])

    def wait_ready(self) -> None:
        self.require(lambda: "curl -N" in self.output(), "invitation")

    def here(self, code: str) -> str:
        return code.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")


@pytest.fixture(scope="module")
def quickstart() -> Iterator[Quickstart]:
    with Quickstart() as quickstart:
        yield quickstart


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def form(event: str) -> str:
    """An event without the values that depend on the run, the model's mood included."""
    event = re.sub(r'"(id|content)":"[^"]*"', r'"\1":""', event)
    return re.sub(r'"created":\d+', '"created":0', event)


def test_curl(quickstart: Quickstart) -> None:
    lines = run(["bash", "-c", quickstart.here(example("curl"))]).splitlines()
    chunks = list(sse.events(lines))
    assert chunks[-1] == "[DONE]"
    assert len(chunks) > 5
    assert sse.content(chunks).strip()
    real = [form(line) for line in lines if line]
    head, tail = ([form(line) for line in part.splitlines() if line] for part in shown("curl").split("…\n"))
    assert head == real[: len(head)]
    assert tail == real[-len(tail) :]


def test_the_sdk(quickstart: Quickstart) -> None:
    """Both modes say the same, and README shows the two."""
    whole, streamed = run([sys.executable, "-c", quickstart.here(example("sdk"))]).strip().split("\n")
    assert whole == streamed
    assert len(set(shown("sdk").splitlines())) == 1


def test_the_invitation_can_be_pasted(quickstart: Quickstart) -> None:
    line = next(line for line in quickstart.output().splitlines() if line.startswith("curl -N"))
    assert run(["bash", "-c", line]).rstrip().endswith("data: [DONE]")


def test_an_interrupt_ends_all_of_it() -> None:
    with Quickstart() as quickstart:
        family = [psutil.Process(quickstart.pid), *psutil.Process(quickstart.pid).children(recursive=True)]
        assert len(family) >= 4
        assert quickstart.stop(signal.SIGINT) == 0
        wait_until(lambda: not any(process.is_running() for process in family), 5, "all processes ended")
