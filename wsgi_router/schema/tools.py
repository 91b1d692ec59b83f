"""Tools and the choice among them: every form that clients send, brought to one.

`functions` and `function_call`, OpenAI's older fields, are the same in other words; their answers are shaped
as they were then. Custom tools, which answer with free text, are refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from wsgi_router.schema.decode import bad, check_depth, convert, missing, unsupported

MAX_TOOLS: Final = 128
"""OpenAI's bound."""

NAME: Final = "^[a-zA-Z0-9_-]{1,64}$"
Name = Annotated[str, Meta(extra_json_schema={"pattern": NAME})]
"""Checked apart: Python's `$` lets a newline follow."""
is_name: Final = re.compile(NAME).fullmatch
_WITHOUT_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}

Mode = Literal["none", "auto", "required", "named"]


class Function(msgspec.Struct, frozen=True):
    """One function that the model may call. `parameters` is a JSON schema of an object."""

    name: str
    parameters: dict[str, Any]
    strict: bool = False


class ToolSet(msgspec.Struct, frozen=True, kw_only=True):
    """What the model may or must call. Empty `functions`: nothing."""

    functions: tuple[Function, ...] = ()
    """Those that the choice leaves: all, the allowed ones, the named one, or none."""
    mode: Mode = "none"
    parallel: bool = True
    """Whether one answer may hold several calls."""
    legacy: bool = False
    """Asked with `functions`: answered with `function_call`."""
    for_template: tuple[dict[str, Any], ...] = ()
    """The tools of `functions` as the client sent them, in the form of `tools`."""

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in ("required", "named")


NO_TOOLS: Final = ToolSet()


# The shapes that clients send; the checks below name what is wrong in them.


class _FunctionShape(msgspec.Struct):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _ToolShape(msgspec.Struct):
    type: str = "function"
    function: _FunctionShape | None = None


class _Named(msgspec.Struct):
    name: str


class _AllowedEntry(msgspec.Struct):
    type: str = "function"
    function: _Named | None = None
    name: str | None = None


class _Allowed(msgspec.Struct):
    mode: str
    tools: list[_AllowedEntry]


class _ChoiceShape(msgspec.Struct):
    type: str = "function"
    function: _Named | None = None
    name: str | None = None
    allowed_tools: _Allowed | None = None
    mode: str | None = None
    tools: list[_AllowedEntry] | None = None


