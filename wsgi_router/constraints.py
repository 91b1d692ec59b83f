"""What a worker's grammar is given, so that an answer is what the request asks for, and how it is read then.

| Request | Constraint | Read as |
|---|---|---|
| a call is forced, the format keeps its markers | structural tag of its calls, at least one | parser |
| required, or required among allowed tools | JSON schema: array of calls | calls_array |
| a named function | JSON schema: its parameters | named_arguments |
| response_format, regex or ebnf | as it is; for harmony a structural tag of its channels | parser |
| the same, and tools that may be called | one structural tag: either that, or calls | parser |
| strict tools that may be called | structural tag: calls, where there are any | parser |

Structural tags are those of xgrammar, SGLang's grammar engine. The shapes are those of SGLang's gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from wsgi_router.parsers import CallMarkers, ToolFormat
from wsgi_router.schema.decode import bad
from wsgi_router.schema.formats import AnswerFormat
from wsgi_router.schema.tools import Function, ToolSet

Json = dict[str, Any]
Field = Literal["", "json_schema", "structural_tag", "regex", "ebnf"]
ReadAs = Literal["parser", "calls_array", "named_arguments"]

_OPEN_OBJECT: Final[Json] = {"type": "object", "additionalProperties": True}
_DEFINITIONS: Final = ("$defs", "definitions")
_DATA: Final = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords of JSON schemas whose values are no schemas."""
_MAPS: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""Keywords whose values hold schemas by names of the client's."""


class Constraint(msgspec.Struct, frozen=True):
    """`field`: of the sampling parameters, empty for none. `value`: its text."""

    field: Field = ""
    value: str = ""
    read_as: ReadAs = "parser"
    covers_reasoning: bool = False
    """The grammar holds from the first token, the model's reasoning included."""


FREE: Final = Constraint()


def build(
    tools: ToolSet, form: AnswerFormat, tool_format: ToolFormat | None, calls_before: int = 0
) -> Constraint:
    """The constraint for a request. Raises InvalidRequestError where what is asked cannot be had together.

    `tool_format`: what reads calls, None if nothing does. `calls_before`: calls in the conversation so far.
    """
    markers = tool_format.markers if tool_format else None
    if tools.forced:
        if markers is not None and tool_format is not None and tool_format.forced:
            return _forced_tags(tools, markers, calls_before)
        if tools.mode == "named":
            return _schema(_object(tools.functions[0].parameters), "named_arguments")
        return _schema(calls_array(tools.functions, parallel=tools.parallel), "calls_array")
    if form.kind == "structural_tag":
        # Whoever writes a tag has the calls in it that are wanted.
        return Constraint("structural_tag", _text(form.value))
    if markers is not None and markers.layout == "harmony":
        return _harmony(tools, form, markers)
    if form.kind == "text":
        return _strict(tools, markers, calls_before)
    if not tools.functions:
        return _plain(form)
    if markers is None:
        message = (
            "This model's tool calls have no marks to tell them from the answer: send it without 'tools'."
        )
        raise bad(form.field, f"'{form.field}' cannot be had together with tools. {message}")
    calls = _calls(tools, markers, calls_before, at_least_one=True, all_strict=False)
    return _tag({"type": "or", "elements": [_one(_content(form)), calls]})


def _plain(form: AnswerFormat) -> Constraint:
    if form.kind == "json_schema":
        return _schema(form.value, "parser")
    assert form.kind in ("regex", "ebnf")
    return Constraint(form.kind, form.value)


def _schema(schema: Json, read_as: ReadAs) -> Constraint:
    return Constraint("json_schema", _text(schema), read_as)


def _tag(form: Json, covers_reasoning: bool = False) -> Constraint:
    return Constraint("structural_tag", _text({"format": form}), covers_reasoning=covers_reasoning)


def _text(value: Json) -> str:
    return msgspec.json.encode(value).decode()


# Bare JSON.


