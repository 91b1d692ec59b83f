"""The embedded worker's model for tests: fetched once, a skip where there is no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from wsgi_router.local_worker.fetch import fetch
from wsgi_router.local_worker.llama import ModelError

MODEL = Path(__file__).parents[2] / ".cache" / "smollm2"


def local_tokenizer_folder() -> Path:
    """The tokenizer folder beside the model; skips the test if the model cannot be fetched."""
    try:
        return fetch(MODEL)
    except ModelError as error:
        if "could not be fetched" in str(error):
            pytest.skip(str(error))
        raise
