"""From a checked request to what the worker gets and what the answer is made with."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from wsgi_router import native, reading, runtime
from wsgi_router.errors import ContextLengthError, InvalidRequestError
from wsgi_router.ids import random_id
from wsgi_router.schema import (
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    Prompt,
    Sampling,
    Streamed,
    in_range,
)
from wsgi_router.settings import Settings
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.policies import reads_prefix, reads_prompt
from wsgi_router.workers.transport import GenerateJob
from wsgi_router.workers.worker import ModelCard

COMPLETION_TOKENS: Final = 16
GENERATE_TOKENS: Final = 128
"""Longest answers, in tokens, of requests that set no limit; OpenAI's and SGLang's own values."""


class Prepared(msgspec.Struct, frozen=True):
    """A request that is ready to go."""

    jobs: tuple[GenerateJob, ...]
    """One for each prompt."""
    stream_options: bytes
    """JSON for the native Stream."""
    streaming: bool
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
    "regex": "regex",
    "ebnf": "ebnf",
    "json_schema": "json_schema",
    "structural_tag": "structural_tag",
}
_INTEGERS: Final = frozenset({"top_k", "min_new_tokens"})
_ABOVE_ZERO: Final = frozenset({"top_p", "repetition_penalty"})
_LEAST_FLOAT32: Final = 2.0**-126
"""The wire has single precision, where anything much smaller is 0."""
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
    request: ChatRequest,
    card: ModelCard,
    tokenizer: native.Tokenizer,
    settings: Settings,
    adapters: Sequence[str] = ("",),
    hints: Hints = NO_HINTS,
) -> Prepared:
    """Renders, tokenises and serialises `request`. Raises RouterError (400) if it does not fit the model.

    `adapters` has the LoRA adapter's name for each prompt, "" for none; `hints` what the client says of the
    worker.
    """
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
    prompt = prepared.prompt if plan.reasoning_format else ""
    body = prepared.body + plan.body(prompt)
    options = stream_options(request, card, prepared.prompt_tokens) | plan.options(prompt)
    hints = _with_prefix(hints, prepared, settings, adapters[0])
    return Prepared(
        jobs=(GenerateJob(card.name, body, request.choices, hints, job["stream"], adapters[0]),),
        stream_options=_encode(options),
        streaming=bool(request.stream),
        warnings=_warnings(request.unknown, request),
    )


def prepare_completion(
    request: CompletionRequest,
    card: ModelCard,
    tokenizer: native.Tokenizer,
    settings: Settings,
    adapters: Sequence[str] = ("",),
    hints: Hints = NO_HINTS,
) -> Prepared:
    """As `prepare`, for each prompt of a text completion."""
    job = {
        **_plain_job(request, card, bool(request.stream)),
        "return_logprob": request.logprobs is not None,
        "top_logprobs_num": request.logprobs or 0,
        "logprob_start_len": 0 if request.echo and request.logprobs is not None else -1,
    }
    prepared = _prepare_prompts(job, request.prompts, request.paths, COMPLETION_TOKENS, tokenizer, settings)
    options = {
        **stream_options(request, card, 0, prefix="cmpl-"),
        "object": "text_completion",
        "choices": len(prepared) * request.choices,
        "prompts": [
            {"tokens": one.prompt_tokens, "echo": _text(prompt, tokenizer) if request.echo else None}
            for one, prompt in zip(prepared, request.prompts, strict=True)
        ],
        "logprobs": request.logprobs,
    }
    return Prepared(
        jobs=_jobs(job, prepared, card, request.choices, settings, adapters, hints),
        stream_options=_encode(options),
        streaming=bool(request.stream),
        warnings=_warnings(request.unknown, request),
    )


def prepare_generate(
    request: GenerateRequest,
    card: ModelCard,
    tokenizer: native.Tokenizer,
    settings: Settings,
    adapters: Sequence[str] = ("",),
    hints: Hints = NO_HINTS,
) -> Prepared:
    """As `prepare`, for each prompt of a request in SGLang's own form."""
    asked = request.sampling
    logprobs = (request.top_logprobs_num or 0) if request.return_logprob else None
    start = request.logprob_start_len
    try:
        job = {
            **_plain_job(asked, card, bool(request.stream)),
            "return_logprob": logprobs is not None,
            "top_logprobs_num": logprobs or 0,
            "logprob_start_len": -1 if logprobs is None or start is None else start,
        }
        prepared = _prepare_prompts(job, request.prompts, request.paths, GENERATE_TOKENS, tokenizer, settings)
    except InvalidRequestError as error:
        raise _by_generates_names(error) from None
    if job["logprob_start_len"] > (shortest := min(one.prompt_tokens for one in prepared)):
        message = f"'logprob_start_len' must not exceed the prompt, which has {shortest} tokens."
        raise InvalidRequestError(message, param="logprob_start_len")
    options = {
        **_answer_options(asked, card, 0, bool(request.stream)),
        "id": request.label or random_id(),
        "object": "generate",
        "choices": len(prepared) * asked.choices,
        "prompts": [{"tokens": one.prompt_tokens} for one in prepared],
        "logprobs": logprobs,
        "logprobs_text": bool(request.return_text_in_logprobs),
        "batch": request.batch,
        "ids": [name for name in request.names for _ in range(asked.choices)],
    }
    return Prepared(
        jobs=_jobs(job, prepared, card, asked.choices, settings, adapters, hints),
        stream_options=_encode(options),
        streaming=bool(request.stream),
        warnings=_warnings(request.unknown, asked, "sampling_params.sampling_seed"),
    )


