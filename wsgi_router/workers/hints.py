"""What a request says about where it should go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec


class Prompt(Protocol):
    """A prompt in blocks of a few tokens, and what is known of where they are."""

    @property
    def blocks(self) -> int:
        """The whole ones."""

    def known(self, columns: Sequence[int]) -> list[tuple[int, int]]:
        """For each column's worker, what it has: blocks of this prompt, from its beginning, and in all."""

    def note(self, column: int) -> None:
        """It is sent to that worker."""


class Hints(msgspec.Struct, frozen=True):
    """What policies may go by; all of it comes from the client."""

    target: str = ""
    """The worker that is asked for, by id, URL, HOST:PORT or place."""
    key: str = ""
    """Names a session or a user, whose requests have something in common."""
    prefix: bytes = b""
    """The prompt's first token ids, as unsigned 32-bit integers; empty where no policy reads them."""
    prompt: Prompt | None = None
    """The prompt's blocks; None where no policy reads them."""


NO_HINTS: Final = Hints()
