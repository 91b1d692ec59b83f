"""POST /v1/chat/completions: OpenAI's fields and SGLang's extensions.

Three kinds of fields. Those of `ChatRequest` are honoured. Those of `Inert` change nothing in the answer and
are accepted. Those of `NOT_SUPPORTED` would change it: any value but a neutral one is a 400 that names the
field. All other keys are unknown; they are accepted and named in the header X-Router-Warning.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

import msgspec

from wsgi_router.schema.decode import bad, check_depth, convert, decode_object, unsupported
from wsgi_router.schema.messages import Message, check_count, check_messages, for_template
from wsgi_router.schema.output import PLAIN, Output, take_output

MAX_STOP: Final = 16
MAX_CHOICES: Final = 128
MAX_INT32: Final = 2**31 - 1
MAX_TOKEN_ID: Final = 2**32 - 1
MAX_LOGIT_BIAS: Final = 1024

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(msgspec.Struct, kw_only=True):
    """A checked chat request. A null is the same as an absent field."""

    messages: list[Message]
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: Effort | None = None
    custom_params: dict[str, Any] | None = None
    rid: str | None = None
    prompt_cache_key: str | None = None

    # Filled by parse_chat.
    raw_messages: list[dict[str, Any]] = []
    unknown: list[str] = []
    output: Output = PLAIN

    @property
    def max_new_tokens(self) -> int | None:
        """The client's bound on the answer's tokens, None if it set none."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stop_words(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices(self) -> int:
        return self.n or 1


class Inert(msgspec.Struct):
    """Accepted fields that change nothing (the last three: without tools, without a reasoning parser)."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_retention: str | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None


_FILLED: Final = frozenset({"raw_messages", "unknown", "output"})
HONOURED: Final = frozenset(ChatRequest.__struct_fields__) - _FILLED
INERT: Final = frozenset(Inert.__struct_fields__)

_TEXT_FORMAT: Final = {"type": "text"}
NOT_SUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": (_TEXT_FORMAT,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"], []),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": (),
    "moderation": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "stop_regex": ([],),
    "lora_path": (),
    "session_params": (),
    "custom_logit_processor": (),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "input_ids": (),
    "chat_template": (),
}
"""Fields that would change the answer, with the values (null besides) that ask for nothing."""

_HANDED_ON: Final = frozenset({"messages", "documents", "chat_template_kwargs", "custom_params"})
KNOWN: Final = HONOURED | INERT | NOT_SUPPORTED.keys()

# field: (lower bound, upper bound, whether the lower bound itself is allowed)
RANGES: Final[dict[str, tuple[int, int, bool]]] = {
    "temperature": (0, 2, True),
    "top_p": (0, 1, False),
    "min_p": (0, 1, True),
    "frequency_penalty": (-2, 2, True),
    "presence_penalty": (-2, 2, True),
    "repetition_penalty": (0, 2, False),
    "max_tokens": (1, MAX_INT32, True),
    "max_completion_tokens": (1, MAX_INT32, True),
    "min_tokens": (0, MAX_INT32, True),
    "seed": (-(2**63), 2**63 - 1, True),
}


def parse_chat(body: bytes, max_choices: int = 16) -> ChatRequest:
    """The request in `body`, checked as far as no model is needed. Raises InvalidRequestError (400)."""
    value = decode_object(body)
    output = take_output(value)
    check_count(value.get("messages"))
    request = convert(_only(value, HONOURED), ChatRequest)
    for name, given in _only(value, _HANDED_ON).items():
        check_depth(name, given)
    check_messages(request.messages)
    _check_unsupported(value)
    convert(_only(value, INERT), Inert)
    _check_ranges(request, max_choices)
    _check_stops(request)
    _check_logit_bias(request)
    _check_combinations(request)
    request.raw_messages = for_template(value["messages"])
    request.unknown = _unknown(value)
    request.output = output
    return request


def _only(value: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The fields among `names` in the order they came, so that of several faults the first one is named."""
    return {name: given for name, given in value.items() if name in names}


def _check_unsupported(value: dict[str, Any]) -> None:
    tool_choice = value.get("tool_choice")
    if tool_choice not in (None, "none") and not value.get("tools"):
        raise bad("tool_choice", "'tool_choice' needs 'tools'.")
    if value.get("top_logprobs") and not value.get("logprobs"):
        raise bad("top_logprobs", "'top_logprobs' needs 'logprobs'.")
    for name, given in _only(value, NOT_SUPPORTED).items():
        if given is not None and not any(_same(given, neutral) for neutral in NOT_SUPPORTED[name]):
            raise unsupported(name)


def _same(given: object, neutral: object) -> bool:
    """Equal in JSON's sense: `0` is not `false`."""
    return given == neutral and isinstance(given, bool) == isinstance(neutral, bool)


def in_range(name: str, number: float) -> bool:
    """Whether `number` is allowed for a field of RANGES, or for top_k."""
    if name == "top_k":
        return number == -1 or 1 <= number <= MAX_INT32
    low, high, inclusive = RANGES[name]
    return low <= number <= high and (inclusive or number != low)


def _check_ranges(request: ChatRequest, max_choices: int) -> None:
    for name, (low, high, inclusive) in RANGES.items():
        number = getattr(request, name)
        if number is not None and not in_range(name, number):
            bounds = f"at least {low}" if inclusive else f"greater than {low}"
            raise bad(name, f"'{name}' must be {bounds} and at most {high}, not {number}.")
    if request.top_k is not None and not in_range("top_k", request.top_k):
        raise bad("top_k", f"'top_k' must be -1 (off), or at least 1 and at most {MAX_INT32}.")
    if request.n is not None and not 1 <= request.n <= min(max_choices, MAX_CHOICES):
        raise bad("n", f"'n' must be between 1 and {min(max_choices, MAX_CHOICES)}.")


def _check_stops(request: ChatRequest) -> None:
    words = request.stop_words
    if len(words) > MAX_STOP:
        raise bad("stop", f"At most {MAX_STOP} stop strings are allowed.")
    for index, word in enumerate(words):
        if not word:
            raise bad(
                "stop" if isinstance(request.stop, str) else f"stop[{index}]", "A stop string is empty."
            )
    for index, token in enumerate(request.stop_token_ids or ()):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise bad(f"stop_token_ids[{index}]", "A token id is outside of any vocabulary.")


def _check_logit_bias(request: ChatRequest) -> None:
    bias = request.logit_bias or {}
    if len(bias) > MAX_LOGIT_BIAS:
        raise bad("logit_bias", f"At most {MAX_LOGIT_BIAS} entries are allowed.")
    for token, amount in bias.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10 and int(token) <= MAX_TOKEN_ID):
            raise bad("logit_bias", "The keys of 'logit_bias' must be token ids.")
        if not -100 <= amount <= 100:
            raise bad(f"logit_bias.{token}", "A bias must be between -100 and 100.")


def _check_combinations(request: ChatRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise bad("stream_options", "'stream_options' needs 'stream' to be true.")
    limit = request.max_new_tokens
    if limit is not None and request.min_tokens is not None and request.min_tokens > limit:
        raise bad("min_tokens", "'min_tokens' must not exceed the largest number of tokens of the answer.")
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise bad("continue_final_message", "It excludes 'add_generation_prompt'.")
        if request.messages[-1].role != "assistant":
            raise bad("continue_final_message", "The last message must be the assistant's.")


def _unknown(value: dict[str, Any]) -> list[str]:
    names = [name for name in value if name not in KNOWN]
    options = value.get("stream_options") or {}
    return names + [
        f"stream_options.{name}" for name in options if name not in StreamOptions.__struct_fields__
    ]