def calls_array(functions: Sequence[Function], *, parallel: bool = True) -> Json:
    """The schema of a list of calls. Raises InvalidRequestError if definitions clash."""
    array: Json = {"type": "array", "minItems": 1}
    if not parallel:
        array["maxItems"] = 1
    items: list[Json] = []
    definitions: dict[str, Json] = {name: {} for name in _DEFINITIONS}
    for function in functions:
        parameters = _object(function.parameters)
        own = f"{function.name}.parameters"
        schema = _rebased(parameters, f"#/$defs/{own}")
        for keyword in _DEFINITIONS:
            _merge(definitions[keyword], schema.pop(keyword, {}), function.name)
        if schema != {name: value for name, value in parameters.items() if name not in _DEFINITIONS}:
            # It refers to itself. xgrammar finds no place in an array.
            _merge(definitions["$defs"], {own: schema}, function.name)
            schema = {"$ref": f"#/$defs/{own}"}
        items.append(
            {
                "properties": {
                    "name": {"type": "string", "enum": [function.name]},
                    "parameters": schema,
                },
                "required": ["name", "parameters"],
            }
        )
    array["items"] = {"type": "object", "anyOf": items}
    return array | {keyword: found for keyword, found in definitions.items() if found}


def _merge(known: Json, added: Json, function: str) -> None:
    for name, schema in added.items():
        if known.setdefault(name, schema) != schema:
            message = f"The definition '{name[:64]}' of '{function}' differs from another function's."
            raise bad("tools", message, "invalid_function_parameters")


def _object(schema: Json) -> Json:
    """The schema of a function's arguments, which are an object even where it leaves that out."""
    if "type" in schema or not ("properties" in schema or not schema):
        return schema
    return {"type": "object", **schema}


def _rebased(schema: Any, root: str) -> Any:
    """A copy whose references into itself hold where it stands at `root`, and its definitions at the top."""
    if isinstance(schema, list):
        return [_rebased(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _rebased_keyword(name, value, root) for name, value in schema.items()}


def _rebased_keyword(name: str, value: Any, root: str) -> Any:
    if name in _DATA:
        return value
    if name == "$ref" and isinstance(value, str):
        return _reference(value, root)
    if name in _MAPS and isinstance(value, dict):
        return {key: _rebased(item, root) for key, item in value.items()}
    return _rebased(value, root)


def _reference(target: str, root: str) -> str:
    if not target.startswith("#") or target.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS)):
        return target
    if target != "#" and not target.startswith("#/"):
        return target  # an anchor
    return root + target[1:]


# Structural tags.


def _forced_tags(tools: ToolSet, markers: CallMarkers, calls_before: int) -> Constraint:
    if markers.layout != "harmony":
        return _tag(_calls(tools, markers, calls_before, at_least_one=True))
    # The model may think first; a call then is its last message, as it ends with a stop token.
    tags = [_typed_tag(_call(function, markers, function.parameters, 0)) for function in tools.functions]
    call = tags[0] if len(tags) == 1 else {"type": "or", "elements": tags}
    thought = {
        "type": "tag",
        "begin": _ANALYSIS,
        "content": {"type": "any_text"},
        "end": "<|end|><|start|>assistant",
    }
    form = {"type": "or", "elements": [call, {"type": "sequence", "elements": [thought, call]}]}
    return _tag(form, covers_reasoning=True)


def _strict(tools: ToolSet, markers: CallMarkers | None, calls_before: int) -> Constraint:
    if markers is None or not _any_strict(tools):
        return FREE
    return _tag(_calls(tools, markers, calls_before, at_least_one=False, all_strict=False))


def _any_strict(tools: ToolSet) -> bool:
    return any(function.strict for function in tools.functions)


