"""Hit rates of prefix caches: this router's policies and a peer's, before simulated workers.

`python bench/prefix.py --help` lists the options; bench/README.md says what is measured and how.
"""

import argparse
import functools
import heapq
import json
import math
import random
import statistics
import sys
import threading
import time
import urllib.request
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
from harness import assets, report
from harness.paths import ROOT, WORK
from harness.processes import Service, ServiceError, free_port
from harness.routers import MODEL, SGLANG_ROUTER

sys.path.insert(0, str(ROOT))
from wsgi_router import native
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.simulator.cache import BlockCache

WORKERS = 4
PROCESSES = 4
BLOCK = 16
WARM_SECONDS = 120
KV_TOKENS = 20_000
"""Of each worker: all of them together hold about half of what a workload has in the end."""
ANSWER = " ".join(["the keeper lit the lamp and wrote down the hour of the tide before he slept"] * 4)
WORDS = "river stone cloud amber meadow lantern harbor winter copper forest signal garden mirror".split()  # noqa: SIM905


# What is asked: conversations, each a chain of messages, some of them at once.


@dataclass(frozen=True, slots=True)
class Workload:
    """`chains` are taken up in order, `at_once` at a time; a chain's turns follow each other."""

    name: str
    what: str
    at_once: int
    chains: tuple[tuple[str, str, tuple[str, ...]], ...]
    """(the session's key, the system prompt, what the user says turn by turn)"""


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def multi_turn(size: float, seed: int = 1) -> Workload:
    rng = random.Random(seed)
    system = words(rng, 40)
    chains = tuple(
        (f"session-{number}", system, tuple(words(rng, rng.randint(60, 180)) for _ in range(6)))
        for number in range(int(120 * size))
    )
    what = "conversations of 6 turns of 60 to 180 words, a system prompt in common, 24 at once"
    return Workload("multi-turn", what, 24, chains)


def shared_prefix(size: float, seed: int = 2) -> Workload:
    rng = random.Random(seed)
    prefixes = [words(rng, rng.randint(500, 1500)) for _ in range(80)]
    weights = [1 / (rank + 3) for rank in range(len(prefixes))]
    chains = tuple(
        (f"prefix-{number}", prefixes[number], (words(rng, rng.randint(20, 80)),))
        for number in rng.choices(range(len(prefixes)), weights, k=int(720 * size))
    )
    what = (
        "questions of 20 to 80 words behind one of 80 prefixes of 500 to 1,500, some asked more, 24 at once"
    )
    return Workload("shared-prefix", what, 24, chains)


# Who answers: four workers and a router.


def worker(number: int, kv_tokens: int) -> tuple[Service, int]:
    port = free_port()
    script = WORK / "prefix-script.json"
    script.write_text(json.dumps([{"match": {"any": True}, "answer": {"text": ANSWER, "chunks": [16]}}]))
    options = {
        "--bind": f"127.0.0.1:{port}",
        "--tokenizer": str(assets.model()),
        "--model-name": MODEL,
        "--context-length": "16384",
        "--kv-tokens": str(kv_tokens),
        "--block-size": str(BLOCK),
        "--script": str(script),
        "--eos": "151645",
        "--prefill-us-per-token": "50",
        "--itl-ms": "0.5",
    }
    command = [
        sys.executable,
        "-m",
        "wsgi_router.simulator",
        *(word for pair in options.items() for word in pair),
    ]
    return Service(f"prefix-worker-{number}", command, cwd=ROOT), port


def own(ports: Sequence[int], **settings: str) -> tuple[Service, str]:
    port = free_port()
    env = {
        "WSGI_ROUTER_WORKERS": ",".join(f"grpc://127.0.0.1:{one}" for one in ports),
        "WSGI_ROUTER_TOKENIZER_PATH": str(assets.model()),
        "WSGI_ROUTER_MODEL": MODEL,
        "WSGI_ROUTER_BIND": f"127.0.0.1:{port}",
        "WSGI_ROUTER_LOG_LEVEL": "info",
        "WEB_CONCURRENCY": str(PROCESSES),
        **{f"WSGI_ROUTER_{name.upper()}": value for name, value in settings.items()},
    }
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py"]
    return Service("prefix-router", command, env=env, cwd=ROOT), f"http://127.0.0.1:{port}"


def peer(ports: Sequence[int], **_: str) -> tuple[Service, str]:
    port = free_port()
    tokenizer = str(assets.model())
    options = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": str(free_port()),
        "--model-path": tokenizer,
        "--tokenizer-path": tokenizer,
        "--policy": "cache_aware",
        "--log-level": "warn",
    }
    name, version = SGLANG_ROUTER
    python = str(assets.package_python(name, [f"{name}=={version}"]))
    urls = ["--worker-urls", *(f"grpc://127.0.0.1:{one}" for one in ports)]
    command = [python, "-m", "sglang_router.launch_router"]
    command += [*urls, *(word for pair in options.items() for word in pair)]
    env = {"TIKTOKEN_ENCODINGS_BASE": str(assets.tiktoken_folder()), "HF_HUB_OFFLINE": "1"}
    return Service("prefix-peer", command, env=env), f"http://127.0.0.1:{port}"


