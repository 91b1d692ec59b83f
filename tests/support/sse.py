"""What a client sees of a stream of events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def events(lines: Iterable[str]) -> Iterator[dict[str, Any] | str]:
    """The JSON of each ``data:`` line; the word itself for ``[DONE]``. Comments are left out."""
    for line in lines:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)
        else:
            assert line == "" or line.startswith(":"), line


def content(chunks: Iterable[dict[str, Any] | str], choice: int = 0) -> str:
    """The text of one choice."""
    return "".join(
        part["delta"].get("content", "")
        for chunk in chunks
        if isinstance(chunk, dict)
        for part in chunk.get("choices", [])
        if part["index"] == choice
    )
