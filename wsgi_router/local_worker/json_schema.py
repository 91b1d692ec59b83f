"""Turns a JSON schema into a grammar text, and refuses what the grammar would not hold.

cyllama's converter leaves out silently what it cannot express. Every keyword it would leave out, in the
place where it stands, is refused here instead; annotations (title, description, format …) are free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from wsgi_router.local_worker.grammar import MAX_TEXT, GrammarError

_OBJECT = {
    "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
    "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties",
}  # fmt: skip
_ARRAY = {
    "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains",
    "additionalItems", "unevaluatedItems",
}  # fmt: skip
_STRING = {"pattern", "minLength", "maxLength"}
_NUMBER = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COMBINING = {"$ref", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "const", "enum"}
_BY_TYPE: dict[str, set[str]] = {
    "object": _OBJECT, "array": _ARRAY, "string": _STRING, "integer": _NUMBER, "number": _NUMBER,
    "boolean": set(), "null": set(),
}  # fmt: skip
_ALL = _OBJECT | _ARRAY | _STRING | _NUMBER
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


def schema_grammar(text: str) -> str:
    """GBNF text for the schema ``text``; GrammarError names the place that cannot be held."""
    if len(text) > MAX_TEXT:
        raise GrammarError(f"the schema is longer than {MAX_TEXT} characters")
    try:
        schema = json.loads(text)
        _check(schema, "$")
        convert = import_module("cyllama.utils.json_schema_to_grammar").json_schema_to_grammar
        return str(convert(schema))
    except GrammarError:
        raise
    except RecursionError as error:
        raise GrammarError("the schema is nested too deeply") from error
    except (ValueError, AssertionError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise GrammarError(f"the schema cannot be used: {str(error)[:200]}") from error


def _check(schema: Any, path: str) -> None:
    if not isinstance(schema, dict):
        raise GrammarError(f"{path}: a schema has to be an object")
    for holder in ("$defs", "definitions", "properties"):
        for name, inner in (schema.get(holder) or {}).items():
            _check(inner, f"{path}.{holder}.{name}")
    _check_here(schema, path)


def _check_here(schema: dict[str, Any], path: str) -> None:
    present = schema.keys() & (_ALL | _COMBINING)
    kind = schema.get("type")
    if "$ref" in schema:
        return _only(present, {"$ref"}, path)
    if "anyOf" in schema or "oneOf" in schema:
        union = "oneOf" if "oneOf" in schema else "anyOf"
        _only(present, {union}, path)
        for index, inner in enumerate(schema[union]):
            _check(inner, f"{path}.{union}[{index}]")
        return None
    if isinstance(kind, list):
        for one in kind:
            _check_here({**schema, "type": one}, path)
        return None
    if "const" in schema or "enum" in schema:
        return _only(present, {"const"} if "const" in schema else {"enum"}, path)
    relevant = present if kind is None else present & (_COMBINING | _BY_TYPE.get(kind, _ALL))
    return _only(relevant, _held(schema, kind, path), path)


def _held(schema: dict[str, Any], kind: str | None, path: str) -> set[str]:
    """The keywords that the converter's rule for this schema obeys."""
    if kind in (None, "object") and ("properties" in schema or "additionalProperties" in schema):
        unknown = set(schema.get("required", ())) - (schema.get("properties") or {}).keys()
        if unknown:
            raise GrammarError(f'{path}: "required" names properties that are not defined')
        if isinstance(schema.get("additionalProperties"), dict):
            _check(schema["additionalProperties"], f"{path}.additionalProperties")
        return {"properties", "required", "additionalProperties"}
    if kind in (None, "array") and "prefixItems" in schema:
        for index, inner in enumerate(schema["prefixItems"]):
            _check(inner, f"{path}.prefixItems[{index}]")
        return {"prefixItems"}
    if kind in (None, "array") and "items" in schema:
        _check(schema["items"], f"{path}.items")
        return {"items", "minItems", "maxItems"}
    if kind in (None, "string") and "pattern" in schema:
        return {"pattern"}
    if kind == "string" and not schema.get("format"):
        return {"minLength", "maxLength"}
    if kind in (None, "integer") and all(type(schema[key]) is int for key in _BOUNDS & schema.keys()):
        one_each = not (
            {"minimum", "exclusiveMinimum"} <= schema.keys()
            or {"maximum", "exclusiveMaximum"} <= schema.keys()
        )
        return _BOUNDS if one_each else set()
    return set()


def _only(present: Iterable[str], held: set[str], path: str) -> None:
    for keyword in sorted(set(present) - held):
        raise GrammarError(f'{path}: the keyword "{keyword}" is not supported here')
