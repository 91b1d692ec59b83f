"""Compares this router with its peers: same load worker, same client, one go, medians, ratios.

`python bench/run.py --help` lists the options; bench/README.md says what is measured and how.
"""

import argparse
import json
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import assets, charts, report, scenarios
from harness.measure import Outcome, Suite, compare, measure_floor
from harness.paths import WORK
from harness.processes import ServiceError
from harness.routers import PEERS, Start, own

OPEN_FILES = 16_384
"""A router before 5,000 streams holds two sockets for each under some transports."""
MANY_PROCESSES = 4
"""The memory of so many processes is measured beside that of one."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="short runs: to see that all works, not for figures"
    )
    parser.add_argument(
        "--peers", default=",".join(PEERS), help=f"csv of {', '.join(PEERS)}; '' for none (default: all)"
    )
    parser.add_argument("--no-self", action="store_true", help="leave this project's router out")
    parser.add_argument(
        "--transports", default="", help="csv of this router's TRANSPORT values; '' is its default"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; what takes long runs once")
    parser.add_argument(
        "--scenarios",
        default="",
        help="csv of scenarios or their names' beginnings (growth, memory, streams); '' for the default ones",
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and end")
    parser.add_argument(
        "--output", type=Path, default=WORK, help="folder for results.json, results.md, charts/"
    )
    parser.add_argument(
        "--from",
        dest="stored",
        type=Path,
        nargs="+",
        default=[],
        metavar="JSON",
        help="measure nothing: one report and its charts from these results.json",
    )
    parser.add_argument("--charts", type=Path, help="folder to copy the charts to (bench/charts: to be kept)")
    return parser.parse_args()


def csv(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def chooser(wanted: list[str], known: list[str]) -> Callable[[scenarios.Scenario], bool]:
    """Whether a scenario is to run: named, or its name begins with a word named, or a default one."""

    def hit(word: str, name: str) -> bool:
        return name == word or name.startswith(word + "-")

    unknown = [word for word in wanted if not any(hit(word, name) for name in known)]
    if unknown:
        raise SystemExit(f"unknown scenarios: {', '.join(unknown)} (--list shows all)")

    def choose(scenario: scenarios.Scenario) -> bool:
        if not wanted:
            return scenario.name not in scenarios.OPTIONAL
        return any(hit(word, scenario.name) for word in wanted)

    return choose


def routers(options: argparse.Namespace) -> dict[str, Start]:
    """The own variants and the peers, by a label of their own."""
    starts: dict[str, Start] = {}
    if not options.no_self:
        for transport in csv(options.transports) or [""]:
            starts[f"wsgi-router-{transport or 'default'}"] = own(transport)
    for peer in csv(options.peers):
        if peer not in PEERS:
            raise SystemExit(f"unknown peer: {peer}")
        starts[peer] = PEERS[peer]
    return starts


def several(options: argparse.Namespace, counts: list[int]) -> dict[str, Start]:
    """The own variants with so many processes."""
    if options.no_self:
        return {}
    return {
        f"wsgi-router-{transport or 'default'}-{count}": own(transport, count, name_processes=True)
        for transport in csv(options.transports) or [""]
        for count in counts
    }


def plan(options: argparse.Namespace) -> tuple[list[Suite], list[scenarios.Scenario]]:
    """What is run against routers, and what of the WSGI side alone."""
    size = scenarios.QUICK if options.quick else scenarios.FULL
    alike = routers(options)
    peers = {name: start for name, start in alike.items() if name in PEERS}
    suites = [
        Suite(scenarios.all_scenarios(size), alike),
        Suite(scenarios.scaling(size), several(options, [1, 2])),
        Suite(scenarios.memory(size), {**several(options, [1, MANY_PROCESSES]), **peers}),
    ]
    floor = scenarios.floor(size)
    every = [scenario for suite in suites for scenario in suite.scenarios] + floor
    if options.list:
        for scenario in every:
            print(
                f"{scenario.name:18} {scenario.what}{' (when named)' * (scenario.name in scenarios.OPTIONAL)}"
            )
        raise SystemExit(0)
    choose = chooser(csv(options.scenarios), [scenario.name for scenario in every])
    chosen = [Suite([one for one in suite.scenarios if choose(one)], suite.starts) for suite in suites]
    return [suite for suite in chosen if suite.scenarios and suite.starts], [s for s in floor if choose(s)]


def measured(options: argparse.Namespace, command: str) -> report.Report:
    """Measures what the options ask for."""
    about = report.machine()
    suites, floor = plan(options)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    assets.build_load()
    outcomes = measure_floor(floor, options.repeats) if floor else []
    compared, counts = compare(suites, options.repeats)
    title = "Quick look (short runs: no figures to quote)" if options.quick else "Comparison"
    return finished(title, command, about, outcomes + compared, counts, options)


def stored(options: argparse.Namespace, command: str) -> report.Report:
    """One report of what was measured before; of a scenario that several have, the last one's runs."""
    outcomes: dict[str, Outcome] = {}
    counts: dict[str, Any] = {}
    about: dict[str, Any] = {}
    commands = []
    for path in options.stored:
        one = json.loads(path.read_text())
        outcomes |= {outcome.scenario.name: outcome for outcome in report.outcomes_of(one)}
        counts |= one["workers"]
        about = one["machine"]
        commands.append(one["command"])
    return finished(
        "Comparison", "; ".join(commands) or command, about, [*outcomes.values()], counts, options
    )


def finished(
    title: str,
    command: str,
    about: dict[str, Any],
    outcomes: list[Outcome],
    counts: dict[str, Any],
    options: argparse.Namespace,
) -> report.Report:
    """The report, with its charts drawn."""
    drawn = charts.draw(outcomes, options.output / "charts")
    if options.charts:
        options.charts.mkdir(parents=True, exist_ok=True)
        for name in drawn:
            shutil.copyfile(options.output / "charts" / name, options.charts / name)
    return report.Report(title, command, about, outcomes, counts, drawn)


def main() -> int:
    options = arguments()
    # SIGTERM ends the run as Ctrl-C does, also where a shell left SIGINT ignored: what was started is stopped
    # on the way out.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    command = " ".join(["python", "bench/run.py", *sys.argv[1:]])
    try:
        result = stored(options, command) if options.stored else measured(options, command)
    except (assets.AssetError, ServiceError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted, all processes stopped", file=sys.stderr)
        return 130
    text = result.markdown()
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "results.md").write_text(text)
    (options.output / "results.json").write_text(json.dumps(result.as_json(), indent=1) + "\n")
    seconds = time.monotonic() - began
    print(f"\n{text}\n{seconds:.0f} s; written: {options.output}/results.md, results.json, charts/")
    void = any(outcome.errors(router) for outcome in result.outcomes for router in outcome.runs)
    if void:
        print("bench: there were errors, the run is void", file=sys.stderr)
    return 1 if void or not result.outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
