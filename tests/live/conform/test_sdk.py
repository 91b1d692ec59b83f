"""The same answers through the openai SDK: its models, streaming helpers, parsers and raw responses."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import httpx
import openai
import pydantic
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.live.conform.kinds import (
    ARGUMENTS,
    CHAT,
    EMBED,
    EMBEDDER,
    FUNCTIONS,
    KEY,
    KINDS,
    MODEL,
    NAMED,
    NO_THINKING,
    SAID,
    TEXT,
    Recording,
)
from tests.support.processes import Router

THINKING = {"extra_body": NO_THINKING}
ANSWERED = [kind.name for kind in KINDS if kind.status == 200 and " in the stream, " not in kind.name]


class Place(pydantic.BaseModel):
    city: str
    days: int


class GetWeather(Place):
    """What the weather is."""


class Add(pydantic.BaseModel):
    a: float
    b: float


STRICT_TOOLS = [
    openai.pydantic_function_tool(GetWeather, name="get_weather"),
    openai.pydantic_function_tool(Add, name="add"),
]
ZURICH = Place(city="Zürich 🏔", days=2)


def said(word: str) -> Any:
    return [{"role": "user", "content": word}]


@pytest.fixture
def embeddings(embedding_router: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embedding_router.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def run_async(router: Router, use: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=KEY, max_retries=0) as client:
            return await use(client)

    return asyncio.run(main())


# Its models


@pytest.mark.parametrize("name", ANSWERED)
def test_the_models_of_the_sdk_take_every_answer(recorded: dict[str, Recording], name: str) -> None:
    """Strictly: the SDK itself builds its models without checking anything."""
    recording = recorded[name]
    kind = recording.kind
    for value in [recording.body] if recording.body else recording.events[:-1]:
        if kind.path == CHAT:
            model = ChatCompletionChunk if kind.streams else ChatCompletion
            read = model.model_validate(value, strict=True)
            extra = {"matched_stop", "reasoning_content"}
        elif kind.path == TEXT:
            _check_completion(value)
            continue
        elif kind.path == EMBED:
            if kind.body.get("encoding_format") != "base64":
                CreateEmbeddingResponse.model_validate(value, strict=True)
            continue
        elif kind.path == "/v1/models":
            for one in value["data"]:
                Model.model_validate(one, strict=True)
            continue
        else:
            Model.model_validate(value, strict=True)
            continue
        assert _extras(read) <= extra


def _check_completion(value: dict[str, Any]) -> None:
    """As the SDK's model has it, but for what `AMENDMENTS` lists: null before the end and at the start."""
    value = copy.deepcopy(value)
    for choice in value["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for row in ("token_logprobs", "top_logprobs"):
            if choice["logprobs"] and choice["logprobs"][row]:
                choice["logprobs"][row] = [one for one in choice["logprobs"][row] if one is not None]
    assert _extras(Completion.model_validate(value, strict=True)) <= {"matched_stop"}


def _extras(model: pydantic.BaseModel) -> set[str]:
    """Names of the fields in a model that its types do not have."""
    found = set(model.model_extra or ())
    for name in type(model).model_fields:
        value = getattr(model, name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, pydantic.BaseModel):
                found |= _extras(part)
    return found


# Streaming helpers

CHATS = [kind.name for kind in KINDS if kind.path == CHAT and kind.status == 200]
WHOLE_CHATS = [name for name in CHATS if f"{name}, streamed" in CHATS]


@pytest.mark.parametrize("name", WHOLE_CHATS)
def test_the_state_of_a_stream_becomes_the_whole_answer(recorded: dict[str, Recording], name: str) -> None:
    whole = ChatCompletion.model_validate(recorded[name].body)
    for suffix in ("streamed", "streamed with usage", "streamed with usage in each"):
        state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
        for event in recorded[f"{name}, {suffix}"].events[:-1]:
            state.handle_chunk(ChatCompletionChunk.model_validate(event))
        snapshot = state.current_completion_snapshot
        assert len(snapshot.choices) == len(whole.choices)
        for built, choice in zip(snapshot.choices, whole.choices, strict=True):
            assert (built.index, built.finish_reason) == (choice.index, choice.finish_reason)
            assert (built.message.content or None) == (choice.message.content or None)
            assert built.message.role == "assistant"
            extra = choice.message.model_extra or {}
            assert (built.message.model_extra or {}).get("reasoning_content") == extra.get(
                "reasoning_content"
            )
            assert _calls(built.message) == _calls(choice.message)
            assert built.message.function_call == choice.message.function_call
            if choice.logprobs is None:
                assert built.logprobs is None
            else:
                assert built.logprobs is not None
                assert built.logprobs.content == choice.logprobs.content
        if "usage" in suffix:
            assert snapshot.usage is not None
            assert whole.usage is not None
            assert snapshot.usage.completion_tokens == whole.usage.completion_tokens


def _calls(message: Any) -> list[tuple[str, str, str]]:
    calls = message.tool_calls or []
    assert all(call.id for call in calls)
    return [(call.type, call.function.name, call.function.arguments) for call in calls]


def test_choices_whose_events_race_are_told_apart(client: openai.OpenAI) -> None:
    """The helper appends choices as they begin, so the router begins them in their order."""
    with client.chat.completions.stream(model=MODEL, messages=said("race-on"), n=6) as events:
        final = events.get_final_completion()
    assert [choice.index for choice in final.choices] == list(range(6))
    first, *others = [choice.message.content or "" for choice in final.choices]
    assert first == "the first"
    assert sorted(others) == ["a quick one"] * 3 + ["a slow one"] * 2


def events_of(client: openai.OpenAI, word: str, **fields: Any) -> tuple[list[Any], Any]:
    with client.chat.completions.stream(model=MODEL, messages=said(word), **fields) as stream:
        events = list(stream)
        return events, stream.get_final_completion()


def of_type(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event.type == kind]


def test_content_events(client: openai.OpenAI) -> None:
    events, final = events_of(client, "just-say", stream_options={"include_usage": True})
    deltas = of_type(events, "content.delta")
    assert "".join(event.delta for event in deltas) == SAID
    assert all(SAID.startswith(event.snapshot) for event in deltas)
    (done,) = of_type(events, "content.done")
    assert done.content == final.choices[0].message.content == SAID
    assert not of_type(events, "refusal.delta") + of_type(events, "refusal.done")
    assert final.usage.completion_tokens > 0
    assert final.choices[0].message.refusal is None


def test_events_of_calls(client: openai.OpenAI) -> None:
    events, final = events_of(client, "think-call", tools=STRICT_TOOLS)
    deltas = of_type(events, "tool_calls.function.arguments.delta")
    assert [event.index for event in deltas] == sorted(event.index for event in deltas)
    first, second = of_type(events, "tool_calls.function.arguments.done")
    assert (first.index, first.name, first.parsed_arguments) == (0, "get_weather", GetWeather(**ARGUMENTS))
    assert (second.index, second.name, second.parsed_arguments) == (1, "add", Add(a=1, b=2))
    for done in (first, second):
        mine = [event for event in deltas if event.index == done.index]
        assert len(mine) > 2, "arguments come in pieces"
        assert "".join(event.arguments_delta for event in mine) == mine[-1].arguments == done.arguments
        assert all(event.parsed_arguments is None or event.arguments for event in mine)
    message = final.choices[0].message
    assert message.content == "Let me look.\n"
    assert message.reasoning_content.strip() == "The user wants weather."
    assert [call.function.parsed_arguments for call in message.tool_calls] == [
        first.parsed_arguments,
        second.parsed_arguments,
    ]
    kinds = [event.type for event in events]
    assert kinds.index("content.done") < kinds.index("tool_calls.function.arguments.done")


@pytest.mark.parametrize(
    ("word", "choice", "names"),
    [
        ("force-two", "required", ["get_weather", "add"]),
        ("force-named", NAMED, ["get_weather"]),
        (
            "force-one",
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
            ["get_weather"],
        ),
    ],
)
def test_events_of_forced_calls(client: openai.OpenAI, word: str, choice: Any, names: list[str]) -> None:
    events, final = events_of(client, word, tools=STRICT_TOOLS, tool_choice=choice, **THINKING)
    done = of_type(events, "tool_calls.function.arguments.done")
    assert [event.name for event in done] == names
    assert done[0].parsed_arguments == GetWeather(**ARGUMENTS)
    assert not of_type(events, "content.done")
    assert final.choices[0].finish_reason == "tool_calls"


def test_events_of_structured_output(client: openai.OpenAI) -> None:
    events, final = events_of(client, "as-json", response_format=Place)
    partial = [event.parsed for event in of_type(events, "content.delta") if event.parsed is not None]
    assert {"city": "Zürich 🏔", "days": 2} in partial
    assert any("days" not in parsed for parsed in partial if parsed)
    (done,) = of_type(events, "content.done")
    assert done.parsed == final.choices[0].message.parsed == ZURICH


def test_events_of_logprobs(client: openai.OpenAI) -> None:
    events, final = events_of(client, "just-say", logprobs=True, top_logprobs=2)
    pieces = [entry for event in of_type(events, "logprobs.content.delta") for entry in event.content]
    (done,) = of_type(events, "logprobs.content.done")
    assert pieces == done.content == final.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes or b"") for entry in pieces).decode().startswith(SAID)
    assert all(len(entry.top_logprobs) == 2 for entry in pieces)
    assert not of_type(events, "logprobs.refusal.delta")


