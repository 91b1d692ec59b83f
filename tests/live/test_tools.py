"""Tool calls, reasoning, answer formats and log probabilities through the openai SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.live import script
from tests.support.processes import QWEN3, Router, Worker

MODEL = "qwen3-8b"
THOUGHT = "<think>\nThe user wants weather.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🏔", "days": 2}}\n</tool_call>'
ANSWERS: dict[str, dict[str, Any]] = {
    "call-it": {"text": f"{THOUGHT}Let me look.\n{CALL}\n{CALL.replace('2', '3')}", "chunks": [1, 3]},
    "force-it": {"text": '[{"name": "get_weather", "parameters": {"city": "Bern", "days": 1}}]'},
    "name-it": {"text": '{"city": "Bern", "days": 1}'},
    "just-think": {"text": f"{THOUGHT}It rains."},
    "as-json": {"text": '{"city": "Bern", "days": 1}'},
    "plain": {"text": "It rains in Zürich."},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}


class Place(BaseModel):
    city: str
    days: int


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    path: Path = script.write(tmp_path_factory.mktemp("tools") / "answers.json", ANSWERS)
    flags = ("--tokenizer", str(QWEN3), "--model-name", MODEL, "--eos", "151645", "--script", str(path))
    with Worker(*flags) as worker, Router(worker.url) as router:
        router.wait_serving()
        with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
            yield client


def whole(client: openai.OpenAI, word: str, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": word}]
    return client.chat.completions.create(model=MODEL, messages=messages, **fields).choices[0]


def streamed(client: openai.OpenAI, word: str, **fields: Any) -> Any:
    """The choice that the SDK's own helper puts together from the stream."""
    messages: Any = [{"role": "user", "content": word}]
    with client.chat.completions.stream(model=MODEL, messages=messages, **fields) as events:
        return events.get_final_completion().choices[0]


def parts(client: openai.OpenAI, word: str, **fields: Any) -> list[Any]:
    """The choice's part of each chunk."""
    messages: Any = [{"role": "user", "content": word}]
    stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True, **fields)
    return [chunk.choices[0] for chunk in stream]


def streamed_by_hand(client: openai.OpenAI, word: str, **fields: Any) -> Any:
    """The last chunk's choice, for answers that the SDK's helper takes for errors."""
    return parts(client, word, **fields)[-1]


def calls(choice: Any) -> list[tuple[str, Any]]:
    found = choice.message.tool_calls or []
    assert len({call.id for call in found}) == len(found)
    assert all(call.id.startswith("call_") and len(call.id) == 29 for call in found)
    return [(call.function.name, json.loads(call.function.arguments)) for call in found]


@pytest.mark.parametrize("ask", [whole, streamed])
def test_calls_after_thoughts_and_prose(client: openai.OpenAI, ask: Any) -> None:
    choice = ask(client, "call-it", tools=[TOOL])
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look.\n"
    assert choice.message.reasoning_content.strip() == "The user wants weather."
    assert calls(choice) == [
        ("get_weather", {"city": "Zürich 🏔", "days": 2}),
        ("get_weather", {"city": "Zürich 🏔", "days": 3}),
    ]


def test_one_call_if_they_must_not_be_parallel(client: openai.OpenAI) -> None:
    assert len(calls(whole(client, "call-it", tools=[TOOL], parallel_tool_calls=False))) == 1


@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize(
    ("word", "choice"),
    [
        ("force-it", "required"),
        ("name-it", {"type": "function", "function": {"name": "get_weather"}}),
    ],
)
def test_forced_calls(client: openai.OpenAI, ask: Any, word: str, choice: Any) -> None:
    template = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = ask(client, word, tools=[TOOL], tool_choice=choice, extra_body=template)
    assert calls(answer) == [("get_weather", {"city": "Bern", "days": 1})]
    assert answer.message.content is None or not answer.message.content


@pytest.mark.parametrize("ask", [whole, streamed_by_hand])
@pytest.mark.parametrize(
    ("word", "choice"),
    [("force-it", "required"), ("name-it", {"type": "function", "function": {"name": "get_weather"}})],
)
def test_a_forced_call_that_is_cut_off_ends_by_length(
    client: openai.OpenAI, ask: Any, word: str, choice: Any
) -> None:
    answer = ask(client, word, tools=[TOOL], tool_choice=choice, max_tokens=8)
    assert answer.finish_reason == "length"


def test_the_parts_of_a_stream_with_thoughts_and_calls(client: openai.OpenAI) -> None:
    """The role comes first and once, no delta but the last is empty, each call's id and name come once."""
    first, *inner, last = parts(client, "call-it", tools=[TOOL])
    assert first.delta.model_dump(exclude_unset=True) == {"role": "assistant", "content": ""}
    assert (last.delta.model_dump(exclude_unset=True), last.finish_reason) == ({}, "tool_calls")
    named: list[tuple[int, str]] = []
    for part in inner:
        assert part.finish_reason is None
        delta = part.delta.model_dump(exclude_unset=True)
        ((field, value),) = delta.items()
        assert value
        assert field in ("reasoning_content", "content", "tool_calls")
        for call in part.delta.tool_calls or ():
            if call.id is not None:
                assert call.type == "function"
                named.append((call.index, call.function.name))
            else:
                assert call.type is None
                assert call.function.name is None
    assert named == [(0, "get_weather"), (1, "get_weather")]


def test_functions_are_answered_as_functions(client: openai.OpenAI) -> None:
    choice = whole(client, "call-it", functions=[TOOL["function"]])
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call.name == "get_weather"
    assert choice.message.tool_calls is None


@pytest.mark.parametrize("ask", [whole, streamed])
def test_reasoning_stands_apart(client: openai.OpenAI, ask: Any) -> None:
    choice = ask(client, "just-think")
    assert choice.message.content == "It rains."
    assert choice.message.reasoning_content.strip() == "The user wants weather."
    apart = ask(client, "just-think", extra_body={"separate_reasoning": False})
    assert apart.message.content.startswith("<think>")


def test_parsed_output(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "as-json"}]
    answer = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Place)
    assert answer.choices[0].message.parsed == Place(city="Bern", days=1)


@pytest.mark.parametrize("ask", [whole, streamed])
def test_logprobs_come_once_for_each_token(client: openai.OpenAI, ask: Any) -> None:
    choice = ask(client, "plain", logprobs=True, top_logprobs=2)
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries[:-1]).decode() == "It rains in Zürich."
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    alone = ask(client, "plain", logprobs=True).logprobs.content
    assert [(entry.token, entry.top_logprobs) for entry in alone] == [(entry.token, []) for entry in entries]


def test_what_cannot_be_had_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        whole(client, "plain", tools=[], tool_choice="required")
    assert caught.value.param == "tool_choice"
