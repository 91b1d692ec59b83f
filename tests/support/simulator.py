"""The simulator as its own tests start it."""

from __future__ import annotations

from tests.support.processes import ROOT, wait_until
from tests.support.scheduler import SchedulerClient

SCRIPT = ROOT / "tests" / "cases" / "simulator_script.json"
EOS = 2
FLAGS = ("--script", str(SCRIPT), "--eos", str(EOS), "--context-length", "1024", "--vocab-size", "1000")


def settled(client: SchedulerClient) -> None:
    """No request is left in the worker."""
    wait_until(lambda: not client.info()["live_request_ids"] and not client.info()["running"], 5, "idle")