class ToolFields(msgspec.Struct):
    """The fields that are read here."""

    tools: Annotated[list[_ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | _ChoiceShape | None = None
    functions: Annotated[list[_FunctionShape], Meta(max_length=MAX_TOOLS)] | None = None
    function_call: str | _Named | None = None
    parallel_tool_calls: bool | None = None


class _Choice(msgspec.Struct, frozen=True):
    """A choice in one form. `names`: what it narrows the tools to, each with its JSON path."""

    mode: Mode
    names: tuple[tuple[str, str], ...] = ()


def parse_tools(value: dict[str, Any]) -> ToolSet:
    """The tools of a request body. Raises InvalidRequestError."""
    fields = convert(
        {name: value[name] for name in ToolFields.__struct_fields__ if name in value}, ToolFields
    )
    if fields.functions and fields.tools:
        raise bad("functions", "'functions' is the older form of 'tools': send only one of them.")
    if fields.functions:
        return _parse_functions(fields, value["functions"])
    if fields.function_call not in (None, "none"):
        raise bad("function_call", "'function_call' needs 'functions'.")
    shapes = fields.tools or []
    functions = [_tool(shape, f"tools[{number}]") for number, shape in enumerate(shapes)]
    _check_names(functions, "tools[{}].function.name")
    choice = _choice(fields.tool_choice, bool(functions))
    raw = [_filled(tool) for tool in value.get("tools") or ()]
    return _narrowed(functions, raw, choice, parallel=fields.parallel_tool_calls is not False)


def _parse_functions(fields: ToolFields, raw: list[dict[str, Any]]) -> ToolSet:
    functions = [
        _function(shape, f"functions[{number}]") for number, shape in enumerate(fields.functions or ())
    ]
    _check_names(functions, "functions[{}].name")
    if fields.tool_choice not in (None, "none"):
        raise bad("tool_choice", "'tool_choice' needs 'tools'; with 'functions' send 'function_call'.")
    call = fields.function_call
    if call is None:
        choice = _Choice("auto")
    elif isinstance(call, _Named):
        choice = _Choice("named", ((call.name, "function_call.name"),))
    elif call in ("none", "auto"):
        choice = _Choice("none" if call == "none" else "auto")
    else:
        raise bad("function_call", '\'function_call\' must be "none", "auto" or name a function.')
    tools = [_filled({"type": "function", "function": function}) for function in raw]
    # One message of the older form holds one call.
    return _narrowed(functions, tools, choice, parallel=False, legacy=True)


def _tool(shape: _ToolShape, path: str) -> Function:
    if shape.type != "function":
        raise unsupported(f"{path}.type", f"Tools of type '{shape.type[:64]}' are not supported.")
    if shape.function is None:
        raise missing(f"{path}.function")
    return _function(shape.function, f"{path}.function")


def _function(shape: _FunctionShape, path: str) -> Function:
    if not is_name(shape.name):
        raise bad(f"{path}.name", "A function's name is 1 to 64 of the characters a-z, A-Z, 0-9, _ and -.")
    parameters = shape.parameters
    if parameters is None:
        parameters = _WITHOUT_PARAMETERS
    check_object_schema(parameters, f"{path}.parameters")
    return Function(shape.name, parameters, bool(shape.strict))


def check_object_schema(schema: dict[str, Any], path: str) -> None:
    """Raises InvalidRequestError if `schema` is clearly no JSON schema of an object."""
    check_depth(path, schema)
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise bad(f"{path}.type", "The schema must be of type 'object'.", "invalid_function_parameters")
    check_schema(schema, path)


def check_schema(schema: dict[str, Any], path: str) -> None:
    """Raises InvalidRequestError for keywords of the wrong kind at the top of a JSON schema."""
    for name, kind, word in _KEYWORDS:
        if name in schema and not isinstance(schema[name], kind):
            raise bad(f"{path}.{name}", f"'{name}' of a JSON schema must be {word}.", "invalid_json_schema")
    if any(not isinstance(name, str) for name in schema.get("required", ())):
        raise bad(f"{path}.required", "'required' must hold strings.", "invalid_json_schema")


_KEYWORDS: Final[tuple[tuple[str, type, str], ...]] = (
    ("properties", dict, "an object"),
    ("$defs", dict, "an object"),
    ("definitions", dict, "an object"),
    ("required", list, "an array"),
)


def _check_names(functions: list[Function], path: str) -> None:
    seen: set[str] = set()
    for number, function in enumerate(functions):
        if function.name in seen:
            raise bad(path.format(number), f"There are two functions named '{function.name}'.")
        seen.add(function.name)


def _choice(given: str | _ChoiceShape | None, any_tools: bool) -> _Choice:
    if given is None:
        return _Choice("auto" if any_tools else "none")
    if given == "none":
        return _Choice("none")
    if not any_tools:
        raise bad("tool_choice", "'tool_choice' needs 'tools'.")
    if isinstance(given, _ChoiceShape):
        return _choice_object(given)
    if given == "auto":
        return _Choice("auto")
    if given == "required":
        return _Choice("required")
    raise bad("tool_choice", '\'tool_choice\' must be "none", "auto", "required" or an object.')


def _choice_object(given: _ChoiceShape) -> _Choice:
    if given.type == "allowed_tools":
        return _allowed(given)
    if given.type != "function":
        raise unsupported(
            "tool_choice.type", f"A 'tool_choice' of type '{given.type[:64]}' is not supported."
        )
    return _Choice("named", (_name(given.function, given.name, "tool_choice"),))


def _allowed(given: _ChoiceShape) -> _Choice:
    """`allowed_tools` as chat completions have it, or flat, as responses have it."""
    path = "tool_choice"
    mode, entries = given.mode, given.tools
    if given.allowed_tools is not None:
        path = "tool_choice.allowed_tools"
        mode, entries = given.allowed_tools.mode, given.allowed_tools.tools
    elif mode is None and entries is None:
        raise missing("tool_choice.allowed_tools")
    if mode is None:
        raise missing(f"{path}.mode")
    if not entries:
        raise bad(f"{path}.tools", "At least one tool must be allowed.")
    names = []
    for number, entry in enumerate(entries):
        where = f"{path}.tools[{number}]"
        if entry.type != "function":
            raise unsupported(f"{where}.type", f"Tools of type '{entry.type[:64]}' are not supported.")
        names.append(_name(entry.function, entry.name, where))
    if mode == "auto":
        return _Choice("auto", tuple(names))
    if mode == "required":
        return _Choice("required", tuple(names))
    raise bad(f"{path}.mode", '\'mode\' must be "auto" or "required".')


def _name(function: _Named | None, name: str | None, path: str) -> tuple[str, str]:
    if function is not None:
        return function.name, f"{path}.function.name"
    if name is not None:
        return name, f"{path}.name"
    raise missing(f"{path}.function")


def _narrowed(
    functions: list[Function],
    raw: list[dict[str, Any]],
    choice: _Choice,
    *,
    parallel: bool,
    legacy: bool = False,
) -> ToolSet:
    """What the choice leaves of the tools; the model is not told of the others."""
    if choice.mode == "none" or not functions:
        return ToolSet(parallel=parallel, legacy=legacy)
    known = {function.name for function in functions}
    for name, path in choice.names:
        if name not in known:
            raise bad(path, f"There is no function named '{name[:64]}' among the tools.")
    names = {name for name, _ in choice.names} or known
    kept = [number for number, function in enumerate(functions) if function.name in names]
    return ToolSet(
        functions=tuple(functions[number] for number in kept),
        mode=choice.mode,
        parallel=parallel,
        legacy=legacy,
        for_template=tuple(raw[number] for number in kept),
    )


def _filled(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as sent; templates count on `type` and on `parameters`."""
    function = tool["function"]
    if "type" in tool and function.get("parameters") is not None:
        return tool
    parameters = function.get("parameters")
    filled = {**function, "parameters": _WITHOUT_PARAMETERS if parameters is None else parameters}
    return {"type": "function", **tool, "function": filled}
