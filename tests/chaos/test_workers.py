"""Workers that die, freeze, refuse, crawl, and speak nonsense, while requests come and streams flow.

A request gets its whole answer, an error event where it had begun, or an error status: never a cut or an
internal error. Afterwards nothing is left of it anywhere.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
from collections.abc import Iterator

import pytest

from tests.chaos.conftest import HASTY, LONG, SEED, TRANSPORTS, rounds, router, simulator, wait_up
from tests.chaos.faulty import FAULTS, FaultyWorker
from tests.chaos.load import DONE, EVENT, STATUS, Ask, Load, check, counted
from tests.chaos.processes import start_again
from tests.support.processes import Router, Worker, free_port, wait_until
from tests.support.watch import Watch

FAILURES = (EVENT, STATUS)
BOTH = ("native", "grpcio")
SHORT_GRPCIO = (
    "reset in a frame",
    "no protobuf",
    "no HTTP/2",
    "a stream reset",
    "GOAWAY that ends all calls",
)


def asking(rng: random.Random) -> Ask:
    """Mostly streams."""
    return Ask(tokens=rng.randrange(5, 40), stream=rng.random() < 0.8)


class Bench:
    """A router with a good worker, and one that may be made to fail, of which `faulty` is the way to it."""

    def __init__(self, router: Router, good: Worker, behind: Worker, faulty: FaultyWorker) -> None:
        self.router = router
        self.faulty = faulty
        self.watch = Watch(router, (good, behind))
        self.before = self.watch.settled()

    def load(self, clients: int = 24) -> Load:
        return Load(self.router.port, clients, asking, SEED, pause=0.1)


@contextlib.contextmanager
def made(transport: str) -> Iterator[Bench]:
    with simulator() as good, simulator() as behind, FaultyWorker(behind.port) as faulty:
        chosen = {**HASTY, "transport": transport, "policy": "round_robin"}
        with router(good.url, faulty.url, **chosen) as server:
            wait_up(server, 2)
            with Load(server.port, 24, asking, SEED) as load:  # what is filled once
                load.wait_for(60)
            check(load.outcomes)
            yield Bench(server, good, behind, faulty)
            assert "Traceback" not in server.output(), server.output()[-4000:]


@pytest.fixture(scope="module")
def native() -> Iterator[Bench]:
    with made("native") as bench:
        yield bench


@pytest.fixture(scope="module")
def grpcio() -> Iterator[Bench]:
    with made("grpcio") as bench:
        yield bench


@pytest.fixture
def bench(request: pytest.FixtureRequest, transport: str) -> Bench:
    found: Bench = request.getfixturevalue(transport)
    return found


@pytest.mark.parametrize("transport", BOTH)
def test_nonsense_on_the_wire(bench: Bench, transport: str) -> None:
    """One fault after the other, each in the middle of the traffic of two workers."""
    faults = [fault for fault in FAULTS if LONG or transport == "native" or fault.name in SHORT_GRPCIO]
    with bench.load() as load:
        for fault in itertools.chain.from_iterable(faults for _ in rounds(1)):
            seen = len(load.outcomes)
            load.wait_begun(2)
            bench.faulty.set(fault)
            try:
                wait_until(lambda: bench.faulty.happened, 90, fault.name)
                load.wait_for(24)
            finally:
                bench.faulty.set(None)
            wait_up(bench.router, 2)
            print(f"{transport}, {fault.name}: {check(load.outcomes[seen:], FAILURES)}")
    counts = check(load.outcomes, FAILURES)
    assert counts[DONE] > counts[EVENT] + counts[STATUS] > 0
    bench.watch.check(bench.before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_worker_that_refuses_connections(bench: Bench) -> None:
    with bench.load() as load:
        load.wait_begun(12)
        bench.faulty.refuse()
        load.wait_for(36)
        bench.faulty.listen()
        wait_up(bench.router, 2)
    check(load.outcomes, FAILURES)
    bench.watch.check(bench.before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_worker_whose_bytes_trickle(transport: str) -> None:
    """Slow is no fault: every answer is whole."""
    with (
        simulator() as behind,
        FaultyWorker(behind.port) as faulty,
        router(faulty.url, transport=transport) as server,
    ):
        wait_up(server, 1)
        with Load(server.port, 12, asking, SEED) as load:  # each process has its channel then
            load.wait_for(36)
        check(load.outcomes)
        watch = Watch(server, (behind,))
        before = watch.settled()
        faulty.set(None, slow=True)
        with Load(server.port, 12, asking, SEED) as load:
            load.wait_for(24)
        check(load.outcomes)
        watch.check(before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_workers_killed_and_frozen_in_turn(transport: str) -> None:
    """Of three workers one is always there; the others die, come back, freeze and thaw."""
    rng = random.Random(SEED)
    with (
        simulator() as good,
        simulator(port=free_port()) as first,
        simulator(port=free_port()) as second,
        router(good.url, first.url, second.url, transport=transport, **HASTY) as server,
    ):
        wait_up(server, 3)
        with Load(server.port, 32, asking, SEED) as load:
            load.wait_for(90)
        check(load.outcomes)
        watch = Watch(server, (good, first, second))
        before = watch.settled()
        mortals = [first, second]
        with Load(server.port, 32, asking, SEED, pause=0.05) as load:
            for turn in rounds(1):
                rng.shuffle(mortals)
                load.wait_begun(20)
                mortals[0].send(signal.SIGSTOP)
                mortals[1].kill()
                load.wait_for(60)
                mortals[0].send(signal.SIGCONT)
                start_again(mortals[1])
                wait_up(server, 3)
                load.wait_for(30)
                print(turn, counted(load.outcomes))
            load.stop()
            check(load.outcomes, FAILURES)
            assert "Traceback" not in server.output(), server.output()[-4000:]
            watch.check(before)


def test_all_workers_gone() -> None:
    """Not one is left: each request is refused, with a time to come back after; nobody waits for ever."""
    with simulator() as worker, router(worker.url, **HASTY) as server:
        wait_up(server, 1)
        with Load(server.port, 16, asking, SEED) as load:
            load.wait_for(32)
        watch = Watch(server, (worker,))
        before = watch.settled()
        with Load(server.port, 16, asking, SEED, pause=0.2) as load:
            load.wait_begun(16)
            worker.kill()
            load.wait_for(60)
        check(load.outcomes, FAILURES)
        assert load.outcomes[-1].kind == STATUS
        watch.check(before)
        with simulator(port=worker.port):
            wait_up(server, 1)
            with Load(server.port, 16, asking, SEED) as load:
                load.wait_for(32)
            check(load.outcomes[32:])
