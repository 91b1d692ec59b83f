"""``python -m wsgi_router.simulator``: a worker without a model, for tests and benchmarks."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from wsgi_router.simulator.config import SimulatorConfig
from wsgi_router.simulator.engine import SimulatedEngine
from wsgi_router.worker_api.engine import LoraAdapter
from wsgi_router.worker_api.server import DRAIN_SECONDS, serve, tls_credentials
from wsgi_router.worker_api.servicer import ServicerOptions

ABORT_STATUSES = ("complete", *grpc.StatusCode.__members__)


def ids(text: str) -> tuple[int, ...]:
    """Comma-separated token ids."""
    return tuple(int(part) for part in text.split(",") if part)


def lora(text: str) -> LoraAdapter:
    """NAME=PATH; the name is the id too."""
    name, _, path = text.partition("=")
    return LoraAdapter(name, name, path)


def parser() -> argparse.ArgumentParser:
    """The command line; every option's default is SimulatorConfig's."""
    default = SimulatorConfig()
    p = argparse.ArgumentParser("python -m wsgi_router.simulator", description=__doc__)
    add = p.add_argument
    add("--bind", default="127.0.0.1:0", help="HOST:PORT to listen on; port 0 takes a free one")
    add("--tls-cert", type=Path, metavar="PEM", help="certificate to listen with, and its chain")
    add("--tls-key", type=Path, metavar="PEM", help="its key")
    add("--tls-client-ca", type=Path, metavar="PEM", help="who signs the certificates that clients must show")
    add("--tokenizer", type=Path, help="folder or tokenizer.json that GetTokenizer gives out")
    add("--model-name", default=default.model_name, help="served model name")
    add("--context-length", type=int, default=default.context_length, help="prompt and answer, in tokens")
    add("--vocab-size", type=int, default=default.vocab_size, help="used where no tokenizer tells it")
    add("--eos", type=ids, default=(), help="comma-separated ids that end an answer")
    add("--script", type=Path, help="JSON file of scripted answers")
    add("--answer", choices=("random", "echo"), default=default.answer, help="where no rule matches")
    add("--answer-tokens", type=int, default=default.answer_tokens, help="when the request sets no limit")
    add("--ttft-ms", type=float, default=0, help="time to the first token, besides the prefill")
    add("--prefill-us-per-token", type=float, default=0, help="for each uncached prompt token, in turn")
    add("--itl-ms", type=float, default=0, help="time between tokens")
    add("--tokens-per-chunk", type=int, default=1, help="tokens in one message")
    add("--max-running", type=int, default=default.max_running, help="requests at once; others queue")
    add("--kv-tokens", type=int, default=default.kv_tokens, help="capacity of the KV cache")
    add("--block-size", type=int, default=default.block_size, help="tokens in a cache block")
    add("--no-prefix-cache", action="store_true", help="keep nothing for later prompts")
    add("--no-kv-events", action="store_true", help="SubscribeKvEvents is UNIMPLEMENTED")
    add("--accept-stop-strings", action="store_true", help="match stop words (needs the tokenizer)")
    add("--embedding-dim", type=int, default=0, help="answer Embed with vectors of this size")
    add("--lora", type=lora, action="append", default=[], metavar="NAME=PATH", help="a loaded adapter")
    add("--default-sampling", default="", metavar="JSON", help="default_sampling_params_json")
    add("--weight-version", default=default.weight_version, help="as GetModelInfo tells it")
    add("--seed", type=int, default=0, help="of made-up answers and hashes")
    add(
        "--complete-ids",
        choices=("repeat", "only", "all", "none"),
        default="repeat",
        help="what a streamed Complete carries: last ids again, last ids alone, all, none",
    )
    add("--abort-as", choices=ABORT_STATUSES, default="complete", help="how an aborted call ends")
    add("--fail-health", action="store_true", help="start unhealthy; SIGUSR1 turns health over")
    add("--health-ms", type=float, default=0, help="time a health check takes")
    add("--start-delay", type=float, default=0, metavar="SECONDS", help="before listening")
    add("--drain-seconds", type=float, default=DRAIN_SECONDS, help="for open streams after SIGTERM")
    add("--role", choices=("null", "prefill", "decode"), default="null", help="half of a split worker")
    add("--bootstrap-port", type=int, default=default.bootstrap_port, help="where prefill is met")
    add(
        "--bootstrap-timeout",
        type=float,
        default=default.bootstrap_timeout,
        metavar="SECONDS",
        help="for the two halves to meet",
    )
    add("--history", type=int, default=16, help="last requests shown by GetServerInfo")
    return p


def configure(options: argparse.Namespace) -> SimulatorConfig:
    """The engine's part of the command line."""
    return SimulatorConfig(
        model_name=options.model_name,
        tokenizer=options.tokenizer,
        context_length=options.context_length,
        vocab_size=options.vocab_size,
        eos=options.eos,
        script=options.script,
        answer=options.answer,
        answer_tokens=options.answer_tokens,
        ttft=options.ttft_ms / 1e3,
        prefill_per_token=options.prefill_us_per_token / 1e6,
        itl=options.itl_ms / 1e3,
        tokens_per_chunk=options.tokens_per_chunk,
        max_running=options.max_running,
        kv_tokens=options.kv_tokens,
        block_size=options.block_size,
        prefix_cache=not options.no_prefix_cache,
        kv_events=not options.no_kv_events,
        accept_stop_strings=options.accept_stop_strings,
        embedding_dim=options.embedding_dim,
        loras=tuple(options.lora),
        default_sampling=options.default_sampling,
        weight_version=options.weight_version,
        seed=options.seed,
        fail_health=options.fail_health,
        health_delay=options.health_ms / 1e3,
        start_delay=options.start_delay,
        role=options.role,
        host=options.bind.rpartition(":")[0],
        bootstrap_port=options.bootstrap_port,
        bootstrap_timeout=options.bootstrap_timeout,
        shown={name: str(value) for name, value in vars(options).items()},
    )


def tls(options: argparse.Namespace) -> Any:
    """gRPC's server credentials, None without TLS. ValueError for options or files that cannot be used."""
    if (options.tls_cert is None) != (options.tls_key is None) or (
        options.tls_client_ca and not options.tls_key
    ):
        raise ValueError("--tls-cert and --tls-key belong together, and --tls-client-ca to both")
    if options.tls_cert is None:
        return None
    try:
        return tls_credentials(options.tls_cert, options.tls_key, options.tls_client_ca)
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from None


async def run(options: argparse.Namespace) -> None:
    """Serve until a signal ends it."""
    engine = SimulatedEngine(configure(options))

    def turn_health() -> None:
        engine.healthy = not engine.healthy

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, turn_health)
    abort_as = None if options.abort_as == "complete" else grpc.StatusCode[options.abort_as]
    servicer = ServicerOptions(
        complete_ids=options.complete_ids, abort_as=abort_as, history=options.history, version="simulated"
    )
    await serve(engine, options.bind, servicer, options.drain_seconds, tls(options))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 after a signal, 2 for options or a script that cannot be used."""
    options = parser().parse_args(argv)
    try:
        asyncio.run(run(options))
    except (ValueError, RuntimeError) as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
