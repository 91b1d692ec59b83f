"""Rendezvous hashing: each key has an order of its own in which it prefers the workers.

Every pair of a key and a worker has a score, and a key's order is that of its scores. So there is no ring to
keep: the order needs the workers' URLs alone, and is the same in every process, on every machine, after every
restart. When a worker goes, only its own keys move, each to the next of its order, so they spread over all
others; when it comes back they return; one that joins takes an equal share from each. A choice costs a hash a
worker, about a microsecond; a ring's search is cheaper from some hundreds of workers on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from wsgi_router.workers.worker import Worker

KEY_BYTES: Final = 16


def digest(text: bytes) -> bytes:
    """A key of `KEY_BYTES` for text of any length: what clients send is never kept."""
    return hashlib.blake2b(text, digest_size=KEY_BYTES, usedforsecurity=False).digest()


def first(key: bytes, workers: Sequence[Worker]) -> Worker:
    """The worker that `key`, a digest, prefers."""
    return max(workers, key=lambda worker: _score(key, worker))


def ordered(key: bytes, workers: Sequence[Worker]) -> list[Worker]:
    """All of them, as `key`, a digest, prefers them."""
    return sorted(workers, key=lambda worker: _score(key, worker), reverse=True)


def _score(key: bytes, worker: Worker) -> tuple[bytes, str]:
    # Keys have one length, so that no two pairs make the same text.
    text = worker.url.encode() + key
    return hashlib.blake2b(text, digest_size=8, usedforsecurity=False).digest(), worker.url
