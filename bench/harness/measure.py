"""Runs the load client and adds up repeats."""

import contextlib
import json
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness import assets
from harness.paths import LOAD
from harness.processes import CORES, Service, begin, free_port, started
from harness.routers import MODEL, Running, Start, is_peer, wsgi_floor
from harness.scenarios import PROFILES, Scenario

RUN_SECONDS = 300
"""A run of the client longer than this is an error."""
WORKER_SECONDS = 3600
"""A load worker ends by itself after this, unless it is told another time."""
WARM_UP = ["--streams", "4", "--requests", "16", "--max-tokens", "8"]
SETTLE_SECONDS = 2.0
"""A router that has just answered its first probe may still be loading in the background."""

Result = dict[str, Any]
"""The load client's object (see bench/README.md)."""


@dataclass(slots=True)
class Outcome:
    """All repeats of one scenario, by router, in the order they ran."""

    scenario: Scenario
    runs: dict[str, list[Result]] = field(default_factory=dict)

    def add(self, router: str, result: Result) -> None:
        self.runs.setdefault(router, []).append(result)

    def errors(self, router: str) -> list[str]:
        """What went wrong; anything here makes the scenario void for this router."""
        found = [str(run["errors"]) for run in self.runs[router] if run["errors"]["count"]]
        sizes = {run["text_bytes"] for runs in self.runs.values() for run in runs if "text_bytes" in run}
        if not found and len(sizes) > 1:
            found = [f"the answers' texts have different sizes: {sorted(map(str, sizes))} bytes"]
        return found

    def median(self, router: str, *path: str) -> float | None:
        """The median over the repeats of the value at `path`; None where a run has none."""
        values = []
        for run in self.runs[router]:
            value: Any = run
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            if not isinstance(value, int | float):
                return None
            values.append(float(value))
        return statistics.median(values)

    def figure(self, router: str) -> float | None:
        """The median of the scenario's own figure."""
        return self.median(router, self.scenario.figure)

    def best_peer(self, *path: str, lowest: bool = False) -> str | None:
        """The peer without errors whose median at `path` (the scenario's figure if none) is the best."""
        path = path or (self.scenario.figure,)
        medians = {
            router: median
            for router in self.runs
            if is_peer(router) and not self.errors(router)
            if (median := self.median(router, *path)) is not None
        }
        if not medians:
            return None
        return (min if lowest else max)(medians, key=medians.__getitem__)

    def ratio(self, router: str, peer: str) -> float | None:
        """The median of the ratios of one repeat's two runs: neighbours, so the machine was in one mood."""
        name = self.scenario.figure
        pairs = zip(self.runs[router], self.runs[peer], strict=False)
        ratios = [ours[name] / theirs[name] for ours, theirs in pairs if ours.get(name) and theirs.get(name)]
        return statistics.median(ratios) if ratios else None


def client(url: str, pid: int, arguments: list[str]) -> Result:
    """One run of the load client; a run that gives no result becomes one error."""
    command = [str(LOAD), "client", "--url", url, "--model", MODEL, "--pids", str(pid)]
    command += ["--max-seconds", str(RUN_SECONDS), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS + 30,
        check=False,
        preexec_fn=lambda: begin(CORES.client),
    )
    try:
        result: Result = json.loads(done.stdout)
    except json.JSONDecodeError:
        result = {"errors": {"count": 1, "kinds": {done.stderr.strip()[-300:]: 1}}}
    return result


def warm_up(router: Running) -> None:
    """Lets lazy parts load; streams and whole answers. Its errors show again in the runs."""
    for mode in ("--stream", "--no-stream"):
        client(router.url, router.service.pid, [*WARM_UP, mode])


