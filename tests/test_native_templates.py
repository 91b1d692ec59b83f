"""Chat templates against transformers: equal byte for byte, or both refuse."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import models
from wsgi_router import native

Message = dict[str, Any]

REFUSED = "refused"

WEATHER: Message = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather "now" — für <eine> Stadt & mehr',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "名前"},
                "unit": {"enum": ["C", "F"], "default": None},
                "days": {"type": "integer", "minimum": 1, "maximum": 1e3, "strict": True},
            },
            "required": ["city"],
        },
    },
}
EMPTY_TOOL: Message = {"type": "function", "function": {"name": "now", "parameters": {}}}


def system(content: Any) -> Message:
    return {"role": "system", "content": content}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def tool(content: Any, call: str = "call_1") -> Message:
    return {"role": "tool", "tool_call_id": call, "content": content}


def call(arguments: Any, name: str = "get_weather", call_id: str = "call_1") -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


THOUGHT = "<think>\nWell…\n</think>\n\nAnswer"
ARGUMENTS = '{"city": "Zürich", "days": 2}'
CONVERSATIONS: dict[str, list[Message]] = {
    "user": [user("Hi")],
    "system": [system("Be brief."), user("Hi")],
    "turns": [user("1"), assistant("2"), user("3"), assistant("4"), user("5")],
    "system late": [user("1"), system("now rhyme"), user("2")],
    "system twice": [system("a"), system("b"), user("c")],
    "system alone": [system("a")],
    "assistant first": [assistant("Hello!"), user("Hi")],
    "assistant last": [user("Hi"), assistant("Hello")],
    "assistant only": [assistant("Hello")],
    "users in a row": [user("a"), user("b"), user("c")],
    "unknown role": [{"role": "critic", "content": "hm"}, user("a")],
    "no role": [{"content": "hm"}],
    "name": [{"role": "user", "name": "Zoë", "content": "a"}],
    "empty": [user("")],
    "empty assistant": [user("a"), assistant(""), user("b")],
    "null": [user("a"), assistant(None), user("b")],
    "null user": [user(None)],
    "no content": [{"role": "user"}],
    "null last": [user("a"), assistant(None)],
    "blanks": [system("  a \n"), user("\n\t b  \n\n"), assistant(" c \n")],
    "blank only": [user(" \n\t\u3000\x0b ")],
    "unicode": [user("👩‍👩‍👧‍👦 e\u0301 𠮷 שלום \x00\x1b\u2028\ufeff"), assistant("日本\u200d")],
    "markup": [user("<|im_end|>\n{{ 1 }} {% if %} {# #} <b>&amp;'\"\\ \\n")],
    "parts": [user([{"type": "text", "text": "One"}])],
    "two parts": [
        system([{"type": "text", "text": "S"}]),
        user(
            [{"type": "text", "text": "One"}, {"type": "text", "text": "two "}, {"type": "text", "text": ""}]
        ),
        assistant([{"type": "text", "text": "three"}]),
    ],
    "call": [user("?"), assistant("", tool_calls=[call(ARGUMENTS)]), tool("12 °C")],
    "call null": [user("?"), assistant(None, tool_calls=[call(ARGUMENTS)]), tool("12 °C")],
    "call dict": [user("?"), assistant("", tool_calls=[call({"city": "Zürich", "n": [1.0, None, True]})])],
    "call text": [
        user("?"),
        assistant("Let me see.", tool_calls=[call(ARGUMENTS)]),
        tool("1"),
        assistant("2"),
    ],
    "two calls": [
        user("?"),
        assistant("", tool_calls=[call("{}"), call('{"a":1}', "now", "call_2")]),
        tool("x"),
        tool('{"y": 1}', "call_2"),
        user("!"),
    ],
    "bare call": [user("?"), assistant("", tool_calls=[{"name": "now", "arguments": {}}])],
    "no calls": [user("?"), assistant("x", tool_calls=[]), user("!")],
    "tool first": [tool("x"), user("a")],
    "tool last": [user("a"), assistant("b"), tool("x")],
    "thought": [user("a"), assistant(THOUGHT), user("b")],
    "thought last": [user("a"), assistant(THOUGHT)],
    "thought open": [user("a"), assistant("<think>\nhalf")],
    "thought twice": [user("a"), assistant("<think>x</think>y</think>\n\nz")],
    "reasoning": [user("a"), assistant("b", reasoning_content="\nbecause\n"), user("c")],
    "reasoning last": [user("a"), assistant("\nb", reasoning_content="because")],
    "reasoning alias": [user("a"), assistant("b", reasoning="because")],
    "reasoning null": [user("a"), assistant(THOUGHT, reasoning_content=None)],
    "reasoning and call": [
        user("a"),
        assistant("", reasoning_content="need it", tool_calls=[call(ARGUMENTS)]),
        tool("12"),
        assistant("Cold.", reasoning_content="12 is cold"),
    ],
    "tool response as user": [user("a"), assistant("b"), user("<tool_response>\nx\n</tool_response>")],
    "refusal": [user("a"), assistant(None, refusal="No."), user("b")],
    "number": [user(5)],
    "object": [user({"a": 1})],
    "long": [user("word " * 2000), assistant("reply " * 500), user("x" * 5000)],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "continued": {"continue_final_message": True},
    "thinking": {"add_generation_prompt": True, "kwargs": {"enable_thinking": True}},
    "no thinking": {"add_generation_prompt": True, "kwargs": {"enable_thinking": False}},
    "thinking null": {
        "add_generation_prompt": True,
        "kwargs": {"enable_thinking": None, "other": [1, {"a": "b"}]},
    },
    "tools": {"add_generation_prompt": True, "tools": [WEATHER, EMPTY_TOOL]},
    "no tools": {"add_generation_prompt": True, "tools": []},
    "tools continued": {"continue_final_message": True, "tools": [WEATHER]},
    "documents": {"documents": [{"title": "t", "text": "x"}]},
}


def as_read(name: str, messages: list[Message]) -> list[Message]:
    """The messages as these templates read them, where transformers leaves that to its caller: text parts as
    one text (it would print the list), a call's arguments as a dict, and an assistant's null as an empty text
    where the template needs a text (transformers would leave it out, and the template would fail)."""
    made = copy.deepcopy(messages)
    for message in made:
        if message.get("role") == "assistant" and name != "llama3_1" and message.get("content") is None:
            message["content"] = ""
        if isinstance(message.get("content"), list):
            message["content"] = " ".join(part["text"] for part in message["content"])
        for each in message.get("tool_calls") or []:
            function = each.get("function", each)
            if isinstance(function["arguments"], str):
                function["arguments"] = json.loads(function["arguments"])
    return made


def expected(name: str, messages: list[Message], variant: dict[str, Any]) -> str:
    given = {key: value for key, value in variant.items() if key != "kwargs"}
    try:
        text = models.reference(name).apply_chat_template(
            as_read(name, messages), tokenize=False, **given, **variant.get("kwargs", {})
        )
    except Exception:
        return REFUSED
    assert isinstance(text, str)
    return text


def rendered(name: str, messages: list[Message], variant: dict[str, Any]) -> str:
    job = {"messages": messages, **variant}
    job["chat_template_kwargs"] = job.pop("kwargs", {})
    try:
        return models.core(name).render(json.dumps(job).encode())
    except native.NativeError as error:
        return REFUSED if error.code in (1, 3) and error.message else f"{error.code}: {error.message}"


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_conversations_render_as_by_transformers(name: str, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    for label, variant in VARIANTS.items():
        assert rendered(name, messages, variant) == expected(name, messages, variant), label


@pytest.mark.parametrize("name", models.NAMES)
def test_most_of_the_matrix_is_rendered(name: str) -> None:
    """Both refusing everything would be equal, too."""
    outcomes = [expected(name, m, v) != REFUSED for m in CONVERSATIONS.values() for v in VARIANTS.values()]
    assert sum(outcomes) > 0.6 * len(outcomes)
    assert not all(outcomes)


CONTENT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.text(" \n\tab", max_size=6),
    st.sampled_from(
        ["</think>", THOUGHT, "<think>", "<tool_response>x</tool_response>", "<|im_end|>", "a{{b}}"]
    ),
)
TEXT = st.lists(CONTENT, max_size=3).map("".join)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), FLOAT, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
ARGUMENT = st.dictionaries(TEXT, VALUE, max_size=3)
CALL = st.builds(call, st.one_of(ARGUMENT, ARGUMENT.map(json.dumps)), TEXT, st.just("call_1"))
PARTS = st.lists(TEXT.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool"]),
        "content": st.one_of(TEXT, TEXT, TEXT, PARTS, st.none()),
    },
    optional={
        "name": TEXT,
        "reasoning_content": st.one_of(st.none(), TEXT),
        "tool_calls": st.one_of(st.none(), st.lists(CALL, max_size=2)),
        "tool_call_id": TEXT,
    },
)
TOOL = st.builds(
    lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}},
    TEXT,
    ARGUMENT,
)


@pytest.mark.parametrize("name", models.NAMES)
def test_any_conversation_renders_as_by_transformers(name: str) -> None:
    rendered_some = 0

    @models.examples(150)
    @given(
        st.lists(MESSAGE, min_size=1, max_size=5),
        st.sampled_from(["add_generation_prompt", "continue_final_message", None]),
        st.one_of(st.none(), st.lists(TOOL, max_size=2)),
        st.dictionaries(st.sampled_from(["enable_thinking", "date", "documents_"]), VALUE, max_size=2),
    )
    def check(
        messages: list[Message], mode: str | None, tools: list[Message] | None, kwargs: dict[str, Any]
    ) -> None:
        nonlocal rendered_some
        variant: dict[str, Any] = {"kwargs": kwargs, "tools": tools}
        if mode:
            variant[mode] = True
        text = rendered(name, messages, variant)
        assert text == expected(name, messages, variant)
        rendered_some += text != REFUSED

    check()
    assert rendered_some > 30


@pytest.mark.parametrize("name", models.NAMES)
def test_the_ids_of_a_prompt_are_those_of_transformers(name: str) -> None:
    """BOS is written by the template and not doubled by the tokenizer."""
    messages = CONVERSATIONS["unicode"] + [user("and?")]
    expected_ids = models.reference(name).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    job = {"messages": messages, "add_generation_prompt": True}
    assert models.core(name).prepare(json.dumps(job).encode()).token_ids() == expected_ids


def test_developer_is_system_where_the_template_lacks_it() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, user("Hi")]
    as_system = [system("Be brief."), user("Hi")]
    assert rendered("qwen3", messages, {}) == expected("qwen3", as_system, {})


@pytest.mark.parametrize("name", models.NAMES)
def test_integers_beyond_64_bits_stay_whole(name: str) -> None:
    number = 2**64 + 1
    limited = copy.deepcopy(WEATHER)
    limited["function"]["parameters"]["properties"]["days"]["maximum"] = [number, -(2**200)]
    made = call(json.dumps({"n": number}))
    messages = [user("?"), assistant("", tool_calls=[made]), tool("x"), user("!")]
    text = rendered(name, messages, {"tools": [limited]})
    assert text == expected(name, messages, {"tools": [limited]})
    assert name != "qwen3" or str(-(2**200)) in text
