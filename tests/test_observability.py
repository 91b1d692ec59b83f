"""Metrics over processes, request records, ids and labels."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.processes import ROOT, wait_until
from wsgi_router import observability
from wsgi_router.observability import Metrics, RequestRecord, printable, request_id

PROCESS = """
import os, sys
from wsgi_router import observability
observability.set_token_bounds((0.01, 0.1))
values = observability.metrics()
for _ in range(int(sys.argv[1])):
    record = observability.RequestRecord("POST", "/v1/chat/completions", "id")
    record.first_token()
    tokens = {"prompt_tokens": 2, "completion_tokens": 3, "cached_tokens": 1, "reasoning_tokens": 0}
    times = {"itl_buckets": [1, 2, 1], "itl_sum": 0.5, "itl_count": 4}
    record.answered({**tokens, **times, "finish_reasons": ["stop"]}, "complete")
    if sys.argv[2] == "finish":
        record.finish()
print(values.render({"grpc://a:1": observability.WorkerStat(int(sys.argv[1]), "up", "open")})[0].decode())
"""


def run(directory: Path, count: int, finish: str = "finish") -> tuple[int, dict[str, float]]:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)}
    child = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(count), finish],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    text, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#"]
    return child.pid, {name: float(value) for name, value in lines}


def test_metrics_add_up_over_processes(tmp_path: Path) -> None:
    run(tmp_path, 2)
    _, values = run(tmp_path, 3)
    assert values['wsgi_router_requests_total{route="/v1/chat/completions",status="200"}'] == 5
    assert values['wsgi_router_tokens_total{kind="completion"}'] == 15
    assert values["wsgi_router_time_to_first_token_seconds_count"] == 5
    assert values["wsgi_router_inter_token_seconds_count"] == 20
    assert values["wsgi_router_inter_token_seconds_sum"] == pytest.approx(2.5)
    assert values['wsgi_router_inter_token_seconds_bucket{le="0.01"}'] == 5
    assert values['wsgi_router_inter_token_seconds_bucket{le="0.1"}'] == 15
    assert values["wsgi_router_requests_in_flight"] == 0
    assert values['wsgi_router_worker_up{worker="grpc://a:1"}'] == 1
    assert values['wsgi_router_worker_requests_in_flight{worker="grpc://a:1"}'] == 3


def test_what_a_dead_process_had_in_flight_is_no_more(tmp_path: Path) -> None:
    from prometheus_client.multiprocess import mark_process_dead

    pid, values = run(tmp_path, 4, "leave")
    assert values["wsgi_router_requests_in_flight"] == 4
    mark_process_dead(pid, str(tmp_path))  # type: ignore[no-untyped-call]
    _, values = run(tmp_path, 1)
    assert values["wsgi_router_requests_in_flight"] == 0
    assert values["wsgi_router_time_to_first_token_seconds_count"] == 5


def test_bounds_must_match() -> None:
    values = Metrics((0.1, 0.2))
    with pytest.raises(ValueError, match="zip"):
        list(values.inter_tokens([1, 2], 0.1))


def test_metrics_made_too_early_get_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sequence[float]] = []
    monkeypatch.setattr(observability, "Metrics", made.append)
    monkeypatch.setattr(observability, "metrics", functools.cache(observability.metrics.__wrapped__))
    monkeypatch.setattr(observability, "_token_bounds", (1.0,))
    monkeypatch.setattr(observability, "_made", {})
    observability.metrics()
    observability.set_token_bounds((2.0, 3.0))
    observability.metrics()
    observability.set_token_bounds([2.0, 3.0])
    observability.metrics()
    assert made == [(1.0,), (2.0, 3.0)]


def test_threads_that_ask_first_get_the_same_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = threading.Barrier(4)
    made: list[Sequence[float]] = []

    def slowly(bounds: Sequence[float]) -> object:
        made.append(bounds)
        time.sleep(0.05)  # the others ask meanwhile
        return object()

    monkeypatch.setattr(observability, "Metrics", slowly)
    monkeypatch.setattr(observability, "metrics", functools.cache(observability.metrics.__wrapped__))
    monkeypatch.setattr(observability, "_made", {})

    def ask(_number: int) -> Metrics:
        everybody.wait(20)
        return observability.metrics()

    with ThreadPoolExecutor(4) as threads:
        assert len({id(found) for found in threads.map(ask, range(4))}) == 1
    assert len(made) == 1


def in_flight() -> float:
    values = observability.metrics()
    values.flush()
    return float(values.in_flight._value.get())


def test_changes_are_passed_on_soon() -> None:
    values = Metrics((0.1,))
    values.note(((values.retries, 2), (values.in_flight, 1)))
    values.note(((values.retries, 1), (values.in_flight, -1)))
    wait_until(lambda: values.retries._value.get() == 3, 10, "the flush")
    values.note(((values.retries, 1),))
    assert "wsgi_router_retries_total 4.0" in values.render({})[0].decode()


@pytest.mark.parametrize(("seconds", "bucket"), [(0.004, 0), (0.005, 0), (0.0051, 1), (601, -1)])
def test_times_are_counted_as_prometheus_does(seconds: float, bucket: int) -> None:
    ours, theirs = Metrics((0.1,)), Metrics((0.1,))
    ours.note(ours.answered("/x", 200, seconds))
    theirs.requests.labels("/x", "200").inc()
    theirs.duration.labels("/x").observe(seconds)
    assert ours.duration.labels("/x")._buckets[bucket].get() == 0
    assert _without_times(ours) == _without_times(theirs)
    assert ours.duration.labels("/x")._buckets[bucket].get() == 1


def _without_times(values: Metrics) -> list[str]:
    return [line for line in values.render({})[0].decode().splitlines() if "_created" not in line]


def test_a_record_is_finished_once(caplog: pytest.LogCaptureFixture) -> None:
    before = in_flight()
    record = RequestRecord("POST", "/v1/chat/completions", "the-id")
    assert in_flight() == before + 1
    record.label("my label\n")
    record.status = 503
    record.finish()
    record.finish()
    assert in_flight() == before
    line = record._line(0.5)
    assert "503" in line
    assert "id=the-id" in line
    assert "rid=my_label?" in line


def test_a_stream_finishes_its_record_itself() -> None:
    record = RequestRecord("POST", "/v1/chat/completions", "x")
    record.deferred = True
    assert "open" in repr(record)
    stats = {"prompt_tokens": 5, "completion_tokens": 7, "finish_reasons": ["stop", "length"]}
    record.answered(stats, observability.CANCELLED)
    assert "finished" in repr(record)
    assert "prompt=5 completion=7 finish=stop,length" in record._line(1)
    assert "cancelled" in record._line(1)


def test_ids() -> None:
    assert request_id("abc") == "abc"
    made = request_id("a\nb")
    assert made.startswith("req_")
    assert made != request_id(None)


def test_printable() -> None:
    assert printable("a\r\nb\tä\x7f", 100) == "a??b???"
    assert printable("x" * 10, 3) == "xxx"