@contextlib.contextmanager
def worker(profile: str, seconds: float = WORKER_SECONDS) -> Iterator[tuple[Service, int]]:
    """A load worker of this profile, for so long at most, and its port."""
    port = free_port()
    command = [str(LOAD), "worker", "--port", str(port), "--model", MODEL]
    command += ["--tokenizer-path", str(assets.model()), "--ids-file", str(assets.token_ids())]
    command += ["--max-seconds", str(seconds), *PROFILES[profile]]
    with started(Service(f"worker-{profile}", command, cores=CORES.worker)) as service:
        service.wait_for_line("worker ready")
        yield service, port


@dataclass(frozen=True, slots=True)
class Suite:
    """Scenarios and the routers they are run against."""

    scenarios: list[Scenario]
    starts: dict[str, Start]


def compare(suites: list[Suite], repeats: int) -> tuple[list[Outcome], dict[str, dict[str, int]]]:
    """Runs every scenario of a suite against its every router, interleaved: A B, B A, A B …

    Also returns what the load workers of each profile counted: requests started, finished, gone, aborted.
    """
    outcomes: list[Outcome] = []
    counts: dict[str, Counter[str]] = {}
    for suite in suites:
        for profile in dict.fromkeys(scenario.profile for scenario in suite.scenarios):
            mine = [Outcome(scenario) for scenario in suite.scenarios if scenario.profile == profile]
            with worker(profile) as (service, port):
                _before_one_worker(mine, suite.starts, port, repeats)
            counts.setdefault(profile, Counter()).update(json.loads(service.last_line()))
            outcomes += mine
    return outcomes, {profile: dict(count) for profile, count in counts.items()}


def _before_one_worker(outcomes: list[Outcome], starts: dict[str, Start], port: int, repeats: int) -> None:
    """The scenarios of one profile: those with a router of their own first, then those that share one."""
    for outcome in outcomes:
        if outcome.scenario.fresh:
            for name in starts:
                own = {name: starts[name]}
                with _routers(own, port, outcome.scenario.name, warm=outcome.scenario.warm) as routers:
                    _repeat(outcome, routers, 1)
    shared = [outcome for outcome in outcomes if not outcome.scenario.fresh]
    if shared:
        with _routers(starts, port, shared[0].scenario.profile, warm=True) as routers:
            for outcome in shared:
                _repeat(outcome, routers, repeats)


@contextlib.contextmanager
def _routers(starts: dict[str, Start], port: int, label: str, *, warm: bool) -> Iterator[list[Running]]:
    """The routers, started together and ready; `label` marks their logs."""
    with contextlib.ExitStack() as stack:
        routers = []
        for name, start in starts.items():
            router = start(f"{name}-{label}".replace(" ", "-"), port)
            stack.enter_context(started(router.service))
            routers.append(router)
        for router in routers:
            router.wait()
        time.sleep(SETTLE_SECONDS)
        for router in routers:
            if warm:
                warm_up(router)
        yield routers


def measure_floor(scenarios: list[Scenario], repeats: int) -> list[Outcome]:
    """The WSGI side alone."""
    server = wsgi_floor("wsgi-floor")
    with started(server.service):
        server.wait()
        outcomes = [Outcome(scenario) for scenario in scenarios]
        for outcome in outcomes:
            _repeat(outcome, [server], repeats)
    return outcomes


def _repeat(outcome: Outcome, routers: list[Running], repeats: int) -> None:
    scenario = outcome.scenario
    repeats = min(repeats, scenario.most_repeats)
    for repeat in range(repeats):
        for router in routers if repeat % 2 == 0 else reversed(routers):
            result = client(router.url + scenario.path, router.service.pid, scenario.arguments())
            outcome.add(router.name, result)
            clock = time.strftime("%H:%M:%S")
            print(
                f"  {clock} {scenario.name:18} {repeat + 1}/{repeats} {router.name:30} "
                f"{_brief(scenario, result)}",
                flush=True,
            )


def _brief(scenario: Scenario, result: Result) -> str:
    if result["errors"]["count"]:
        return f"ERRORS {result['errors']}"
    return f"{result[scenario.figure] or 0:>10,.0f} {scenario.unit}"
