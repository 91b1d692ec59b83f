"""What every route that generates takes: sampling parameters, stop words, limits, streaming."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wsgi_router.errors import shown
from wsgi_router.schema.decode import bad

MAX_STOP: Final = 16
MAX_CHOICES: Final = 128
MAX_INT32: Final = 2**31 - 1
MAX_TOKEN_ID: Final = 2**32 - 1
MAX_LOGIT_BIAS: Final = 1024


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """Fields by their names in chat requests; a null is the same as an absent field.

    A subclass may rename what its clients call otherwise (`rename=`); errors name it as they do.
    """

    n: int | None = None
    max_tokens: int | None = None
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
    custom_params: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | None = None
    structural_tag: str | None = None

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


def in_range(name: str, number: float) -> bool:
    """Whether `number` is allowed for a field of RANGES, or for top_k."""
    if name == "top_k":
        return number == -1 or 1 <= number <= MAX_INT32
    low, high, inclusive = RANGES[name]
    return low <= number <= high and (inclusive or number != low)


def check_sampling(sampling: Sampling, max_choices: int, at: str = "", may_be_zero: str = "") -> None:
    """Limits and combinations. `at` is put before the names in errors. Raises InvalidRequestError.

    `may_be_zero`: a field of RANGES that may be 0, too.
    """
    kind = type(sampling)
    shown = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    names = {name: at + shown.get(name, name) for name in (*shown, *RANGES)}
    _check_ranges(sampling, max_choices, names, may_be_zero)
    _check_stops(sampling, names)
    _check_logit_bias(sampling, names)
    limit = sampling.max_new_tokens
    if limit is not None and sampling.min_tokens is not None and sampling.min_tokens > limit:
        name = names["min_tokens"]
        raise bad(name, f"'{name}' must not exceed the largest number of tokens of the answer.")
    given = [name for name in CONSTRAINTS if getattr(sampling, name) is not None]
    if len(given) > 1:
        raise bad(names[given[1]], f"'{names[given[1]]}' excludes '{names[given[0]]}'.")


def check_stream(request: Streamed) -> None:
    if request.stream_options is not None and not request.stream:
        raise bad("stream_options", "'stream_options' needs 'stream' to be true.")


def _check_ranges(sampling: Sampling, max_choices: int, names: dict[str, str], may_be_zero: str) -> None:
    for field, (low, high, inclusive) in RANGES.items():
        number = getattr(sampling, field, None)
        if number == 0 and field == may_be_zero:
            continue
        if number is not None and not in_range(field, number):
            bounds = f"at least {low}" if inclusive else f"greater than {low}"
            name = names[field]
            raise bad(name, f"'{name}' must be {bounds} and at most {high}, not {shown(number)}.")
    if sampling.top_k is not None and not in_range("top_k", sampling.top_k):
        name = names["top_k"]
        raise bad(name, f"'{name}' must be -1 (off), or at least 1 and at most {MAX_INT32}.")
    if sampling.n is not None and not 1 <= sampling.n <= min(max_choices, MAX_CHOICES):
        raise bad(names["n"], f"'{names['n']}' must be between 1 and {min(max_choices, MAX_CHOICES)}.")


def _check_stops(sampling: Sampling, names: dict[str, str]) -> None:
    words, name = sampling.stop_words, names["stop"]
    if len(words) > MAX_STOP:
        raise bad(name, f"At most {MAX_STOP} stop strings are allowed.")
    for index, word in enumerate(words):
        if not word:
            raise bad(
                name if isinstance(sampling.stop, str) else f"{name}[{index}]", "A stop string is empty."
            )
    check_token_ids(names["stop_token_ids"], sampling.stop_token_ids or ())


def check_token_ids(path: str, ids: list[int] | tuple[int, ...]) -> None:
    """Raises InvalidRequestError for what is no token id of any vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):  # fast: there may be a million of them
        return
    for index, token in enumerate(ids):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise bad(f"{path}[{index}]", "A token id is outside of any vocabulary.")


def _check_logit_bias(sampling: Sampling, names: dict[str, str]) -> None:
    bias, name = sampling.logit_bias or {}, names["logit_bias"]
    if len(bias) > MAX_LOGIT_BIAS:
        raise bad(name, f"At most {MAX_LOGIT_BIAS} entries are allowed.")
    for token, amount in bias.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10 and int(token) <= MAX_TOKEN_ID):
            raise bad(name, f"The keys of '{name}' must be token ids.")
        if not -100 <= amount <= 100:
            raise bad(f"{name}.{token}", "A bias must be between -100 and 100.")
