"""Routers and simulators for breaking.

`make test` runs a short version. CHAOS_SECONDS (`make chaos`) is how long each test that can go on for long
does so; CHAOS_SEED decides what happens when.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.support.processes import QWEN3, Router, Worker, wait_until

MODEL: Final = "qwen3-sim"
SECONDS: Final = float(os.environ.get("CHAOS_SECONDS", "0"))
LONG: Final = SECONDS > 0
TRANSPORTS: Final = ("native", "grpcio") if LONG else ("native",)
_SEED: Final = os.environ.get("CHAOS_SEED", "0")
SEED: Final = random.randrange(2**32) if _SEED == "random" else int(_SEED)

WATCHED: Final = ("tests.soak.watched:application",)
HASTY: Final[dict[str, Any]] = {
    "first_token_timeout": "10",
    "token_timeout": "5",
    "answer_timeout": "20",
    "health_timeout": "2",
    "health_interval": "0.3",
}
"""Deadlines short enough for a test to wait for. Where no request may fail they are the usual ones: a busy
machine may need them."""


@pytest.fixture(autouse=True)
def _say_the_seed() -> None:
    print(f"CHAOS_SECONDS={SECONDS:g} CHAOS_SEED={SEED}")


def rounds(least: int) -> Iterator[int]:
    """Numbers from 0: so many at least, and until CHAOS_SECONDS are over."""
    end = time.monotonic() + SECONDS
    for number in itertools.count():
        if number >= least and time.monotonic() >= end:
            return
        yield number


def simulator(*flags: str, port: int = 0) -> Worker:
    """One token every 20 ms unless `flags` say otherwise."""
    usual = ("--tokenizer", str(QWEN3), "--model-name", MODEL, "--context-length", "40000", "--eos", "151645")
    limits = ("--max-running", "2000", "--kv-tokens", "100000000", "--itl-ms", "20")
    return Worker(*usual, *limits, *flags, port=port)


def router(*workers: str, processes: int = 2, flags: tuple[str, ...] = (), **settings: Any) -> Router:
    """With the application that tells what it holds."""
    return Router(*workers, processes=processes, flags=(*flags, *WATCHED), **settings)


def wait_up(router: Router, workers: int) -> None:
    """Returns once so many workers are up."""
    wait_until(lambda: router.metric("wsgi_router_worker_up") == workers, 90, f"{workers} workers up")
