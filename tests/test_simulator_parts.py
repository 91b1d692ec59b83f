"""The simulator's cache, queue and answers by themselves: what must hold whatever comes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsgi_router.simulator.__main__ import configure, parser
from wsgi_router.simulator.answers import Answerer
from wsgi_router.simulator.cache import BlockCache, KvEvent, Lease, block_hashes
from wsgi_router.simulator.config import SimulatorConfig
from wsgi_router.simulator.scheduler import Scheduler
from wsgi_router.simulator.script import Answer, ScriptError, parse_script
from wsgi_router.simulator.text import TextCodec
from wsgi_router.worker_api.engine import (
    GenerationRequest,
    KvCleared,
    KvRemoved,
    KvStored,
    Sampling,
)

SIZE = 4
CAPACITY = 48

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)


class Mirror:
    """The set of blocks as a subscriber of the events knows it."""

    def __init__(self) -> None:
        self.blocks: dict[int, int | None] = {}

    def publish(self, events: list[KvEvent]) -> None:
        for event in events:
            if isinstance(event, KvCleared):
                self.blocks.clear()
            elif isinstance(event, KvRemoved):
                for block_hash in event.block_hashes:
                    del self.blocks[block_hash]
                # A block without its parent could never be reached again.
                assert all(parent is None or parent in self.blocks for parent in self.blocks.values())
            elif isinstance(event, KvStored):
                parent = event.parent
                for block in event.blocks:
                    assert block.block_hash not in self.blocks
                    assert parent is None or parent in self.blocks
                    self.blocks[block.block_hash] = parent
                    parent = block.block_hash


@given(st.lists(st.tuples(prompts, st.integers(0, 10), st.booleans()), max_size=40))
@settings(max_examples=300, deadline=None)
def test_the_cache_keeps_its_books(requests: list[tuple[list[int], int, bool]]) -> None:
    mirror = Mirror()
    cache = BlockCache(CAPACITY, SIZE, seed=0, publish=mirror.publish, keep=True)
    open_leases: list[tuple[Lease, list[int]]] = []
    for prompt, answer, finishes_first in requests:
        if finishes_first and open_leases:
            lease, ids = open_leases.pop(0)
            cache.store(lease, ids)
            cache.release(lease)
        lease_or_none = cache.lease(prompt, min(len(prompt) + answer, CAPACITY), len(prompt))
        if lease_or_none is None:
            assert open_leases, "an empty cache has room for any request that fits"
            continue
        lease = lease_or_none
        assert lease.cached_tokens < len(prompt)
        assert lease.cached_tokens % SIZE == 0
        known = set(mirror.blocks)
        hashes = block_hashes(prompt, SIZE, 0)
        assert set(hashes[: lease.cached_tokens // SIZE]) <= known
        cache.store(lease, prompt)
        open_leases.append((lease, [*prompt, *range(answer)]))
        assert cache.used <= CAPACITY
        assert len(mirror.blocks) * SIZE + sum(le.private for le, _ in open_leases) <= CAPACITY
    for lease, _ in open_leases:
        cache.release(lease)
        assert set(lease.held) == set()
    assert cache.used == 0
    cache.clear()
    assert not mirror.blocks


def test_a_prompt_that_waited_finds_what_was_computed_meanwhile() -> None:
    cache = BlockCache(CAPACITY, SIZE, seed=0, publish=lambda events: None, keep=True)
    first, second, third = (list(range(size)) for size in (10, 12, 12))
    leases = [cache.lease(ids, len(ids) + 1, len(ids)) for ids in (first, second, third)]
    one, two, three = (lease for lease in leases if lease is not None)
    assert (two.cached_tokens, cache.used) == (0, 37)
    cache.store(one, first)
    cache.extend(two, second, len(second))
    assert (two.cached_tokens, two.private, cache.used, cache.hits) == (8, 5, 29, 8)
    cache.store(two, second)
    cache.extend(three, third, 5)
    assert (three.cached_tokens, cache.used, cache.hits) == (4, 25, 12)
    cache.extend(three, third, len(third))
    assert three.cached_tokens == 8  # the last token is always computed
    for lease in (one, two, three):
        cache.release(lease)
    assert cache.used == 0


def test_the_hash_of_a_block_covers_what_is_before_it() -> None:
    first, second = block_hashes([1, 1, 1, 1, 2, 2, 2, 2, 3], SIZE, 0)
    assert block_hashes([9, 1, 1, 1, 2, 2, 2, 2], SIZE, 0)[1] != second
    assert block_hashes([1, 1, 1, 1, 5], SIZE, 0) == [first]
    assert block_hashes([1, 1, 1, 1], SIZE, 1) != [first]
    assert -(2**63) <= first < 2**63


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=25), st.randoms())
@settings(max_examples=100, deadline=None)
def test_the_queue_loses_no_slot(plan: list[tuple[int, bool]], random: object) -> None:
    """Requests come, run and are cancelled in batches of one loop turn; at the end all is free."""
    served: Counter[str] = Counter()

    async def request(scheduler: Scheduler, size: int) -> None:
        lease = await scheduler.admit(list(range(1, size + 2)), size + 2, size + 1)
        try:
            assert scheduler.running <= 2
            await asyncio.sleep(0)
            served["done"] += 1
        finally:
            scheduler.release(lease)

    async def main() -> None:
        cache = BlockCache(CAPACITY, SIZE, seed=0, publish=lambda events: None, keep=True)
        scheduler = Scheduler(cache, max_running=2)
        tasks = [asyncio.create_task(request(scheduler, size)) for size, _ in plan]
        for turn, (_, cancels) in enumerate(plan):
            await asyncio.sleep(0)
            if cancels:
                # All at once, as when a client with several samples leaves.
                for task in tasks[turn : turn + 3]:
                    task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
        assert not failures
        assert (scheduler.running, scheduler.waiting, cache.used) == (0, 0, 0)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_who_was_cancelled_in_line_is_given_nothing() -> None:
    async def main() -> None:
        cache = BlockCache(CAPACITY, SIZE, seed=0, publish=lambda events: None, keep=True)
        scheduler = Scheduler(cache, max_running=1)
        lease = await scheduler.admit([1], 2, 1)
        waiting = [asyncio.create_task(scheduler.admit([1], 2, 1)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        scheduler.release(lease)
        assert scheduler.waiting == 1
        second = await waiting[1]
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        scheduler.release(second)
        assert (scheduler.running, scheduler.waiting, cache.used) == (0, 0, 0)

    asyncio.run(main())


@given(
    ids=st.lists(st.integers(0, 9), max_size=20),
    stops=st.frozensets(st.integers(0, 9), max_size=3),
    most=st.none() | st.integers(0, 25),
    least=st.integers(0, 8),
    ignore_eos=st.booleans(),
    room=st.integers(1, 30),
)
@settings(max_examples=500, deadline=None)
def test_an_answer_keeps_the_requests_limits(
    ids: list[int], stops: frozenset[int], most: int | None, least: int, ignore_eos: bool, room: int
) -> None:
    eos = 1
    config = SimulatorConfig(vocab_size=50, eos=(eos,))
    least = min(least, room if most is None else min(most, room))
    sampling = Sampling(
        stop_token_ids=stops, max_new_tokens=most, min_new_tokens=least, ignore_eos=ignore_eos
    )
    request = GenerationRequest("a", [1], sampling)
    plan = Answerer(config, TextCodec(None)).plan(request, Answer(token_ids=tuple(ids)), room)
    given_ids = plan.token_ids
    limit = room if most is None else min(most, room)
    ending = set() if ignore_eos else stops | {eos}
    assert least <= len(given_ids) <= limit
    assert not ending & set(given_ids[:-1])
    if plan.finish_reason == "length":
        assert len(given_ids) == limit
        assert plan.matched_token_id is None
    elif plan.matched_token_id is not None:
        assert plan.matched_token_id == given_ids[-1]
        assert plan.matched_token_id in ending
    if not ending & set(ids) and least == 0:
        assert given_ids == tuple(ids[:limit])


def test_the_command_lines_defaults_are_the_configurations() -> None:
    config = configure(parser().parse_args([]))
    assert dataclasses.replace(config, shown={}) == SimulatorConfig()
    assert config.shown["bind"] == "127.0.0.1:0"
    help_text = parser().format_help()
    assert all(action.help for action in parser()._actions)
    assert "--kv-tokens" in help_text


@pytest.mark.parametrize(
    "answer",
    [
        {"abort": {"message": "given up"}},  # a Complete has no room for words
        {"hang": {"status": "INTERNAL"}},
        {"error": {"hex": "00"}},
    ],
)
def test_a_script_says_only_what_happens(answer: dict[str, object]) -> None:
    with pytest.raises(ScriptError, match=f"rule 0 {next(iter(answer))}: unknown"):
        parse_script([{"answer": answer}], lambda _text: [], [])
    assert parse_script([{"answer": {"abort": {"after_tokens": 2}}}], lambda _text: [], []).rules
