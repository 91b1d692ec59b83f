"""Who is chosen by the policies that spread requests, and what all policies have in common."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from wsgi_router import settings
from wsgi_router.settings import Settings
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.policies import POLICIES, Policy
from wsgi_router.workers.worker import Lease, Worker


def make(name: str, **values: object) -> Policy:
    return POLICIES[name](Settings(**values))  # type: ignore[arg-type]


def workers(count: int = 3) -> list[Worker]:
    return [Worker(f"grpc://host{number}:1") for number in range(count)]


def test_random_reaches_all() -> None:
    random.seed(1)
    policy, all_workers = make("random"), workers()
    counts = Counter(policy.select(all_workers, NO_HINTS) for _ in range(300))
    assert set(counts) == set(all_workers)
    assert min(counts.values()) > 50


def test_round_robin_takes_turns() -> None:
    policy, all_workers = make("round_robin"), workers()
    assert [policy.select(all_workers, NO_HINTS) for _ in range(6)] == all_workers * 2


def test_least_load_counts_what_is_in_flight() -> None:
    policy, all_workers = make("least_load"), workers()
    leases = [policy.select(all_workers, NO_HINTS).lease() for _ in range(9)]
    assert [worker.load for worker in all_workers] == [3, 3, 3]
    for lease in leases:
        if lease.worker is all_workers[1]:
            lease.release()
    assert [policy.select(all_workers, NO_HINTS).lease().worker for _ in range(3)] == [all_workers[1]] * 3


def spread(name: str, requests: int = 1000) -> tuple[int, int]:
    """The least and the most requests of ten workers, if none of them ends."""
    random.seed(2)
    policy, all_workers = make(name), workers(10)
    for _ in range(requests):
        policy.select(all_workers, NO_HINTS).lease()
    loads = [worker.load for worker in all_workers]
    assert sum(loads) == requests
    return min(loads), max(loads)


def test_the_less_loaded_of_two_is_far_more_even_than_chance() -> None:
    least, most = spread("power_of_two")
    assert most - least <= 8
    random_least, random_most = spread("random")
    assert random_most - random_least > 12


def test_of_two_workers_the_less_loaded_one() -> None:
    policy, (busy, idle) = make("power_of_two"), workers(2)
    busy.lease()
    busy.lease()
    assert {policy.select([busy, idle], NO_HINTS) for _ in range(50)} == {idle}
    idle.lease()
    idle.lease()
    assert {policy.select([busy, idle], NO_HINTS) for _ in range(50)} == {busy, idle}


def test_the_less_loaded_of_two_has_more_than_two_to_choose_from() -> None:
    random.seed(3)
    policy, all_workers = make("power_of_two"), workers(5)
    assert {policy.select(all_workers, NO_HINTS) for _ in range(100)} == set(all_workers)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "hints", [NO_HINTS, Hints(key="k"), Hints(prefix=b"1234"), Hints("other", "k", b"1234")]
)
def test_one_worker_is_always_chosen(name: str, hints: Hints) -> None:
    policy, one = make(name), workers(1)
    leases: list[Lease] = []
    for _ in range(3):
        assert policy.select(one, hints) is one[0]
        leases.append(one[0].lease())


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - {"random", "round_robin", "power_of_two"}))
def test_without_a_word_of_the_client_the_least_loaded_one(name: str) -> None:
    policy, all_workers = make(name), workers()
    for _ in range(9):
        policy.select(all_workers, NO_HINTS).lease()
    assert [worker.load for worker in all_workers] == [3, 3, 3]


def test_the_setting_takes_every_policy_and_says_so() -> None:
    for name in POLICIES:
        assert settings.load({"WSGI_ROUTER_POLICY": name}).policy == name
        assert name in settings.FIELDS["policy"].metadata["reason"]
    with pytest.raises(settings.SettingsError) as caught:
        settings.load({"WSGI_ROUTER_POLICY": "fastest"})
    assert f"one of {', '.join(POLICIES)}" in str(caught.value)
