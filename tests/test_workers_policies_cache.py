"""The policy cache_aware: who gets what, by what is known of caches and by loads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wsgi_router import observability
from wsgi_router.settings import Settings
from wsgi_router.workers.board import Board
from wsgi_router.workers.health import Health
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.policies import POLICIES, Policy
from wsgi_router.workers.worker import Worker

Known = tuple[int, int]


class FakePrompt:
    """Of `blocks` blocks; what each column has of it, and in all."""

    def __init__(self, blocks: int, known: dict[int, Known]) -> None:
        self.blocks = blocks
        self._known = known
        self.noted: list[int] = []

    def known(self, columns: Sequence[int]) -> list[Known]:
        return [self._known.get(column, (0, 0)) for column in columns]

    def note(self, column: int) -> None:
        self.noted.append(column)


def make(**values: object) -> Policy:
    return POLICIES["cache_aware"](Settings(**values))  # type: ignore[arg-type]


def workers(*loads: int, queued: Sequence[int] = ()) -> list[Worker]:
    """Each with so many requests, and blocks to compute."""
    health = Health(Board())
    made = []
    for number, load in enumerate(loads):
        url = f"grpc://10.0.0.{number}:30000"
        made.append(Worker(url, health))
        for _ in range(load):
            made[-1].lease()
    for worker, blocks in zip(made, queued, strict=False):
        worker.lease(blocks)
    return made


def chosen(policy: Policy, all_workers: Sequence[Worker], blocks: int, *known: Known) -> int:
    """The place of the one that gets a prompt of which the workers have `known`."""
    prompt = FakePrompt(blocks, dict(zip((worker.column for worker in all_workers), known, strict=False)))
    worker = policy.select(all_workers, Hints(prompt=prompt))
    assert prompt.noted == [worker.column]
    return all_workers.index(worker)


def counted(reason: str) -> float:
    values = observability.metrics()
    values.flush()
    return float(values.prefix_choices.labels(reason)._value.get())


@pytest.mark.parametrize(
    ("loads", "known", "place", "reason"),
    [
        ((5, 5, 5), [(3, 9), (8, 9), (7, 9)], 1, "match"),
        ((5, 6, 5), [(3, 9), (8, 9), (7, 9)], 1, "match"),  # a few requests more do not count
        ((5, 9, 7), [(0, 9), (8, 9), (8, 9)], 2, "match"),  # as long a match, and less to do
        ((5, 5, 5), [(8, 9), (8, 3), (8, 7)], 1, "match"),  # the most room
        ((5, 4, 5), [(0, 9), (0, 9), (0, 9)], 1, "load"),
        ((5, 5, 5), [(0, 9), (0, 4), (0, 7)], 1, "load"),
        ((0, 7, 0), [(0, 0), (10, 9), (5, 9)], 1, "match"),  # half of 16 requests for half of the prompt
        ((0, 8, 0), [(0, 0), (10, 9), (5, 9)], 2, "spill"),
        ((0, 15, 1), [(0, 0), (10, 9), (0, 9)], 1, "match"),
        ((0, 16, 1), [(0, 0), (10, 9), (0, 9)], 0, "spill"),
        ((0, 1, 0), [(0, 0), (1, 9), (0, 9)], 1, "match"),
        ((0, 2, 0), [(0, 0), (1, 9), (0, 9)], 0, "spill"),
        ((1, 2, 1, 0), [(3, 9), (3, 9), (3, 9), (0, 9)], 0, "match"),  # worth a third each: 1.6 requests
        ((2, 2, 2, 0), [(3, 9), (3, 9), (3, 9), (0, 9)], 3, "spill"),
        ((100, 149, 100), [(0, 0), (10, 9), (0, 9)], 1, "match"),  # of many requests, by ratio
        ((100, 150, 101), [(0, 0), (10, 9), (0, 9)], 0, "spill"),
    ],
)
def test_a_match_is_taken_unless_the_load_outweighs_it(
    loads: tuple[int, ...], known: list[Known], place: int, reason: str
) -> None:
    before = counted(reason)
    assert chosen(make(), workers(*loads), 10, *known) == place
    assert counted(reason) == before + 1


@pytest.mark.parametrize(
    ("queued", "known", "place", "reason"),
    [
        ((200, 100, 0), [(0, 9), (0, 9), (0, 9)], 2, "load"),
        ((0, 0, 10), [(0, 9), (0, 3), (0, 1)], 1, "load"),
        ((0, 119, 0), [(0, 9), (10, 9), (0, 9)], 1, "match"),  # less than twelve times what it saves
        ((0, 121, 0), [(0, 9), (10, 9), (0, 8)], 2, "spill"),
        ((500, 619, 500), [(0, 9), (10, 9), (0, 9)], 1, "match"),
        ((500, 621, 500), [(0, 9), (10, 9), (0, 8)], 2, "spill"),
        ((0, 59, 0), [(0, 9), (5, 9), (0, 9)], 1, "match"),
        ((0, 61, 0), [(0, 9), (5, 9), (0, 8)], 2, "spill"),
        ((20, 19, 0), [(10, 9), (10, 9), (0, 9)], 1, "match"),
    ],
)
def test_what_is_to_be_computed_before_counts_against_a_match(
    queued: tuple[int, ...], known: list[Known], place: int, reason: str
) -> None:
    before = counted(reason)
    assert chosen(make(), workers(0, 0, 0, queued=queued), 10, *known) == place
    assert counted(reason) == before + 1


def test_a_lease_counts_what_its_worker_has_to_compute() -> None:
    policy, all_workers = make(), workers(0, 0)
    hints = Hints(prompt=FakePrompt(10, {all_workers[1].column: (7, 9)}))
    lease = policy.lease(all_workers, hints)
    assert (lease.worker, all_workers[1].queued, all_workers[0].queued) == (all_workers[1], 3, 0)
    lease.begun()
    assert (all_workers[1].load, all_workers[1].queued) == (1, 0)
    assert policy.lease(all_workers, NO_HINTS).worker.queued == 0


def test_prompts_that_nobody_has_are_spread_by_their_lengths() -> None:
    policy, all_workers = make(), workers(0, 0)
    lengths = (200, 10, 10, 10, 10, 60)
    leases = [policy.lease(all_workers, Hints(prompt=FakePrompt(length, {}))) for length in lengths]
    places = [all_workers.index(lease.worker) for lease in leases]
    assert places == [0, 1, 1, 1, 1, 1]


def test_what_is_worth_it_and_what_is_too_much_are_settings() -> None:
    known = [(0, 1), (1, 9)]
    assert chosen(make(cache_threshold=0.1), workers(0, 1), 10, *known) == 1
    assert chosen(make(cache_threshold=0.11), workers(0, 1), 10, *known) == 0
    assert chosen(make(cache_threshold=0.0), workers(1, 0), 10, (0, 0), (0, 0)) == 1  # no match is none
    assert chosen(make(balance_abs_threshold=30), workers(0, 3), 10, *known) == 0
    assert chosen(make(balance_abs_threshold=31), workers(0, 3), 10, *known) == 1
    ratio = {"balance_abs_threshold": 0, "balance_rel_threshold": 1.0}
    assert chosen(make(**ratio), workers(3, 3), 10, *known) == 1
    assert chosen(make(**ratio), workers(3, 4), 10, (0, 1), (10, 9)) == 0
    assert chosen(make(), workers(1, 0), 0, (0, 0), (0, 0)) == 1  # less than a block


def test_equals_take_turns() -> None:
    policy, all_workers = make(), workers(0, 0, 0)
    assert [chosen(policy, all_workers, 10) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_request_without_a_prompt_goes_to_the_least_loaded() -> None:
    all_workers = workers(2, 1, 2)
    assert make().select(all_workers, NO_HINTS) is all_workers[1]


def test_matched_blocks_are_counted() -> None:
    blocks = observability.metrics().prefix_blocks

    def both() -> tuple[float, float]:
        observability.metrics().flush()
        return blocks.labels("asked")._value.get(), blocks.labels("matched")._value.get()

    asked, matched = both()
    chosen(make(), workers(0, 0), 10, (7, 9))
    assert both() == (asked + 10, matched + 7)
