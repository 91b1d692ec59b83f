"""Which workers a request's choices go to, by the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.bench import Bench, chunk, nothing_is_left
from tests.support.flow import body
from wsgi_router.dispatch import Generation
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.policies import POLICIES, keyed, rendezvous
from wsgi_router.workers.transport import GenerateJob, RpcFailure


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


def begun(count: int) -> list[tuple[bytes]]:
    """Answers that have begun and do not end."""
    return [(chunk(1),)] * count


def opened(bench: Bench, hints: Hints, choices: int = 1) -> Generation:
    return bench.dispatcher.open(GenerateJob("m", body([1, 2, 3], 9), choices, hints))


HINTS = Hints(key="k", prefix=b"abcd")


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"prefix_hash"}))
@pytest.mark.parametrize("hints", [HINTS, Hints()])
def test_all_choices_follow_the_first(policy: str, hints: Hints) -> None:
    bench = Bench(*begun(5), workers=4, policy=policy)
    generation = opened(bench, hints, choices=5)
    assert len(set(bench.asked())) == 1
    assert sorted(bench.in_flight()) == [0, 0, 0, 5]
    generation.close()


def test_bounded_loads_spread_the_choices_of_a_long_list() -> None:
    bench = Bench(*begun(12), workers=4, policy="prefix_hash", prefix_hash_load_factor=1.5)
    generation = opened(bench, HINTS, choices=12)
    counts = Counter(bench.asked())
    assert sum(counts.values()) == 12
    assert max(counts.values()) <= 5  # 1.5 times the mean, rounded up
    assert bench.asked()[0] == max(counts, key=lambda url: counts[url])
    generation.close()


def test_a_key_whose_worker_fails_at_once_goes_to_the_next_and_takes_all_choices_along() -> None:
    refused = RpcFailure("UNAVAILABLE", "connection refused")
    for answers in ([refused, *begun(3)], [(refused,), *begun(3)]):
        bench = Bench(*answers, workers=3, policy="consistent_hashing")
        order = rendezvous.ordered(keyed.key_of(HINTS.key), bench.pool.workers)
        generation = opened(bench, HINTS, choices=3)
        assert bench.asked()[-3:] == [order[1].url] * 3
        generation.close()
