"""Values of a JSON schema: every field, every branch of a choice and every word of an enum at least once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Resolve = Callable[[str], Any]
"""The schema that a `$ref` names."""

_SIMPLE: dict[str, tuple[Any, ...]] = {
    "string": ("x",),
    "integer": (1,),
    "number": (1, 0.5),
    "boolean": (True, False),
    "null": (None,),
}
_KEY = "1"
"""A key of objects that take any; logit_bias wants a number."""


def variants(schema: Any, resolve: Resolve) -> Iterator[Any]:
    """Finitely many values of `schema`, the simplest first; not all combinations of them."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield from variants(resolve(schema["$ref"]), resolve)
    elif "allOf" in schema:
        yield from _object(_merged(schema, resolve), resolve)
    elif choices := schema.get("anyOf") or schema.get("oneOf"):
        for choice in choices:
            yield from variants(choice, resolve)
    elif "const" in schema:
        yield schema["const"]
    elif "enum" in schema:
        yield from schema["enum"]
    else:
        yield from _of_type(schema, resolve)
    if schema.get("nullable"):
        yield None


def _of_type(schema: dict[str, Any], resolve: Resolve) -> Iterator[Any]:
    kind = schema.get("type", "object" if "properties" in schema else None)
    if kind == "object":
        yield from _object(schema, resolve)
    elif kind == "array":
        for item in variants(schema.get("items", {}), resolve):
            yield [item]
        if not schema.get("minItems"):
            yield []
    elif kind in _SIMPLE:
        yield from _SIMPLE[kind]
    else:
        yield {}


def _object(schema: dict[str, Any], resolve: Resolve) -> Iterator[dict[str, Any]]:
    fields = schema.get("properties", {})
    least = {name: next(variants(fields[name], resolve)) for name in schema.get("required", ())}
    yield dict(least)
    for name, field in fields.items():
        for value in variants(field, resolve):
            yield {**least, name: value}
    if isinstance(more := schema.get("additionalProperties"), dict):
        for value in variants(more, resolve):
            yield {**least, _KEY: value}


def _merged(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """An `allOf` of objects as one."""
    made: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    for part in schema["allOf"]:
        while "$ref" in part:
            part = resolve(part["$ref"])
        if "allOf" in part:
            part = _merged(part, resolve)
        made["properties"] |= part.get("properties", {})
        made["required"] += part.get("required", [])
    return made
