"""Tools, their choice, answer formats and logprobs: what is accepted, what is refused, under which name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgi_router.errors import InvalidRequestError
from wsgi_router.schema import parse_chat
from wsgi_router.schema.formats import parse_format
from wsgi_router.schema.output import TAKEN, parse_output
from wsgi_router.schema.tools import MAX_TOOLS, ToolSet, parse_tools

MISSING, TYPE, VALUE, UNSUPPORTED = (
    "missing_required_parameter",
    "invalid_type",
    "invalid_value",
    "unsupported_parameter",
)
PARAMETERS, SCHEMA = "invalid_function_parameters", "invalid_json_schema"

EMPTY = {"type": "object", "properties": {}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


F, G = tool("f", parameters=CITY), tool("g")
FG = [F, G]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def shape(tools: ToolSet) -> tuple[str, list[str]]:
    return tools.mode, [function.name for function in tools.functions]


CHOICES: list[tuple[dict[str, Any], str, list[str]]] = [
    ({}, "none", []),
    ({"tools": []}, "none", []),
    ({"tools": None, "tool_choice": None}, "none", []),
    ({"tools": [], "tool_choice": "none"}, "none", []),
    ({"tool_choice": "none"}, "none", []),
    ({"tools": FG}, "auto", ["f", "g"]),
    ({"tools": FG, "tool_choice": None}, "auto", ["f", "g"]),
    ({"tools": FG, "tool_choice": "auto"}, "auto", ["f", "g"]),
    ({"tools": FG, "tool_choice": "none"}, "none", []),
    ({"tools": FG, "tool_choice": "required"}, "required", ["f", "g"]),
    (
        {"tools": FG, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "named",
        ["g"],
    ),
    ({"tools": FG, "tool_choice": {"type": "function", "name": "g"}}, "named", ["g"]),
    ({"tools": FG, "tool_choice": {"function": {"name": "f"}}}, "named", ["f"]),
    ({"tools": FG, "tool_choice": allowed("auto", "g")}, "auto", ["g"]),
    ({"tools": FG, "tool_choice": allowed("required", "g", "f")}, "required", ["f", "g"]),
    (
        {
            "tools": FG,
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "g"}],
            },
        },
        "required",
        ["g"],
    ),
    ({"functions": [F["function"], G["function"]]}, "auto", ["f", "g"]),
    ({"functions": [F["function"]], "tools": []}, "auto", ["f"]),
    ({"functions": [F["function"]], "function_call": "none"}, "none", []),
    ({"functions": [F["function"]], "function_call": "auto"}, "auto", ["f"]),
    ({"functions": [F["function"]], "function_call": {"name": "f"}}, "named", ["f"]),
    ({"functions": [], "function_call": "none"}, "none", []),
    ({"tools": FG, "function_call": "none"}, "auto", ["f", "g"]),
]


@pytest.mark.parametrize(("fields", "mode", "names"), CHOICES)
def test_choices(fields: dict[str, Any], mode: str, names: list[str]) -> None:
    tools = parse_tools(fields)
    assert shape(tools) == (mode, names)
    assert [item["function"]["name"] for item in tools.for_template] == names
    assert tools.legacy is bool(fields.get("functions"))


REFUSED_TOOLS: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": "x"}, "tools", TYPE),
    ({"tools": ["x"]}, "tools[0]", TYPE),
    ({"tools": [{"type": "function"}]}, "tools[0].function", MISSING),
    ({"tools": [F, {"type": "custom", "custom": {"name": "c"}}]}, "tools[1].type", UNSUPPORTED),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", UNSUPPORTED),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", MISSING),
    ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function", MISSING),
    ({"tools": [tool("")]}, "tools[0].function.name", VALUE),
    ({"tools": [tool("a.b")]}, "tools[0].function.name", VALUE),
    ({"tools": [tool("f\n")]}, "tools[0].function.name", VALUE),
    ({"tools": [tool("é")]}, "tools[0].function.name", VALUE),
    ({"tools": [tool("x" * 65)]}, "tools[0].function.name", VALUE),
    ({"tools": [F, tool("f")]}, "tools[1].function.name", VALUE),
    ({"tools": [tool(f"f{number}") for number in range(MAX_TOOLS + 1)]}, "tools", VALUE),
    ({"tools": [tool(parameters="x")]}, "tools[0].function.parameters", TYPE),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters.type", PARAMETERS),
    ({"tools": [tool(parameters={"type": 3})]}, "tools[0].function.parameters.type", PARAMETERS),
    (
        {"tools": [tool(parameters={"properties": []})]},
        "tools[0].function.parameters.properties",
        SCHEMA,
    ),
    (
        {"tools": [tool(parameters={"type": "object", "required": "x"})]},
        "tools[0].function.parameters.required",
        SCHEMA,
    ),
    (
        {"tools": [tool(parameters={"type": "object", "required": [1]})]},
        "tools[0].function.parameters.required",
        SCHEMA,
    ),
    ({"tools": [tool(parameters={"$defs": 1})]}, "tools[0].function.parameters.$defs", SCHEMA),
    ({"tools": [tool(strict="yes")]}, "tools[0].function.strict", TYPE),
    ({"tools": [tool(description=1)]}, "tools[0].function.description", TYPE),
    ({"tool_choice": "auto"}, "tool_choice", VALUE),
    ({"tool_choice": "required"}, "tool_choice", VALUE),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", VALUE),
    ({"tools": [], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", VALUE),
    ({"tools": FG, "tool_choice": "any"}, "tool_choice", VALUE),
    ({"tools": FG, "tool_choice": 3}, "tool_choice", TYPE),
    ({"tools": FG, "tool_choice": {}}, "tool_choice.function", MISSING),
    ({"tools": FG, "tool_choice": {"type": "function"}}, "tool_choice.function", MISSING),
    (
        {"tools": FG, "tool_choice": {"type": "function", "function": {}}},
        "tool_choice.function.name",
        MISSING,
    ),
    ({"tools": FG, "tool_choice": {"type": "custom", "name": "f"}}, "tool_choice.type", UNSUPPORTED),
    (
        {"tools": FG, "tool_choice": {"type": "function", "function": {"name": "h"}}},
        "tool_choice.function.name",
        VALUE,
    ),
    ({"tools": FG, "tool_choice": {"type": "function", "name": "h"}}, "tool_choice.name", VALUE),
    ({"tools": FG, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", MISSING),
    (
        {"tools": FG, "tool_choice": {"type": "allowed_tools", "tools": []}},
        "tool_choice.mode",
        MISSING,
    ),
    ({"tools": FG, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools", VALUE),
    ({"tools": FG, "tool_choice": allowed("none", "f")}, "tool_choice.allowed_tools.mode", VALUE),
    (
        {"tools": FG, "tool_choice": allowed("auto", "f", "h")},
        "tool_choice.allowed_tools.tools[1].function.name",
        VALUE,
    ),
    (
        {
            "tools": FG,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]},
            },
        },
        "tool_choice.allowed_tools.tools[0].type",
        UNSUPPORTED,
    ),
    ({"tools": FG, "parallel_tool_calls": "no"}, "parallel_tool_calls", TYPE),
    ({"functions": [F["function"]], "tools": FG}, "functions", VALUE),
    ({"functions": [F["function"]], "tool_choice": "auto"}, "tool_choice", VALUE),
    ({"functions": [{"name": "a b"}]}, "functions[0].name", VALUE),
    ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name", VALUE),
    ({"functions": [{}]}, "functions[0].name", MISSING),
    ({"functions": [F["function"]], "function_call": "required"}, "function_call", VALUE),
    ({"functions": [F["function"]], "function_call": {"name": "h"}}, "function_call.name", VALUE),
    ({"functions": [F["function"]], "function_call": {}}, "function_call.name", MISSING),
    ({"function_call": "auto"}, "function_call", VALUE),
    ({"tools": FG, "function_call": "auto"}, "function_call", VALUE),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED_TOOLS)
def test_refused_tools(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_tools(fields)
    assert (caught.value.param, caught.value.code, caught.value.status) == (param, code, 400)


def test_a_choice_without_tools_says_so_in_its_error() -> None:
    with pytest.raises(InvalidRequestError, match="needs 'tools'"):
        parse_tools({"tools": [], "tool_choice": "required"})


@pytest.mark.parametrize("parameters", [..., None])
def test_a_function_without_parameters_takes_none(parameters: Any) -> None:
    sent = tool() if parameters is ... else tool(parameters=parameters)
    tools = parse_tools({"tools": [sent]})
    assert tools.functions[0].parameters == EMPTY
    assert tools.for_template == (tool(parameters=EMPTY),)


def test_templates_get_tools_as_they_were_sent() -> None:
    sent = {"cache": 1, **tool("f", strict=True, extra=[1], parameters={"type": ["object", "null"]})}
    tools = parse_tools({"tools": [sent]})
    assert tools.for_template == (sent,)
    assert tools.functions[0].strict


def test_old_functions_become_tools() -> None:
    tools = parse_tools({"functions": [{"name": "f", "parameters": CITY}, {"name": "g"}]})
    assert tools.for_template == (F, tool("g", parameters=EMPTY))
    assert (tools.legacy, tools.parallel) == (True, False)


@pytest.mark.parametrize(("given", "parallel"), [({}, True), ({"parallel_tool_calls": False}, False)])
def test_several_calls_at_once(given: dict[str, Any], parallel: bool) -> None:
    assert parse_tools({"tools": FG, **given}).parallel is parallel


def response(**fields: Any) -> dict[str, Any]:
    return {"response_format": fields}


def named(**fields: Any) -> dict[str, Any]:
    return response(type="json_schema", json_schema={"name": "n", **fields})


TAG = {"type": "triggered_tags", "triggers": ["<a>"], "tags": []}
STRUCTURES = [{"begin": "<a>", "schema": CITY, "end": "</a>"}]


FORMATS: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "text", None),
    ({"response_format": None, "regex": None, "ebnf": None}, "text", None),
    (response(type="text"), "text", None),
    (response(type="json_object"), "json_schema", {"type": "object"}),
    (named(schema=CITY, strict=True, description="d"), "json_schema", CITY),
    (named(), "json_schema", {"type": "object"}),
    (named(schema={"type": "array"}), "json_schema", {"type": "array"}),
    (
        response(type="structural_tag", format=TAG),
        "structural_tag",
        {"type": "structural_tag", "format": TAG},
    ),
    (
        response(type="structural_tag", structures=STRUCTURES, triggers=["<a>"]),
        "structural_tag",
        {"type": "structural_tag", "structures": STRUCTURES, "triggers": ["<a>"]},
    ),
    ({"structural_tag": {"format": TAG}}, "structural_tag", {"type": "structural_tag", "format": TAG}),
    (
        {"structural_tag": json.dumps({"type": "structural_tag", "format": TAG})},
        "structural_tag",
        {"type": "structural_tag", "format": TAG},
    ),
    ({"regex": "a+"}, "regex", "a+"),
    ({"ebnf": 'root ::= "a"', "response_format": {"type": "text"}}, "ebnf", 'root ::= "a"'),
]


@pytest.mark.parametrize(("fields", "kind", "value"), FORMATS)
def test_formats(fields: dict[str, Any], kind: str, value: Any) -> None:
    form = parse_format(fields)
    assert (form.kind, form.value) == (kind, value)
    assert kind == "text" or form.field in fields


REFUSED_FORMATS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", TYPE),
    (response(), "response_format.type", MISSING),
    (response(type="xml"), "response_format.type", VALUE),
    (response(type="json_schema"), "response_format.json_schema", MISSING),
    (response(type="json_schema", schema=CITY), "response_format.json_schema", MISSING),
    (response(type="json_schema", json_schema={}), "response_format.json_schema.name", MISSING),
    (named(name="a b"), "response_format.json_schema.name", VALUE),
    (named(name="x" * 65), "response_format.json_schema.name", VALUE),
    (named(schema="x"), "response_format.json_schema.schema", TYPE),
    (named(schema={"properties": 1}), "response_format.json_schema.schema.properties", SCHEMA),
    (named(strict=1), "response_format.json_schema.strict", TYPE),
    (response(type="structural_tag"), "response_format.format", MISSING),
    (response(type="structural_tag", format={}), "response_format.format.type", MISSING),
    (response(type="structural_tag", structures=[]), "response_format.structures", MISSING),
    (response(type="structural_tag", structures=STRUCTURES), "response_format.triggers", VALUE),
    (
        response(type="structural_tag", structures=[{"begin": "<a>"}], triggers=["<"]),
        "response_format.structures[0].end",
        MISSING,
    ),
    (
        response(type="structural_tag", format=TAG, structures=STRUCTURES),
        "response_format.structures",
        VALUE,
    ),
    ({"structural_tag": "{"}, "structural_tag", VALUE),
    ({"structural_tag": "3"}, "structural_tag", TYPE),
    ({"structural_tag": {"type": "json_object"}}, "structural_tag.type", VALUE),
    ({"regex": ""}, "regex", VALUE),
    ({"regex": 3}, "regex", TYPE),
    ({"ebnf": ""}, "ebnf", VALUE),
    ({"ebnf": ["root"]}, "ebnf", TYPE),
    ({"regex": "a", "ebnf": "root ::= a"}, "ebnf", VALUE),
    ({"regex": "a", **response(type="json_object")}, "regex", VALUE),
    ({"ebnf": "root ::= a", **named(schema=CITY)}, "ebnf", VALUE),
    ({"structural_tag": {"format": TAG}, "regex": "a"}, "regex", VALUE),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED_FORMATS)
def test_refused_formats(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_format(fields)
    assert (caught.value.param, caught.value.code) == (param, code)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_schemas_are_not_too_deep() -> None:
    with pytest.raises(InvalidRequestError, match="nested") as caught:
        parse_tools({"tools": [tool(parameters=nested(100))]})
    assert caught.value.param == "tools[0].function.parameters"
    with pytest.raises(InvalidRequestError, match="nested") as caught:
        parse_format(named(schema=nested(100)))
    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (False, 0)),
        ({"logprobs": None, "top_logprobs": None}, (False, 0)),
        ({"logprobs": True}, (True, 0)),
        ({"logprobs": True, "top_logprobs": 20}, (True, 20)),
        ({"logprobs": False, "top_logprobs": 0}, (False, 0)),
    ],
)
def test_logprobs(fields: dict[str, Any], expected: tuple[bool, int]) -> None:
    output = parse_output(fields)
    assert (output.logprobs, output.top_logprobs) == expected


REFUSED_OUTPUT: list[tuple[dict[str, Any], str, str]] = [
    ({"logprobs": 1}, "logprobs", TYPE),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", VALUE),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", VALUE),
    ({"logprobs": True, "top_logprobs": 1.5}, "top_logprobs", TYPE),
    ({"logprobs": True, "top_logprobs": True}, "top_logprobs", TYPE),
    ({"top_logprobs": 1}, "top_logprobs", VALUE),
    ({"logprobs": False, "top_logprobs": 1}, "top_logprobs", VALUE),
    ({"separate_reasoning": "no"}, "separate_reasoning", TYPE),
    ({"stream_reasoning": 0}, "stream_reasoning", TYPE),
    ({"tools": FG, "tool_choice": "required", "regex": "a"}, "regex", VALUE),
    ({"tools": FG, "tool_choice": "required", "ebnf": "root ::= a"}, "ebnf", VALUE),
    (
        {"tools": FG, "tool_choice": allowed("required", "f"), "structural_tag": {"format": TAG}},
        "structural_tag",
        VALUE,
    ),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED_OUTPUT)
def test_refused_output(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_output(fields)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_a_forced_call_leaves_the_response_format_without_effect() -> None:
    forced = parse_output({"tools": FG, "tool_choice": "required", **named(schema=CITY)})
    assert forced.format.kind == "text"
    free = parse_output({"tools": FG, **named(schema=CITY)})
    assert free.format.kind == "json_schema"
    with pytest.raises(InvalidRequestError):
        parse_output({"tools": FG, "tool_choice": "required", **response(type="xml")})


# The fields in a whole request, once they are built.

USER = {"role": "user", "content": "hi"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def test_a_request_with_everything() -> None:
    fields = {
        "tools": FG,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {"type": "json_object"},
        "separate_reasoning": False,
        "stream_reasoning": False,
    }
    request = parse_chat(body(**fields))
    assert request.unknown == []
    assert request.output == parse_output(fields)
    assert shape(request.output.tools) == ("required", ["f", "g"])
    assert (request.output.tools.parallel, request.output.logprobs) == (False, True)
    assert (request.output.separate_reasoning, request.output.stream_reasoning) == (False, False)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=8)
            | st.sampled_from(["type", "function", "name", "parameters", "tools", "mode", "format"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
FIELDS = sorted(TAKEN)


@given(st.sampled_from(FIELDS), JSON_VALUES)
def test_any_value_is_accepted_or_refused_by_name(name: str, value: Any) -> None:
    error = refusal({"tools": FG, name: value} if name == "tool_choice" else {name: value})
    assert error is None or (error.param or "").startswith(name)


def refusal(fields: dict[str, Any]) -> InvalidRequestError | None:
    """The error that fields meet; any other kind of error passes through."""
    try:
        parse_output(fields)
    except InvalidRequestError as error:
        return error
    return None
