"""Which half of the work a worker does."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

BOOTSTRAP_PORT: Final = 8998
"""Where a prefill worker of SGLang is met by decode workers, unless it is told otherwise."""


class Role(StrEnum):
    """Regular workers do all of it. The others are one half of a pair: a prompt's, or an answer's."""

    REGULAR = "regular"
    PREFILL = "prefill"
    DECODE = "decode"


class Part(NamedTuple):
    """A role, with the port where a prefill worker is met."""

    role: Role = Role.REGULAR
    bootstrap_port: int = BOOTSTRAP_PORT


def split_port(text: str) -> tuple[str, int]:
    """The address and the bootstrap port of a prefill worker as the settings have it: "URL" or "URL PORT"."""
    url, _, port = text.partition(" ")
    return url, int(port or BOOTSTRAP_PORT)


REGULAR: Final = Part()
EVERY_ROLE: Final = frozenset(Role)
PROMPT_ROLES: Final = frozenset({Role.REGULAR, Role.PREFILL})
"""Those that compute prompts, and so embeddings."""
