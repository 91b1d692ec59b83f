"""One router with two processes in front of two simulators, shared by the tests that break nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.live import script
from tests.support.processes import QWEN3, Router, Worker

MODEL = "qwen3-sim"
EOS = "151645"


@pytest.fixture(scope="session")
def simulator_flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path: Path = script.write(tmp_path_factory.mktemp("script") / "answers.json")
    flags = ("--tokenizer", str(QWEN3), "--model-name", MODEL, "--context-length", "4096", "--eos", EOS)
    return (*flags, "--script", str(path))


@pytest.fixture(scope="module")
def worker(simulator_flags: tuple[str, ...]) -> Iterator[Worker]:
    """For routers of a module's own."""
    with Worker(*simulator_flags) as worker:
        yield worker


@pytest.fixture(scope="session")
def simulators(simulator_flags: tuple[str, ...]) -> Iterator[tuple[Worker, Worker]]:
    with Worker(*simulator_flags) as first, Worker(*simulator_flags) as second:
        yield first, second


@pytest.fixture(scope="session")
def router(simulators: tuple[Worker, Worker]) -> Iterator[Router]:
    with Router(*(worker.url for worker in simulators), processes=2) as router:
        router.wait_serving()
        yield router


@pytest.fixture
def client(router: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
        yield client
