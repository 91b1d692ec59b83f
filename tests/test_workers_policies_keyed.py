"""Policies that go by a key or by a prompt's beginning: who gets what, and what moves when workers change."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.support.processes import ROOT
from wsgi_router.settings import Settings
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.policies import POLICIES, Policy, keyed, rendezvous
from wsgi_router.workers.worker import Lease, Worker

KEYS = [f"user-{number}" for number in range(3000)]


def make(name: str, **values: object) -> Policy:
    return POLICIES[name](Settings(**values))  # type: ignore[arg-type]


def workers(count: int) -> list[Worker]:
    return [Worker(f"grpc://10.0.0.{number}:30000") for number in range(count)]


def hints(name: str, key: str) -> Hints:
    return Hints(prefix=key.encode()) if name == "prefix_hash" else Hints(key=key)


def places(policy: Policy, name: str, all_workers: Sequence[Worker]) -> dict[str, str]:
    """Each key's worker, by URL."""
    return {key: policy.select(all_workers, hints(name, key)).url for key in KEYS}


BY_HASH = ["consistent_hashing", "sticky", "prefix_hash"]


@pytest.mark.parametrize("name", BY_HASH)
def test_keys_are_spread_evenly(name: str) -> None:
    all_workers = workers(6)
    counts = Counter(places(make(name), name, all_workers).values())
    assert len(counts) == 6
    assert all(400 <= count <= 600 for count in counts.values()), counts  # 500 is the mean


@pytest.mark.parametrize("name", BY_HASH)
def test_a_key_is_where_it_was_whatever_the_order_of_the_workers(name: str) -> None:
    all_workers = workers(5)
    once = places(make(name), name, all_workers)
    assert places(make(name), name, all_workers[::-1]) == once


@pytest.mark.parametrize("name", ["consistent_hashing", "prefix_hash"])
def test_only_the_keys_of_a_worker_that_goes_are_moved_and_they_come_back(name: str) -> None:
    policy, all_workers = make(name), workers(5)
    before = places(policy, name, all_workers)
    gone, rest = all_workers[2].url, [*all_workers[:2], *all_workers[3:]]
    without = places(policy, name, rest)
    moved = {key for key in KEYS if before[key] != without[key]}
    assert moved == {key for key in KEYS if before[key] == gone}
    heirs = Counter(without[key] for key in moved)
    assert len(heirs) == 4
    assert min(heirs.values()) > len(moved) / 8  # a quarter each
    assert places(policy, name, all_workers) == before


@pytest.mark.parametrize("name", ["consistent_hashing", "prefix_hash"])
def test_a_worker_that_joins_takes_its_share_and_nothing_else_moves(name: str) -> None:
    policy, all_workers = make(name), workers(5)
    before, after = places(policy, name, all_workers[:4]), places(policy, name, all_workers)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {all_workers[4].url}
    assert len(KEYS) * 0.15 < len(moved) < len(KEYS) * 0.25


SCRIPT = """
import json, sys
from wsgi_router.settings import Settings
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.policies import POLICIES
from wsgi_router.workers.worker import Worker

workers = [Worker(f"grpc://10.0.0.{number}:30000") for number in range(7)]
places = {}
for name in ("consistent_hashing", "sticky", "prefix_hash"):
    policy = POLICIES[name](Settings())
    keys = [f"user-{number}" for number in range(3000)]
    places[name] = {key: policy.select(workers, Hints("", key, key.encode())).url for key in keys}
json.dump(places, sys.stdout)
"""


def test_every_process_gives_the_same_answers() -> None:
    answers = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            check=True,
            timeout=60,
        )
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1]
    assert answers[0] == {name: places(make(name), name, workers(7)) for name in BY_HASH}


def test_no_release_moves_a_key() -> None:
    """Two versions side by side, while one takes the other's place, send a key to the same worker."""
    policy, all_workers = make("consistent_hashing"), workers(9)
    chosen = [policy.select(all_workers, Hints(key=key)).url[len("grpc://10.0.0.")] for key in KEYS[:12]]
    assert "".join(chosen) == "438222223705"


@pytest.mark.parametrize("name", ["consistent_hashing", "sticky"])
@pytest.mark.parametrize("key", ["ä", "\ud800", "\x00", "k" * 1_000_000])
def test_any_text_is_a_key(name: str, key: str) -> None:
    policy, all_workers = make(name), workers(4)
    assert len({policy.select(all_workers, Hints(key=key)).url for _ in range(5)}) == 1


# sticky


def test_a_sticky_key_stays_when_workers_join() -> None:
    policy, all_workers = make("sticky"), workers(8)
    before = places(policy, "sticky", all_workers[:2])
    assert places(policy, "sticky", all_workers) == before
    new = {policy.select(all_workers, Hints(key=f"new-{number}")).url for number in range(200)}
    assert len(new) == 8


def test_a_sticky_key_whose_worker_is_lost_stays_with_its_new_one() -> None:
    policy, all_workers = make("sticky"), workers(4)
    before = places(policy, "sticky", all_workers)
    gone = all_workers[0].url
    without = places(policy, "sticky", all_workers[1:])
    assert all(without[key] == before[key] or before[key] == gone for key in KEYS)
    assert gone not in without.values()
    assert places(policy, "sticky", all_workers) == without


