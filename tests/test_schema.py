"""Chat requests: what is accepted, what is refused, and which field a refusal names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgi_router.errors import InvalidRequestError
from wsgi_router.schema import ChatRequest, chat, parse_chat

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "hi"}


def body(**fields: Any) -> bytes:
    values = {"model": "m", "messages": [USER], **fields}
    return json.dumps({name: value for name, value in values.items() if value is not ...}).encode()


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(body(**fields))


def refusal(data: bytes) -> InvalidRequestError | None:
    """The error that a body meets; any other kind of error passes through."""
    try:
        parse_chat(data)
    except InvalidRequestError as error:
        return error
    return None


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 2.0},
    {"temperature": None},
    {"top_p": 1},
    {"top_k": -1},
    {"top_k": 1},
    {"min_p": 0},
    {"repetition_penalty": 2},
    {"frequency_penalty": -2, "presence_penalty": 2},
    {"n": 16},
    {"max_tokens": 1, "min_tokens": 1},
    {"seed": -(2**63)},
    {"stop": None},
    {"stop": []},
    {"stop": "x"},
    {"stop": ["x"] * 16},
    {"stop_token_ids": [0, 2**32 - 1]},
    {"ignore_eos": True, "no_stop_trim": True, "skip_special_tokens": False},
    {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"stream": False, "stream_options": None},
    {"logit_bias": {"50256": -100}},
    {"chat_template_kwargs": {"enable_thinking": False, "list": [1, {"a": None}]}},
    {"documents": [{"title": "a", "text": "b"}]},
    {"rid": "label", "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    {"safety_identifier": "x", "prompt_cache_key": "y", "prompt_cache_retention": "24h"},
    {"custom_params": {"a": 1}},
    {"parallel_tool_calls": False, "separate_reasoning": True, "stream_reasoning": False},
    {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none"},
    {"tools": None, "tool_choice": None, "response_format": None, "verbosity": None, "audio": None},
    {"response_format": {"type": "text"}, "logprobs": False, "top_logprobs": 0, "modalities": ["text"]},
    {"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "bob"}]},
    {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
    {"messages": [{"role": "tool", "tool_call_id": "c1", "content": "42"}]},
    {"messages": [{"role": "function", "name": "f", "content": None}]},
    {"messages": [{"role": "assistant", "content": "x", "reasoning_content": "y"}, USER]},
    {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER]},
    {"messages": [{"role": "assistant", "refusal": "no"}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "so"}], "continue_final_message": True},
]


@pytest.mark.parametrize("fields", ACCEPTED)
def test_accepted(fields: dict[str, Any]) -> None:
    request = parse(**fields)
    assert request.unknown == []
    assert request.raw_messages


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_every_effort_is_known(effort: str) -> None:
    assert parse(reasoning_effort=effort).reasoning_effort == effort


MISSING, TYPE, VALUE, UNSUPPORTED = (
    "missing_required_parameter",
    "invalid_type",
    "invalid_value",
    "unsupported_parameter",
)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": ...}, "model", MISSING),
    ({"messages": ...}, "messages", MISSING),
    ({"model": None}, "model", TYPE),
    ({"messages": []}, "messages", VALUE),
    ({"messages": "hi"}, "messages", TYPE),
    ({"messages": [3]}, "messages[0]", TYPE),
    ({"messages": [{"content": "x"}]}, "messages[0].role", MISSING),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", VALUE),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content", MISSING),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", TYPE),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", VALUE),
    (
        {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
        "messages[0].content[0].type",
        MISSING,
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        MISSING,
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
        "messages[0].content[0].type",
        VALUE,
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        UNSUPPORTED,
    ),
    (
        {"messages": [USER, USER, {"role": "user", "content": [{"type": 3}]}]},
        "messages[2].content[0].type",
        TYPE,
    ),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content", VALUE),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
        "messages[0].tool_calls",
        VALUE,
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", MISSING),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name", MISSING),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]},
        "messages[0].tool_calls[0].type",
        UNSUPPORTED,
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
        "messages[0].tool_calls[0].function.name",
        MISSING,
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]},
        "messages[0].tool_calls[0].function.name",
        VALUE,
    ),
    ({"temperature": "hot"}, "temperature", TYPE),
    ({"temperature": True}, "temperature", TYPE),
    ({"temperature": 2.1}, "temperature", VALUE),
    ({"temperature": -0.1}, "temperature", VALUE),
    ({"top_p": 0}, "top_p", VALUE),
    ({"top_p": 1.1}, "top_p", VALUE),
    ({"top_k": 0}, "top_k", VALUE),
    ({"top_k": -2}, "top_k", VALUE),
    ({"top_k": 1.5}, "top_k", TYPE),
    ({"min_p": 1.1}, "min_p", VALUE),
    ({"repetition_penalty": 0}, "repetition_penalty", VALUE),
    ({"repetition_penalty": 2.1}, "repetition_penalty", VALUE),
    ({"frequency_penalty": 2.1}, "frequency_penalty", VALUE),
    ({"presence_penalty": -2.1}, "presence_penalty", VALUE),
    ({"n": 0}, "n", VALUE),
    ({"n": 17}, "n", VALUE),
    ({"n": 10**30}, "n", VALUE),
    ({"max_tokens": 0}, "max_tokens", VALUE),
    ({"max_completion_tokens": 2**31}, "max_completion_tokens", VALUE),
    ({"max_tokens": 1, "min_tokens": 2}, "min_tokens", VALUE),
    ({"seed": 2**63}, "seed", VALUE),
    ({"stop": [""]}, "stop[0]", VALUE),
    ({"stop": ""}, "stop", VALUE),
    ({"stop": ["x"] * 17}, "stop", VALUE),
    ({"stop": ["x", 3]}, "stop[1]", TYPE),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", VALUE),
    ({"stop_token_ids": [1, 2**32]}, "stop_token_ids[1]", VALUE),
    ({"stream": "yes"}, "stream", TYPE),
    ({"stream_options": {}}, "stream_options", VALUE),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", TYPE),
    ({"logit_bias": {"x": 1}}, "logit_bias", VALUE),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", VALUE),
    ({"logit_bias": {"5": "x"}}, "logit_bias", TYPE),
    ({"chat_template": "{{ 1 }}"}, "chat_template", UNSUPPORTED),
    ({"messages": [USER] * 10_001}, "messages", VALUE),
    ({"messages": [ASSISTANT | {"audio": {"id": "a"}}]}, "messages[0].audio", UNSUPPORTED),
    ({"messages": [USER | {"audio": {"id": "a"}}]}, "messages[0].audio", UNSUPPORTED),
    ({"messages": [ASSISTANT | {"refusal": "no"}]}, "messages[0].refusal", UNSUPPORTED),
    (
        {"messages": [ASSISTANT | {"tool_calls": [CALL], "function_call": CALL["function"]}]},
        "messages[0].function_call",
        UNSUPPORTED,
    ),
    ({"continue_final_message": True}, "continue_final_message", VALUE),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", VALUE),
    ({"reasoning_effort": "extreme"}, "reasoning_effort", VALUE),
    ({"metadata": "x"}, "metadata", TYPE),
    ({"user": 3}, "user", TYPE),
    ({"tool_choice": "required"}, "tool_choice", VALUE),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", VALUE),
    ({"logprobs": 0}, "logprobs", TYPE),
    ({"top_logprobs": 3}, "top_logprobs", VALUE),
    ({"modalities": ["text", "audio"]}, "modalities", UNSUPPORTED),
    ({"verbosity": "low"}, "verbosity", UNSUPPORTED),
    ({"lora_path": ["x"]}, "lora_path", TYPE),
    ({"session_params": {}}, "session_params", UNSUPPORTED),
    ({"web_search_options": {}}, "web_search_options", UNSUPPORTED),
    ({"prediction": {"type": "content"}}, "prediction", UNSUPPORTED),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
def test_refused(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(**fields)
    assert (caught.value.param, caught.value.code, caught.value.status) == (param, code, 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": "x", "temperature": "x", "min_p": "x"},
        {"temperature": "x", "min_p": "x", "top_p": "x"},
        {"prediction": "b", "audio": {}},
        {"audio": {}, "prediction": "b"},
        {"service_tier": 1, "metadata": 1, "store": 1},
        {"store": 1, "metadata": 1, "service_tier": 1},
    ],
)
def test_of_several_faults_the_first_one_is_named(fields: dict[str, Any]) -> None:
    error = refusal(body(**fields))
    assert error is not None
    assert error.param == next(iter(fields))


def test_bounds_are_told_in_full() -> None:
    error = refusal(body(max_tokens=2**31))
    assert error is not None
    assert error.message == "'max_tokens' must be at least 1 and at most 2147483647, not 2147483648."


@pytest.mark.parametrize("name", sorted(chat.NOT_SUPPORTED))
def test_what_is_not_built_is_refused_by_name(name: str) -> None:
    error = refusal(body(**{name: {"some": "thing"}}))
    assert error is not None
    assert error.param == name
    assert refusal(body(**{name: None})) is None
    for neutral in chat.NOT_SUPPORTED[name]:
        assert refusal(body(**{name: neutral})) is None


def test_the_three_kinds_of_fields_do_not_overlap() -> None:
    assert len(chat.FIELDS.known) == len(chat.FIELDS.honoured) + len(chat.FIELDS.inert) + len(
        chat.NOT_SUPPORTED
    )


def test_unknown_fields_are_kept_apart() -> None:
    request = parse(temprature=1, stream=True, stream_options={"usage": True}, raw_messages=[3])
    assert request.unknown == ["temprature", "raw_messages", "stream_options.usage"]
    assert request.raw_messages == [USER]


def test_the_newer_limit_wins() -> None:
    assert parse(max_tokens=5, max_completion_tokens=3).max_new_tokens == 3
    assert parse(max_tokens=5).max_new_tokens == 5
    assert parse().max_new_tokens is None


def test_further_keys_of_messages_reach_the_template() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}], "mood": "glad"}
    assert parse(messages=[message]).raw_messages == [message]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"role": "function", "name": "f", "content": "x"}, {"role": "tool", "name": "f", "content": "x"}),
        ({"role": "assistant", "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {"role": "assistant", "content": "a", "reasoning": "r"},
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
        ),
        (
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        ),
    ],
)
def test_old_names_become_todays(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert parse(messages=[old]).raw_messages == [new]


def test_a_part_that_refuses_is_text_for_the_template() -> None:
    text = {"type": "text", "text": "Well,"}
    sent = {"role": "assistant", "content": [text, {"type": "refusal", "refusal": "no."}]}
    made = {"role": "assistant", "content": [text, {"type": "text", "text": "no."}]}
    assert parse(messages=[sent, USER]).raw_messages == [made, USER]


def test_what_the_sdk_parsed_does_not_reach_the_template() -> None:
    """It sends back whole what its parse() gave out."""
    function: Any = CALL["function"]
    parsed = {**CALL, "function": {**function, "parsed_arguments": {"a": 1}}}
    called = {"role": "assistant", "content": "", "tool_calls": [CALL, parsed], "parsed": None}
    said = {"role": "assistant", "content": "{}", "parsed": {}}
    assert parse(messages=[called, said]).raw_messages == [
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "assistant", "content": "{}"},
    ]


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}])
def test_a_call_that_names_no_arguments_has_none(arguments: dict[str, Any]) -> None:
    """Templates that print what is absent fail, and those that print a null show it to the model."""
    function = {"name": "f", **arguments}
    filled = {"name": "f", "arguments": "{}"}
    called = {"role": "assistant", "content": "", "tool_calls": [CALL, {**CALL, "function": function}]}
    old = {"role": "assistant", "content": "", "function_call": function}
    assert parse(messages=[called, old]).raw_messages == [
        {**called, "tool_calls": [CALL, {**CALL, "function": filled}]},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": filled}]},
    ]


def test_an_error_repeats_what_was_sent_as_it_was_sent() -> None:
    """And not in JSON's words for Python's types."""
    with pytest.raises(InvalidRequestError, match=re.escape("invalid enum value 'int | `float`'")):
        parse(reasoning_effort="int | `float`")


def test_keys_that_say_nothing_do_not_reach_the_template() -> None:
    empty = {"refusal": None, "tool_calls": None, "function_call": None, "audio": None, "name": None}
    answered = {"role": "assistant", "content": "a", **empty}
    called = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]}
    request = parse(messages=[answered, called, {"role": "assistant", "content": "", "tool_calls": []}])
    assert request.raw_messages == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": ""},
    ]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(chat.FIELDS.known)), JSON_VALUES)
def test_any_value_of_any_field_is_accepted_or_refused_by_name(name: str, value: Any) -> None:
    error = refusal(body(**{name: value}))
    assert error is None or (error.param or "").startswith(name)


@given(st.binary(max_size=200))
def test_any_bytes_are_accepted_or_refused(data: bytes) -> None:
    error = refusal(data)
    assert error is not None
    assert error.status == 400
