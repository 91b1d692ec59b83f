"""The report's charts: SVG files drawn with pygal."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pygal
from pygal.style import CleanStyle

from harness.measure import Outcome
from harness.tables import cpu_a_token, group, routers

Value = Callable[[Outcome, str], float | None]
LEAST_MS = 0.1
STYLE = CleanStyle(
    font_family="sans-serif", label_font_size=11, legend_font_size=12, title_font_size=15, value_font_size=9
)


def draw(outcomes: list[Outcome], folder: Path) -> dict[str, str]:
    """Writes the charts that these outcomes give; what each one shows, by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {name: [o for o in outcomes if group(o) == name] for name in ("comparison", "growth", "memory")}
    compared = [outcome for outcome in parts["comparison"] if outcome.best_peer()]
    paced = [outcome for outcome in compared if _has_times(outcome)]
    drawn: dict[str, str] = {}

    def add(name: str, title: str, chart: pygal.Graph, outcomes: list[Outcome], value: Value) -> None:
        if _series(chart, outcomes, value):
            chart.title = title
            _write(chart, folder / name)
            drawn[name] = title

    what = "Tokens or requests a CPU-second, the best peer's being 1"
    add("ratio.svg", what, _bars(), compared, _to_best)
    what = "Time to first token, p99, ms (log scale)"
    add("ttft.svg", what, _bars(log=True), paced, _at("ttft_ms", "p99"))
    what = "Inter-token latency, p99, ms (log scale)"
    add("itl.svg", what, _bars(log=True), paced, _at("itl_ms", "p99"))
    add("growth.svg", "CPU µs a token by number of streams", _lines(), parts["growth"], cpu_a_token)
    what = "PSS of the process tree after the streams, MiB"
    add("memory.svg", what, _bars(), parts["memory"], _at("pss_mib", "after"))
    return drawn


def _write(chart: pygal.Graph, path: Path) -> None:
    # Without pygal's scripts: the files are shown as pictures, and fetch nothing.
    tree = chart.render_tree()
    for parent in list(tree.iter()):
        for script in [child for child in parent if str(child.tag).endswith("script")]:
            parent.remove(script)
    path.write_bytes(ElementTree.tostring(tree, encoding="utf-8", xml_declaration=True))


def _options() -> dict[str, object]:
    return {
        "style": STYLE,
        "legend_at_bottom": True,
        "legend_at_bottom_columns": 2,
        "print_values": True,
        "value_formatter": lambda value: "" if value is None else f"{value:,.3g}",
        "x_label_rotation": 30,
        "width": 1000,
        "height": 480,
        "print_values_position": "top",
    }


def _bars(*, log: bool = False) -> pygal.Graph:
    return pygal.Bar(logarithmic=log, **_options())


def _lines() -> pygal.Graph:
    return pygal.Line(include_x_axis=True, **_options())


def _series(chart: pygal.Graph, outcomes: list[Outcome], value: Value) -> bool:
    """Adds a series a router; whether there is anything to draw."""
    chart.x_labels = [outcome.scenario.name.removeprefix("growth-") for outcome in outcomes]
    largest = 0.0
    for router in routers(outcomes):
        values = [_drawn(value, outcome, router) for outcome in outcomes]
        if any(number is not None for number in values):
            chart.add(router, values)
            largest = max(largest, *(number or 0.0 for number in values))
    if chart.config.logarithmic:
        # From a power of ten on, or the least bar would have no height.
        chart.zero = LEAST_MS
        chart.range = (LEAST_MS, largest * 1.2)
        chart.y_labels = [10.0**power for power in range(-1, 6) if 10.0**power <= largest * 1.2]
    return bool(chart.raw_series)


def _drawn(value: Value, outcome: Outcome, router: str) -> float | None:
    if router not in outcome.runs or outcome.errors(router):
        return None
    return value(outcome, router)


def _to_best(outcome: Outcome, router: str) -> float | None:
    peer = outcome.best_peer()
    return outcome.ratio(router, peer) if peer else None


def _at(*path: str) -> Value:
    # A logarithm needs more than nothing.
    return lambda outcome, router: max(outcome.median(router, *path) or 0.0, LEAST_MS)


def _has_times(outcome: Outcome) -> bool:
    return "no-stream" not in outcome.scenario.switches and outcome.scenario.profile != "burst"
