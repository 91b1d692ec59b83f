"""What an engine is: the one interface between a model and the SGLang servicer in front of it.

Counts are tokens, times seconds, ids vocabulary indices. An engine knows one sample at a time: the servicer
splits ``n`` samples into ``n`` requests, cuts steps into wire messages and keeps the register for Abort.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc


class EngineError(Exception):
    """A request the engine refuses or loses; becomes the RPC's status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> EngineError:
    """The caller's fault: INVALID_ARGUMENT."""
    return EngineError(grpc.StatusCode.INVALID_ARGUMENT, message)


def unsupported(what: str) -> EngineError:
    """A capability the engine does not have: UNIMPLEMENTED."""
    return EngineError(grpc.StatusCode.UNIMPLEMENTED, f"{what} is not supported by this worker")


@dataclass(frozen=True, slots=True)
class Sampling:
    """``SamplingParams`` of the wire, as sent: no field here has been replaced by a default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    regex: str | None = None
    json_schema: str | None = None
    ebnf_grammar: str | None = None
    structural_tag: str | None = None
    n: int = 1
    min_new_tokens: int = 0
    ignore_eos: bool = False
    no_stop_trim: bool = False
    stream_interval: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    custom_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """Meeting point of a prefill and a decode worker; ``room`` is the same for both."""

    host: str
    port: int
    room: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sample to generate. ``index`` says which of the request's ``n`` samples it is."""

    request_id: str
    input_ids: list[int]
    sampling: Sampling = field(default_factory=Sampling)
    stream: bool = True
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] = ()
    disaggregated: Disaggregated | None = None
    lora_id: str = ""
    data_parallel_rank: int | None = None
    require_reasoning: bool = False
    original_text: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one token, and of the likeliest ones at its position, best first.

    ``logprob`` is None only for the first prompt token, which nothing predicts. ``wanted`` answers the
    request's ``token_ids_logprob``.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    wanted: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Step:
    """What one engine step gives a request; exactly the last one has a ``finish_reason``.

    ``token_ids`` and ``logprobs`` are new since the last step. ``reasoning_tokens`` and ``cached_tokens``
    are totals. ``input_logprobs`` comes with the first step, where they were asked for. ``raw`` is sent
    as it is instead of a message (empty: nothing is sent): a fault that only the simulator makes.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    cached_tokens: int = 0
    finish_reason: str | None = None
    matched_token_id: int | None = None
    matched_stop: str | None = None
    input_logprobs: list[TokenLogprob] | None = None
    reasoning_tokens: int = 0
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """``GetModelInfoResponse``: what is served. ``*_json`` and ``preferred_*`` are JSON text or empty."""

    model_path: str
    served_model_name: str
    max_context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    tokenizer_path: str = ""
    is_generation: bool = True
    preferred_sampling_params: str = ""
    default_sampling_params_json: str = ""
    weight_version: str = "default"
    supports_vision: bool = False
    model_type: str = ""
    architectures: tuple[str, ...] = ()
    pad_token_id: int = 0
    bos_token_id: int = 0
    max_req_input_len: int = 0
    id2label_json: str = ""
    num_labels: int = 0


@dataclass(frozen=True, slots=True)
class EngineLoads:
    """The scheduler's state now. Shares are 0 to 1, ``gen_throughput`` is tokens a second."""

    running: int
    waiting: int
    used_tokens: int
    max_total_tokens: int
    max_running: int
    gen_throughput: float = 0.0
    cache_hit_rate: float = 0.0
    waiting_uncached_tokens: int = 0
    disaggregation_mode: str = "null"
    lora_slots_used: int = 0
    lora_slots_total: int = 0
    weight_gb: float = 0.0
    kv_cache_gb: float = 0.0

    @property
    def token_usage(self) -> float:
        """Share of the KV cache in use."""
        return self.used_tokens / self.max_total_tokens if self.max_total_tokens else 0.0

    @property
    def utilization(self) -> float:
        """Share of the running slots in use."""
        return self.running / self.max_running if self.max_running else 0.0


@dataclass(frozen=True, slots=True)
class KvBlock:
    """One block of the prefix cache: its chained hash and its ids."""

    block_hash: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvStored:
    """Blocks now held, a chain; ``parent`` is the hash before the first, None at a prompt's start."""

    blocks: tuple[KvBlock, ...]
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class KvRemoved:
    """Blocks no longer held."""

    block_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvCleared:
    """No block is held any more."""


@dataclass(frozen=True, slots=True)
class KvBatch:
    """KV events of one scheduler step; ``sequence`` has no gaps, ``timestamp`` is seconds of the epoch."""

    sequence: int
    timestamp: float
    events: tuple[KvStored | KvRemoved | KvCleared, ...]


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A loaded adapter; requests name it by ``lora_id``."""

    lora_id: str
    lora_name: str
    lora_path: str = ""
    pinned: bool = False


class Engine(ABC):
    """A model behind the servicer. Subclass it; what is not overridden answers UNIMPLEMENTED.

    All methods run on the servicer's event loop and must not block it.
    """

    async def start(self) -> None:  # noqa: B027 -- an engine may need no start
        """Load and warm up; the server listens only afterwards."""

    async def close(self) -> None:  # noqa: B027 -- nor an end
        """Free everything; no request is running any more."""

    @abstractmethod
    def model_info(self) -> ModelInfo:
        """What is served."""

    @abstractmethod
    def validate(self, request: GenerationRequest) -> None:
        """Refuse what cannot be served, before a slot is taken: EngineError(INVALID_ARGUMENT)."""

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncIterator[Step]:
        """Run one sample. An async generator: closing it or cancelling its task frees the slot at once."""

    @abstractmethod
    def loads(self) -> EngineLoads:
        """The scheduler's state."""

    @abstractmethod
    async def flush_cache(self) -> tuple[bool, str]:
        """Forget the prefix cache. (done?, message); the servicer has waited for idleness where asked."""

    async def health(self) -> tuple[bool, str]:
        """(healthy?, message)."""
        return True, "healthy"

    def tokenizer_dir(self) -> Path | None:
        """Folder (or single file) that GetTokenizer zips; None if there is none."""
        return None

    def server_args(self) -> dict[str, Any]:
        """Start options for GetServerInfo; JSON-like values."""
        return {}

    def scheduler_info(self) -> dict[str, Any]:
        """The engine's own figures for GetServerInfo; JSON-like values. The servicer adds its counters."""
        return {}

    async def embed(self, request_id: str, input_ids: list[int]) -> list[float]:
        """The prompt's vector."""
        raise unsupported("Embed")

    def kv_events(self, start_sequence: int) -> AsyncIterator[KvBatch]:
        """Batches from ``start_sequence`` on (0: live ones only), endless."""
        raise unsupported("SubscribeKvEvents")

    async def start_profile(self, output_dir: str | None) -> str:
        """Tracing on; returns a message."""
        raise unsupported("StartProfile")

    async def stop_profile(self) -> str:
        """Tracing off; returns a message."""
        raise unsupported("StopProfile")

    async def load_lora(self, adapter: LoraAdapter) -> None:
        """Load an adapter; EngineError if it cannot be."""
        raise unsupported("LoadLoRAAdapter")

    async def unload_lora(self, lora_name: str, lora_id: str) -> None:
        """Unload an adapter; EngineError if it is not there."""
        raise unsupported("UnloadLoRAAdapter")

    async def list_loras(self) -> list[LoraAdapter]:
        """All loaded adapters."""
        raise unsupported("ListLoadedLoRAAdapters")
