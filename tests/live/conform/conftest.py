"""One router before a worker of each kind, and an answer of every kind from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.live import script
from tests.live.conform.kinds import (
    ANSWERS,
    DIMENSIONS,
    EMBEDDER,
    KEY,
    KINDS,
    MODEL,
    RULES,
    Recording,
    record,
)
from tests.support.description import Description
from tests.support.processes import QWEN3, Router, Worker


@pytest.fixture(scope="package")
def description() -> Description:
    return Description()


@pytest.fixture(scope="package")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    path: Path = script.write(tmp_path_factory.mktemp("conform") / "answers.json", ANSWERS, RULES)
    flags = ("--tokenizer", str(QWEN3), "--eos", "151645", "--context-length", "4096")
    writing = ("--model-name", MODEL, "--script", str(path), "--weight-version", "v7")
    with Worker(*flags, *writing) as worker:
        yield worker


@pytest.fixture(scope="package")
def router(worker: Worker) -> Iterator[Router]:
    with Router(worker.url, api_keys=KEY, max_body_bytes="65536") as router:
        router.wait_serving()
        yield router


@pytest.fixture
def pinging_router(worker: Worker) -> Iterator[Router]:
    with Router(worker.url, api_keys=KEY, ping_interval="0.1") as router:
        router.wait_serving()
        yield router


@pytest.fixture(scope="package")
def embedding_router() -> Iterator[Router]:
    flags = ("--model-name", EMBEDDER, "--embedding-dim", str(DIMENSIONS), "--context-length", "512")
    with (
        Worker("--tokenizer", str(QWEN3), *flags) as worker,
        Router(worker.url, api_keys=KEY) as router,
    ):
        router.wait_serving()
        yield router


@pytest.fixture(scope="package")
def recorded(router: Router, embedding_router: Router) -> dict[str, Recording]:
    with httpx.Client(timeout=30) as http:
        return {kind.name: record(http, embedding_router if kind.embeds else router, kind) for kind in KINDS}


@pytest.fixture
def client(router: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client
