"""What every route that generates takes: sampling parameters, stop words, limits, streaming."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from wsgi_router.schema.decode import Bounds, bad, bounds, decode_text

MAX_STOP: Final = 16
MAX_CHOICES: Final = 128
MAX_INT32: Final = 2**31 - 1
MAX_TOKEN_ID: Final = 2**32 - 1
MAX_LOGIT_BIAS: Final = 1024
MAX_BIAS: Final = 100

Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenCount = Annotated[int, Meta(ge=1, le=MAX_INT32)]
"""Of an answer."""
TokenCountOrNone = Annotated[int, Meta(ge=0, le=MAX_INT32)]
"""The same, where none may be asked for, to score the prompt alone."""
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
NonEmpty = Annotated[str, Meta(min_length=1)]
StopWord = Annotated[str, Meta(min_length=1, max_length=4096)]
"""Each byte of it is a state of the automaton that looks for all of a request's words at once."""
LogitBias = Annotated[
    dict[str, float],
    Meta(
        max_length=MAX_LOGIT_BIAS,
        # Checked below, where the error can name the key.
        extra_json_schema={
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "patternProperties": {"": {"minimum": -MAX_BIAS, "maximum": MAX_BIAS}},
        },
    ),
]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """Fields by their names in chat requests; a null is the same as an absent field.

    The types carry the limits: they are checked as a request is read, and told in /openapi.json.
    A subclass may rename what its clients call otherwise (`rename=`); errors name it as they do.
    """

    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: TokenCount | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32, extra_json_schema={"not": {"const": 0}})] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: LogitBias | None = None
    seed: Int64 | None = None
    stop: StopWord | Annotated[list[StopWord], Meta(max_length=MAX_STOP)] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    custom_params: dict[str, Any] | None = None
    regex: NonEmpty | None = None
    ebnf: NonEmpty | None = None
    json_schema: NonEmpty | None = None
    structural_tag: NonEmpty | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """The client's bound on the answer's tokens, None if it set none."""
        return self.max_tokens

    @property
    def stop_words(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices(self) -> int:
        return self.n or 1


CONSTRAINTS: Final = ("regex", "ebnf", "json_schema", "structural_tag")
"""Of these a request has at most one."""


class Streamed(Sampling, kw_only=True):
    """What OpenAI's two completion routes have in common besides."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


_BOUNDS: Final[dict[str, Bounds]] = bounds(Sampling)


def in_range(name: str, number: float) -> bool:
    """Whether `number` is allowed for a field of Sampling that is a number."""
    return number in _BOUNDS[name] and not (name == "top_k" and number == 0)


def check_sampling(sampling: Sampling, max_choices: int, at: str = "") -> None:
    """What the types do not say. `at` is put before the names in errors. Raises InvalidRequestError."""
    names = _shown(type(sampling), at)
    if sampling.top_k == 0:
        name = names["top_k"]
        raise bad(name, f"'{name}' must be -1 (off), or at least 1 and at most {MAX_INT32}.")
    if sampling.choices > max_choices:
        raise bad(names["n"], f"'{names['n']}' must be between 1 and {max_choices}.")
    _check_logit_bias(sampling, names["logit_bias"])
    limit = sampling.max_new_tokens
    if limit is not None and sampling.min_tokens is not None and sampling.min_tokens > limit:
        name = names["min_tokens"]
        raise bad(name, f"'{name}' must not exceed the largest number of tokens of the answer.")
    given = [name for name in CONSTRAINTS if getattr(sampling, name) is not None]
    if len(given) > 1:
        raise bad(names[given[1]], f"'{names[given[1]]}' excludes '{names[given[0]]}'.")
    for name in given:
        text = getattr(sampling, name)
        if name == "structural_tag" or (name == "json_schema" and text != _ANY_JSON):
            decode_text(names[name], text, msgspec.Raw)  # nothing is built of it


_ANY_JSON: Final = "$$ANY$$"
"""SGLang's word for a grammar of whatever is JSON."""


@functools.cache
def _shown(kind: type[Sampling], at: str) -> dict[str, str]:
    """The fields' names in errors."""
    shown = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return {name: at + renamed for name, renamed in shown}


def check_stream(request: Streamed) -> None:
    if request.stream_options is not None and not request.stream:
        raise bad("stream_options", "'stream_options' needs 'stream' to be true.")


def check_token_ids(path: str, ids: list[int] | tuple[int, ...]) -> None:
    """Raises InvalidRequestError for what is no token id of any vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):  # fast: there may be a million of them
        return
    for index, token in enumerate(ids):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise bad(f"{path}[{index}]", "A token id is outside of any vocabulary.")


def _check_logit_bias(sampling: Sampling, name: str) -> None:
    for token, amount in (sampling.logit_bias or {}).items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10 and int(token) <= MAX_TOKEN_ID):
            raise bad(name, f"The keys of '{name}' must be token ids.")
        if not -MAX_BIAS <= amount <= MAX_BIAS:
            raise bad(f"{name}.{token}", f"A bias must be between -{MAX_BIAS} and {MAX_BIAS}.")
