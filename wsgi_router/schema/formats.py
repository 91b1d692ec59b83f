"""What the answer's text must be like: response_format, regex, ebnf, structural tags."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from wsgi_router.schema.decode import bad, check_depth, convert
from wsgi_router.schema.tools import check_schema

Kind = Literal["text", "json_schema", "structural_tag", "regex", "ebnf"]

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


class AnswerFormat(msgspec.Struct, frozen=True):
    """How the worker is to hold the model's text.

    `value`: for json_schema and structural_tag a JSON object, for regex and ebnf the client's text.
    """

    kind: Kind = "text"
    value: Any = None
    field: str = "response_format"
    """The field that asked for it, for errors."""


TEXT: Final = AnswerFormat()


class _JsonSchema(msgspec.Struct):
    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Structure(msgspec.Struct):
    begin: str
    end: str
    schema: dict[str, Any] | None = None


class _TagFormat(msgspec.Struct):
    type: str


class _ResponseFormat(msgspec.Struct):
    type: str
    json_schema: _JsonSchema | None = None
    format: _TagFormat | None = None
    structures: list[_Structure] | None = None
    triggers: list[str] | None = None


class _Fields(msgspec.Struct):
    response_format: _ResponseFormat | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: _ResponseFormat | None = None


def parse_format(value: dict[str, Any]) -> AnswerFormat:
    """The constraint that a request body asks for; at most one. Raises InvalidRequestError."""
    given = {name: value[name] for name in _Fields.__struct_fields__ if value.get(name) is not None}
    if isinstance(given.get("structural_tag"), str):
        given["structural_tag"] = _tag_text(given["structural_tag"])
    for name in ("response_format", "structural_tag"):
        check_depth(name, given.get(name))
    fields = convert(_typed(given), _Fields)
    found = [
        form
        for form in (
            _response_format(fields.response_format, given.get("response_format")),
            _structural_tag(fields.structural_tag, given.get("structural_tag"), "structural_tag"),
            _text("regex", fields.regex),
            _text("ebnf", fields.ebnf),
        )
        if form is not None
    ]
    if len(found) > 1:
        message = f"'{found[1].field}' cannot be had together with '{found[0].field}'."
        raise bad(found[1].field, message)
    return found[0] if found else TEXT


def _typed(given: dict[str, Any]) -> dict[str, Any]:
    """SGLang's own samplers take a tag without its type."""
    tag = given.get("structural_tag")
    return {**given, "structural_tag": {"type": "structural_tag", **tag}} if isinstance(tag, dict) else given


def _tag_text(text: str) -> Any:
    """The field may be JSON text, as it is for SGLang's native endpoint."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        raise bad("structural_tag", "'structural_tag' is no valid JSON.") from None


def _text(field: Literal["regex", "ebnf"], text: str | None) -> AnswerFormat | None:
    if text is None:
        return None
    if not text:
        raise bad(field, f"'{field}' must not be empty.")
    return AnswerFormat(field, text, field)


def _response_format(form: _ResponseFormat | None, raw: Any) -> AnswerFormat | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return AnswerFormat("json_schema", _ANY_OBJECT)
    if form.type == "json_schema":
        return _json_schema(form.json_schema)
    if form.type == "structural_tag":
        return _structural_tag(form, raw, "response_format")
    raise bad(
        "response_format.type",
        '\'type\' must be "text", "json_object", "json_schema" or "structural_tag".',
    )


def _json_schema(form: _JsonSchema | None) -> AnswerFormat:
    path = "response_format.json_schema"
    if form is None:
        raise bad(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")
    if not _NAME.match(form.name):
        raise bad(f"{path}.name", "The name is 1 to 64 of the characters a-z, A-Z, 0-9, _ and -.")
    schema = _ANY_OBJECT if form.schema is None else form.schema
    check_schema(schema, f"{path}.schema")
    return AnswerFormat("json_schema", schema)


def _structural_tag(form: _ResponseFormat | None, raw: Any, field: str) -> AnswerFormat | None:
    """A tag in today's form (`format`), or in the first one (`structures` and `triggers`)."""
    if form is None:
        return None
    if form.type != "structural_tag":
        raise bad(f"{field}.type", "'type' must be \"structural_tag\".")
    if form.format is None:
        if not form.structures:
            name = "format" if form.structures is None else "structures"
            raise bad(
                f"{field}.{name}",
                "A structural tag needs 'format', or 'structures' with 'triggers'.",
                "missing_required_parameter",
            )
        if not form.triggers:
            raise bad(f"{field}.triggers", "'triggers' must name what begins a structure.")
    elif form.structures is not None:
        raise bad(f"{field}.structures", "A structural tag has 'format' or 'structures', not both.")
    return AnswerFormat("structural_tag", {"type": "structural_tag", **raw}, field)
