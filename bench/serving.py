"""bench_serving of the sglang wheel against this router and its peers, in the Go router's published shape.

`python bench/serving.py`: 100 requests at 20 a second, 20 at once, up to 1,024 tokens in and up to 512 out,
before a load worker that takes 130 ms to the first token and 26.5 ms for each other; prints a Markdown table.
"""

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import assets
from harness.measure import SETTLE_SECONDS, worker
from harness.paths import BENCH, WORK
from harness.processes import CORES, ServiceError, begin, started
from harness.routers import MODEL, PEERS, Running, Start, own
from harness.tables import number, row

SGLANG = "sglang==0.5.23"
REQUIREMENTS = [
    "aiohttp==3.14.5",
    "msgspec==0.23.0",
    "numpy==2.4.6",
    "orjson==3.13.0",
    "pillow==13.0.0",
    "pybase64==1.5.1",
    "requests==2.34.2",
    "tqdm==4.70.1",
    "transformers==5.24.0",
]
RUN_SECONDS = 400
CONVERSATIONS = 400
COLUMNS = (
    ("req/s", "request_throughput", 2),
    ("TTFT p50 ms", "median_ttft_ms", 1),
    ("p99", "p99_ttft_ms", 1),
    ("TPOT p50 ms", "median_tpot_ms", 2),
    ("ITL p50 ms", "median_itl_ms", 1),
    ("p99", "p99_itl_ms", 1),
    ("E2E p50 ms", "median_e2e_latency_ms", 0),
    ("p99", "p99_e2e_latency_ms", 0),
    ("tokens in", "total_input_tokens", 0),
    ("out", "total_output_tokens", 0),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--peers", default=",".join(PEERS), help="csv; '' for none")
    parser.add_argument("--transports", default="", help="csv of this router's TRANSPORT values")
    return parser.parse_args()


def conversations() -> Path:
    """A file in ShareGPT's form, of plain words in a fixed order: bench_serving takes its prompts from it."""
    vocabulary = json.loads((assets.tokenizer() / "tokenizer.json").read_bytes())["model"]["vocab"]
    words = sorted(token[1:] for token in vocabulary if re.fullmatch("\u0120[a-z]{2,8}", token))
    mixer = random.Random(20)

    def text() -> dict[str, str]:
        return {"value": " ".join(mixer.choices(words, k=mixer.randint(20, 400)))}

    path = WORK / "conversations.json"
    path.write_text(json.dumps([{"conversations": [text(), text()]} for _ in range(CONVERSATIONS)]))
    return path


def bench_serving(python: Path, url: str, prompts: Path, requests: int) -> dict[str, Any]:
    """One run; what bench_serving wrote of it."""
    output = WORK / "bench_serving.jsonl"
    output.unlink(missing_ok=True)
    options = {
        "--backend": "sglang-oai-chat",
        "--base-url": url,
        "--model": MODEL,
        "--tokenizer": str(assets.tokenizer()),
        "--dataset-name": "random",
        "--dataset-path": str(prompts),
        "--num-prompts": str(requests),
        "--random-input-len": "1024",
        "--random-output-len": "512",
        "--random-range-ratio": "0.0",
        "--request-rate": "20",
        "--max-concurrency": "20",
        "--seed": "1",
        "--output-file": str(output),
    }
    command = [str(python), str(BENCH / "sglang_bench_serving.py"), "--disable-tqdm"]
    command += [word for pair in options.items() for word in pair]
    with (WORK / "bench_serving.log").open("wb") as log:
        done = subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(WORK)},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=RUN_SECONDS,
            check=False,
            preexec_fn=lambda: begin(CORES.client),
        )
    if done.returncode or not output.is_file():
        tail = (WORK / "bench_serving.log").read_text(errors="replace")[-2000:]
        raise ServiceError(f"bench_serving ended with {done.returncode}:\n{tail}")
    result: dict[str, Any] = json.loads(output.read_text().splitlines()[-1])
    return result


def starts(options: argparse.Namespace) -> list[Start]:
    def csv(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    unknown = set(csv(options.peers)) - set(PEERS)
    if unknown:
        raise SystemExit(f"unknown peers: {', '.join(sorted(unknown))}")
    return [
        *(own(transport) for transport in csv(options.transports) or [""]),
        *(PEERS[name] for name in csv(options.peers)),
    ]


def measured(options: argparse.Namespace) -> list[tuple[Running, dict[str, Any]]]:
    """Each router in turn, alone before a worker of its own."""
    assets.build_load()
    python = assets.package_python("serving", REQUIREMENTS, [SGLANG])
    prompts = conversations()
    results = []
    for position, start in enumerate(starts(options)):
        with worker("headline") as (_, port):
            router = start(f"serving-{position}", port)
            with started(router.service):
                router.wait()
                time.sleep(SETTLE_SECONDS)
                results.append((router, bench_serving(python, router.url, prompts, options.requests)))
        print(f"  {router.name}: done", flush=True)
    return results


def main() -> int:
    options = arguments()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.default_int_handler)
    try:
        results = measured(options)
    except (assets.AssetError, ServiceError, subprocess.TimeoutExpired) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    lines = [
        f"bench_serving of {SGLANG}, `python {' '.join(['bench/serving.py', *sys.argv[1:]])}`",
        "",
        row(["router", "requests answered", *(name for name, _, _ in COLUMNS)]),
        row(["---"] * (len(COLUMNS) + 2)),
    ]
    failed = False
    for router, result in results:
        answered = f"{result['completed']} of {options.requests}"
        failed |= result["completed"] != options.requests
        figures = [number(result[key], digits) for _, key, digits in COLUMNS]
        lines.append(row([router.name, answered, *figures]))
    text = "\n".join(lines) + "\n"
    (WORK / "serving.md").write_text(text)
    (WORK / "serving.json").write_text(json.dumps({router.name: one for router, one in results}, indent=1))
    print(f"\n{text}\nwritten: {WORK}/serving.md, serving.json")
    if failed:
        print("bench: requests failed, the run is void", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