POLICIES: dict[str, dict[str, str]] = {
    "round_robin": {"policy": "round_robin"},
    "power_of_two": {"policy": "power_of_two"},
    "least_load": {"policy": "least_load"},
    "prefix_hash": {"policy": "prefix_hash"},
    "consistent_hashing (session key)": {"policy": "consistent_hashing"},
    "cache_aware, without events": {"policy": "cache_aware", "cache_events": "false"},
    "cache_aware, by events": {"policy": "cache_aware"},
}
PEER = " ".join(SGLANG_ROUTER) + " cache_aware"


# The client.


@dataclass
class Seen:
    """What a run has shown. Times in seconds; `asked` has each prompt's messages, in the order of asking."""

    first: list[float] = field(default_factory=list)
    asked: list[tuple[str, list[dict[str, str]]]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def run_chain(url: str, chain: tuple[str, str, tuple[str, ...]], seen: Seen) -> None:
    key, system, turns = chain
    messages = [{"role": "system", "content": system}]
    connection = HTTPConnection(url.removeprefix("http://"), timeout=120)
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        with seen.lock:
            seen.asked.append((key, [dict(message) for message in messages]))
        try:
            text = ask(connection, key, messages, seen)
        except Exception as error:
            seen.errors.append(f"{type(error).__name__}: {error}")
            connection.close()
            text = ANSWER
        messages.append({"role": "assistant", "content": text})
    connection.close()


def ask(connection: HTTPConnection, key: str, messages: list[dict[str, str]], seen: Seen) -> str:
    body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 128, "temperature": 0}
    headers = {"Content-Type": "application/json", "X-SMG-Routing-Key": key}
    began = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise ValueError(f"status {answer.status}: {answer.read()[:200]!r}")
    parts: list[str] = []
    for line in answer:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                if text := choice["delta"].get("content"):
                    if not parts:
                        seen.first.append(time.monotonic() - began)
                    parts.append(text)
    if not parts:
        raise ValueError("an empty answer")
    return "".join(parts)


# The best that could be.


@dataclass(frozen=True, slots=True)
class Bests:
    """Nobody can surpass the first two; the third is what a router can aim at, which knows no future.

    One cache without end; one as large as all the workers' together that always drops what is needed last;
    one as large, of the workers' own kind (what was used longest ago goes), where each request has its answer
    before the next one comes: nothing is there twice, computed twice at once, or held by what runs.
    """

    endless: float
    foreseen: float
    lru: float


@functools.cache
def tokenizer() -> native.Tokenizer:
    return native.Tokenizer(str(assets.model()))


