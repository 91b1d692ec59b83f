"""A long run: locust's users before this router, then a look at what is left of their requests.

`python bench/long.py --minutes 60`: streamed and whole answers, clients that leave midway. A request that
fails, one that is still counted at the end, or more open descriptors make it void.
"""

import argparse
import csv
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from harness import assets
from harness.measure import worker
from harness.paths import BENCH, WORK
from harness.processes import ServiceError, started, tree
from harness.routers import MODEL, own
from harness.tables import row

LOCUST = ["locust==2.47.0"]
LEFT = ("wsgi_router_requests_in_flight", "wsgi_router_worker_requests_in_flight")
IDLE_SECONDS = 20
SPARE_SECONDS = 240
"""What starting and ending may take besides; the worker outlives locust."""
MIB = 1 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--transport", default="", help="this router's TRANSPORT; '' is its default")
    return parser.parse_args()


def run_locust(python: Path, url: str, options: argparse.Namespace) -> list[dict[str, str]]:
    """locust's rows: one for each kind of request, the last for all."""
    prefix = WORK / "locust"
    command = [
        str(python),
        "-m",
        "locust",
        "-f",
        str(BENCH / "locustfile.py"),
        "--headless",
        "--only-summary",
    ]
    command += ["--host", url, "--users", str(options.users), "--spawn-rate", "20", "--stop-timeout", "30"]
    command += [
        "--run-time",
        f"{int(options.minutes * 60)}s",
        "--csv",
        str(prefix),
        "--exit-code-on-error",
        "0",
    ]
    with (WORK / "locust.log").open("wb") as log:
        subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin", "HOME": str(WORK), "BENCH_MODEL": MODEL},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=options.minutes * 60 + SPARE_SECONDS / 2,
            check=True,
        )
    with Path(f"{prefix}_stats.csv").open() as rows:
        return list(csv.DictReader(rows))


def counted(url: str) -> dict[str, float]:
    """What is still in flight, by the router's metrics."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        name: sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))
        for name in LEFT
    }


def held(pid: int) -> tuple[int, float]:
    """Open descriptors and resident MiB of a process tree."""
    pids = tree(pid)
    descriptors = sum(len(list(Path(f"/proc/{one}/fd").iterdir())) for one in pids)
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in pids)
    return descriptors, pages * 4096 / MIB


def idle(url: str) -> dict[str, float]:
    """Waits until nothing is in flight; what there is if that does not come."""
    end = time.monotonic() + IDLE_SECONDS
    while any((left := counted(url)).values()) and time.monotonic() < end:
        time.sleep(0.2)
    return left


def measured(options: argparse.Namespace) -> tuple[str, bool]:
    """The report, and whether all is as it should be."""
    assets.build_load()
    python = assets.package_python("locust", LOCUST)
    with worker("paced", options.minutes * 60 + SPARE_SECONDS) as (_, port):
        router = own(options.transport)("long", port)
        with started(router.service):
            router.wait()
            descriptors, memory = held(router.service.pid)
            rows = run_locust(python, router.url, options)
            left = idle(router.url)
            more, grown = held(router.service.pid)
    lines = [row(["request", "count", "failures", "p50 ms", "p99 ms"]), row(["---"] * 5)]
    for one in rows:
        names = ("Name", "Request Count", "Failure Count", "50%", "99%")
        lines.append(row([one[name] for name in names]))
    lines += [
        "",
        f"left in flight: {left}; descriptors {descriptors} before, {more} after; "
        f"resident {memory:.0f} MiB before, {grown:.0f} after",
    ]
    good = rows[-1]["Failure Count"] == "0" and not any(left.values()) and more <= descriptors + 8
    return "\n".join(lines) + "\n", good


def main() -> int:
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        text, good = measured(options)
    except (assets.AssetError, ServiceError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    (WORK / "long.md").write_text(text)
    print(f"\n{text}\nwritten: {WORK}/long.md")
    if not good:
        print("bench: requests failed or are left, the run is void", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
