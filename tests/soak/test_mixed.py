"""Random requests, streams, and all that breaks, together: for SOAK_SECONDS, or for one round.

In each round random requests and streams go on while workers are killed, frozen, and made to speak nonsense,
clients leave, and gunicorn reloads; then, under streams alone, one of gunicorn's processes is killed. Another
router in front of the same workers is neither reloaded nor killed: its processes live as long as the test.
After each round nothing is left, and over all rounds the memory stays level. SOAK_SEED makes it the same
again, as far as the machine's own timing goes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos import conftest as chaos
from tests.chaos.clients import leave
from tests.chaos.faulty import FAULTS, FaultyWorker
from tests.chaos.load import EVENT, STATUS, Ask, Load, check
from tests.chaos.processes import kill, reload, start_again
from tests.live import script
from tests.soak.requests import ADMIN_KEY, EMBEDDING, GENERATING, REQUESTS, Sent
from tests.soak.test_soak import FLAGS, PROCESSES, SEED, TOGETHER, Bench, property_of
from tests.support.processes import Router, Worker, free_port
from tests.support.watch import Held, Watch

SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "0"))
ROUND_REQUESTS: Final = 240
STREAMS: Final = 40
_MIB: Final = 1 << 20
LEVEL: Final = 32 * _MIB
"""The second half's most memory may be so much above the first half's."""
FAILURES: Final = (EVENT, STATUS)


class Troubles:
    """What goes wrong in a round, one thing after the other, in a thread, until `stop`."""

    def __init__(self, mixed: Mixed, rng: random.Random) -> None:
        self._mixed = mixed
        self._rng = rng
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        mixed = self._mixed
        kinds = [mixed.reload, mixed.restart, mixed.freeze, mixed.spoil, mixed.leave]
        try:
            while not self._stopping.is_set():
                kind = self._rng.choice(kinds)
                mixed.troubles[kind.__name__] += 1
                kind(self._rng)
        except BaseException as error:
            self._error = error


class Side:
    """One of the two routers, and those who ask it."""

    def __init__(self, router: Router, workers: tuple[Worker, ...]) -> None:
        self.router = router
        self.bench = Bench(router)
        self.watch = Watch(router, workers)
        self.streams: Counter[str] = Counter()

    def load(self, seed: int) -> Load:
        def ask(rng: random.Random) -> Ask:
            return Ask(tokens=rng.randrange(1, 60), stream=rng.random() < 0.8, model=GENERATING)

        return Load(self.router.port, STREAMS, ask, seed, pause=0.1)

    def send(self, sent: Sent) -> None:
        """A worker may fail it now."""
        self.bench.send(dataclasses.replace(sent, faults=True))

    def note(self, load: Load, killed: Iterable[int] = ()) -> None:
        self.streams.update(check(load.outcomes, FAILURES, killed))

    def master_resident(self) -> int:
        return int(psutil.Process(self.router.pid).memory_info().rss)

    def __repr__(self) -> str:
        return f"<Side streams={dict(self.streams)} answers={self.bench.seen.total()}>"


class Mixed:
    """Two routers, what is behind them, and what can be done to it all."""

    def __init__(
        self,
        routers: tuple[Router, Router],
        mortal: Worker,
        behind: Worker,
        faulty: FaultyWorker,
        workers: tuple[Worker, ...],
    ) -> None:
        self.router = routers[0]
        self.mortal = mortal
        self.behind = behind
        self.faulty = faulty
        self.stirred, self.staying = (Side(router, workers) for router in routers)
        self.troubles: Counter[str] = Counter()

    def reload(self, _rng: random.Random) -> None:
        reload(self.router)

    def restart(self, rng: random.Random) -> None:
        self.mortal.kill()
        time.sleep(rng.random() * 2)
        start_again(self.mortal)

    def freeze(self, rng: random.Random) -> None:
        self.behind.send(signal.SIGSTOP)
        time.sleep(rng.random() * 4)
        self.behind.send(signal.SIGCONT)

    def spoil(self, rng: random.Random) -> None:
        self.faulty.set(rng.choice(FAULTS))
        time.sleep(rng.random() * 2)
        self.faulty.set(None)

    def leave(self, rng: random.Random) -> None:
        leave(self.router, rng, 30, Ask(tokens=1000, model=GENERATING))

    def round(self, number: int) -> tuple[Held, Held]:
        """Everything at once, then the death of a process; returns what either router holds after it."""
        rng = random.Random(number)
        stirred, staying = self.stirred, self.staying
        with stirred.load(number) as one, staying.load(number) as other:
            troubles = Troubles(self, rng)
            try:
                self.send_random(number)
            finally:
                troubles.stop()
            self.wait_up()
        stirred.note(one)
        staying.note(other)
        with stirred.load(number) as one:
            one.wait_begun(STREAMS)
            ports = kill(rng.choice(self.router.processes()))
            one.wait_begun(STREAMS // 2)
        stirred.note(one, ports)
        return stirred.watch.settled(), staying.watch.settled()

    def send_random(self, number: int) -> None:
        """Requests of all kinds, to either router in turn."""
        sides = itertools.cycle((self.stirred, self.staying))

        @property_of(ROUND_REQUESTS, number=number)
        @given(st.lists(REQUESTS, min_size=TOGETHER, max_size=TOGETHER))
        def answered(batch: list[Sent]) -> None:
            side = next(sides)
            side.bench.each(side.send, batch)

        answered()

    def wait_up(self) -> None:
        for side in (self.stirred, self.staying):
            chaos.wait_up(side.router, 4)

    def close(self) -> None:
        for side in (self.stirred, self.staying):
            side.bench.close()
            assert "Traceback" not in side.router.output(), side.router.output()[-4000:]


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    path: Path = script.write(tmp_path / "answers.json")
    flags = (*FLAGS, "--max-running", "1000", "--model-name", GENERATING, "--script", str(path))
    paced = (*flags, "--itl-ms", "20")
    with (
        Worker(*paced) as good,
        Worker(*paced, port=free_port()) as mortal,
        Worker(*paced) as behind,
        Worker(*FLAGS, "--model-name", EMBEDDING, "--embedding-dim", "8") as embedder,
        FaultyWorker(behind.port) as faulty,
    ):
        urls = [worker.url for worker in (good, mortal, faulty, embedder)]
        with started(*urls) as stirred, started(*urls) as staying:
            made = Mixed((stirred, staying), mortal, behind, faulty, (good, mortal, behind, embedder))
            made.wait_up()
            yield made
            made.close()


@contextlib.contextmanager
def started(*urls: str) -> Iterator[Router]:
    with Router(
        *urls,
        processes=PROCESSES,
        flags=chaos.WATCHED,
        admin_key=ADMIN_KEY,
        log_level="warning",
        **chaos.HASTY,
    ) as router:
        router.wait_serving()
        yield router


class Levels:
    """Resident bytes after each round, of whatever lives through all of them."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}

    def note(self, name: str, resident: int) -> None:
        self.seen.setdefault(name, []).append(resident)

    def check(self) -> None:
        for name, levels in self.seen.items():
            half = len(levels) // 2
            if half > 1:
                shown = f"{name}: {[level >> 20 for level in levels]} MiB"
                assert max(levels[half:]) <= max(levels[:half]) + LEVEL, shown

    def __repr__(self) -> str:
        return ", ".join(f"{name} {levels[-1] >> 20}" for name, levels in self.seen.items()) + " MiB"


def test_all_of_it_together(mixed: Mixed) -> None:
    seed = 0 if SEED is None else SEED
    print(f"SOAK_SECONDS={SECONDS:g} SOAK_SEED={seed}")
    end = time.monotonic() + SECONDS
    before, stays = mixed.round(seed)
    levels = Levels()
    for number in itertools.count(1):
        if time.monotonic() >= end:
            break
        stirred, staying = mixed.round(seed + number)
        levels.note("the most of a young process", max(one["resident"] for one in stirred.values()))
        for pid, held in staying.items():
            levels.note(f"process {pid}", held["resident"])
        for side in (mixed.stirred, mixed.staying):
            levels.note(f"master {side.router.pid}", side.master_resident())
        print(
            f"round {number}: {levels}, {dict(mixed.troubles)}, {mixed.stirred}, {mixed.staying}", flush=True
        )
    mixed.stirred.watch.check(before)
    assert mixed.staying.watch.check(stays).keys() == stays.keys(), "a process has died"
    levels.check()