def ids_of(messages: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """A prompt's token ids, and with those of the answer, which is in the cache, too."""
    job = {"messages": messages, "add_generation_prompt": True}
    prompt = tokenizer().prepare(json.dumps(job).encode()).token_ids()
    return prompt, [*prompt, *tokenizer().encode(ANSWER)]


def chain_of(ids: Sequence[int]) -> list[int]:
    chain, parent = [], 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        parent = hash((parent, *ids[end - BLOCK : end]))
        chain.append(parent)
    return chain


def best(asked: Sequence[tuple[str, list[dict[str, str]]]], kv_tokens: int) -> Bests:
    """Hit rates to judge by, of what was asked, in that order; see `Bests`."""
    chains, limits, tokens = [], [], 0
    lru = BlockCache(WORKERS * kv_tokens, BLOCK, 0, lambda events: None, keep=True)
    for _, messages in asked:
        prompt, whole = ids_of(messages)
        # A prompt's last token is always computed.
        chains.append(chain_of(whole))
        limits.append((len(prompt) - 1) // BLOCK)
        tokens += len(prompt)
        lease = lru.lease(prompt, len(whole), len(prompt))
        if lease is None:
            raise ValueError("a prompt is longer than the cache")
        lru.store(lease, whole)
        lru.release(lease)
    endless, foreseen = (
        hits(chains, limits, most) * BLOCK / tokens for most in (math.inf, WORKERS * kv_tokens // BLOCK)
    )
    return Bests(endless, foreseen, lru.hit_rate)


def hits(chains: Sequence[Sequence[int]], limits: Sequence[int], most: float) -> int:
    """Blocks that were there, with a cache of `most` blocks that knows what will be asked."""
    needed: dict[int, deque[int]] = defaultdict(deque)
    for turn, chain in enumerate(chains):
        for block in chain:
            needed[block].append(turn)
    there: dict[int, float] = {}  # when each is needed next
    last: list[tuple[float, int]] = []  # a heap of the same, with stale entries
    found = 0
    for chain, limit in zip(chains, limits, strict=True):
        found += next((at for at in range(limit) if chain[at] not in there), limit)
        for block in chain:
            needed[block].popleft()
            there[block] = needed[block][0] if needed[block] else math.inf
            heapq.heappush(last, (-there[block], block))
        while len(there) > most:
            when, block = heapq.heappop(last)
            if there.get(block) == -when:
                del there[block]
    return found


# A run.


@dataclass
class Result:
    name: str
    hit_rate: float
    first: list[float]
    spread: list[int]
    errors: list[str]
    seconds: float


def worker_counts(port: int) -> tuple[int, int, int]:
    """Prompt tokens, cached ones, finished requests, as the worker counts them."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            "/sglang.grpc.scheduler.SglangScheduler/GetServerInfo",
            request_serializer=pb.GetServerInfoRequest.SerializeToString,
            response_deserializer=pb.GetServerInfoResponse.FromString,
        )
        info = call(pb.GetServerInfoRequest(), timeout=20).scheduler_info
    return int(info["prompt_tokens"]), int(info["cached_tokens"]), int(info["finished"])


def run(
    name: str, workload: Workload, settings: dict[str, str] | None, kv_tokens: int
) -> tuple[Result, Seen]:
    with ExitStack() as stack:
        workers = [worker(number, kv_tokens) for number in range(WORKERS)]
        for service, _ in workers:
            stack.callback(service.stop)
        for service, _ in workers:
            service.wait_for_line("worker ready on", 120)
        ports = [port for _, port in workers]
        router, url = peer(ports) if settings is None else own(ports, **settings)
        stack.callback(router.stop)
        router.wait_for_ok(url + "/readiness")
        wait_for_all(url)
        before = [worker_counts(port) for port in ports]
        seen = Seen()
        began = time.monotonic()
        with ThreadPoolExecutor(workload.at_once) as pool:
            list(pool.map(lambda chain: run_chain(url, chain, seen), workload.chains))
        seconds = time.monotonic() - began
        after = [worker_counts(port) for port in ports]
    gone = [[now - then for now, then in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)]
    tokens, cached = sum(one[0] for one in gone), sum(one[1] for one in gone)
    finished = [one[2] for one in gone]
    return Result(name, cached / tokens, seen.first, finished, seen.errors, seconds), seen


def wait_for_all(url: str) -> None:
    """Each process of the router answers for itself, and a peer may be ready before it can tokenise."""
    for _ in range(5 * PROCESSES):
        with urllib.request.urlopen(url + "/readiness", timeout=20):
            pass
    deadline, good = time.monotonic() + WARM_SECONDS, 0
    while good < 2 * PROCESSES:
        tried = Seen()
        run_chain(url, (f"warm-{good}", "warm", ("up",)), tried)
        good = 0 if tried.errors else good + 1
        if time.monotonic() > deadline:
            raise ServiceError(f"no answers: {tried.errors}")
        time.sleep(0.2)


# The report.


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def table(workload: Workload, results: Sequence[Result], bests: Bests) -> Iterator[str]:
    yield f"**{workload.name}**: {workload.what}."
    yield ""
    yield "| router | hit rate | TTFT p50 ms | p99 | requests by worker | errors |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in results:
        times = f"{1000 * statistics.median(one.first):.0f} | {1000 * quantile(one.first, 0.99):.0f}"
        yield f"| {one.name} | {one.hit_rate:.1%} | {times} | {one.spread} | {len(one.errors)} |"
    yield f"| best: one cache without end | {bests.endless:.1%} | | | | |"
    yield f"| best: one cache as large as all four, with foresight | {bests.foreseen:.1%} | | | | |"
    yield f"| best without: one as large as all four, one by one | {bests.lru:.1%} | | | | |"
    yield ""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=float, default=1.0, help="share of the workloads (default: 1)")
    parser.add_argument(
        "--routers", default="", help="csv of words; those whose names have one (default: all)"
    )
    parser.add_argument("--workloads", default="multi-turn,shared-prefix")
    parser.add_argument("--kv-tokens", type=int, default=KV_TOKENS, help="of each worker's KV cache")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--output", type=Path, default=WORK / "prefix.md")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    made = {one.name: one for one in (multi_turn(options.size), shared_prefix(options.size))}
    starts: dict[str, dict[str, str] | None] = {**POLICIES}
    if not options.no_peer:
        starts[PEER] = None
    wanted = [word for word in options.routers.split(",") if word]
    machine = ", ".join(f"{name} {value}" for name, value in report.machine().items())
    lines = [f"`python bench/prefix.py {' '.join(sys.argv[1:])}` · {machine}", ""]
    for name in options.workloads.split(","):
        workload = made[name]
        results: list[Result] = []
        bests = Bests(0, 0, 0)
        for label, settings in starts.items():
            if wanted and not any(word in label for word in wanted):
                continue
            result, seen = run(label, workload, settings, options.kv_tokens)
            bests = best(seen.asked, options.kv_tokens)
            results.append(result)
            shown: Any = (f"{result.hit_rate:.1%}", bests, result.spread)
            print(f"{name}: {label}: {shown} {result.seconds:.0f} s {result.errors[:2]}", flush=True)
        lines += table(workload, results, bests)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
