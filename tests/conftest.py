"""The application in one process, for the tests of its routes; workers, for those of the transports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support import tiny
from tests.support.app import App
from tests.support.hung_worker import HungWorkers
from tests.support.processes import Worker
from tests.support.transport import Answer
from wsgi_router import runtime

# A busy machine is no failure; hypothesis takes an example of over 200 ms for one.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["direct", "flask"])
def make(folder: Path, request: pytest.FixtureRequest) -> Callable[..., App]:
    """Makes applications whose routes that generate are asked past Flask, or by its way (`app.RouterApp`)."""

    def made(*answers: Answer, **settings: Any) -> App:
        app = App(folder, *answers, **settings)
        if request.param == "flask":
            app.flask.before_request(lambda: None)
        return app

    return made


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


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> runtime.Drain:
    """The process's own, for the test alone."""
    made = runtime.Drain()
    monkeypatch.setattr(runtime, "drain", made)
    return made
