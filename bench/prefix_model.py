"""`prefix.py`'s work in a model of time: seconds in place of minutes, and the same on a crowded machine.

The caches are the simulator's own class, the choice is the policy's own code; the model has what is between
them: prefill one at a time, tokens, ways to and fro, clients that wait for their answers. It leaves out that
all share a machine's cores, and that events take a while. `python bench/prefix_model.py --help` lists the
options.
"""

import argparse
import heapq
import itertools
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import prefix
from harness.paths import ROOT

sys.path.insert(0, str(ROOT))
from wsgi_router.settings import Settings
from wsgi_router.simulator.cache import BlockCache, KvEvent, Lease, block_hashes
from wsgi_router.worker_api.engine import KvRemoved, KvStored
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.policies import POLICIES

PREFILL, TOKEN, FIRST = 50e-6, 0.5e-3, 16
"""Seconds a token of prefill, seconds a token after it, tokens in the first chunk: as in `prefix.py`."""
WAY = 0.004
"""Seconds from a client to a worker or back, on average, through the router."""


class Prompt:
    """A prompt as the policy sees it (`hints.Prompt`), and its answer."""

    def __init__(self, model: "Model", ids: list[int], whole: list[int]) -> None:
        self.ids, self.whole, self.model = ids, whole, model
        self.marks = block_hashes(ids, prefix.BLOCK, 0)
        self.blocks = len(self.marks)

    def known(self, columns: Sequence[int]) -> list[tuple[int, int]]:
        has = [self.model.workers[column].known for column in columns]
        return [
            (sum(1 for _ in itertools.takewhile(known.__contains__, self.marks)), len(known)) for known in has
        ]

    def note(self, column: int) -> None:
        self.model.workers[column].known.update(self.marks)


class Hold:
    """A request at a worker: what `policy.lease` returns here."""

    def __init__(self, worker: "Worker", queued: int) -> None:
        self.worker, self.queued = worker, queued
        worker.load, worker.queued = worker.load + 1, worker.queued + queued

    def begun(self) -> None:
        self.worker.queued, self.queued = self.worker.queued - self.queued, 0

    def release(self) -> None:
        self.worker.load -= 1


class Worker:
    """A simulated worker, and what the router knows of it."""

    def __init__(self, model: "Model", column: int, kv_tokens: int) -> None:
        self.model, self.column = model, column
        self.load = self.load_with_others = self.queued = self.served = 0
        self.known: set[int] = set()
        self.cache = BlockCache(kv_tokens, prefix.BLOCK, 0, self.tell, keep=True)
        self.waiting: deque[Callable[[], bool]] = deque()
        self.line: deque[Callable[[], None]] = deque()
        self.busy = False

    def lease(self, queued: int = 0) -> Hold:
        return Hold(self, queued)

    def tell(self, events: list[KvEvent]) -> None:
        for event in events:
            if isinstance(event, KvStored):
                self.known.update(block.block_hash for block in event.blocks)
            elif isinstance(event, KvRemoved):
                self.known.difference_update(event.block_hashes)

    def ask(self, prompt: Prompt, first: Callable[[], None], last: Callable[[], None]) -> None:
        """Calls `first` and `last` when the answer begins and has ended."""

        def admit() -> bool:
            lease = self.cache.lease(prompt.ids, len(prompt.whole), len(prompt.ids))
            if lease is not None:
                self.line.append(lambda: self.compute(prompt, lease, first, last))
                self.advance()
            return lease is not None

        self.served += 1
        self.waiting.append(admit)
        self.let_in()

    def let_in(self) -> None:
        while self.waiting and self.waiting[0]():
            self.waiting.popleft()

    def advance(self) -> None:
        if self.line and not self.busy:
            self.busy = True
            self.line.popleft()()

    def compute(
        self, prompt: Prompt, lease: Lease, first: Callable[[], None], last: Callable[[], None]
    ) -> None:
        self.cache.extend(lease, prompt.ids, len(prompt.ids))

        def computed() -> None:
            self.busy = False
            self.cache.store(lease, prompt.ids)
            self.model.after(TOKEN * FIRST, first)
            self.model.after(TOKEN * (len(prompt.whole) - len(prompt.ids)), answered)
            self.advance()

        def answered() -> None:
            self.cache.store(lease, prompt.whole)
            self.cache.release(lease)
            self.let_in()
            last()

        self.model.after(PREFILL * (len(prompt.ids) - lease.cached_tokens), computed)


