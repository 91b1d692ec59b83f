"""From a checked request to what the worker gets and what the answer is made with."""

from __future__ import annotations

import functools
import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from wsgi_router import native, reading, runtime
from wsgi_router.schema import ChatRequest, in_range
from wsgi_router.settings import Settings
from wsgi_router.workers.transport import GenerateJob
from wsgi_router.workers.worker import ModelCard


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to go."""

    job: GenerateJob
    stream_options: bytes
    """JSON for the native Stream."""
    warnings: tuple[str, ...]
    """For the header X-Router-Warning."""


# The worker's name of a sampling parameter, and the request's.
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "no_stop_trim": "no_stop_trim",
    "logit_bias": "logit_bias",
}
_INTEGERS: Final = frozenset({"top_k", "min_new_tokens"})
_DEFAULTS_TAKEN: Final = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "min_new_tokens",
    }
)
_encode = msgspec.json.encode


def prepare(
    request: ChatRequest, card: ModelCard, tokenizer: native.Tokenizer, settings: Settings
) -> Prepared:
    """Renders, tokenises and serialises `request`. Raises RouterError (400) if it does not fit the model."""
    runtime.breathe()  # to decode and to encode a large body takes as long again
    job = chat_job(request, card)
    plan = reading.plan(
        request.output,
        request.raw_messages,
        job["chat_template_kwargs"],
        card,
        settings,
        continued=job["continue_final_message"],
    )
    job |= plan.job()
    job["sampling"] |= plan.sampling()
    prepared = native.prepare(tokenizer, _encode(job), settings.prepare_inline_bytes)
    options = stream_options(request, card, prepared.prompt_tokens)
    prompt = prepared.prompt if plan.reasoning_format else ""
    options |= plan.options(prompt)
    # First, so that no number of unknown names crowds it out of the header.
    seed = ["seed"] if request.seed is not None else []
    return Prepared(
        job=GenerateJob(card.name, prepared.body + plan.body(prompt), request.choices, _hints(request)),
        stream_options=_encode(options),
        warnings=(*seed, *request.unknown),
    )


def _hints(request: ChatRequest) -> dict[str, str]:
    return {"prompt_cache_key": request.prompt_cache_key} if request.prompt_cache_key else {}


def chat_job(request: ChatRequest, card: ModelCard) -> dict[str, Any]:
    """The job for the native core (ARCHITECTURE.md, "The job")."""
    continued = bool(request.continue_final_message)
    generation_prompt = request.add_generation_prompt
    return {
        "messages": request.raw_messages,
        "documents": request.documents,
        "chat_template_kwargs": _template_arguments(request),
        "add_generation_prompt": not continued if generation_prompt is None else generation_prompt,
        "continue_final_message": continued,
        "context_length": card.context_length or None,
        "max_tokens": request.max_new_tokens,
        # Stop strings are found in the router, and further choices start at the first one's first event: in
        # both cases the worker must not keep its tokens until the end.
        "stream": bool(request.stream or request.stop_words or request.choices > 1),
        "sampling": sampling(request, card),
    }


def _template_arguments(request: ChatRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if request.reasoning_effort is not None:
        arguments["reasoning_effort"] = request.reasoning_effort
        if request.reasoning_effort == "none":
            # The names that hybrid models' templates have for the switch.
            arguments |= {"thinking": False, "enable_thinking": False}
    return arguments | (request.chat_template_kwargs or {})


def sampling(request: ChatRequest, card: ModelCard) -> dict[str, Any]:
    """Sampling parameters: the client's, else the worker's defaults. The core fills in the neutral ones."""
    values = model_defaults(card.default_sampling_params) | model_defaults(card.preferred_sampling_params)
    for name, field in _SAMPLING.items():
        given = getattr(request, field)
        if given is not None:
            values[name] = given
    custom = dict(request.custom_params or {})
    if request.seed is not None:
        custom.setdefault("seed", request.seed)
    if custom:
        values["custom_params"] = custom
    return values


@functools.lru_cache(maxsize=64)
def model_defaults(text: str) -> dict[str, Any]:
    """The usable parameters in a worker's JSON of defaults; what a client could not ask for is passed over.

    (Hugging Face's top_k of 0, which means "off", is one of those.)
    """
    try:
        values = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    taken: dict[str, Any] = {}
    for name in _DEFAULTS_TAKEN & values.keys():
        value = values[name]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and in_range(_SAMPLING[name], value):
            taken[name] = int(value) if name in _INTEGERS else float(value)
    return taken


def stream_options(request: ChatRequest, card: ModelCard, prompt_tokens: int) -> dict[str, Any]:
    """Options of the native Stream."""
    options = request.stream_options
    return {
        "id": "chatcmpl-" + secrets.token_hex(16),
        "created": int(time.time()),
        "model": card.name,
        "system_fingerprint": card.weight_version or None,
        "choices": request.choices,
        "streaming": bool(request.stream),
        "include_usage": bool(options and options.include_usage),
        "continuous_usage": bool(options and options.continuous_usage_stats),
        "stop": request.stop_words,
        "stop_token_ids": request.stop_token_ids or [],
        "ignore_eos": bool(request.ignore_eos),
        "no_stop_trim": bool(request.no_stop_trim),
        "skip_special_tokens": request.skip_special_tokens is not False,
        "prompt_tokens": prompt_tokens,
    }
