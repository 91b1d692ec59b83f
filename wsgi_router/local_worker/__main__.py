"""``python -m wsgi_router.local_worker``: serve the small real model over SGLang's gRPC protocol."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from wsgi_router.local_worker.engine import LocalEngine, LocalOptions
from wsgi_router.local_worker.fetch import DEFAULT_DIR
from wsgi_router.local_worker.llama import BATCH, ModelError
from wsgi_router.worker_api.server import serve
from wsgi_router.worker_api.servicer import ServicerOptions


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("has to be at least 1")
    return value


def _slots(text: str) -> int:
    value = _positive(text)
    if value > BATCH:
        raise argparse.ArgumentTypeError(f"has to be at most {BATCH}")
    return value


def parse(arguments: list[str] | None = None) -> tuple[str, LocalOptions, ServicerOptions]:
    """The address to bind, and the options of engine and servicer."""
    parser = argparse.ArgumentParser(prog="python -m wsgi_router.local_worker", description=__doc__)
    parser.add_argument(
        "--bind", default="127.0.0.1:30001", help="HOST:PORT, port 0 for a free one (%(default)s)"
    )
    parser.add_argument("--model", type=Path, default=DEFAULT_DIR, help="folder made by fetch (%(default)s)")
    parser.add_argument("--slots", type=_slots, default=4, help="requests decoded together (%(default)s)")
    parser.add_argument(
        "--context-length", type=_positive, default=4096, help="tokens for each slot (%(default)s)"
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        # Measured: threads that wait for each other lose most of their speed once another process wants a
        # core, and the router shares them.
        default=max(1, cores() // 2),
        help="decoding threads, never more than cores (half the cores: %(default)s)",
    )
    parser.add_argument("--served-model-name", default="", help="name in GetModelInfo (the model file's)")
    parser.add_argument(
        "--history", type=int, default=0, help="last requests, whole, that GetServerInfo shows (%(default)s)"
    )
    given = parser.parse_args(arguments)
    options = LocalOptions(
        model=given.model,
        slots=given.slots,
        context_length=given.context_length,
        threads=min(given.threads, cores()),
        served_model_name=given.served_model_name,
    )
    return given.bind, options, ServicerOptions(history=given.history)


def main() -> int:
    """The command."""
    bind, options, servicer = parse()
    try:
        asyncio.run(serve(LocalEngine(options), bind, servicer))
    except (ModelError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
