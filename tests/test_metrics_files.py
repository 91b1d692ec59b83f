"""Counts of processes that have ended are kept, in as many files as there are types."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from wsgi_router import metrics_files

PROCESS = """
import os, sys
from wsgi_router.observability import Metrics
metrics = Metrics((0.1, 1.0))
metrics.note(metrics.answered("/v1/models", 200, 0.5))
metrics.note(((metrics.in_flight, 3), (metrics.retries, float(sys.argv[1]))))
metrics.flush()
print(os.getpid())
"""
RENDER = """
from wsgi_router.observability import metrics
print(metrics().render({})[0].decode())
"""


def run(folder: Path, code: str, *words: str) -> str:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def shown(folder: Path) -> dict[str, float]:
    lines = (line for line in run(folder, RENDER).splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line)}


@pytest.fixture
def dead(tmp_path: Path) -> list[int]:
    return [int(run(tmp_path, PROCESS, str(number))) for number in (1, 2, 3)]


def counted(folder: Path) -> dict[str, float]:
    return {name: value for name, value in shown(folder).items() if "in_flight" not in name}


def test_what_was_counted_stays_in_one_file_a_type(tmp_path: Path, dead: list[int]) -> None:
    before = counted(tmp_path)
    assert before["wsgi_router_retries_total"] == 6
    assert before['wsgi_router_request_duration_seconds_bucket{le="0.5",route="/v1/models"}'] == 3
    for number, process in enumerate(dead):
        assert shown(tmp_path)["wsgi_router_requests_in_flight"] == 3 * (3 - number)
        metrics_files.retire(tmp_path, process)
        assert counted(tmp_path) == before
        files = {file.name for file in tmp_path.glob("*.db")}
        assert {"counter_ended.db", "histogram_ended.db"} <= files
        assert not any(str(process) in name for name in files)


def test_files_wait_while_metrics_are_read(tmp_path: Path, dead: list[int]) -> None:
    with metrics_files.reading(tmp_path):
        metrics_files.retire(tmp_path, dead[0])
        assert (tmp_path / f"counter_{dead[0]}.db").exists()
    metrics_files.retire(tmp_path, dead[1])
    assert not (tmp_path / f"counter_{dead[0]}.db").exists()
    assert not (tmp_path / f"counter_{dead[1]}.db").exists()
    assert counted(tmp_path)["wsgi_router_retries_total"] == 6


def test_a_file_that_was_never_finished_costs_no_other(tmp_path: Path, dead: list[int]) -> None:
    (tmp_path / f"counter_{dead[1]}.db").write_bytes(b"")
    for process in dead:
        metrics_files.retire(tmp_path, process)
    assert counted(tmp_path)["wsgi_router_retries_total"] == 4


def test_a_reader_waits_for_counts_on_their_way(tmp_path: Path) -> None:
    """But not for ever: a master that stands still holds nobody up."""
    entered = threading.Event()

    def read() -> None:
        with metrics_files.reading(tmp_path):
            entered.set()

    with metrics_files._lock(tmp_path, fcntl.LOCK_EX, 1) as held:
        assert held
        reader = threading.Thread(target=read)
        reader.start()
        assert not entered.wait(0.1)
    reader.join(30)
    assert entered.is_set()


def test_a_folder_that_is_gone_harms_no_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from wsgi_router import gunicorn_conf

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "gone"))
    log = logging.getLogger("test")
    gunicorn_conf.child_exit(SimpleNamespace(log=log), SimpleNamespace(pid=os.getpid()))
    assert "stay where they are" in caplog.text


def test_no_room_for_the_counts_is_an_error(
    tmp_path: Path, dead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = counted(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="no room"):
            metrics_files.retire(tmp_path, dead[0])
    assert counted(tmp_path) == before
    metrics_files.retire(tmp_path, dead[1])
    assert counted(tmp_path) == before
