"""JSON schemas of all requests, made from the types that read them, so that the two cannot differ.

Only what depends on several fields at once, or on the model, is not in them: it stays for the parsers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from wsgi_router.schema import chat, completions, embeddings, generate, output, tokenize, workers
from wsgi_router.schema.fields import Fields

Schema = dict[str, Any]

REF: Final = "#/components/schemas/{name}"

_PARTS: Final = tuple(field for part in output.PARTS for field in msgspec.structs.fields(part))
_CHAT: Final = (chat.FIELDS, _PARTS)

REQUESTS: Final[dict[str, tuple[Fields[Any], Sequence[msgspec.structs.FieldInfo]]]] = {
    "ChatRequest": _CHAT,
    "CompletionRequest": (completions.FIELDS, ()),
    "GenerateRequest": (generate.FIELDS, ()),
    generate.SAMPLING_PARAMS: (generate.SAMPLING_FIELDS, ()),
    "EmbeddingRequest": (embeddings.FIELDS, ()),
    "TokenizeTextRequest": (tokenize.TOKENIZE, ()),
    "DetokenizeRequest": (tokenize.DETOKENIZE, ()),
    "NewWorker": (workers.NEW_WORKER, ()),
    "WorkerChange": (workers.WORKER_CHANGE, ()),
}
"""By the names of their schemas: the fields of a request, and those that another parser takes out of it."""


def components(answers: Sequence[type[msgspec.Struct]]) -> dict[str, Schema]:
    """The schemas of all requests and of `answers`, by their names, with those that they refer to."""
    found: dict[str, Schema] = {}
    for name, (fields, more) in REQUESTS.items():
        found[name] = _request(fields, more, found)
    found["TokenizeChatRequest"] = _tokenize_chat(found)
    found["TokenizeRequest"] = {"anyOf": [_ref("TokenizeTextRequest"), _ref("TokenizeChatRequest")]}
    found |= msgspec.json.schema_components(answers, ref_template=REF)[1]
    return {name.lstrip("_"): _plain(schema) | {"title": name.lstrip("_")} for name, schema in found.items()}


def _ref(name: str) -> Schema:
    return {"$ref": REF.format(name=name)}


def _request(
    fields: Fields[Any], more: Sequence[msgspec.structs.FieldInfo], found: dict[str, Schema]
) -> Schema:
    """The object that has these fields; what it refers to goes into `found`."""
    infos = {**fields.types(), **{field.encode_name: field for field in more}}
    typed = {name: field.type for name, field in infos.items()}
    typed |= {name: kind for name, kind in fields.special.items() if kind is not None}
    schemas, referred = msgspec.json.schema_components(typed.values(), ref_template=REF)
    found.update(referred)
    properties = dict(zip(typed, schemas, strict=True))
    properties |= {name: _neutral(values) for name, values in fields.not_supported.items()}
    required = [name for name, field in infos.items() if field.required]
    return {"type": "object", "properties": properties, "required": required}


def _neutral(values: tuple[Any, ...]) -> Schema:
    return {"enum": [None, *values], "description": "Not supported: accepted as long as it asks for nothing."}


def _tokenize_chat(found: dict[str, Schema]) -> Schema:
    """A chat request, of which no more than the messages is needed, with the text request's own fields."""
    text, asked = found["TokenizeTextRequest"]["properties"], found["ChatRequest"]["properties"]
    properties = {**text, **asked, "model": text["model"], "prompt": {"type": "null"}}
    return {"type": "object", "properties": properties, "required": ["messages"]}


def _plain(schema: Any) -> Any:
    """Without what says nothing: a default of null, an empty list; names without a leading underscore."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    private = REF.format(name="_")
    return {
        name: REF.format(name=value.removeprefix(private))
        if name == "$ref" and value.startswith(private)
        else _plain(value)
        for name, value in schema.items()
        if not (name == "default" and value is None) and not (name == "required" and value == [])
    }
