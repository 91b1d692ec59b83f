"""What the answer's text must be like: response_format, regex, ebnf, structural tags."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from wsgi_router.schema.decode import bad, check_depth, convert, decode_text, missing
from wsgi_router.schema.sampling import NonEmpty
from wsgi_router.schema.tools import Name, check_schema, is_name

Kind = Literal["text", "json_schema", "structural_tag", "regex", "ebnf"]

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
    name: Name
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Structure(msgspec.Struct):
    begin: str
    end: str
    schema: dict[str, Any] | None = None


class _TagFormat(msgspec.Struct):
    type: str


class _StructuralTag(msgspec.Struct, kw_only=True):
    """SGLang's own samplers take a tag without its type."""

    type: str = "structural_tag"
    format: _TagFormat | None = None
    structures: list[_Structure] | None = None
    triggers: list[str] | None = None


class _ResponseFormat(_StructuralTag, kw_only=True):
    type: str
    json_schema: _JsonSchema | None = None


class FormatFields(msgspec.Struct):
    """The fields that are read here."""

    response_format: _ResponseFormat | None = None
    regex: NonEmpty | None = None
    ebnf: NonEmpty | None = None
    structural_tag: str | _StructuralTag | None = None


def parse_format(value: dict[str, Any]) -> AnswerFormat:
    """The constraint that a request body asks for; at most one. Raises InvalidRequestError."""
    given = {name: value[name] for name in FormatFields.__struct_fields__ if value.get(name) is not None}
    if isinstance(given.get("structural_tag"), str):
        given["structural_tag"] = _tag_text(given["structural_tag"])
    for name in ("response_format", "structural_tag"):
        check_depth(name, given.get(name))
    fields = convert(given, FormatFields)
    tag = fields.structural_tag
    assert not isinstance(tag, str)
    found = [
        form
        for form in (
            _response_format(fields.response_format, given.get("response_format")),
            _structural_tag(tag, given.get("structural_tag"), "structural_tag"),
            _text("regex", fields.regex),
            _text("ebnf", fields.ebnf),
        )
        if form is not None
    ]
    if len(found) > 1:
        message = f"'{found[1].field}' cannot be had together with '{found[0].field}'."
        raise bad(found[1].field, message)
    return found[0] if found else TEXT


def _tag_text(text: str) -> Any:
    """The field may be JSON text, as it is for SGLang's native endpoint."""
    tag = decode_text("structural_tag", text)
    if not isinstance(tag, dict):
        raise bad("structural_tag", "'structural_tag' must be an object, or its JSON text.", "invalid_type")
    return tag


def _text(field: Literal["regex", "ebnf"], text: str | None) -> AnswerFormat | None:
    if text is None:
        return None
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
        raise missing(path)
    if not is_name(form.name):
        raise bad(f"{path}.name", "The name is 1 to 64 of the characters a-z, A-Z, 0-9, _ and -.")
    schema = _ANY_OBJECT if form.schema is None else form.schema
    check_schema(schema, f"{path}.schema")
    return AnswerFormat("json_schema", schema)


def _structural_tag(form: _StructuralTag | None, raw: Any, field: str) -> AnswerFormat | None:
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
