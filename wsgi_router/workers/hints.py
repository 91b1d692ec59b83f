"""What a request says about where it should go."""

from __future__ import annotations

from typing import Final

import msgspec


class Hints(msgspec.Struct, frozen=True):
    """What policies may go by; all of it comes from the client."""

    target: str = ""
    """The worker that is asked for, by id, URL, HOST:PORT or place."""
    key: str = ""
    """Names a session or a user, whose requests have something in common."""
    prefix: bytes = b""
    """The prompt's first token ids, as unsigned 32-bit integers; empty where no policy reads them."""


NO_HINTS: Final = Hints()
