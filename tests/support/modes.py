"""Runs a scenario in a process of its own, on greenlets or on threads: gevent patches a process for good.

A mode may name a transport, too, for `flow.Flow`: "threads, native".
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.support.processes import ROOT

MODES = ("gevent", "threads")
TRANSPORT_MODES = ("gevent, native", "threads, native", "gevent, grpcio", "threads, grpcio")
TRANSPORT = "FLOW_TRANSPORT"


def run(mode: str, scenario: Callable[..., None], *args: Any, seconds: float = 180) -> None:
    """Calls ``scenario(*args)``, at the top of a test module, under ``mode``; fails as it fails."""
    kind, _, transport = mode.partition(", ")
    command = [sys.executable, "-m", __name__, kind, scenario.__module__, scenario.__name__, json.dumps(args)]
    environment = {**os.environ, TRANSPORT: transport}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    assert "Traceback" not in output, output[-6000:]


if __name__ == "__main__":
    if sys.argv[1] == "gevent":
        from gevent import monkey

        monkey.patch_all()
    getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(*json.loads(sys.argv[4]))