def _calls(
    tools: ToolSet, markers: CallMarkers, number: int, *, at_least_one: bool, all_strict: bool = True
) -> Json:
    """Calls as a model writes them. `all_strict`: not only strict functions are held to their schemas."""
    single = tools.mode == "named" or not tools.parallel
    calls = [
        (function, function.parameters if all_strict or function.strict else _OPEN_OBJECT)
        for function in tools.functions
    ]
    triggers = [markers.trigger or markers.open]
    if markers.layout == "list" and not single:
        tags = [_listed(calls, markers, number)]
    elif markers.layout == "section" and not single:
        triggers.append(markers.call_trigger)
        tags = [
            _between(markers.open, _call(function, markers, schema, number), "") for function, schema in calls
        ]
        tags += [_call(function, markers, schema, number + 1) for function, schema in calls]
    else:
        tags = [
            _between(markers.open, _call(function, markers, schema, number), markers.close)
            for function, schema in calls
        ]
    form = {"type": "triggered_tags", "triggers": triggers, "tags": tags, "at_least_one": at_least_one}
    return {**form, "stop_after_first": True} if single else form


def _listed(calls: list[tuple[Function, Json]], markers: CallMarkers, number: int) -> Json:
    tags = [_call(function, markers, schema, number) for function, schema in calls]
    content = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": markers.separator,
        "at_least_one": True,
    }
    return {"begin": markers.open, "content": content, "end": markers.close}


def _call(function: Function, markers: CallMarkers, schema: Json, number: int) -> Json:
    """One call without what stands around all of them."""
    begin = markers.begin.replace("{index}", str(number)).replace("{name}", function.name)
    return {"begin": begin, "content": _arguments(_object(schema), markers), "end": markers.end}


def _between(before: str, tag: Json, after: str) -> Json:
    return {"begin": before + tag["begin"], "content": tag["content"], "end": tag["end"] + after}


def _typed_tag(tag: Json) -> Json:
    """A tag where other formats may stand too."""
    return {"type": "tag", **tag, "begin": _COMMENTARY + tag["begin"]}


def _arguments(schema: Json, markers: CallMarkers) -> Json:
    if markers.arguments == "qwen_xml":
        return {"type": "qwen_xml_parameter", "json_schema": schema}
    return {"type": "json_schema", "json_schema": schema}


def _one(content: Json) -> Json:
    """Just `content`, as a list of one: xgrammar 0.1 wants all choices of an `or` to be of open length."""
    return {
        "type": "tags_with_separator",
        "tags": [{"begin": "", "content": content, "end": ""}],
        "separator": "",
        "at_least_one": True,
        "stop_after_first": True,
    }


def _content(form: AnswerFormat) -> Json:
    """A request's constraint as a part of a structural tag."""
    if form.kind == "regex":
        return {"type": "regex", "pattern": form.value}
    if form.kind == "ebnf":
        return {"type": "grammar", "grammar": form.value}
    return {"type": "json_schema", "json_schema": form.value}


# Harmony: an answer is a message on the channel `final`, after thoughts on `analysis`.

_ANALYSIS: Final = "<|channel|>analysis<|message|>"
_FINAL: Final = "<|channel|>final"
_COMMENTARY: Final = "<|channel|>commentary"


def _harmony(tools: ToolSet, form: AnswerFormat, markers: CallMarkers) -> Constraint:
    triggers: list[str] = []
    tags: list[Json] = []
    if form.kind != "text":
        triggers += ["<|channel|>analysis", _FINAL]
        tags.append({"begin": _ANALYSIS, "content": {"type": "any_text"}, "end": "<|end|>"})
        for constrain in ("", " <|constrain|>json") if form.kind == "json_schema" else ("",):
            tags.append({"begin": f"{_FINAL}{constrain}<|message|>", "content": _content(form), "end": ""})
    if tools.functions and (tags or _any_strict(tools)):
        triggers.append(markers.open + markers.begin.partition("{")[0])
        for function in tools.functions:
            schema = function.parameters if function.strict else _OPEN_OBJECT
            tags.append(_between(markers.open, _call(function, markers, schema, 0), markers.close))
    if not tags:
        return FREE
    form_tags = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
    return _tag({**form_tags, "at_least_one": form.kind != "text"}, covers_reasoning=True)
