"""JSON text to typed values, and msgspec's errors to ours.

msgspec's decoder is strict where it counts: it refuses NaN, infinities, numbers beyond a double, invalid
UTF-8, lone surrogates and nesting past the recursion limit. Of a key that comes twice the last one counts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from wsgi_router.errors import InvalidRequestError, shown

T = TypeVar("T")

MAX_DEPTH: Final = 64
"""Levels of what is handed on to templates and workers."""

_AT: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_AT_CHARS: Final = 1000  # more than any path of ours has
_REASON_CHARS: Final = 200
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises InvalidRequestError (400)."""
    if not body.strip():
        raise InvalidRequestError(
            "The request body is empty; a JSON object is expected.", code="invalid_json"
        )
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(_bad_json(body, error), code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object.", code="invalid_json")
    return value


MOST_WORK: Final = 1_600_000
"""Units of the core's `json_work` that Python decodes and checks in about a tenth of a second."""


def decode_text(path: str, text: str, kind: Any = Any) -> Any:
    """The value of the JSON text that the field `path` holds. Raises InvalidRequestError (400).

    What is checked of a body before it is decoded (`native.check_work`) passes over what stands in strings.
    The weights are those of `body::work` in the core; escapes have counted there.
    """
    work = 16 * (text.count("[") + text.count("{")) + 8 * text.count('"') + text.count(",")
    if work > MOST_WORK:
        raise bad(path, f"'{path}' holds too many values.", "too_many_values")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        raise bad(path, f"'{path}' is no valid JSON.") from None


def _bad_json(body: bytes, error: Exception) -> str:
    text = f"The request body is no valid JSON: {_AT.sub('', str(error))}."
    if _SURROGATE.search(body):
        text += r" It holds a \u escape of a surrogate: half a pair is no character."
    return text


def convert(value: object, kind: type[T], at: str = "") -> T:
    """`value` as a `kind`. Raises InvalidRequestError that names the path (after `at`) at fault."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        _refuse(str(error), at, value, kind)
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.", code="invalid_json") from None


def _refuse(text: str, at: str, value: object, kind: object) -> NoReturn:
    """Raises for msgspec's text, such as "Expected `int`, got `str` - at `$.stop[1]`"."""
    match = _AT.search(text, max(len(text) - _AT_CHARS, 0))
    path = match["path"].removesuffix("[...]") if match else ""
    reason = text[: match.start()] if match else text
    if len(reason) > _REASON_CHARS:  # it repeats what the client sent
        reason = reason[:_REASON_CHARS] + "…"
    if absent := _MISSING.match(reason):
        path = at + (f"{path}.{absent['field']}" if path else absent["field"])
        raise missing(path)
    if _OUT_OF_RANGE.match(reason) and isinstance(value, Mapping) and path in value:
        allowed = bounds(kind).get(path)
        if allowed is not None:
            raise bad(at + path, f"'{at}{path}' must be {allowed}, not {shown(value[path])}.")
    path = at + path
    where = f" for '{path}'" if path else ""
    code = "invalid_type" if _WRONG_TYPE.match(reason) else "invalid_value"
    raise InvalidRequestError(f"Invalid value{where}: {_plain(reason)}.", param=path, code=code)


_WRONG_TYPE: Final = re.compile(r"Expected `[^`]+`, got ")
_OUT_OF_RANGE: Final = re.compile(r"Expected `(?:int|float)` [<>]")


class Bounds(NamedTuple):
    """What a number may be: from `low`, which may be excluded itself, to `high`."""

    low: float
    high: float
    low_excluded: bool

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, (int, float)):
            return False
        return self.low <= number <= self.high and not (self.low_excluded and number == self.low)

    def __str__(self) -> str:
        return f"{'greater than' if self.low_excluded else 'at least'} {self.low} and at most {self.high}"


@functools.cache
def bounds(kind: Any) -> dict[str, Bounds]:
    """By the names that clients use: the bounds of a struct's fields that are numbers with a Meta of two."""
    found: dict[str, Bounds] = {}
    info = inspect.type_info(kind)
    for field in info.fields if isinstance(info, inspect.StructType) else ():
        types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        for kind_or_more in types:
            number = kind_or_more.type if isinstance(kind_or_more, inspect.Metadata) else kind_or_more
            if isinstance(number, (inspect.IntType, inspect.FloatType)) and number.le is not None:
                low = number.ge if number.gt is None else number.gt
                assert low is not None, f"{kind}.{field.name} has an upper bound alone"
                found[field.encode_name] = Bounds(low, number.le, number.gt is not None)
    return found


def _plain(reason: str) -> str:
    """msgspec's reason in JSON's words, to go on a sentence; what it repeats of the client's is kept."""
    reason, quote, repeated = reason.partition("'")
    for python, json in _JSON_WORDS:
        reason = python.sub(json, reason)
    reason = reason.replace("`", "").replace(" | ", " or ")
    return reason[:1].lower() + reason[1:] + quote + repeated


_JSON_WORDS: Final = tuple(
    (re.compile(rf"(?<![a-z]){python}(?![a-z])"), json)
    for python, json in (("int", "integer"), ("float", "number"), ("str", "string"), ("bool", "boolean"))
)


def only(value: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The fields among `names` in the order they came, so that of several faults the first one is named."""
    return {name: given for name, given in value.items() if name in names}


def check_depth(name: str, value: object, levels: int = MAX_DEPTH) -> None:
    """Raises InvalidRequestError if the field `name` is nested more than `levels` deep."""
    if isinstance(value, (dict, list)):
        if levels == 0:
            raise bad(name, f"'{name}' is nested too deeply.")
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, (dict, list)):  # no call for each of a million numbers
                check_depth(name, item, levels - 1)


def bad(param: str, message: str, code: str = "invalid_value") -> InvalidRequestError:
    """An error about one field."""
    return InvalidRequestError(message, param=param, code=code)


def missing(path: str) -> InvalidRequestError:
    """A field that has to be there and is not."""
    return bad(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")


def unsupported(param: str, what: str = "") -> InvalidRequestError:
    """A field that would change the answer and that cannot be honoured."""
    return bad(param, what or f"'{param}' is not supported.", "unsupported_parameter")
