"""Real tokenizers, each loaded once a process: by the core, by the `tokenizers` wheel, by transformers."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer

from wsgi_router import native

from .processes import ROOT

FOLDERS = {
    "qwen3": ROOT / ".cache/models/qwen3",
    "llama3_1": ROOT / ".cache/models/llama3_1",
    "smollm2": ROOT / ".cache/smollm2/tokenizer",
}
NAMES = tuple(FOLDERS)


def folder(name: str) -> Path:
    path = FOLDERS[name]
    if not (path / "tokenizer.json").exists():
        pytest.fail(f"the tokenizer {name} is missing: `make models` fetches it")
    return path


@functools.cache
def core(name: str) -> native.Tokenizer:
    return native.Tokenizer(str(folder(name)))


@functools.cache
def wheel(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(folder(name) / "tokenizer.json"))


@functools.cache
def reference(name: str) -> Any:
    """transformers' tokenizer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder(name)))


def examples(count: int) -> settings:
    """A property's settings: the same examples at every run; PROPERTY_FACTOR=20 searches for new ones."""
    factor = int(os.environ.get("PROPERTY_FACTOR", "0"))
    return settings(
        max_examples=count * max(factor, 1),
        derandomize=not factor,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