def _by_generates_names(error: InvalidRequestError) -> InvalidRequestError:
    """An error about a sampling parameter, whose name is another in SGLang's own requests."""
    field, dot, rest = (error.param or "").partition(".")
    name = {"min_tokens": "min_new_tokens", "logit_bias": "logit_bias"}.get(field)
    if name is None:
        return error
    message = error.message.replace(f"'{field}'", f"'{name}'")
    return InvalidRequestError(message, param=f"sampling_params.{name}{dot}{rest}", code=error.code)


def _prepare_prompts(
    job: dict[str, Any],
    prompts: Sequence[Prompt],
    paths: Sequence[str],
    default_tokens: int,
    tokenizer: native.Tokenizer,
    settings: Settings,
) -> list[native.Prepared]:
    """Tokenises and serialises each prompt of a request that has `job` for all of them."""
    inline = settings.prepare_inline_bytes // len(prompts)  # for all of them together

    def one(prompt: Prompt, path: str, limit: int | None) -> native.Prepared:
        kind = "prompt" if isinstance(prompt, str) else "input_ids"
        return native.prepare(tokenizer, _encode({**job, kind: prompt, "max_tokens": limit}), inline, path)

    def fitting(prompt: Prompt, path: str) -> native.Prepared:
        if path != paths[0]:
            runtime.breathe()
        if job["max_tokens"] is not None:
            return one(prompt, path, job["max_tokens"])
        try:
            return one(prompt, path, default_tokens)
        except ContextLengthError:  # nobody asked for so many: as many as there is room for
            return one(prompt, path, None)

    return [fitting(prompt, path) for prompt, path in zip(prompts, paths, strict=True)]


def _jobs(
    job: Mapping[str, Any],
    prepared: Sequence[native.Prepared],
    card: ModelCard,
    choices: int,
    settings: Settings,
    adapters: Sequence[str],
    hints: Hints,
) -> tuple[GenerateJob, ...]:
    scored = job["return_logprob"] and job["logprob_start_len"] >= 0
    return tuple(
        GenerateJob(
            card.name,
            one.body,
            choices,
            _with_prefix(hints, one, settings, adapter),
            job["stream"],
            adapter,
            scored,
        )
        for one, adapter in zip(prepared, adapters, strict=True)
    )


def _text(prompt: Prompt, tokenizer: native.Tokenizer) -> str:
    return prompt if isinstance(prompt, str) else native.decode(tokenizer, prompt, False)


def _with_prefix(hints: Hints, prepared: native.Prepared, settings: Settings, adapter: str) -> Hints:
    """`hints` with what the policy wants to know of the prompt, for a LoRA adapter or ""."""
    prompt = native.prefix_table(settings).prompt(prepared, adapter) if reads_prompt(settings) else None
    prefix = prepared.prefix(settings.prefix_token_count) if reads_prefix(settings) else b""
    if prompt is None and not prefix:
        return hints
    return Hints(hints.target, hints.key, prefix, prompt)


