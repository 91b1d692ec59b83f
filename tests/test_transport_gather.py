"""Calls whose answers are streamed and wanted whole, over both transports, on greenlets and on threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.clients import code_of, settings_and_worker
from tests.support.flow import error_of
from tests.support.modes import TRANSPORT, TRANSPORT_MODES, run
from tests.support.processes import Worker as WorkerProcess
from wsgi_router.api.services import TRANSPORTS
from wsgi_router.pb import common_pb2 as pb
from wsgi_router.worker_api.tokenizer_zip import zip_tokenizer


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer's folder of some megabytes."""
    folder = tiny.write(tmp_path_factory.mktemp("large"))
    (folder / "vocab.bin").write_bytes(os.urandom(3 << 20))
    return folder


@pytest.fixture(scope="module")
def giving(large: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess("--tokenizer", str(large)) as process:
        yield process


def scenario(port: int, empty_port: int, folder: str) -> None:
    settings, worker = settings_and_worker(port)
    transport: Any = TRANSPORTS[os.environ[TRANSPORT]](settings)
    data = zip_tokenizer(Path(folder))

    def fetch(most: int = 1 << 30, seconds: float = 30, method: str = "GetTokenizer") -> list[bytes]:
        messages: list[bytes] = transport.gather(worker, method, b"", seconds, most)
        return messages

    messages = fetch()
    assert len(messages) > 1
    assert b"".join(pb.GetTokenizerChunk.FromString(message).data for message in messages) == data
    size = sum(map(len, messages))
    assert fetch(size) == messages
    assert code_of(error_of(lambda: fetch(size - 1))) == "RESOURCE_EXHAUSTED"
    assert code_of(error_of(lambda: fetch(10))) == "RESOURCE_EXHAUSTED"
    assert code_of(error_of(lambda: fetch(seconds=0.0001))) == "DEADLINE_EXCEEDED"
    assert code_of(error_of(lambda: fetch(method="NoSuchThing"))) == "UNIMPLEMENTED"
    assert fetch(size) == messages

    _, empty = settings_and_worker(empty_port)
    error = error_of(lambda: transport.gather(empty, "GetTokenizer", b"", 5, 1000))
    assert code_of(error) in ("NOT_FOUND", "UNAVAILABLE")
    transport.close()


@pytest.mark.parametrize("mode", TRANSPORT_MODES)
def test_gathering(mode: str, giving: WorkerProcess, paced: WorkerProcess, large: Path) -> None:
    run(mode, scenario, giving.port, paced.port, str(large))