def test_an_answer_that_was_cut_cannot_be_parsed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        events_of(client, "as-json", response_format=Place, max_completion_tokens=3)
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        client.chat.completions.parse(
            model=MODEL, messages=said("as-json"), response_format=Place, max_completion_tokens=3
        )
    assert caught.value.completion.usage is not None
    assert caught.value.completion.usage.completion_tokens == 3


# parse()


def test_parse_takes_a_model_and_tools(client: openai.OpenAI) -> None:
    both: Any = {"response_format": Place, "tools": STRICT_TOOLS}
    answer = client.chat.completions.parse(model=MODEL, messages=said("as-json"), **both)
    assert answer.choices[0].message.parsed == ZURICH
    answer = client.chat.completions.parse(model=MODEL, messages=said("call-two"), **both)
    assert answer.choices[0].message.parsed is None
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.parsed_arguments for call in calls] == [GetWeather(**ARGUMENTS), Add(a=1, b=-2.5)]
    events, final = events_of(client, "call-two", **both)
    assert final.choices[0].message.tool_calls[1].function.parsed_arguments == Add(a=1, b=-2.5)
    assert len(of_type(events, "tool_calls.function.arguments.done")) == 2


def test_a_parsed_answer_goes_back_as_history(client: openai.OpenAI) -> None:
    """All that the SDK dumps of a message is accepted when it comes back."""
    answer = client.chat.completions.parse(
        model=MODEL, messages=said("think-call"), tools=STRICT_TOOLS, logprobs=True
    )
    message = answer.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "42"} for call in message.tool_calls or ()
    ]
    for dumped in (message, message.model_dump(), message.to_dict(), message.model_dump(exclude_none=True)):
        history: Any = [*said("first"), dumped, *results, *said("just-say")]
        again = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=history, tools=STRICT_TOOLS
        )
        assert again.parse().choices[0].message.content == SAID
        assert "x-router-warning" not in again.headers


