"""The model of bench/prefix.py's work, against what can be counted by hand.

Not in bench/tests, which speak with the official stubs: their names clash with ours within one process.
"""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
Model = importlib.import_module("prefix_model").Model

ANSWER = list(range(5000, 5020))


def turn(first: int, count: int, end: int = 0) -> tuple[list[int], list[int]]:
    ids = [*range(first, first + count), end]
    return ids, [*ids, *ANSWER]


def test_what_comes_at_once_is_computed_once() -> None:
    model = Model([[turn(0, 100, 1)], [turn(0, 100, 2)], [turn(0, 100, 3)]], workers=1, kv_tokens=1000)
    model.run(at_once=3)
    assert model.hit_rate == pytest.approx(2 * 96 / 303)
    assert len(model.first) == 3


def test_a_conversation_finds_its_turns_and_answers() -> None:
    first = turn(0, 49, 1)
    second = ([*first[1], 7, 8, 9], [*first[1], 7, 8, 9, *ANSWER])
    model = Model([[first, second]], workers=4, kv_tokens=1000)
    model.run(at_once=24)
    assert model.hit_rate == pytest.approx(64 / (50 + 73))


def test_all_is_answered_and_nothing_is_left_and_nobody_is_idle() -> None:
    chains = [[turn(1000 * (number % 7), 300, number)] for number in range(200)]
    model = Model(chains, workers=4, kv_tokens=2000)
    model.run(at_once=24)
    assert len(model.first) == sum(worker.served for worker in model.workers) == 200
    assert [(worker.load, worker.queued, worker.cache.used) for worker in model.workers] == [(0, 0, 0)] * 4
    assert all(worker.served > 20 for worker in model.workers)
    assert 0.7 < model.hit_rate < 288 / 301


def test_a_prefix_that_all_share_leaves_nobody_idle() -> None:
    model = Model([[turn(0, 800, number)] for number in range(200)], workers=4, kv_tokens=20_000)
    model.run(at_once=24)
    served = [worker.served for worker in model.workers]
    assert max(served) < 2 * min(served)
    assert model.hit_rate > 0.9
