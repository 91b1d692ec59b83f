"""The result as a Markdown section (which is also what the terminal shows) and as JSON."""

import importlib.metadata
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import tables
from harness.measure import Outcome
from harness.processes import CORES
from harness.scenarios import Scenario


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo").read_text()
    model = next(
        (line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "?"
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "pinned": "worker and client to a core each" if CORES.router else "nothing",
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("gunicorn", "gevent", "flask", "grpcio")},
        "load average": round(os.getloadavg()[0], 2),
    }


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run gave: `counts` are the load workers' own, by profile; `charts` by file name."""

    title: str
    command: str
    about: dict[str, Any]
    outcomes: list[Outcome]
    counts: dict[str, Any]
    charts: dict[str, str]
    charts_folder: str = "charts"

    def markdown(self) -> str:
        """One section: the machine, the tables, the charts, the spread of each ratio's figure, errors."""
        facts = ", ".join(f"{name} {value}" for name, value in self.about.items())
        lines = [f"## {self.title}", "", f"`{self.command}` · {time.strftime('%Y-%m-%d')} · {facts}", ""]
        for head, table in self._tables().items():
            if table:
                lines += [f"### {head}", "", *table, ""]
        for name, what in self.charts.items():
            lines += [f"![{what}]({self.charts_folder}/{name})", ""]
        lines += [f"- **{o.scenario.name}**: {o.scenario.what}. {_spread(o)}".rstrip() for o in self.outcomes]
        lines += [f"- load worker, {profile}: {_counted(counts)}" for profile, counts in self.counts.items()]
        return "\n".join([*lines, *_errors(self.outcomes)]) + "\n"

    def _tables(self) -> dict[str, list[str]]:
        part = {
            name: [outcome for outcome in self.outcomes if tables.group(outcome) == name]
            for name in ("comparison", "growth", "processes", "memory")
        }
        timed = [outcome for outcome in part["comparison"] if "no-stream" not in outcome.scenario.switches]
        return {
            "Against the best Rust gateway": tables.against_best(part["comparison"]),
            "Times beside the best Rust gateway's": tables.added_times(timed),
            "Medians": tables.medians(part["comparison"]),
            "Growth": tables.growth(part["growth"]),
            "Processes": tables.processes(part["processes"]),
            "Memory": tables.memory(part["memory"]),
        }

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


def outcomes_of(stored: dict[str, Any]) -> list[Outcome]:
    """The outcomes that `as_json` gave."""
    return [
        Outcome(Scenario(**{**one["scenario"], "switches": tuple(one["scenario"]["switches"])}), one["runs"])
        for one in stored["outcomes"]
    ]


def _spread(outcome: Outcome) -> str:
    """Lowest and highest of the repeats, so that a reader sees the noise."""
    figure = outcome.scenario.figure
    parts = []
    for router, runs in outcome.runs.items():
        values = [run[figure] for run in runs if run.get(figure)]
        if len(values) > 1:
            parts.append(f"{router} {min(values):,.0f} to {max(values):,.0f}")
    return f"Lowest to highest, {outcome.scenario.unit}: {'; '.join(parts)}." if parts else ""


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
