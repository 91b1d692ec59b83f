"""Handles: freed exactly once, nothing left behind, used by many threads, kept over a fork."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support import answers, models, modes, tiny
from tests.support.processes import ROOT
from wsgi_router import native

LIVES = 10_000
WARM = 2_000
GROWTH = 8 << 20


def job(text: str, **fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


NO_CALLS = {"nets": 0, "calls": 0, "followers": 0}


def live() -> dict[str, int]:
    """Handles alive once cycles, such as those of earlier failures, are gone."""
    gc.collect()
    return native.live_handles()


class Lives:
    """Requests of every fate, one after the other."""

    def __init__(self, tokenizer: native.Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.options = {
            streaming: answers.options(streaming=streaming, stop=["<end>", "\n\n"])
            for streaming in (True, False)
        }
        self.fed = answers.messages([*b"Hello, this is an <en answer.", tiny.END], [3] * 9, "repeat", "stop")
        self.abort = answers.complete([], 0, "abort: full")
        self.job = job("hi " * 50)
        self.outcomes: dict[str, int] = {}

    def run(self, count: int) -> None:
        for number in range(count):
            outcome = self.one(number)
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def one(self, number: int) -> str:
        fate = number % 8
        if fate == 7:
            return self.refused()
        prepared = self.tokenizer.prepare(self.job)
        assert prepared.body
        assert len(prepared.token_ids()) == prepared.prompt_tokens
        stream = native.Stream(self.tokenizer, self.options[fate % 2 == 0])
        if fate == 6:
            return "unused"
        fed = {4: self.fed[:4], 5: [*self.fed[:3], self.abort]}.get(fate, self.fed)
        flags = 0
        for message in fed:
            flags = stream.feed(0, message)
            stream.take()
        if flags & native.FAILED:
            assert stream.failure() == "full"
            stream.fail(b'{"error":{}}')
            assert b"[DONE]" in stream.take() or fate % 2
            return "failed"
        if not flags & native.ALL_DONE:
            return "abandoned"
        assert bool(stream.result()) == (fate % 2 == 1)
        assert stream.stats()["completion_tokens"] == 30
        return "complete"

    def refused(self) -> str:
        for given in (b'{"messages": [{"role": "user", "content": 1', job("x" * 99, context_length=20)):
            with pytest.raises(native.NativeError):
                self.tokenizer.prepare(given)
        with pytest.raises(native.NativeError):
            native.Stream(self.tokenizer, b"{}")
        return "refused"


def test_ten_thousand_requests_leave_nothing_behind(folder: Path) -> None:
    before = live()
    lives = Lives(native.Tokenizer(str(folder)))
    assert native.live_handles()["tokenizers"] == before["tokenizers"] + 1
    lives.run(WARM)
    gc.collect()
    process = psutil.Process()
    resident = process.memory_info().rss
    lives.run(LIVES)
    gc.collect()
    growth = process.memory_info().rss - resident
    assert lives.outcomes.keys() == {"complete", "abandoned", "failed", "unused", "refused"}
    del lives
    assert live() == before
    # A hundred bytes a request would be a megabyte.
    assert growth < GROWTH, f"{growth} bytes more"


def test_a_tokenizer_lives_as_long_as_its_streams_do(folder: Path) -> None:
    """A stream keeps what it needs of the tokenizer; prepared requests keep nothing."""
    before = live()
    tokenizer = native.Tokenizer(str(folder))
    prepared = tokenizer.prepare(job("hi"))
    stream = native.Stream(tokenizer, answers.options(streaming=True))
    del tokenizer
    assert live()["tokenizers"] == before["tokenizers"]
    assert prepared.prompt.startswith("<|im_start|>user\nhi")
    assert stream.feed(0, answers.complete([*b"ok"], 2)) & native.ALL_DONE
    assert b'"content":"ok"' in stream.take()
    del prepared, stream
    assert live() == before


def test_loading_over_and_over_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    before = live()

    def load(count: int) -> None:
        for _ in range(count):
            native.Tokenizer(str(folder)).prepare(job("hi"))
            for path, template in ((tmp_path, None), (folder, "{% if %}")):
                with pytest.raises(native.NativeError):
                    native.Tokenizer(str(path), template)

    load(10)
    process = psutil.Process()
    resident = process.memory_info().rss
    load(40)
    assert live() == before
    assert process.memory_info().rss - resident < GROWTH


def forked(folder: str) -> None:
    """In a process of its own: a child that uses and drops what its parent made, then the parent goes on."""
    tokenizer = native.Tokenizer(folder)
    prepared = tokenizer.prepare(job("of the parent"))
    stream = native.Stream(tokenizer, answers.options(streaming=True))
    stream.feed(0, answers.chunk([*b"par"], 3))
    ids = prepared.token_ids()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert tokenizer.prepare(job("of the parent")).token_ids() == ids
            own = native.Stream(tokenizer, answers.options(streaming=True))
            assert own.feed(0, answers.complete([*b"child"], 5)) & native.ALL_DONE
            assert b"child" in own.take()
            del own, prepared, stream, tokenizer
            gc.collect()
            # The tokenizer's pages are the parent's: a child leaves them alone.
            assert native.live_handles() == {"tokenizers": 1, "prepared": 0, "streams": 0, **NO_CALLS}
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert native.live_handles() == {"tokenizers": 1, "prepared": 1, "streams": 1, **NO_CALLS}
    assert tokenizer.prepare(job("of the parent")).token_ids() == ids
    assert stream.feed(0, answers.complete([*b"ent"], 6)) & native.ALL_DONE
    assert b'"content":"ent"' in stream.take()
    del tokenizer, prepared, stream
    assert live() == {"tokenizers": 0, "prepared": 0, "streams": 0, **NO_CALLS}


def test_handles_over_a_fork(folder: Path) -> None:
    modes.run("threads", forked, str(folder))


def test_a_handle_that_lives_to_the_end_of_the_process_is_silent(folder: Path) -> None:
    script = f"""
