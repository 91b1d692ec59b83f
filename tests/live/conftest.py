"""One router with two processes in front of two simulators, shared by the tests that break nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes import QWEN3, Router, Worker

MODEL = "qwen3-sim"
TEXT = "Hello, wörld! 你好 👩‍👩‍👧‍👦 – fin."


@pytest.fixture(scope="session")
def simulators() -> Iterator[tuple[Worker, Worker]]:
    flags = ("--tokenizer", str(QWEN3), "--model-name", MODEL, "--context-length", "4096")
    with Worker(*flags) as first, Worker(*flags) as second:
        yield first, second


@pytest.fixture(scope="session")
def router(simulators: tuple[Worker, Worker]) -> Iterator[Router]:
    with Router(*(worker.url for worker in simulators), processes=2) as router:
        router.wait_serving()
        yield router
