"""The result as a Markdown section (which is also what the terminal shows) and as JSON."""

import importlib.metadata
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.measure import Outcome

COLUMNS = (
    ("tokens/CPU-s", ("tokens_per_cpu_s",), 0),
    ("requests/CPU-s", ("requests_per_cpu_s",), 0),
    ("TTFT p50 ms", ("ttft_ms", "p50"), 1),
    ("p99", ("ttft_ms", "p99"), 1),
    ("ITL p50 ms", ("itl_ms", "p50"), 1),
    ("p99", ("itl_ms", "p99"), 1),
    ("RSS idle MiB", ("rss_mib", "before"), 0),
    ("peak", ("rss_mib", "peak"), 0),
    ("CPU s", ("cpu_s",), 1),
)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo").read_text()
    model = next(
        (line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "?"
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("gunicorn", "gevent", "flask", "grpcio")},
        "load average": round(os.getloadavg()[0], 2),
    }


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run gave: `counts` are the load workers' own, by profile; ratios are made to `peer`."""

    title: str
    command: str
    about: dict[str, Any]
    outcomes: list[Outcome]
    counts: dict[str, Any]
    peer: str | None

    def markdown(self) -> str:
        """One section: the machine, a table of medians, the spread of each ratio's figure, errors."""
        facts = ", ".join(f"{name} {value}" for name, value in self.about.items())
        head = ["scenario", "router", "ratio", *(name for name, _, _ in COLUMNS)]
        lines = [
            *(f"## {self.title}", "", f"`{self.command}` · {time.strftime('%Y-%m-%d')} · {facts}", ""),
            *(_row(head), _row(["---"] * len(head))),
            *(_line(outcome, router, self.peer) for outcome in self.outcomes for router in outcome.runs),
            "",
            *(
                f"- **{outcome.scenario.name}**: {outcome.scenario.what}. {_spread(outcome)}"
                for outcome in self.outcomes
            ),
            *(f"- load worker, {profile}: {_counted(counts)}" for profile, counts in self.counts.items()),
            *_errors(self.outcomes),
        ]
        return "\n".join(lines) + "\n"

    def as_json(self) -> dict[str, Any]:
        """All single runs, as the client gave them."""
        return {
            "command": self.command,
            "machine": self.about,
            "workers": self.counts,
            "outcomes": [
                {"scenario": asdict(outcome.scenario), "runs": outcome.runs} for outcome in self.outcomes
            ],
        }


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _line(outcome: Outcome, router: str, peer: str | None) -> str:
    name = outcome.scenario.name
    if outcome.errors(router):
        return _row([name, router, "**void**", *([""] * len(COLUMNS))])
    ratio = None
    if peer in outcome.runs and router != peer and not outcome.errors(peer):
        ratio = outcome.ratio(router, peer)
    cells = [_number(outcome.median(router, *path), digits) for _, path, digits in COLUMNS]
    return _row([name, router, _number(ratio, 2), *cells])


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _spread(outcome: Outcome) -> str:
    """Lowest and highest of the repeats, so that a reader sees the noise."""
    figure = outcome.scenario.figure
    parts = []
    for router, runs in outcome.runs.items():
        values = [run[figure] for run in runs if run.get(figure)]
        if values:
            parts.append(f"{router} {min(values):,.0f} to {max(values):,.0f}")
    unit = figure.replace("_per_cpu_s", " a CPU-second")
    return f"Lowest to highest, {unit}: {'; '.join(parts)}." if parts else ""


def _counted(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in counts.items())


def _errors(outcomes: list[Outcome]) -> list[str]:
    found = [
        f"- {outcome.scenario.name}, {router}: {error}"
        for outcome in outcomes
        for router in outcome.runs
        for error in outcome.errors(router)
    ]
    return ["", "**Void, because of errors:**", "", *found] if found else []
