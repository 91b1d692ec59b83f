"""The application in one process, for the tests of its routes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.app import App


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
