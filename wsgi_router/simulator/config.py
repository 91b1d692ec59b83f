"""The simulator's options, which ``__main__`` reads from the command line. Seconds and tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wsgi_router.worker_api.engine import LoraAdapter

Role = Literal["null", "prefill", "decode"]
DefaultAnswer = Literal["random", "echo"]


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """What is served, how fast, how much at once, and what goes wrong."""

    model_name: str = "simulated"
    tokenizer: Path | None = None
    context_length: int = 8192
    vocab_size: int = 32000
    eos: tuple[int, ...] = ()
    script: Path | None = None
    answer: DefaultAnswer = "random"
    answer_tokens: int = 64
    ttft: float = 0.0
    prefill_per_token: float = 0.0
    itl: float = 0.0
    tokens_per_chunk: int = 1
    max_running: int = 256
    kv_tokens: int = 1_000_000
    block_size: int = 16
    prefix_cache: bool = True
    kv_events: bool = True
    accept_stop_strings: bool = False
    embedding_dim: int = 0
    loras: tuple[LoraAdapter, ...] = ()
    default_sampling: str = ""
    weight_version: str = "default"
    seed: int = 0
    fail_health: bool = False
    health_delay: float = 0.0
    start_delay: float = 0.0
    role: Role = "null"
    host: str = "127.0.0.1"
    bootstrap_port: int = 8998
    bootstrap_timeout: float = 30.0
    shown: dict[str, object] = field(default_factory=dict)