def _warnings(unknown: Sequence[str], request: Sampling, seed: str = "seed") -> tuple[str, ...]:
    """Names for X-Router-Warning; `seed` is what this route calls the seed."""
    # First, so that no number of unknown names crowds it out of the header.
    return (*([seed] if request.seed is not None else []), *unknown)


def chat_job(request: ChatRequest, card: ModelCard) -> dict[str, Any]:
    """The job for the native core (ARCHITECTURE.md, "The job"). Raises InvalidRequestError."""
    native.check_texts(_texts_of_calls(request.raw_messages), "messages")
    continued = bool(request.continue_final_message)
    generation_prompt = request.add_generation_prompt
    tools = request.output.tools.for_template
    return {
        "messages": request.raw_messages,
        **({"tools": list(tools)} if tools else {}),
        "documents": request.documents,
        "chat_template_kwargs": _template_arguments(request),
        "add_generation_prompt": not continued if generation_prompt is None else generation_prompt,
        "continue_final_message": continued,
        **_plain_job(request, card, bool(request.stream)),
    }


def _texts_of_calls(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Arguments of earlier tool calls, which templates may want as objects."""
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    texts = (call["function"]["arguments"] for call in calls)
    return [text for text in texts if isinstance(text, str)]


def _plain_job(request: Sampling, card: ModelCard, stream: bool) -> dict[str, Any]:
    """What the jobs of all routes have in common."""
    return {
        "context_length": card.context_length or None,
        "max_tokens": request.max_new_tokens,
        # Stop strings are found in the router, and further choices start at the first one's first event: in
        # both cases the worker must not keep its tokens until the end.
        "stream": bool(stream or request.stop_words or request.choices > 1),
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


def sampling(request: Sampling, card: ModelCard) -> dict[str, Any]:
    """Sampling parameters: the client's, else the worker's defaults. The core fills in the neutral ones.

    Raises InvalidRequestError for what this model cannot do.
    """
    _check_biased(request.logit_bias or {}, card.vocab_size)
    values = model_defaults(card.default_sampling_params) | model_defaults(card.preferred_sampling_params)
    for name, field in _SAMPLING.items():
        given = getattr(request, field)
        if given is not None:
            values[name] = given
    for name in _ABOVE_ZERO & values.keys():
        values[name] = max(values[name], _LEAST_FLOAT32)
    custom = dict(request.custom_params or {})
    if request.seed is not None:
        custom.setdefault("seed", request.seed)
    if custom:
        values["custom_params"] = custom
    return values


def _check_biased(biases: Mapping[str, float], vocab_size: int) -> None:
    # Such an id is an index out of range in the engine, whose error would not be this request's alone.
    for token in biases if vocab_size else ():
        if int(token) >= vocab_size:
            message = f"Token id {token} is not in the model's vocabulary of {vocab_size}."
            raise InvalidRequestError(message, param=f"logit_bias.{token}", code="invalid_value")


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


def stream_options(
    request: Streamed, card: ModelCard, prompt_tokens: int, prefix: str = "chatcmpl-"
) -> dict[str, Any]:
    """Options of the native Stream for OpenAI's routes."""
    options = request.stream_options
    return {
        **_answer_options(request, card, prompt_tokens, bool(request.stream)),
        "id": prefix + random_id(),
        "include_usage": bool(options and options.include_usage),
        "continuous_usage": bool(options and options.continuous_usage_stats),
    }


def _answer_options(
    request: Sampling, card: ModelCard, prompt_tokens: int, streaming: bool
) -> dict[str, Any]:
    return {
        "created": int(time.time()),
        "model": card.name,
        "system_fingerprint": card.weight_version or None,
        "choices": request.choices,
        "streaming": streaming,
        "stop": request.stop_words,
        "stop_token_ids": request.stop_token_ids or [],
        "ignore_eos": bool(request.ignore_eos),
        "no_stop_trim": bool(request.no_stop_trim),
        "skip_special_tokens": request.skip_special_tokens is not False,
        "prompt_tokens": prompt_tokens,
    }
