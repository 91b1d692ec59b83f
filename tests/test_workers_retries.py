"""Which failures go to another worker: attempts, the budget, and pauses."""

from __future__ import annotations

import pytest

from wsgi_router import observability
from wsgi_router.errors import InvalidRequestError, UpstreamError, WorkerAbortError
from wsgi_router.settings import Settings
from wsgi_router.workers.retries import Retries

FREE = 100
"""Repetitions in ten seconds that no request has to pay for."""


def allowed(retries: Retries, now: float, wanted: int) -> int:
    return sum(retries.allow(WorkerAbortError(), [1], now) for _ in range(wanted))


def test_attempts_are_bounded_and_refusals_final() -> None:
    retries = Retries(Settings(retry_attempts=3))
    assert retries.allow(WorkerAbortError(), [1, 2], 0)
    assert not retries.allow(WorkerAbortError(), [1, 2, 3], 0)
    assert not retries.allow(InvalidRequestError("no"), [1], 0)
    for code in ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "ABORTED"):
        assert not retries.allow(UpstreamError.from_grpc(code, ""), [1], 0)
    for code in ("UNAVAILABLE", "CANCELLED", "INTERNAL", "UNKNOWN", "DATA_LOSS"):
        assert retries.allow(UpstreamError.from_grpc(code, ""), [1], 0)


def test_an_outage_is_not_multiplied() -> None:
    retries = Retries(Settings(retry_budget=0.2))
    before = observability.metrics().retry_budget_exhausted._value.get()
    retries.count(1000, 1000.0)
    assert allowed(retries, 1000.0, 1000) == FREE + 200
    assert observability.metrics().retry_budget_exhausted._value.get() - before == 700
    assert allowed(retries, 1005.0, 1000) == pytest.approx(FREE * 0.4, abs=3)  # what is old weighs less
    assert allowed(retries, 1100.0, 1000) == pytest.approx(FREE, abs=3)


def test_a_steady_share_may_be_repeated() -> None:
    retries = Retries(Settings(retry_budget=0.5))
    done = 0
    for tenth in range(600):
        retries.count(100, tenth / 10)
        done += allowed(retries, tenth / 10, 100)
    assert done / 60_000 == pytest.approx(0.5, abs=0.03)


def test_without_a_budget_nothing_is_repeated() -> None:
    retries = Retries(Settings(retry_budget=0))
    retries.count(1000, 0)
    assert allowed(retries, 0, 10) == 0


def test_pauses_grow_and_differ() -> None:
    for tried, longest in ((1, 0.05), (2, 0.075), (3, 0.1125)):
        pauses = [Retries.pause(range(tried)) for _ in range(200)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
        assert len(set(pauses)) > 100
