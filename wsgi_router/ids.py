"""Random ids, for requests and answers."""

from __future__ import annotations

import os
from typing import Final

_ids: list[str] = []
_ID_BYTES: Final = 16
_IDS_AT_ONCE: Final = 256


def random_id() -> str:
    """32 random hex digits, fit for secrets; the system is asked for many at once."""
    try:
        return _ids.pop()
    except IndexError:
        digits = os.urandom(_ID_BYTES * _IDS_AT_ONCE).hex()
        size = 2 * _ID_BYTES
        _ids.extend(digits[start : start + size] for start in range(size, len(digits), size))
        return digits[:size]


# No two processes give out the same ids.
os.register_at_fork(after_in_child=_ids.clear)
