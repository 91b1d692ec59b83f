"""The KV cache: blocks of a prompt's ids, shared by prefix, evicted oldest first, told to subscribers."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from weakref import WeakSet

import grpc

from wsgi_router.worker_api.engine import (
    EngineError,
    KvBatch,
    KvBlock,
    KvCleared,
    KvRemoved,
    KvStored,
)

KvEvent = KvStored | KvRemoved | KvCleared
HISTORY = 10_000


def block_hashes(ids: Sequence[int], block_size: int, seed: int) -> list[int]:
    """Signed 64-bit hashes of the full blocks, each covering all ids before it too."""
    hashes: list[int] = []
    parent = seed.to_bytes(8, "little", signed=True)
    for start in range(0, len(ids) - block_size + 1, block_size):
        data = array("I", ids[start : start + block_size]).tobytes()
        parent = blake2b(data, digest_size=8, key=parent).digest()
        hashes.append(int.from_bytes(parent, "little", signed=True))
    return hashes


@dataclass(slots=True)
class Block:
    """A cached block: how many leases and child blocks stand on it."""

    parent: int | None
    users: int = 0
    children: int = 0


@dataclass(slots=True)
class Lease:
    """A running request's share: ``private`` tokens of its own, and cached blocks it holds on to."""

    cached_tokens: int
    private: int
    held: list[int] = field(default_factory=list)


class BlockCache:
    """``capacity`` tokens, shared out between leases and blocks kept for later prompts."""

    def __init__(
        self, capacity: int, block_size: int, seed: int, publish: Callable[[list[KvEvent]], None], keep: bool
    ) -> None:
        self.capacity = capacity
        self.block_size = block_size
        self._seed = seed
        self._publish = publish
        self._keep = keep
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._private = 0
        self._held = 0
        self.asked = 0
        self.hits = 0

    def __repr__(self) -> str:
        return f"<BlockCache {self.used}/{self.capacity} tokens, {len(self._blocks)} blocks>"

    @property
    def used(self) -> int:
        """Tokens that running requests need; what is only kept for later is not counted."""
        return self._private + self._held * self.block_size

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were cached, over the cache's life."""
        return self.hits / self.asked if self.asked else 0.0

    def matched(self, ids: Sequence[int], limit: int) -> list[int]:
        """Hashes of the cached blocks that ``ids`` begin with, within the first ``limit`` tokens."""
        found: list[int] = []
        if self._blocks:
            for block in block_hashes(ids[:limit], self.block_size, self._seed):
                if block not in self._blocks:
                    break
                found.append(block)
        return found

    def lease(self, ids: Sequence[int], tokens: int, limit: int) -> Lease | None:
        """Room for a request of ``tokens`` in all, or None while there is not enough.

        ``limit``: at most so many prompt tokens may come from the cache.
        """
        blocks = self.matched(ids, min(limit, len(ids) - 1))
        cached = len(blocks) * self.block_size
        newly_held = sum(self._blocks[block].users == 0 for block in blocks) * self.block_size
        if self.used + newly_held + tokens - cached > self.capacity:
            return None
        self._hold(blocks)
        lease = Lease(cached, tokens - cached, list(blocks))
        self._private += lease.private
        self.asked += len(ids)
        self.hits += cached
        self._evict()
        return lease

    def extend(self, lease: Lease, ids: Sequence[int], limit: int) -> None:
        """Match `ids` once more before they are computed: others may have stored their beginning by now."""
        more = self.matched(ids, min(limit, len(ids) - 1))[len(lease.held) :]
        tokens = len(more) * self.block_size
        self._hold(more)
        lease.held.extend(more)
        lease.cached_tokens += tokens
        lease.private -= tokens
        self._private -= tokens
        self.hits += tokens

    def store(self, lease: Lease, ids: Sequence[int]) -> None:
        """Keep the full blocks of ``ids``, which the lease has computed, for later prompts."""
        if not self._keep:
            return
        hashes = block_hashes(ids, self.block_size, self._seed)
        new: list[KvBlock] = []
        parent: int | None = None
        first_parent: int | None = None
        for number, block in enumerate(hashes):
            if block not in self._blocks:
                if not new:
                    first_parent = parent
                start = number * self.block_size
                new.append(KvBlock(block, tuple(ids[start : start + self.block_size])))
                self._blocks[block] = Block(parent)
                if parent is not None:
                    self._blocks[parent].children += 1
            parent = block
        fresh = hashes[len(lease.held) :]
        self._hold(fresh)
        lease.held.extend(fresh)
        moved = min(lease.private, len(fresh) * self.block_size)
        lease.private -= moved
        self._private -= moved
        if new:
            self._publish([KvStored(tuple(new), first_parent)])

    def release(self, lease: Lease) -> None:
        """Give back what the lease has; its blocks stay until room is needed."""
        self._private -= lease.private
        # Children first: the oldest block is then a leaf, and eviction finds it at once.
        for block in reversed(lease.held):
            self._blocks[block].users -= 1
            self._held -= self._blocks[block].users == 0
            self._blocks.move_to_end(block)
        lease.private = 0
        lease.held.clear()
        self._evict()

    def clear(self) -> None:
        """Forget all blocks; only while nothing is leased."""
        self._blocks.clear()
        self._publish([KvCleared()])

    def _hold(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._held += self._blocks[block].users == 0
            self._blocks[block].users += 1
            self._blocks.move_to_end(block)

    def _evict(self) -> None:
        """Drop unused blocks, oldest leaf first, until all fits."""
        over = self._private + len(self._blocks) * self.block_size - self.capacity
        removed: list[int] = []
        while over > 0:
            leaf = next((h for h, b in self._blocks.items() if not b.users and not b.children), None)
            if leaf is None:
                break
            parent = self._blocks.pop(leaf).parent
            if parent is not None:
                self._blocks[parent].children -= 1
            removed.append(leaf)
            over -= self.block_size
        if removed:
            self._publish([KvRemoved(tuple(removed))])


class KvEventLog:
    """Numbers batches of events, keeps the last ones, hands them to subscribers."""

    def __init__(self) -> None:
        self._sequence = 0
        self._history: deque[KvBatch] = deque(maxlen=HISTORY)
        # Weak: a subscription that nobody reads any more vanishes with its queue.
        self._subscribers: WeakSet[asyncio.Queue[KvBatch]] = WeakSet()

    def publish(self, events: list[KvEvent]) -> None:
        """One batch; a subscriber that is ``HISTORY`` batches behind misses it and sees the gap."""
        self._sequence += 1
        batch = KvBatch(self._sequence, time.time(), tuple(events))
        self._history.append(batch)
        for queue in tuple(self._subscribers):
            if not queue.full():
                queue.put_nowait(batch)

    def subscribe(self, start: int) -> AsyncIterator[KvBatch]:
        """Batches from number ``start`` on, 0: from now on. OUT_OF_RANGE if they are forgotten."""
        queue: asyncio.Queue[KvBatch] = asyncio.Queue(HISTORY)
        if start:
            oldest = self._history[0].sequence if self._history else self._sequence + 1
            if start < oldest:
                raise EngineError(grpc.StatusCode.OUT_OF_RANGE, f"the oldest kept batch is {oldest}")
            for batch in self._history:
                if batch.sequence >= start:
                    queue.put_nowait(batch)
        self._subscribers.add(queue)
        return self._drain(queue)

    async def _drain(self, queue: asyncio.Queue[KvBatch]) -> AsyncIterator[KvBatch]:
        while True:
            yield await queue.get()
