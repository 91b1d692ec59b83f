"""Compares this router with its peers: same load worker, same client, one go, medians, ratios.

`python bench/run.py --help` lists the options; bench/README.md says what is measured and how.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from harness import assets, report, scenarios
from harness.measure import Outcome, compare, measure_floor
from harness.paths import WORK
from harness.processes import ServiceError
from harness.routers import PEERS, Start, own


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="short runs: to see that all works, not for figures"
    )
    parser.add_argument("--peers", default="sglang-router", help=f"csv of {', '.join(PEERS)}; '' for none")
    parser.add_argument("--no-self", action="store_true", help="leave this project's router out")
    parser.add_argument(
        "--transports", default="", help="csv of this router's TRANSPORT values; '' is its default"
    )
    parser.add_argument("--streams", default="20,200,600", help="csv of stream counts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--scenarios", default="", help="csv of scenarios to run; '' for all but the optional ones"
    )
    parser.add_argument("--no-floor", action="store_true", help="leave the WSGI side alone out")
    parser.add_argument("--output", type=Path, default=WORK, help="folder for results.json and results.md")
    return parser.parse_args()


def csv(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def chosen(options: argparse.Namespace) -> tuple[list[scenarios.Scenario], list[scenarios.Scenario]]:
    """The scenarios for the routers and those for the WSGI side alone."""
    size = scenarios.QUICK if options.quick else scenarios.FULL
    every = scenarios.all_scenarios([int(word) for word in csv(options.streams)], size)
    floor = scenarios.floor(size)
    wanted = csv(options.scenarios)
    unknown = set(wanted) - {scenario.name for scenario in every + floor}
    if unknown:
        raise SystemExit(f"unknown scenarios: {', '.join(sorted(unknown))}")
    if wanted:
        every = [scenario for scenario in every if scenario.name in wanted]
        floor = [scenario for scenario in floor if scenario.name in wanted]
    else:
        every = [scenario for scenario in every if scenario.name not in scenarios.OPTIONAL]
    return every, [] if options.no_floor else floor


def routers(options: argparse.Namespace) -> dict[str, Start]:
    starts: dict[str, Start] = {}
    if not options.no_self:
        for transport in csv(options.transports) or [""]:
            starts[f"wsgi-router-{transport or 'default'}"] = own(transport)
    for peer in csv(options.peers):
        if peer not in PEERS:
            raise SystemExit(f"unknown peer: {peer}")
        starts[peer] = PEERS[peer]
    return starts


def run(options: argparse.Namespace) -> tuple[list[Outcome], dict[str, Any]]:
    """The outcomes, and what the load workers counted."""
    every, floor = chosen(options)
    starts = routers(options)
    assets.build_load()
    outcomes = measure_floor(floor, options.repeats) if floor else []
    counts: dict[str, Any] = {}
    if every and starts:
        compared, counts = compare(every, starts, options.repeats)
        outcomes += compared
    return outcomes, counts


def peer_name(outcomes: list[Outcome]) -> str | None:
    """The router the ratios are made against: the first peer."""
    names = [name for outcome in outcomes for name in outcome.runs]
    return next((name for name in names if name.split(" ")[0] in PEERS), None)


def main() -> int:
    options = arguments()
    # SIGTERM ends the run as Ctrl-C does, also where a shell left SIGINT ignored: what was started is stopped
    # on the way out.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    about = report.machine()
    try:
        outcomes, counts = run(options)
    except (assets.AssetError, ServiceError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted, all processes stopped", file=sys.stderr)
        return 130
    command = " ".join(["python", "bench/run.py", *sys.argv[1:]])
    title = "Quick look (short runs: no figures to quote)" if options.quick else "Comparison"
    result = report.Report(title, command, about, outcomes, counts, peer_name(outcomes))
    text = result.markdown()
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "results.md").write_text(text)
    (options.output / "results.json").write_text(json.dumps(result.as_json(), indent=1) + "\n")
    print(f"\n{text}\n{time.monotonic() - began:.0f} s; written: {options.output}/results.md, results.json")
    void = any(outcome.errors(router) for outcome in outcomes for router in outcome.runs)
    if void:
        print("bench: there were errors, the run is void", file=sys.stderr)
    return 1 if void or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
