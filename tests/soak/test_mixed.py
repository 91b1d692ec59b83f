"""Random requests, streams, and all that breaks, together: for SOAK_SECONDS, or for one round.

In each round random requests and streams go on while workers are killed, frozen, and made to speak nonsense,
clients leave, and gunicorn reloads; then, under streams alone, one of gunicorn's processes is killed. After
it nothing is left, and over all rounds the memory stays level. SOAK_SEED makes it the same again, as far as
the machine's own timing goes.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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


class Mixed:
    """The router, what is behind it, and what can be done to them."""

    def __init__(
        self,
        router: Router,
        mortal: Worker,
        behind: Worker,
        faulty: FaultyWorker,
        workers: tuple[Worker, ...],
    ) -> None:
        self.router = router
        self.mortal = mortal
        self.behind = behind
        self.faulty = faulty
        self.bench = Bench(router)
        self.watch = Watch(router, workers)
        self.troubles: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()

    def load(self, seed: int, streams: int = STREAMS) -> Load:
        def ask(rng: random.Random) -> Ask:
            return Ask(tokens=rng.randrange(1, 60), stream=rng.random() < 0.8, model=GENERATING)

        return Load(self.router.port, streams, ask, seed, pause=0.1)

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

    def round(self, number: int) -> Held:
        """Everything at once, then the death of a process; returns what is held after it."""
        rng = random.Random(number)
        with self.load(number) as load:
            troubles = Troubles(self, rng)
            try:
                self.send_random(number)
            finally:
                troubles.stop()
            self.wait_up()
        self.streams.update(check(load.outcomes, FAILURES))
        with self.load(number) as load:
            load.wait_begun(STREAMS)
            ports = kill(rng.choice(self.router.processes()))
            load.wait_begun(STREAMS // 2)
        self.streams.update(check(load.outcomes, FAILURES, ports))
        return self.watch.settled()

    def send_random(self, number: int) -> None:
        """Requests of all kinds; a worker may fail any of them now."""

        @property_of(ROUND_REQUESTS, number=number)
        @given(st.lists(REQUESTS, min_size=TOGETHER, max_size=TOGETHER))
        def answered(batch: list[Sent]) -> None:
            self.bench.each(self.bench.send, [dataclasses.replace(sent, faults=True) for sent in batch])

        answered()

    def wait_up(self) -> None:
        chaos.wait_up(self.router, 4)


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
        Router(
            *(worker.url for worker in (good, mortal, faulty, embedder)),
            processes=PROCESSES,
            flags=chaos.WATCHED,
            admin_key=ADMIN_KEY,
            log_level="warning",
            **chaos.HASTY,
        ) as router,
    ):
        router.wait_serving()
        made = Mixed(router, mortal, behind, faulty, (good, mortal, behind, embedder))
        made.wait_up()
        yield made
        made.bench.close()
        assert "Traceback" not in router.output(), router.output()[-4000:]


def test_all_of_it_together(mixed: Mixed) -> None:
    seed = 0 if SEED is None else SEED
    print(f"SOAK_SECONDS={SECONDS:g} SOAK_SEED={seed}")
    end = time.monotonic() + SECONDS
    before = mixed.round(seed)
    levels: list[int] = []
    while time.monotonic() < end:
        held = mixed.round(seed + len(levels) + 1)
        levels.append(max(one["resident"] for one in held.values()))
        print(
            f"round {len(levels)}: {levels[-1] >> 20} MiB, {dict(mixed.troubles)}, "
            f"streams {dict(mixed.streams)}, answers {mixed.bench.seen.total()}",
            flush=True,
        )
    mixed.watch.check(before)
    half = len(levels) // 2
    if half > 1:
        assert max(levels[half:]) <= max(levels[:half]) + LEVEL, [level >> 20 for level in levels]
