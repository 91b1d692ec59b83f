"""Text to ids and back, where the ``tokenizers`` wheel and a tokenizer file are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class NoTokenizerError(ValueError):
    """Text was given, but there is nothing to tokenize it with."""


class TextCodec:
    """A tokenizer.json, or nothing: then only ids are understood."""

    def __init__(self, path: Path | None) -> None:
        self._tokenizer: Any = None
        self._special: frozenset[int] = frozenset()
        if path is not None and not path.exists():
            raise NoTokenizerError(f"{path} is not there")
        file = None if path is None else path / "tokenizer.json" if path.is_dir() else path
        if file is not None and file.suffix == ".json" and file.exists():
            self._load(file)

    def _load(self, file: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return
        self._tokenizer = Tokenizer.from_file(str(file))
        added = json.loads(file.read_text(encoding="utf-8")).get("added_tokens", ())
        self._special = frozenset(entry["id"] for entry in added)

    def __bool__(self) -> bool:
        return self._tokenizer is not None

    @property
    def vocab_size(self) -> int:
        """Number of ids, 0 without a tokenizer."""
        return int(self._tokenizer.get_vocab_size()) if self else 0

    @property
    def special_ids(self) -> frozenset[int]:
        """Added tokens: what no ordinary text contains."""
        return self._special

    def encode(self, text: str) -> list[int]:
        """Ids of a text; added tokens in it are recognised, none is put round it."""
        if not self:
            raise NoTokenizerError(
                "scripted text needs --tokenizer with a tokenizer.json and the tokenizers wheel"
            )
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of ids, added tokens included; empty without a tokenizer."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if self else ""
