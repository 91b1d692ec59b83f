"""Reload, recycling, replacement and ends of gunicorn's processes, while requests come and streams flow."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.live.test_chat import ask
from tests.support import sse
from tests.support.processes import QWEN3, ROOT, Process, Router, Worker, wait_until

URL = "/v1/chat/completions"


def post(router: Router) -> int:
    return httpx.post(router.url + URL, json=ask("say-text", max_tokens=2), timeout=30).status_code


def test_recycled_processes_lose_no_request(worker: Worker) -> None:
    with Router(worker.url, flags=("--max-requests", "5")) as router:
        router.wait_serving(times=1)  # eight would be more than one process takes
        first = router.processes()[0].pid
        for _ in range(40):  # a process that has had enough goes on for up to a second
            assert post(router) == 200
            time.sleep(0.1)
        wait_until(lambda: first not in {process.pid for process in router.processes()}, 30, "a new process")


def test_a_reload_loses_no_request(worker: Worker) -> None:
    with Router(worker.url) as router:
        router.wait_serving()
        replace_processes(router)


def test_a_reload_with_bad_files_loses_no_request(worker: Worker, tmp_path: Path) -> None:
    """The new processes have what the old ones had; another reload takes in what was mended."""
    config = tmp_path / "router.toml"
    folder = tmp_path / "tokenizer"
    shutil.copytree(QWEN3, folder, copy_function=shutil.copyfile)
    config.write_text('log_level = "info"\n')
    router = Router(worker.url, tokenizer=folder)
    router.environment["WSGI_ROUTER_CONFIG"] = str(config)
    good = (folder / "tokenizer.json").read_bytes()
    with router:
        router.wait_serving()
        for file, bad in ((folder / "tokenizer.json", good[:1000]), (config, b"log_level = 3\n")):
            kept = file.read_bytes()
            file.write_bytes(bad)
            replace_processes(router)
            assert router.output().count("start anew with the settings they had") == 1
            file.write_bytes(kept)
            replace_processes(router)
            assert router.output().count("start anew with the settings they had") == 1
            router.log.truncate(0)


def replace_processes(router: Router) -> None:
    """Reloads, and posts until the old process is gone; all has to be answered."""
    (old,) = router.processes()
    router.send(signal.SIGHUP)
    seen = [post(router)]
    end = time.monotonic() + 60
    while old in router.processes():
        assert time.monotonic() < end
        seen.append(post(router))
    seen += [post(router) for _ in range(5)]
    assert set(seen) == {200}


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15, 0.3])
def test_a_process_that_was_just_forked_ends_when_it_is_told_to(delay: float) -> None:
    router = Router("grpc://127.0.0.1:1")
    process = Process(router.command, router.environment)
    process.start()
    wait_until(lambda: "Booting worker" in process.output(), 30, "a first process")
    time.sleep(delay)
    process.send(signal.SIGTERM)
    assert process.child is not None
    try:
        assert process.child.wait(15) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
@pytest.mark.parametrize("flags", [(), ("-k", "gthread", "--threads", "16")], ids=["gevent", "gthread"])
def test_a_quick_end_is_told_to_open_streams(worker: Worker, number: int, flags: tuple[str, ...]) -> None:
    ends: list[list[Any]] = []
    begun = threading.Semaphore(0)

    def read(router: Router) -> None:
        chunks: list[Any] = []
        ends.append(chunks)
        body = ask("go-slowly", stream=True)
        with httpx.stream("POST", router.url + URL, json=body, timeout=30) as answer:
            for chunk in sse.events(answer.iter_lines()):
                if not chunks:
                    begun.release()
                chunks.append(chunk)

    with Router(worker.url, flags=flags) as router:
        router.wait_serving()
        readers = [threading.Thread(target=read, args=(router,)) for _ in range(8)]
        for reader in readers:
            reader.start()
        for _ in readers:
            assert begun.acquire(timeout=20)
        router.send(number)
        for reader in readers:
            reader.join(30)
        assert len(ends) == 8
        for chunks in ends:
            assert chunks[-1] == "[DONE]"
            assert chunks[-2]["error"]["code"] == "draining"
        assert router.child is not None
        assert router.child.wait(15) == 0


def descendants(router: Router, keep: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    return [child for child in psutil.Process(router.pid).children() if keep(child)]


def test_a_new_master_takes_over(worker: Worker) -> None:
    with Router(worker.url) as router:
        router.wait_serving()
        router.send(signal.SIGUSR2)
        wait_until(lambda: descendants(router, lambda child: bool(child.children())), 30, "a new master")
        (new,) = descendants(router, lambda child: bool(child.children()))
        try:
            router.send(signal.SIGTERM)
            assert router.child is not None
            assert router.child.wait(30) == 0
            wait_until(lambda: router.status("/readiness") == 200, 30, "the new one serves")
            assert [post(router) for _ in range(5)] == [200] * 5
        finally:
            os.kill(new.pid, signal.SIGTERM)
            wait_until(lambda: not new.is_running() or new.status() == psutil.STATUS_ZOMBIE, 30, "the end")


def test_no_processes_is_a_bad_setting(worker: Worker) -> None:
    router = Router(worker.url)
    environment = {**router.environment, "WEB_CONCURRENCY": "0"}
    done = subprocess.run(
        router.command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode != 0
    assert "WEB_CONCURRENCY" in done.stderr
    assert "Traceback" not in done.stderr
