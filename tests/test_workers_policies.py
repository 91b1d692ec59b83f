"""Who is chosen."""

from __future__ import annotations

from collections import Counter

import pytest

from wsgi_router.workers.policies import POLICIES
from wsgi_router.workers.worker import Worker


def workers(count: int = 3) -> list[Worker]:
    return [Worker(f"grpc://host{number}:1") for number in range(count)]


def test_random_reaches_all() -> None:
    policy, all_workers = POLICIES["random"](), workers()
    counts = Counter(policy.select(all_workers, {}) for _ in range(300))
    assert set(counts) == set(all_workers)
    assert min(counts.values()) > 50


def test_round_robin_takes_turns() -> None:
    policy, all_workers = POLICIES["round_robin"](), workers()
    assert [policy.select(all_workers, {}) for _ in range(6)] == all_workers * 2


def test_least_load_counts_what_is_in_flight() -> None:
    policy, all_workers = POLICIES["least_load"](), workers()
    leases = [policy.select(all_workers, {}).lease() for _ in range(9)]
    assert [worker.in_flight for worker in all_workers] == [3, 3, 3]
    for lease in leases:
        if lease.worker is all_workers[1]:
            lease.release()
    assert [policy.select(all_workers, {}).lease().worker for _ in range(3)] == [all_workers[1]] * 3


@pytest.mark.parametrize("name", POLICIES)
def test_one_worker_is_always_chosen(name: str) -> None:
    policy, one = POLICIES[name](), workers(1)
    assert [policy.select(one, {}) for _ in range(3)] == one * 3
