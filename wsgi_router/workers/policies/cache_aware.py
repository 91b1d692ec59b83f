"""The policy that brings a prompt to the worker whose KV cache has the longest beginning of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from wsgi_router import observability
from wsgi_router.settings import Settings
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.policies.policy import Policy
from wsgi_router.workers.policies.spreading import LeastLoad
from wsgi_router.workers.worker import Lease, Worker

_LITTLE: Final = 1e-9
"""Where any difference of loads is too much."""
_DEAR: Final = 12
"""To compute what another worker has cached costs so many times the time it takes: it is stored there, too,
and what it drops is computed anew. At 2, workers take each other's prefixes; at 8, second turns of
conversations move now and then; from 8 to 16 little else differs (bench/prefix_model.py).
"""


class CacheAware(Policy):
    """The worker whose cached share of the prompt, less the price of its load, is the highest.

    Each request that it has more than the least loaded one costs an equal part of a prompt. With
    BALANCE_ABS_THRESHOLD more, and BALANCE_REL_THRESHOLD times as many, that is a whole one, which nothing
    outweighs. What it is to compute before (`Worker.queued`) costs as well: twelve times the prompt's own
    blocks, more than elsewhere, are a whole one, too. So a conversation stays where it is while loads differ
    as they always do, who is overloaded loses no more than it must, and what nobody has goes where it is
    computed soonest. What several workers have counts for each as much less: it is asked for by many, and
    would keep them all from the others, where it is soon cached, too. Less than CACHE_THRESHOLD of the prompt
    is no match. Of equals the less loaded one is taken, then the one with fewer blocks in all, as it has the
    most room.
    """

    reads_prompt = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._promptless = LeastLoad(settings)
        self._turns = itertools.count()

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        return self._select(workers, hints)[0]

    def lease(self, workers: Sequence[Worker], hints: Hints) -> Lease:
        worker, missing = self._select(workers, hints)
        return worker.lease(missing)

    def _select(self, workers: Sequence[Worker], hints: Hints) -> tuple[Worker, int]:
        """The chosen one, and how many blocks of the prompt it has to compute."""
        prompt = hints.prompt
        if prompt is None:
            return self._promptless.select(workers, hints), 0
        known = prompt.known([worker.column for worker in workers])
        burdens = [(worker.load, worker.queued) for worker in workers]
        place, reason = self._choose(burdens, known, prompt.blocks)
        prompt.note(workers[place].column)
        matched = known[place][0]
        observability.metrics().count_prefix(prompt.blocks, matched, reason)
        return workers[place], prompt.blocks - matched

    def _choose(
        self, burdens: Sequence[tuple[int, int]], known: Sequence[tuple[int, int]], blocks: int
    ) -> tuple[int, str]:
        """The chosen one's place, and why: "match", "load", "spill" (the best match has too much to do).

        `burdens`: of each its requests, and its blocks to compute.
        """
        settings, places, turn = self._settings, range(len(known)), next(self._turns)
        worth = max(1.0, settings.cache_threshold * blocks)
        matches = [matched if matched >= worth else 0 for matched, _ in known]
        worths = _worths(matches)
        least, shortest = (min(burden) for burden in zip(*burdens, strict=True))
        room = max(settings.balance_abs_threshold, least * (settings.balance_rel_threshold - 1), _LITTLE)
        size = max(blocks, 1)

        def rank(place: int) -> tuple[float, int, int, int]:
            load, queued = burdens[place]
            price = (load - least) / room + (queued - shortest) / (_DEAR * size)
            return price - worths[matches[place]] / size, load, known[place][1], (place - turn) % len(places)

        chosen, longest = min(places, key=rank), max(matches)
        if longest == 0:
            return chosen, "load"
        return chosen, "match" if matches[chosen] == longest else "spill"


def _worths(matches: Sequence[int]) -> dict[int, float]:
    """For each length of a match what it is worth: a block that so many workers have is shared among them."""
    longest_first = sorted(matches, reverse=True)
    worths, worth, before = {}, 0.0, 0
    for workers in range(len(longest_first), 0, -1):
        matched = longest_first[workers - 1]
        worth += (matched - before) / workers
        worths[matched] = worth
        before = matched
    return worths
