"""The application in one process, for the tests of its routes; workers, for those of the transports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.app import App
from tests.support.hung_worker import HungWorkers
from tests.support.processes import Worker


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def make(folder: Path) -> Callable[..., App]:
    return lambda *answers, **settings: App(folder, *answers, **settings)


@pytest.fixture(scope="module")
def app(folder: Path) -> App:
    """For requests that never reach the worker."""
    return App(folder)


@pytest.fixture(scope="module")
def paced() -> Iterator[Worker]:
    """A worker that gives a token every 5 ms."""
    with Worker("--ttft-ms", "0", "--itl-ms", "5") as process:
        yield process


@pytest.fixture(scope="module")
def hung() -> Iterator[HungWorkers]:
    with HungWorkers(1) as process:
        yield process