# Raw and streamed responses, the async client


def test_raw_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=said("just-say"))
    assert raw.headers["x-request-id"] == raw.request_id
    assert raw.parse().choices[0].message.content == SAID
    assert raw.parse()._request_id == raw.request_id
    parsed = client.chat.completions.with_raw_response.parse(
        model=MODEL, messages=said("as-json"), response_format=Place
    )
    assert parsed.parse().choices[0].message.parsed == ZURICH
    stream = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=said("just-say"), stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream.parse()) == SAID


def test_streaming_responses(client: openai.OpenAI) -> None:
    make = client.chat.completions.with_streaming_response.create
    with make(model=MODEL, messages=said("just-say")) as response:
        assert response.headers["content-type"] == "application/json"
        assert response.parse().choices[0].message.content == SAID
    with make(model=MODEL, messages=said("just-say"), stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert all(line.startswith("data: ") for line in lines)
    with make(model=MODEL, messages=said("just-say"), stream=True) as response:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in response.parse()) == SAID


def test_the_async_client(router: Router) -> None:
    async def use(client: openai.AsyncOpenAI) -> None:
        chat = client.chat.completions
        whole, parsed = await asyncio.gather(
            chat.create(model=MODEL, messages=said("just-say")),
            chat.parse(model=MODEL, messages=said("as-json"), response_format=Place),
        )
        assert whole.choices[0].message.content == SAID
        assert parsed.choices[0].message.parsed == ZURICH
        stream = await chat.create(model=MODEL, messages=said("just-say"), stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == SAID
        async with chat.stream(model=MODEL, messages=said("think-call"), tools=STRICT_TOOLS) as events:
            done = [event async for event in events if event.type == "tool_calls.function.arguments.done"]
            final = await events.get_final_completion()
        assert [event.parsed_arguments for event in done] == [GetWeather(**ARGUMENTS), Add(a=1, b=2)]
        assert final.choices[0].finish_reason == "tool_calls"
        raw = await chat.with_raw_response.create(model=MODEL, messages=said("just-say"))
        assert raw.parse().choices[0].message.content == SAID
        text = await client.completions.create(model=MODEL, prompt="just-say", max_tokens=99)
        assert text.choices[0].text == SAID
        assert [model.id async for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.RateLimitError):
            await chat.create(model=MODEL, messages=said("too-busy"), stream=True)

    run_async(router, use)


def test_a_loop_of_tools_to_its_end(client: openai.OpenAI) -> None:
    """What a tool runner does; the SDK has one for its responses API only."""
    done: dict[str, Callable[..., object]] = {
        "get_weather": lambda city, days: f"rain in {city} for {days}",
        "add": lambda a, b: a + b,
    }
    messages: Any = said("call-two")
    for _ in range(3):
        answer = client.chat.completions.parse(model=MODEL, messages=messages, tools=STRICT_TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = done[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
        messages.extend(said("now just-say"))
    assert [one["role"] if isinstance(one, dict) else one.role for one in messages] == [
        *("user", "assistant", "tool", "tool", "user", "assistant")
    ]
    assert messages[-1].content == SAID


# Older and other routes


@pytest.mark.parametrize(("word", "choice"), [("call-one", "auto"), ("force-named", {"name": "get_weather"})])
def test_functions_of_old(client: openai.OpenAI, word: str, choice: Any) -> None:
    fields: Any = {"functions": FUNCTIONS, "function_call": choice, **THINKING}
    whole = client.chat.completions.create(model=MODEL, messages=said(word), **fields).choices[0]
    assert whole.finish_reason == "function_call"
    call = whole.message.function_call
    assert call is not None
    assert (call.name, json.loads(call.arguments)) == ("get_weather", ARGUMENTS)
    name = arguments = ""
    for chunk in client.chat.completions.create(model=MODEL, messages=said(word), stream=True, **fields):
        if part := chunk.choices[0].delta.function_call:
            name += part.name or ""
            arguments += part.arguments or ""
    assert (name, json.loads(arguments)) == ("get_weather", ARGUMENTS)
    history: Any = [
        *said("first"),
        whole.message,
        {"role": "function", "name": "get_weather", "content": "rain"},
        *said("just-say"),
    ]
    again = client.chat.completions.create(model=MODEL, messages=history, functions=cast(Any, FUNCTIONS))
    assert again.choices[0].message.content == SAID


def test_completions(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "prompt": ["just-say", "stop-here"], "max_tokens": 99, "n": 2}
    whole = client.completions.create(**fields)
    texts = {choice.index: choice.text for choice in whole.choices}
    assert [texts[index] for index in range(4)] == [SAID] * 2 + ["one two STOP three"] * 2
    seen = dict.fromkeys(range(4), "")
    for part in client.completions.create(stream=True, **fields):
        for choice in part.choices:
            seen[choice.index] += choice.text
    assert seen == texts


def test_models_and_embeddings(client: openai.OpenAI, embeddings: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "sglang"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    packed = embeddings.embeddings.create(model=EMBEDDER, input=["one", "two"])
    plain = embeddings.embeddings.create(model=EMBEDDER, input=["one", "two"], encoding_format="float")
    assert [row.embedding for row in packed.data] == [row.embedding for row in plain.data]


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("bad-input", openai.BadRequestError),
        ("in-conflict", openai.ConflictError),
        ("too-busy", openai.RateLimitError),
        ("break-first", openai.InternalServerError),
        ("too-late", openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_errors(client: openai.OpenAI, word: str, kind: type[openai.APIStatusError], streaming: bool) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(model=MODEL, messages=said(word), stream=streaming)
    assert caught.value.body
    assert caught.value.code
    assert caught.value.type
    assert caught.value.request_id


@pytest.mark.parametrize("word", ["break-midway", "abort-midway"])
def test_an_error_within_a_stream(client: openai.OpenAI, word: str) -> None:
    with pytest.raises(openai.APIError) as caught:
        events_of(client, word)
    assert not isinstance(caught.value, openai.APIStatusError)
    assert caught.value.code in ("worker_error", "worker_aborted")


def test_keys(router: Router) -> None:
    with (
        openai.OpenAI(base_url=f"{router.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_a_client_that_may_try_again_does(router: Router) -> None:
    """A 429 carries Retry-After, which the SDK waits for; a 501 is final."""
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key=KEY, max_retries=1) as client:
        asked: list[httpx.Request] = []
        client._client.event_hooks["request"].append(asked.append)
        answer = client.chat.completions.create(model=MODEL, messages=said("busy-once"))
        assert answer.choices[0].message.content == SAID
        assert len(asked) == 2
        asked.clear()
        with pytest.raises(openai.APIStatusError):
            client.chat.completions.create(model=MODEL, messages=said("not-built"))
        assert len(asked) == 1
