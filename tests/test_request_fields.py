"""Every field of a chat request has its effect: on the worker, the prompt, the answer, or none at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from tests.support import sse
from tests.support.app import App, chunk, complete, error_of, whole
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.schema import chat
from wsgi_router.schema.output import TAKEN

TEMPLATE = """{{ documents | tojson if documents else "" }}{{ reasoning_effort or "" }}{{ enable_thinking }}
{%- for m in messages %}|{{ m.role }}
{{ m.content }}|
{% endfor %}{% if add_generation_prompt %}|assistant
{% endif %}"""
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS = '{"type":"array","minItems":1,"items"'


@pytest.fixture
def template(tmp_path: Path) -> str:
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE, "utf-8")
    return str(path)


def sent(app: App, **fields: Any) -> pb.GenerateRequest:
    """What the worker gets for a request of these fields, without its random id."""
    assert app.transport.answers, "the worker has nothing to say"
    answer = app.chat(**fields)
    assert answer.status_code == 200, answer.text
    request = app.transport.streams[-1].request
    request.request_id = ""
    return request


# The worker's fields: those of its sampling parameters, and, after a slash, the request's own.
WIRE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"top_p": 0.25}, {"top_p": 0.25}),
    ({"top_k": 5}, {"top_k": 5}),
    ({"min_p": 0.5}, {"min_p": 0.5}),
    ({"frequency_penalty": -1.5}, {"frequency_penalty": -1.5}),
    ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
    ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    ({"max_tokens": 7}, {"max_new_tokens": 7}),
    ({"max_tokens": 7, "max_completion_tokens": 8}, {"max_new_tokens": 8}),
    ({"min_tokens": 3}, {"min_new_tokens": 3}),
    ({"stop_token_ids": [3, 4]}, {"stop_token_ids": [3, 4]}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
    ({"no_stop_trim": True}, {"no_stop_trim": True}),
    ({"logit_bias": {"65": 1.5}}, {"logit_bias": {"65": 1.5}}),
    ({"custom_params": {"a": "b"}}, {"custom_params": {"a": "b"}}),
    ({"seed": 3}, {"custom_params": {"seed": 3}}),
    ({"regex": "a+"}, {"regex": "a+"}),
    ({"ebnf": "root ::= [a]"}, {"ebnf_grammar": "root ::= [a]"}),
    ({"response_format": {"type": "json_object"}}, {"json_schema": '{"type":"object"}'}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}}},
        {"json_schema": '{"a":1}'},
    ),
    (
        {"response_format": TAG},
        {"structural_tag": '{"type":"structural_tag","format":{"type":"any_text"}}'},
    ),
    ({"structural_tag": TAG}, {"structural_tag": '{"type":"structural_tag","format":{"type":"any_text"}}'}),
    ({"logprobs": True}, {"/return_logprob": True}),
    ({"logprobs": True, "top_logprobs": 4}, {"/return_logprob": True, "/top_logprobs_num": 4}),
    ({"stop": "x"}, {"/stream": True}),
    ({"stop": ["x", "y"]}, {"/stream": True}),
    ({"lora_path": "sql"}, {"/lora_id": "id-1"}),
]


@pytest.mark.parametrize(("fields", "changes"), WIRE)
def test_the_worker_gets_it_and_nothing_else(
    make: Callable[..., App], fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    app = make(whole("a"), (chunk("a"), complete("a"), None))
    loaded = [pb.LoadedLoRAAdapter(lora_name="sql", lora_id="id-1")]
    app.transport.unary_answers = {
        "ListLoadedLoRAAdapters": pb.ListLoadedLoRAAdaptersResponse(loaded_adapters=loaded)
    }
    expected = MessageToDict(sent(app), preserving_proto_field_name=True)
    found = MessageToDict(sent(app, **fields), preserving_proto_field_name=True)
    for name, value in changes.items():
        if name.startswith("/"):
            expected[name[1:]] = value
        else:
            expected["sampling_params"][name] = value
    assert found == expected


INERT: list[dict[str, Any]] = [
    {"user": "u"},
    {"metadata": {"a": "b"}},
    {"store": True},
    {"service_tier": "flex"},
    {"safety_identifier": "s"},
    {"prompt_cache_retention": "24h"},
    {"prompt_cache_options": {"a": 1}},
    {"prompt_cache_key": "k"},
    {"rid": "mine"},
    {"modalities": ["text"]},
    {"parallel_tool_calls": False},
    {"separate_reasoning": False, "stream_reasoning": False},
    {"skip_special_tokens": False},
    {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none"},
    {"top_logprobs": 0, "logprobs": False, "response_format": {"type": "text"}, "stop": [], "n": 1},
]


@pytest.mark.parametrize("fields", INERT)
def test_the_worker_gets_no_word_of_it(make: Callable[..., App], fields: dict[str, Any]) -> None:
    app = make(*[whole("a")] * 3)
    assert sent(app, **fields) == sent(app)
    assert "X-Router-Warning" not in app.chat(**fields).headers


@pytest.mark.parametrize(
    ("fields", "before", "after"),
    [
        ({}, "", "|user\nhi|\n|assistant\n"),
        ({"add_generation_prompt": False}, "", "|user\nhi|\n"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "True", "|user\nhi|\n|assistant\n"),
        ({"reasoning_effort": "high"}, "high", "|user\nhi|\n|assistant\n"),
        ({"reasoning_effort": "none"}, "noneFalse", "|user\nhi|\n|assistant\n"),
        ({"documents": [{"a": 1}]}, '[{"a": 1}]', "|user\nhi|\n|assistant\n"),
        (
            {
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": "The answer"},
                ],
                "continue_final_message": True,
            },
            "",
            "|user\nq|\n|assistant\nThe answer",
        ),
        (
            {"messages": [{"role": "developer", "content": [{"type": "text", "text": "be brief"}]}]},
            "",
            "|system\nbe brief|\n|assistant\n",
        ),
    ],
)
def test_the_prompt_shows_it(
    make: Callable[..., App], template: str, fields: dict[str, Any], before: str, after: str
) -> None:
    app = make(whole("a"), chat_template=template)
    assert bytes(sent(app, **fields).tokenized.input_ids).decode() == before + after


def test_what_is_streamed_is_asked_for_as_a_stream(make: Callable[..., App]) -> None:
    app = make(*[(chunk("a"), complete("a"), None)] * 2)
    request = sent(app, stream=True, stream_options={"include_obfuscation": True})
    assert request.stream
    assert request == sent(app, stream=True)


def test_usage_comes_as_often_as_it_is_asked_for(make: Callable[..., App]) -> None:
    app = make(*[(chunk("a"), chunk("b", 1), complete("ab"), None)] * 3)

    def usages(**options: Any) -> list[Any]:
        events = sse.events(app.chat(stream=True, **options).text.splitlines())
        return [event.get("usage", "no") for event in events if isinstance(event, dict)]

    assert set(usages()) == {"no"}
    last = usages(stream_options={"include_usage": True})
    assert last[-1]["completion_tokens"] > 0
    assert set(map(str, last[:-1])) == {"None"}
    each = usages(stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [usage["completion_tokens"] for usage in each]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 3)


def test_several_choices_are_requests_of_one_each(make: Callable[..., App]) -> None:
    app = make(*[(chunk("a"), complete("a"), None)] * 3)
    assert len(app.chat(n=3).get_json()["choices"]) == 3
    requests = [stream.request for stream in app.transport.streams]
    assert [request.sampling_params.n for request in requests] == [1, 1, 1]
    assert len({request.request_id for request in requests}) == 3
    assert not {"mine"} & {request.request_id for request in requests}


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"tools": [TOOL]}, ""),
        ({"tools": [TOOL], "tool_choice": "auto"}, ""),
        ({"tools": [TOOL], "tool_choice": "none"}, ""),
        ({"tools": [TOOL], "tool_choice": "required"}, CALLS),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            '{"type":"object"',
        ),
        ({"functions": [TOOL["function"]], "function_call": {"name": "f"}}, '{"type":"object"'),
    ],
)
def test_what_tools_ask_of_the_worker(make: Callable[..., App], fields: dict[str, Any], schema: str) -> None:
    found = sent(make(whole("a")), **fields).sampling_params.json_schema
    assert found.startswith(schema)
    assert bool(found) == bool(schema)


@pytest.mark.parametrize("name", sorted(chat.NOT_SUPPORTED))
def test_what_cannot_be_had_is_a_400_that_names_it(make: Callable[..., App], name: str) -> None:
    app = make()
    error = error_of(app.chat(**{name: {"some": "thing"}}), 400)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert app.transport.streams == []


def test_no_field_is_left_out_here() -> None:
    """Whoever adds a field says above what it does."""
    tried = {name for fields, *_ in WIRE for name in fields} | {name for fields in INERT for name in fields}
    elsewhere = {
        *("messages", "model", "stream", "stream_options", "n"),
        *("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "documents"),
        *("reasoning_effort",),
    }
    assert not (chat.FIELDS.honoured | chat.FIELDS.inert | TAKEN) - tried - elsewhere
