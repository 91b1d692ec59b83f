"""Prompts without a template: a text, token ids, or a list of either."""

from __future__ import annotations

from typing import Any, Final

from wsgi_router.schema.decode import bad
from wsgi_router.schema.sampling import MAX_TOKEN_ID, check_token_ids

Prompt = str | list[int]

MAX_INPUTS: Final = 2048
"""Inputs of a request that needs no worker's stream; OpenAI's own bound of embeddings."""

# The shapes below as JSON schemas, for types that msgspec cannot tell apart.

TOKEN_ID: Final = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
TEXTS: Final[dict[str, Any]] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
}
IDS: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "array", "items": TOKEN_ID, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": TOKEN_ID, "minItems": 1}, "minItems": 1},
    ]
}
PROMPTS: Final[dict[str, Any]] = {"anyOf": [*TEXTS["anyOf"], *IDS["anyOf"]]}


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field that may be null, which is the same as absent."""
    return {"anyOf": [*schema["anyOf"], {"type": "null"}]}


def read_prompts(path: str, value: object, most: int, *, empty: bool = False) -> tuple[list[Prompt], bool]:
    """The prompts in `value`, and whether it is a list of them. Raises InvalidRequestError.

    `path` is the field's, for errors; `most` is how many there may be; `empty`: a list of ids may be so.
    """
    if isinstance(value, str):
        return [value], False
    if not isinstance(value, list):
        raise bad(path, f"'{path}' must be a string, a list of strings, or token ids.", "invalid_type")
    if not value:
        raise bad(path, f"'{path}' must not be empty.")
    if _is_id(value[0]):
        return [_ids(path, value)], False
    if len(value) > most:
        raise bad(path, f"'{path}' may hold at most {most} prompts.")
    kind = type(value[0])
    return [_one(f"{path}[{index}]", item, kind, empty) for index, item in enumerate(value)], True


def _one(path: str, item: Any, kind: type, empty: bool) -> Prompt:
    if isinstance(item, str) and kind is str:
        return item
    if isinstance(item, list) and kind is list:
        if not item:
            if empty:
                return []
            raise bad(path, f"'{path}' must not be empty.")
        return _ids(path, item)
    raise bad(path, f"'{path}' must be a string or token ids, as the first one is.", "invalid_type")


def _ids(path: str, value: list[Any]) -> list[int]:
    if set(map(type, value)) != {int}:
        index = next(index for index, item in enumerate(value) if not _is_id(item))
        raise bad(f"{path}[{index}]", f"'{path}[{index}]' must be a token id.", "invalid_type")
    check_token_ids(path, value)
    return value


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def prompt_paths(path: str, prompts: list[Prompt], listed: bool) -> list[str]:
    """Where each prompt stands in the request."""
    return [f"{path}[{index}]" if listed else path for index in range(len(prompts))]


def read_adapters(given: str | list[str | None] | None, count: int) -> list[str]:
    """The adapter of each of `count` prompts, "" for none: `lora_path` is one for all, or a list of them."""
    if not isinstance(given, list):
        return [given or ""] * count
    if len(given) != count:
        raise bad("lora_path", f"'lora_path' must be a string or a list of {count}, one for each prompt.")
    return [name or "" for name in given]


def check_batch(path: str, prompts: list[Prompt], choices: int, most: int) -> None:
    """Raises InvalidRequestError if all answers together are more than `most`."""
    if len(prompts) * choices > most:
        raise bad(path, f"{len(prompts)} prompts with {choices} answers each are more than {most} answers.")
