"""Answers of all routes, for their description; what makes them is the native core and `api`.

`UNSET` is the default of what may be absent.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from wsgi_router.workers.roles import Role

FinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]
MatchedStop = int | str | UnsetType


class CachedTokens(Struct):
    cached_tokens: int


class ReasoningTokens(Struct):
    reasoning_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class CalledFunction(Struct):
    name: str
    arguments: str


class Call(Struct):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob] | None
    refusal: list[TokenLogprob] | None


class ChatChoice(Struct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    matched_stop: MatchedStop = UNSET


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET


class FunctionDelta(Struct):
    """The name comes once, with the call's first delta."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CallDelta(Struct):
    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET


class Delta(Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    finish_reason: FinishReason | None
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    matched_stop: MatchedStop = UNSET


class ChatCompletionChunk(Struct):
    """An event of a stream. The last one has the usage and no choices, if `include_usage` asks for it."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET


class TextLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None
    """null in a stream until the choice ends."""
    matched_stop: MatchedStop = UNSET


class TextCompletion(Struct):
    """An answer, or an event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET


class MetaInfo(Struct):
    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    weight_version: str | UnsetType = UNSET
    input_token_logprobs: list[Any] | UnsetType = UNSET
    output_token_logprobs: list[Any] | UnsetType = UNSET
    output_token_logprobs_length: int | UnsetType = UNSET
    input_top_logprobs: list[Any] | UnsetType = UNSET
    output_top_logprobs: list[Any] | UnsetType = UNSET
    e2e_latency: float | UnsetType = UNSET


class Generated(Struct):
    """An answer, or an event of a stream, with all of the text and the ids so far."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | UnsetType = UNSET


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """Numbers, or base64 of 32-bit floats, little-endian."""


class EmbeddingList(Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Tokenized(Struct):
    """Of a batch: a list for each text."""

    tokens: list[int | list[int]]
    count: int | list[int]
    max_model_len: int | None


class Detokenized(Struct):
    text: str | list[str]
    prompt: str | list[str]
    """The same, under vLLM's name."""


class Model(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


class ModelInfo(Struct):
    model_path: str
    tokenizer_path: str
    is_generation: bool
    preferred_sampling_params: str | None
    weight_version: str
    has_image_understanding: bool
    model_type: str
    architectures: list[str]
    served_model_name: str
    max_context_length: int | None
    vocab_size: int | None
    eos_token_ids: list[int]


class ServerInfo(Struct):
    """The worker's start options and scheduler state besides, by SGLang's names."""

    version: str


class WorkerResult(Struct):
    """What one worker has answered, with further fields; or its failure."""

    worker: str
    success: bool | UnsetType = UNSET
    message: str | UnsetType = UNSET
    code: str | UnsetType = UNSET


class WorkerResults(Struct):
    workers: list[WorkerResult]
    success: bool | UnsetType = UNSET


class WorkerState(Struct):
    id: str
    url: str
    model_id: str | None
    """What it serves; null until it has answered."""
    state: Literal["unknown", "up", "suspect", "down"]
    is_healthy: bool
    breaker: Literal["closed", "open", "half_open"]
    """Open: too many requests in a row have failed, so it is given none for a while; half_open: a few."""
    draining: bool
    role: Role
    bootstrap_port: int | None
    """Where decode workers meet it; null for one that is no prefill worker."""
    load: int
    """Requests that it has in hand from this server."""


class WorkerList(Struct):
    workers: list[WorkerState]
    total: int


class Status(Struct):
    status: Literal["ok", "ready"]


class ErrorDetail(Struct):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    """JSON path of the field at fault."""
    code: str | None


class Error(Struct):
    error: ErrorDetail
