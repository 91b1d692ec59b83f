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
from wsgi_router.workers.worker import Worker

_LITTLE: Final = 1e-9
"""Where any difference of loads is too much."""


class CacheAware(Policy):
    """The worker whose cached share of the prompt, less the price of its load, is the highest.

    Each request that it has more than the least loaded one costs an equal part of a prompt. With
    BALANCE_ABS_THRESHOLD more, and BALANCE_REL_THRESHOLD times as many, that is a whole one, which nothing
    outweighs. So a conversation stays where it is while loads differ as they always do, and who is overloaded
    loses no more than it must. What several workers have counts for each as much less: it is asked for by
    many, and would keep them all from the others, where it is soon cached, too. Less than CACHE_THRESHOLD of
    the prompt is no match. Of equals the less loaded one is taken, then the one with fewer blocks in all, as
    it has the most room.
    """

    reads_prompt = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._promptless = LeastLoad(settings)
        self._turns = itertools.count()

    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        prompt = hints.prompt
        if prompt is None:
            return self._promptless.select(workers, hints)
        known = prompt.known([worker.column for worker in workers])
        place, reason = self._choose([worker.load for worker in workers], known, prompt.blocks)
        prompt.note(workers[place].column)
        observability.metrics().count_prefix(prompt.blocks, known[place][0], reason)
        return workers[place]

    def _choose(self, loads: Sequence[int], known: Sequence[tuple[int, int]], blocks: int) -> tuple[int, str]:
        """The chosen one's place, and why: "match", "load", "spill" (the best match is overloaded)."""
        settings, places, turn = self._settings, range(len(loads)), next(self._turns)
        worth = max(1.0, settings.cache_threshold * blocks)
        matches = [matched if matched >= worth else 0 for matched, _ in known]
        least = min(loads)
        worths = _worths(matches)
        room = max(settings.balance_abs_threshold, least * (settings.balance_rel_threshold - 1), _LITTLE)

        def rank(place: int) -> tuple[float, int, int, int]:
            gain = worths[matches[place]] / max(blocks, 1) - (loads[place] - least) / room
            return -gain, loads[place], known[place][1], (place - turn) % len(loads)

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
