"""The report's tables in Markdown, each made from the outcomes that it concerns."""

from harness.measure import Outcome
from harness.routers import is_peer
from harness.scenarios import GROWTH_ITL_MS, MEMORY_STREAMS

WORKER_TTFT_MS = {"headline": 130.0}
"""What the load worker itself takes to its first token, by profile; elsewhere nothing."""

COLUMNS = (
    ("tokens/CPU-s", ("tokens_per_cpu_s",), 0),
    ("requests/CPU-s", ("requests_per_cpu_s",), 0),
    ("TTFT p50 ms", ("ttft_ms", "p50"), 1),
    ("p99", ("ttft_ms", "p99"), 1),
    ("ITL p50 ms", ("itl_ms", "p50"), 1),
    ("p99", ("itl_ms", "p99"), 1),
    ("E2E p50 ms", ("e2e_ms", "p50"), 1),
    ("p99", ("e2e_ms", "p99"), 1),
    ("RSS before MiB", ("rss_mib", "before"), 0),
    ("peak", ("rss_mib", "peak"), 0),
    ("CPU s", ("cpu_s",), 2),
)


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def group(outcome: Outcome) -> str:
    """The part of the report that an outcome belongs to: memory, processes, growth, or the comparison."""
    head = outcome.scenario.name.split("-")[0]
    return head if head in ("memory", "processes", "growth") else "comparison"


def routers(outcomes: list[Outcome]) -> list[str]:
    """The routers' names, in the order they first appear."""
    return list(dict.fromkeys(router for outcome in outcomes for router in outcome.runs))


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [row(head), row(["---"] * len(head)), *(row(cells) for cells in rows)] if rows else []


def against_best(outcomes: list[Outcome]) -> list[str]:
    """A line a scenario and own variant: its figure, the best peer's, the median of the repeats' ratios."""
    rows = []
    for outcome in outcomes:
        peer = outcome.best_peer()
        for router in outcome.runs:
            if peer is None or is_peer(router) or outcome.errors(router):
                continue
            ours, theirs = number(outcome.figure(router), 0), number(outcome.figure(peer), 0)
            ratio = number(outcome.ratio(router, peer), 2)
            rows.append(
                [outcome.scenario.name, outcome.scenario.unit, router, ours, peer, theirs, f"**{ratio}**"]
            )
    return _table(["scenario", "figure", "router", "its", "best peer", "its", "ratio"], rows)


def added_times(outcomes: list[Outcome]) -> list[str]:
    """Time to the first token without the worker's own part, and ITL p99, beside the best peer's of each."""
    rows = []
    for outcome in outcomes:
        own_part = WORKER_TTFT_MS.get(outcome.scenario.profile, 0.0)
        for router in outcome.runs:
            if is_peer(router) or outcome.errors(router) or outcome.best_peer() is None:
                continue
            cells = [outcome.scenario.name, router]
            for path, off in (
                (("ttft_ms", "p50"), own_part),
                (("ttft_ms", "p99"), own_part),
                (("itl_ms", "p99"), 0.0),
            ):
                peer = outcome.best_peer(*path, lowest=True)
                theirs = outcome.median(peer, *path) if peer else None
                ours = outcome.median(router, *path)
                cells += [
                    number(None if ours is None else ours - off, 1),
                    "" if theirs is None or peer is None else f"{theirs - off:,.1f} ({peer.split(' ')[0]})",
                ]
            rows.append(cells)
    head = ["scenario", "router", "TTFT p50 added ms", "best peer", "TTFT p99 added ms", "best peer"]
    return _table([*head, "ITL p99 ms", "best peer"], rows)


def medians(outcomes: list[Outcome]) -> list[str]:
    """Everything: a line a scenario and router."""
    rows = []
    for outcome in outcomes:
        for router in outcome.runs:
            head = [outcome.scenario.name, router]
            if outcome.errors(router):
                rows.append([*head, "**void**", *([""] * (len(COLUMNS) - 1))])
            else:
                rows.append([*head, *(number(outcome.median(router, *path), n) for _, path, n in COLUMNS)])
    return _table(["scenario", "router", *(name for name, _, _ in COLUMNS)], rows)