def test_a_worker_that_is_added_anew_has_its_sticky_keys() -> None:
    policy = make("sticky")
    before = places(policy, "sticky", workers(3))
    assert places(policy, "sticky", workers(3)) == before


def test_processes_agree_on_sticky_keys_while_the_workers_are_the_same() -> None:
    one, other = make("sticky"), make("sticky")
    assert places(one, "sticky", workers(5)) == places(other, "sticky", workers(5))


def test_a_sticky_key_is_forgotten_when_nobody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("wsgi_router.workers.policies.keyed.time.monotonic", lambda: now)
    policy, all_workers = make("sticky", sticky_idle_timeout=60.0), workers(8)
    joined = make("consistent_hashing").select(all_workers, Hints(key="a"))
    first_ones = [worker for worker in all_workers if worker is not joined]

    def chosen() -> Worker:
        return policy.select(all_workers, Hints(key="a"))

    kept = policy.select(first_ones, Hints(key="a"))
    for _ in range(5):  # every use counts anew
        now += 59
        assert chosen() is kept is not joined
    policy.select(all_workers, Hints(key="b"))
    now += 61
    assert chosen() is joined
    assert repr(policy) == "<Sticky keys=1>"


def test_sticky_keys_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "MOST_KEYS", 3)
    policy, all_workers = make("sticky"), workers(8)
    ring = make("consistent_hashing")
    old = policy.select(all_workers[:1], Hints(key="old"))
    used = policy.select(all_workers[:1], Hints(key="used"))
    for key in ("x", "y"):
        policy.select(all_workers, Hints(key=key))
        assert policy.select(all_workers, Hints(key="used")) is used
    assert repr(policy) == "<Sticky keys=3>"
    again = policy.select(all_workers, Hints(key="old"))
    assert again is ring.select(all_workers, Hints(key="old")) is not old


def test_threads_share_a_sticky_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "MOST_KEYS", 50)
    policy, all_workers, wrong = make("sticky"), workers(5), []

    def work() -> None:
        for number in range(2000):
            key = Hints(key=str(number % 70))
            if policy.select(all_workers, key) is not rendezvous.first(keyed.key_of(key.key), all_workers):
                wrong.append(key)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert repr(policy) == "<Sticky keys=50>"


# prefix_hash


def test_a_prefix_stays_with_its_worker_while_there_is_room() -> None:
    policy, all_workers = make("prefix_hash"), workers(4)
    asked = Hints(prefix=b"a shared prompt!")
    first = policy.select(all_workers, asked)
    for _ in range(20):
        lease = policy.select(all_workers, asked).lease()
        assert lease.worker is first
        lease.release()


def test_above_its_bound_a_prefix_goes_on_to_the_next_of_its_order() -> None:
    policy, all_workers = make("prefix_hash", prefix_hash_load_factor=2.0), workers(4)
    asked = Hints(prefix=b"a shared prompt!")
    order = rendezvous.ordered(rendezvous.digest(asked.prefix), all_workers)
    chosen = [policy.select(all_workers, asked).lease().worker for _ in range(8)]
    # With the request there are 1, 2, … 8; the bounds are 1, 1, 2, 2, 3, 3, 4, 4.
    assert [order.index(worker) for worker in chosen] == [0, 1, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("factor", [1.0, 1.25, 3.0])
def test_bounds_hold_whatever_comes_and_goes(factor: float) -> None:
    chance = random.Random(4)
    policy, all_workers = make("prefix_hash", prefix_hash_load_factor=factor), workers(5)
    leases: list[Lease] = []
    spilled = 0
    for _ in range(3000):
        if leases and chance.random() < 0.48:
            leases.pop(chance.randrange(len(leases))).release()
            continue
        asked = Hints(prefix=bytes([chance.choice([1, 1, 1, 1, 2, 3])] * 8))
        chosen = policy.select(all_workers, asked)
        total = sum(worker.load for worker in all_workers) + 1
        assert chosen.load + 1 <= math.ceil(factor * total / 5)
        spilled += chosen is not rendezvous.first(rendezvous.digest(asked.prefix), all_workers)
        leases.append(chosen.lease())
    assert spilled > 0
    assert len(leases) == sum(worker.load for worker in all_workers)


def test_a_factor_of_one_is_even() -> None:
    policy, all_workers = make("prefix_hash", prefix_hash_load_factor=1.0), workers(4)
    for _ in range(40):
        policy.select(all_workers, Hints(prefix=b"same")).lease()
    assert [worker.load for worker in all_workers] == [10] * 4


def test_the_order_of_a_key_has_every_worker_once() -> None:
    all_workers = workers(4)
    orders = {
        tuple(worker.url for worker in rendezvous.ordered(keyed.key_of(key), all_workers)) for key in KEYS
    }
    assert orders == set(itertools.permutations(worker.url for worker in all_workers))
