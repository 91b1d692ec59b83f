"""What makes a run void, and how repeats are added up."""

import sys
from typing import Any

import pytest
from harness.measure import Outcome, client
from harness.paths import WORK
from harness.processes import Service, ServiceError, free_port, started
from harness.report import Report
from harness.scenarios import FULL, all_scenarios


def outcome(**runs: list[dict[str, Any]]) -> Outcome:
    made = Outcome(all_scenarios(FULL)[0])
    for router, results in runs.items():
        for result in results:
            made.add(router, {"errors": {"count": 0}, "text_bytes": 9, **result})
    return made


def test_ratio_is_the_median_of_neighbours() -> None:
    ours = [{"tokens_per_cpu_s": value} for value in (10, 40, 90)]
    theirs = [{"tokens_per_cpu_s": value} for value in (10, 20, 30)]
    made = outcome(ours=ours, theirs=theirs)
    assert made.ratio("ours", "theirs") == 2
    assert made.median("ours", "tokens_per_cpu_s") == 40
    assert made.median("ours", "itl_ms", "p50") is None


def test_an_error_or_another_text_makes_it_void() -> None:
    good = {"tokens_per_cpu_s": 10}
    failed = {"errors": {"count": 1, "kinds": {"a stream without [DONE]": 1}}}
    made = outcome(ours=[good, failed], theirs=[good, good])
    assert made.errors("ours")
    assert not made.errors("theirs")
    text = Report("t", "c", {}, [made], {}, {}).markdown()
    assert "| ours | **void** |" in text
    assert "without [DONE]" in text
    made = outcome(ours=[{**good, "text_bytes": 8}], theirs=[good])
    assert made.errors("ours")
    assert made.errors("theirs")


def test_a_server_that_is_not_there_is_an_error() -> None:
    service = Service("test-idle", [sys.executable, "-c", "import time; time.sleep(30)"])
    with started(service):
        result = client(f"http://127.0.0.1:{free_port()}", service.pid, ["--requests", "3"])
    assert result["errors"]["count"] == 3
    assert "ended" in repr(service)


def test_a_service_that_ends_early_shows_its_log() -> None:
    with (
        started(Service("test-early", [sys.executable, "-c", "print('no such model')"])) as service,
        pytest.raises(ServiceError, match="no such model"),
    ):
        service.wait_for_ok(f"http://127.0.0.1:{free_port()}/", 10)
    assert service.log.parent == WORK