def cpu_a_token(outcome: Outcome, router: str) -> float | None:
    """CPU microseconds a token, without what the router spends while idle."""
    return outcome.median(router, "cpu_us_per_token_less_idle")


def growth(outcomes: list[Outcome]) -> list[str]:
    """CPU a token by number of streams, and against that of 20 streams."""
    base = next((outcome for outcome in outcomes if outcome.scenario.options["streams"] == 20), None)
    rows = []
    for router in routers(outcomes):
        start = cpu_a_token(base, router) if base and router in base.runs else None
        for outcome in outcomes:
            if router not in outcome.runs:
                continue
            cost = cpu_a_token(outcome, router)
            streams = f"{outcome.scenario.options['streams']:,}"
            if outcome.errors(router):
                rows.append([router, streams, "**void**", "", "", "", ""])
                continue
            rows.append(
                [
                    *(router, streams, number(cost, 1)),
                    number(cost / start if cost and start else None, 2),
                    number(outcome.median(router, "cpu_us_per_token"), 1),
                    number(outcome.median(router, "ttft_ms", "p99"), 1),
                    number(outcome.median(router, "itl_ms", "p99"), 1),
                ]
            )
    head = ["router", "streams", "CPU µs a token", "to that of 20 streams", "with the idle cost"]
    return _table([*head, "TTFT p99 ms", f"ITL p99 ms (worker {GROWTH_ITL_MS})"], rows)


def processes(outcomes: list[Outcome]) -> list[str]:
    """Rates by number of processes, and against those of one."""
    rows = []
    for outcome in outcomes:
        one = next(iter(outcome.runs))
        for router in outcome.runs:
            if outcome.errors(router):
                continue
            ratio = None if outcome.errors(one) else outcome.ratio(router, one)
            cores = [run["cpu_s"] / run["wall_s"] for run in outcome.runs[router]]
            rows.append(
                [
                    *(outcome.scenario.name, router, number(outcome.figure(router), 0), number(ratio, 2)),
                    number(max(cores), 2),
                    number(outcome.median(router, "client_cpu_s"), 2),
                    number(outcome.median(router, "wall_s"), 2),
                ]
            )
    head = ["scenario", "router", "a second", "to one process", "cores it used", "client's CPU s", "wall s"]
    return _table(head, rows)


def memory(outcomes: list[Outcome]) -> list[str]:
    """RSS and PSS of the process tree before and after the streams, and what a stream took at the peak."""
    rows = []
    for outcome in outcomes:
        streams = int(outcome.scenario.options["streams"])
        for router in outcome.runs:
            if outcome.errors(router):
                rows.append([router, f"{streams:,}", "**void**", "", "", "", "", "", ""])
                continue
            values = [outcome.median(router, *path) for path in MEMORY_PATHS]
            before, peak = values[0], values[1]
            stream = (peak - before) * 1024 / streams if before is not None and peak is not None else None
            peer = outcome.best_peer("pss_mib", "after", lowest=True)
            theirs = outcome.median(peer, "pss_mib", "after") if peer else None
            share = values[4] / theirs if theirs and values[4] and not is_peer(router) else None
            state = "just started" if streams == MEMORY_STREAMS[0] else "warmed up"
            cells = [router, f"{streams:,}", state, *(number(value, 1) for value in values)]
            rows.append([*cells, number(stream, 1), number(share, 2)])
    head = ["router", "streams", "before them", "RSS before MiB", "peak", "after", "PSS before MiB", "after"]
    return _table([*head, "KiB a stream at the peak", "PSS after, to the least peer's"], rows)


MEMORY_PATHS = (
    ("rss_mib", "before"),
    ("rss_mib", "peak"),
    ("rss_mib", "after"),
    ("pss_mib", "before"),
    ("pss_mib", "after"),
)