import sys
from wsgi_router import native
sys.keeper = native.Tokenizer({str(folder)!r})
sys.stream = native.Stream(sys.keeper, b'{{"id":"a","created":1,"model":"m"}}')
sys.prepared = sys.keeper.prepare(b'{{"prompt":"x"}}')
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_eight_threads_on_one_tokenizer(folder: Path) -> None:
    tokenizer = models.core("smollm2")
    texts = [f"{number} " + "日本 👩‍👩‍👧 it's é\u0301 " * (number % 7) for number in range(240)]
    alone = [tokenizer.prepare(job(text)).token_ids() for text in texts]
    barrier = threading.Barrier(8)

    def work(part: int) -> list[list[int]]:
        barrier.wait()
        return [tokenizer.prepare(job(text)).token_ids() for text in texts[part:] + texts[:part]]

    with ThreadPoolExecutor(8) as pool:
        for part, made in zip(range(0, 240, 30), pool.map(work, range(0, 240, 30)), strict=True):
            assert made == alone[part:] + alone[:part]


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Without this a thread that holds the GIL is asked for it every 5 ms, which would hide nothing here."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_others_run_while_a_long_prompt_is_prepared() -> None:
    tokenizer = models.core("smollm2")
    given = job("Words of a long prompt, 日本語 too. " * 6000)
    state = {"begun": False, "done": False}

    def prepare() -> None:
        state["begun"] = True
        tokenizer.prepare(given)
        state["done"] = True

    thread = threading.Thread(target=prepare)
    thread.start()
    ticks = 0
    while not state["done"]:
        time.sleep(0.001)
        ticks += state["begun"] and not state["done"]
    thread.join()
    assert ticks > 20


def test_a_signal_is_handled_while_a_long_prompt_is_prepared() -> None:
    """The main thread's handlers run as soon as the call is over, and the call is not broken by them."""
    tokenizer = models.core("smollm2")
    caught: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
    try:
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert tokenizer.prepare(job("a long prompt " * 5000)).prompt_tokens > 5000
        timer.join()
        assert caught == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
