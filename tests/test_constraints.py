"""What the worker's grammar is given for each kind of request, and how the answer is read then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wsgi_router import constraints, parsers
from wsgi_router.constraints import FREE, Constraint
from wsgi_router.errors import InvalidRequestError
from wsgi_router.schema.output import parse_output

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TIME = {"type": "object", "properties": {"zone": {"type": "string"}}, "additionalProperties": False}
ANSWER = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
OPEN = {"type": "object", "additionalProperties": True}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}

WITHOUT_MARKERS = [form.name for form in parsers.TOOL_FORMATS if form.markers is None]
BARE = [form.name for form in parsers.TOOL_FORMATS if not form.forced]
OWN = [form.name for form in parsers.TOOL_FORMATS if form.markers and form.markers.layout != "harmony"]


def tool(name: str, parameters: Any = None, strict: bool = False) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


WEATHER, CLOCK = tool("weather", CITY), tool("clock", TIME)


def build(form: str | None, before: int = 0, **fields: Any) -> Constraint:
    output = parse_output(fields)
    models = [form] if form else []
    chosen = parsers.TOOLS.choose(form, models) if form else None
    return constraints.build(output.tools, output.format, chosen, before)


def value(constraint: Constraint) -> Any:
    return json.loads(constraint.value)


def choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def schema(of: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": of}


@pytest.mark.parametrize("form", [None, *BARE])
@pytest.mark.parametrize(
    "tool_choice",
    [
        "required",
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [choice("weather"), choice("clock")]},
        },
    ],
)
def test_required_is_an_array_of_calls(form: str | None, tool_choice: Any) -> None:
    made = build(form, tools=[WEATHER, CLOCK], tool_choice=tool_choice)
    assert (made.field, made.read_as) == ("json_schema", "calls_array")
    assert value(made) == {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "anyOf": [
                {
                    "properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters},
                    "required": ["name", "parameters"],
                }
                for name, parameters in (("weather", CITY), ("clock", TIME))
            ],
        },
    }


def test_only_allowed_tools_are_in_the_array() -> None:
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [choice("clock")]}}
    calls = value(build("qwen", tools=[WEATHER, CLOCK], tool_choice=only))["items"]["anyOf"]
    assert [call["properties"]["name"]["enum"] for call in calls] == [["clock"]]


def test_one_call_at_most() -> None:
    made = build("qwen", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert (value(made)["minItems"], value(made)["maxItems"]) == (1, 1)


@pytest.mark.parametrize("form", [None, *BARE])
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (CITY, CITY),
        (None, {"type": "object", "properties": {}}),
        ({}, {"type": "object"}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": CITY}},
            {"$ref": "#/$defs/A", "$defs": {"A": CITY}},
        ),
    ],
)
def test_a_named_function_is_its_parameters(form: str | None, parameters: Any, expected: Any) -> None:
    made = build(form, tools=[CLOCK, tool("f", parameters)], tool_choice=choice("f"))
    assert (made.field, made.read_as) == ("json_schema", "named_arguments")
    assert value(made) == expected


def test_an_old_function_call_is_a_named_one() -> None:
    made = build("json", functions=[{"name": "f", "parameters": CITY}], function_call={"name": "f"})
    assert (value(made), made.read_as) == (CITY, "named_arguments")


def with_definition(name: str, definition: Any, keyword: str = "$defs") -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"x": {"$ref": f"#/{keyword}/{name}"}},
        keyword: {name: definition},
    }


@pytest.mark.parametrize("keyword", ["$defs", "definitions"])
def test_definitions_go_to_the_top(keyword: str) -> None:
    tools = [
        tool("f", with_definition("A", CITY, keyword)),
        tool("g", with_definition("B", TIME, keyword)),
        tool("h", with_definition("A", CITY, keyword)),
    ]
    made = value(build("json", tools=tools, tool_choice="required"))
    assert made[keyword] == {"A": CITY, "B": TIME}
    for call, name in zip(made["items"]["anyOf"], "ABA", strict=True):
        assert call["properties"]["parameters"] == {
            "type": "object",
            "properties": {"x": {"$ref": f"#/{keyword}/{name}"}},
        }


def test_definitions_that_clash_are_refused() -> None:
    tools = [tool("f", with_definition("A", CITY)), tool("g", with_definition("A", TIME))]
    with pytest.raises(InvalidRequestError, match="'A' of 'g'") as caught:
        build("json", tools=tools, tool_choice="required")
    assert (caught.value.param, caught.value.status) == ("tools", 400)
    assert build("json", tools=tools, tool_choice=choice("g")).field == "json_schema"
    assert build("json", tools=tools) == FREE


def test_references_into_a_schema_follow_it() -> None:
    tree = {
        "type": "object",
        "properties": {
            "child": {"$ref": "#"},
            "other": {"$ref": "#/properties/child"},
            "far": {"$ref": "https://example.org/x"},
            "anchor": {"$ref": "#here"},
            "default": {"$ref": "#"},
            "data": {"const": {"$ref": "#"}, "enum": [{"$ref": "#"}]},
        },
    }
    made = value(build("json", tools=[CLOCK, tool("tree", tree)], tool_choice="required"))
    root = "#/$defs/tree.parameters"
    assert made["items"]["anyOf"][0]["properties"]["parameters"] == TIME
    assert made["items"]["anyOf"][1]["properties"]["parameters"] == {"$ref": root}
    assert made["$defs"]["tree.parameters"]["properties"] == {
        "child": {"$ref": root},
        "other": {"$ref": f"{root}/properties/child"},
        "far": {"$ref": "https://example.org/x"},
        "anchor": {"$ref": "#here"},
        "default": {"$ref": root},
        "data": {"const": {"$ref": "#"}, "enum": [{"$ref": "#"}]},
    }


@pytest.mark.parametrize(
    ("tools", "tool_choice", "good", "bad"),
    [
        (
            [WEATHER, CLOCK],
            "required",
            [
                '[{"name": "weather", "parameters": {"city": "Oslo"}}]',
                '[{"name": "clock", "parameters": {}}, {"name": "weather", "parameters": {"city": ""}}]',
            ],
            [
                "[]",
                '[{"name": "other", "parameters": {}}]',
                '[{"name": "weather", "parameters": {"zone": "x"}}]',
                '{"name": "clock", "parameters": {}}',
            ],
        ),
        (
            [tool("f", with_definition("A", CITY)), tool("g", with_definition("B", TIME))],
            "required",
            ['[{"name": "f", "parameters": {"x": {"city": "Oslo"}}}]'],
            ['[{"name": "f", "parameters": {"x": {"zone": "x"}}}]'],
        ),
        ([WEATHER], choice("weather"), ['{"city": "Oslo"}'], ["{}", '{"city": 3}', "Oslo"]),
        ([tool("f")], choice("f"), ["{}"], ['{"a": 1}', "[]"]),
    ],
)
def test_a_grammar_made_of_the_schema(tools: Any, tool_choice: Any, good: list[str], bad: list[str]) -> None:
    pytest.importorskip("cyllama")
    from wsgi_router.local_worker.gbnf import parse_gbnf
    from wsgi_router.local_worker.json_schema import schema_grammar
    from wsgi_router.local_worker.matcher import Matcher

    rules = parse_gbnf(schema_grammar(build("qwen", tools=tools, tool_choice=tool_choice).value))

    def allows(text: str) -> bool:
        matcher = Matcher(rules)
        matcher.feed(text.encode())
        return None in matcher._ways

    assert [text for text in good if not allows(text)] == []
    assert [text for text in bad if allows(text)] == []


@pytest.mark.parametrize("form", [None, *(form.name for form in parsers.TOOL_FORMATS)])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": []},
        {"tools": [WEATHER, CLOCK]},
        {"tools": [WEATHER], "tool_choice": "auto", "parallel_tool_calls": False},
        {"tools": [tool("f", CITY, strict=True)], "tool_choice": "none"},
        {
            "tools": [WEATHER, CLOCK],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [choice("clock")]},
            },
        },
        {"response_format": {"type": "text"}},
    ],
)
def test_what_needs_no_constraint(form: str | None, fields: dict[str, Any]) -> None:
    assert build(form, **fields) == FREE


NO_HARMONY = [None, *(form.name for form in parsers.TOOL_FORMATS if form.name != "gpt-oss")]


@pytest.mark.parametrize("form", NO_HARMONY)
@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        ({"response_format": SCHEMA_FORMAT}, "json_schema", json.dumps(ANSWER, separators=(",", ":"))),
        ({"regex": "a+"}, "regex", "a+"),
        ({"ebnf": 'root ::= "é"'}, "ebnf", 'root ::= "é"'),
        ({"regex": "a+", "tools": [WEATHER], "tool_choice": "none"}, "regex", "a+"),
    ],
)
def test_formats_without_tools(form: str | None, fields: dict[str, Any], field: str, text: str) -> None:
    made = build(form, **fields)
    assert (made.field, made.value, made.read_as) == (field, text, "parser")


@pytest.mark.parametrize("form", [None, *(form.name for form in parsers.TOOL_FORMATS)])
@pytest.mark.parametrize("tools", [[], [WEATHER]])
def test_a_clients_own_tag_goes_as_it_is(form: str | None, tools: Any) -> None:
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    made = build(form, tools=tools, response_format=tag)
    assert (made.field, value(made), made.read_as) == ("structural_tag", tag, "parser")


@pytest.mark.parametrize("form", [*BARE, "mistral", "kimi_k2", "gpt-oss"])
def test_a_forced_call_takes_the_response_formats_place(form: str) -> None:
    forced: dict[str, Any] = {"tools": [WEATHER, CLOCK], "tool_choice": "required"}
    assert build(form, **forced, response_format=SCHEMA_FORMAT) == build(form, **forced)


# Structural tags.


def test_mistrals_calls_are_in_one_list() -> None:
    made = build("mistral", tools=[WEATHER, CLOCK], tool_choice="required")
    assert (made.field, made.read_as) == ("structural_tag", "parser")
    calls = [
        {"begin": f'{{"name": "{name}", "arguments": ', "content": schema(parameters), "end": "}"}
        for name, parameters in (("weather", CITY), ("clock", TIME))
    ]
    content = {"type": "tags_with_separator", "tags": calls, "separator": ", ", "at_least_one": True}
    assert value(made) == {
        "format": {
            "type": "triggered_tags",
            "triggers": ["[TOOL_CALLS]"],
            "tags": [{"begin": "[TOOL_CALLS] [", "content": content, "end": "]"}],
            "at_least_one": True,
        }
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [CLOCK, WEATHER], "tool_choice": choice("weather")},
        {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
    ],
)
def test_one_call_of_mistrals(fields: dict[str, Any]) -> None:
    assert value(build("mistral", **fields)) == {
        "format": {
            "type": "triggered_tags",
            "triggers": ["[TOOL_CALLS]"],
            "tags": [
                {
                    "begin": '[TOOL_CALLS] [{"name": "weather", "arguments": ',
                    "content": schema(CITY),
                    "end": "}]",
                }
            ],
            "at_least_one": True,
            "stop_after_first": True,
        }
    }


def test_kimis_calls_count_on_from_the_conversations() -> None:
    made = build("kimi_k2", 3, tools=[WEATHER, CLOCK], tool_choice="required")
    assert (made.field, made.read_as) == ("structural_tag", "parser")
    section, call = "<|tool_calls_section_begin|>", "<|tool_call_begin|>"
    assert value(made) == {
        "format": {
            "type": "triggered_tags",
            "triggers": [section, call],
            "tags": [
                {
                    "begin": f"{before}functions.{name}:{index}<|tool_call_argument_begin|>",
                    "content": schema(parameters),
                    "end": "<|tool_call_end|>",
                }
                for before, index in ((section + call, 3), (call, 4))
                for name, parameters in (("weather", CITY), ("clock", TIME))
            ],
            "at_least_one": True,
        }
    }


def test_one_call_of_kimis_is_a_whole_section() -> None:
    made = value(build("kimi_k2", tools=[CLOCK], tool_choice=choice("clock")))["format"]
    assert made["stop_after_first"] is True
    assert made["tags"] == [
        {
            "begin": "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0"
            "<|tool_call_argument_begin|>",
            "content": schema(TIME),
            "end": "<|tool_call_end|><|tool_calls_section_end|>",
        }
    ]


@pytest.mark.parametrize(
    ("form", "begin", "end"),
    [
        ("qwen", '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
        ("qwen_coder", "<tool_call>\n<function=f>\n", "\n</function>\n</tool_call>"),
        ("llama", '<|python_tag|>{"name": "f", "parameters": ', "}"),
        (
            "deepseek_v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n",
            "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "deepseek_v31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "cohere",
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": ',
            "}]<|END_ACTION|>",
        ),
    ],
)
def test_a_strict_call_in_each_format(form: str, begin: str, end: str) -> None:
    made = build(form, tools=[tool("f", CITY, strict=True)], parallel_tool_calls=False)
    assert (made.field, made.read_as) == ("structural_tag", "parser")
    tags = value(made)["format"]
    assert tags["at_least_one"] is False
    assert [(tag["begin"], tag["end"]) for tag in tags["tags"]] == [(begin, end)]
    assert tags["tags"][0]["content"]["json_schema"] == CITY
    assert begin.startswith(tags["triggers"][0])


@pytest.mark.parametrize("form", OWN)
@pytest.mark.parametrize("parallel", [True, False])
def test_every_tag_has_one_trigger(form: str, parallel: bool) -> None:
    """xgrammar refuses other tags."""
    made = build(
        form,
        tools=[tool("get", CITY, strict=True), tool("get_all", TIME, strict=True)],
        parallel_tool_calls=parallel,
    )
    tags = value(made)["format"]
    for tag in tags["tags"]:
        assert sum(tag["begin"].startswith(trigger) for trigger in tags["triggers"]) == 1


@pytest.mark.parametrize("form", OWN)
def test_functions_that_are_not_strict_may_be_called_as_ever(form: str) -> None:
    made = build(form, tools=[tool("f", CITY, strict=True), CLOCK], parallel_tool_calls=False)
    schemas = [tag["content"]["json_schema"] for tag in value(made)["format"]["tags"]]
    assert schemas == [CITY, OPEN]


@pytest.mark.parametrize("form", [None, *WITHOUT_MARKERS])
def test_strict_without_markers_is_free(form: str | None) -> None:
    assert build(form, tools=[tool("f", CITY, strict=True)]) == FREE


@pytest.mark.parametrize("form", OWN)
@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"response_format": SCHEMA_FORMAT}, schema(ANSWER)),
        ({"response_format": {"type": "json_object"}}, schema({"type": "object"})),
        ({"regex": "a+"}, {"type": "regex", "pattern": "a+"}),
        ({"ebnf": "root ::= a"}, {"type": "grammar", "grammar": "root ::= a"}),
    ],
)
def test_an_answer_or_calls(form: str, fields: dict[str, Any], content: Any) -> None:
    made = build(form, tools=[tool("f", CITY, strict=True)], **fields)
    assert (made.field, made.read_as) == ("structural_tag", "parser")
    either = value(made)["format"]
    assert either["type"] == "or"
    answer, calls = either["elements"]
    assert answer == {
        "type": "tags_with_separator",
        "tags": [{"begin": "", "content": content, "end": ""}],
        "separator": "",
        "at_least_one": True,
        "stop_after_first": True,
    }
    assert (calls["type"], calls["at_least_one"]) == ("triggered_tags", True)
    strict = value(build(form, tools=[tool("f", CITY, strict=True)]))["format"]
    assert calls == {**strict, "at_least_one": True}


@pytest.mark.parametrize("form", [None, *WITHOUT_MARKERS])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": SCHEMA_FORMAT}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"regex": "a+"}, "regex"),
        ({"ebnf": "root ::= a"}, "ebnf"),
    ],
)
def test_an_answer_or_calls_without_markers(form: str | None, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build(form, tools=[WEATHER], **fields)
    assert (caught.value.param, caught.value.status) == (param, 400)


# Harmony.

CALL_HEAD = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"


def test_harmonys_forced_call_may_follow_thoughts() -> None:
    made = build("gpt-oss", tools=[WEATHER, CLOCK], tool_choice="required")
    assert (made.field, made.read_as, made.covers_reasoning) == ("structural_tag", "parser", True)
    at_once, thought_first = value(made)["format"]["elements"]
    assert at_once["elements"] == [
        {"type": "tag", "begin": CALL_HEAD.format(name), "content": schema(parameters), "end": ""}
        for name, parameters in (("weather", CITY), ("clock", TIME))
    ]
    thought, call = thought_first["elements"]
    assert thought_first["type"] == "sequence"
    assert call == at_once
    assert thought == {
        "type": "tag",
        "begin": "<|channel|>analysis<|message|>",
        "content": {"type": "any_text"},
        "end": "<|end|><|start|>assistant",
    }


def test_harmonys_answer_is_on_its_channel() -> None:
    made = build("gpt-oss", response_format=SCHEMA_FORMAT, tools=[tool("f", CITY, strict=True), CLOCK])
    assert made.covers_reasoning
    tags = value(made)["format"]
    assert (tags["type"], tags["at_least_one"]) == ("triggered_tags", True)
    contents = {tag["begin"]: tag["content"] for tag in tags["tags"]}
    assert contents == {
        "<|channel|>analysis<|message|>": {"type": "any_text"},
        "<|channel|>final<|message|>": schema(ANSWER),
        "<|channel|>final <|constrain|>json<|message|>": schema(ANSWER),
        CALL_HEAD.format("f"): schema(CITY),
        CALL_HEAD.format("clock"): schema(OPEN),
    }
    for begin in contents:
        assert sum(begin.startswith(trigger) for trigger in tags["triggers"]) == 1


def test_harmonys_strict_calls() -> None:
    tags = value(build("gpt-oss", tools=[tool("f", CITY, strict=True)]))["format"]
    assert tags == {
        "type": "triggered_tags",
        "triggers": ["<|channel|>commentary to=functions."],
        "tags": [{"begin": CALL_HEAD.format("f"), "content": schema(CITY), "end": ""}],
        "at_least_one": False,
    }
