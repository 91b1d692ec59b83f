"""The breaker's table: what follows failures and successes, and when."""

from __future__ import annotations

from wsgi_router.workers.breaker import FAULTS, Breaker, Limits, Phase

LIMITS = Limits(failures=3, milliseconds=1000, successes=2)


def after(breaker: Breaker, now: int, seen: str) -> Breaker:
    """What follows `seen`: f for a failure, s for a success."""
    for one in seen:
        breaker = breaker.failed(now, LIMITS) if one == "f" else breaker.succeeded(now, LIMITS)
    return breaker


def test_failures_in_a_row_open_it() -> None:
    assert after(Breaker(), 5, "ffsffs") == Breaker()
    assert after(Breaker(), 5, "ff").phase(5) is Phase.CLOSED
    opened = after(Breaker(), 5, "fff")
    assert opened.phase(5) is opened.phase(1004) is Phase.OPEN
    assert opened.phase(1005) is Phase.HALF_OPEN


def test_while_it_is_open_nothing_counts() -> None:
    opened = after(Breaker(), 5, "fff")
    assert after(opened, 1004, "fsfss") == opened


def test_successes_on_trial_close_it() -> None:
    half = after(Breaker(), 0, "fff")
    assert after(half, 1000, "s").phase(1000) is Phase.HALF_OPEN
    assert after(half, 1000, "ss") == Breaker()


def test_one_failure_on_trial_opens_it_again() -> None:
    half = after(Breaker(), 0, "fff")
    again = after(half, 1500, "sf")
    assert again.phase(2499) is Phase.OPEN
    assert after(again, 2500, "s").phase(2500) is Phase.HALF_OPEN  # it starts anew
    assert after(again, 2500, "ss").phase(2500) is Phase.CLOSED


def test_a_worker_that_has_come_back_is_on_trial_at_once() -> None:
    opened = after(Breaker(), 0, "fff")
    assert opened.tried(10).phase(10) is Phase.HALF_OPEN
    assert opened.tried(2000) == opened
    assert after(Breaker(), 0, "ff").tried(10) == Breaker(2)


def test_refusals_are_no_faults() -> None:
    assert not FAULTS & {"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}
    assert not FAULTS & {"OUT_OF_RANGE", "UNIMPLEMENTED", "UNAUTHENTICATED", "ABORTED"}