class Model:
    """One run. Times in seconds of the model."""

    def __init__(
        self, chains: Sequence[Sequence[tuple[list[int], list[int]]]], workers: int, kv_tokens: int
    ) -> None:
        self.workers = [Worker(self, column, kv_tokens) for column in range(workers)]
        self.policy = POLICIES["cache_aware"](Settings())
        self.now = 0.0
        self.first: list[float] = []
        self._chains = deque([Prompt(self, *turn) for turn in chain] for chain in chains)
        self._number = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._random = random.Random(1)

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._number), what))

    def run(self, at_once: int) -> None:
        for _ in range(at_once):
            self.take_up()
        while self._due:
            self.now, _, what = heapq.heappop(self._due)
            what()

    def way(self, what: Callable[[], None]) -> None:
        self.after(WAY * (0.7 + 0.3 * self._random.expovariate(1)), what)

    def take_up(self) -> None:
        if self._chains:
            self.turn(deque(self._chains.popleft()))

    def turn(self, chain: deque[Prompt]) -> None:
        if not chain:
            return self.take_up()
        prompt, begun = chain.popleft(), self.now

        def route() -> None:
            lease = self.policy.lease(self.workers, Hints(prompt=prompt))  # type: ignore[arg-type]

            def first() -> None:
                lease.begun()
                self.way(lambda: self.first.append(self.now - begun))

            def last() -> None:
                lease.release()
                self.way(lambda: self.turn(chain))

            lease.worker.ask(prompt, first, last)  # type: ignore[attr-defined]

        self.way(route)

    @property
    def hit_rate(self) -> float:
        return sum(one.cache.hits for one in self.workers) / sum(one.cache.asked for one in self.workers)


def ids_of(workload: prefix.Workload) -> Iterator[list[tuple[list[int], list[int]]]]:
    """For each chain's turns the prompt, and with its answer."""
    for _, system, turns in workload.chains:
        messages, chain = [{"role": "system", "content": system}], []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            chain.append(prefix.ids_of(messages))
            messages.append({"role": "assistant", "content": prefix.ANSWER})
        yield chain


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", choices=("multi-turn", "shared-prefix"), default="shared-prefix")
    parser.add_argument("--seeds", type=int, default=6, help="workloads to run (default: 6)")
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--workers", type=int, default=prefix.WORKERS)
    parser.add_argument("--kv-tokens", type=int, default=prefix.KV_TOKENS, help="of each worker's KV cache")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    make = prefix.multi_turn if options.workload == "multi-turn" else prefix.shared_prefix
    print("| seed | hit rate | one cache, one by one | TTFT p50 ms | p99 | seconds | requests by worker |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for seed in range(1, options.seeds + 1):
        chains = list(ids_of(make(1, seed)))
        model = Model(chains, options.workers, options.kv_tokens)
        model.run(options.at_once)
        alone = Model(chains, 1, options.workers * options.kv_tokens)
        alone.run(1)
        p50, p99 = 1000 * statistics.median(model.first), 1000 * prefix.quantile(model.first, 0.99)
        spread = [worker.served for worker in model.workers]
        rates = f"{model.hit_rate:.1%} | {alone.hit_rate:.1%}"
        print(f"| {seed} | {rates} | {p50:.0f} | {p99:.0f} | {model.now:.1f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
