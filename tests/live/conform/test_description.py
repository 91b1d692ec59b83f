"""An answer of every kind against OpenAI's published description."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.conform.kinds import CHAT, EMBED, KINDS, SAID, TEXT, Kind, Recording
from tests.support.description import AMENDMENTS, Amendment, Description

BY_NAME = {kind.name: kind for kind in KINDS}
ANSWERED = [kind.name for kind in KINDS if kind.status == 200]
REFUSED = [kind.name for kind in KINDS if kind.status != 200]
BROKEN = [name for name in ANSWERED if " in the stream, " in name]
CHATS = [name for name in ANSWERED if BY_NAME[name].path == CHAT and name not in BROKEN]
STREAMED_CHATS = [name for name in CHATS if BY_NAME[name].streams]
WHOLE_CHATS = [name for name in CHATS if not BY_NAME[name].streams]
TEXTS = [name for name in ANSWERED if BY_NAME[name].path == TEXT and name not in BROKEN]


def schema_of(kind: Kind) -> str:
    """The name of the schema that the description gives for an answer, or for each event of a stream."""
    if kind.path == CHAT:
        return "CreateChatCompletionStreamResponse" if kind.streams else "CreateChatCompletionResponse"
    if kind.path.startswith("/v1/models/"):
        return "Model"
    return {TEXT: "CreateCompletionResponse", EMBED: "CreateEmbeddingResponse"}.get(
        kind.path, "ListModelsResponse"
    )


def parts(recording: Recording) -> Iterator[tuple[str, Any]]:
    """Each JSON value of an answer with the name of its schema."""
    if recording.status != 200:
        yield "ErrorResponse", recording.body
    elif not recording.kind.streams:
        yield schema_of(recording.kind), recording.body
    else:
        for event in recording.events[:-1]:
            yield "ErrorResponse" if "error" in event else schema_of(recording.kind), event


@pytest.mark.parametrize("name", BY_NAME)
def test_an_answer_is_as_described(
    recorded: dict[str, Recording], description: Description, name: str
) -> None:
    recording = recorded[name]
    assert recording.status == recording.kind.status, recording.body
    checked = list(parts(recording))
    assert checked
    for schema, value in checked:
        assert description.faults(schema, value) == [], value


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_answer_is_of_its_kind(recorded: dict[str, Recording], name: str) -> None:
    """Otherwise the check against the description would say little."""
    recording = recorded[name]
    choices = _choices(recording)
    assert sorted(choices) == list(range(recording.kind.body.get("n", 1)))
    for choice in choices.values():
        assert choice["finish_reason"] == recording.kind.finish
        found = {key for key in choice["keys"] if key not in ("role", "content", "refusal")}
        assert found == set(recording.kind.keys)


def _choices(recording: Recording) -> dict[int, dict[str, Any]]:
    """Finish reason and keys of the message, or of all deltas, by index."""
    if not recording.kind.streams:
        return {
            choice["index"]: {"finish_reason": choice["finish_reason"], "keys": choice["message"].keys()}
            for choice in recording.body["choices"]
        }
    found: dict[int, dict[str, Any]] = {}
    for event in recording.events[:-1]:
        for choice in event["choices"]:
            entry = found.setdefault(choice["index"], {"finish_reason": None, "keys": set()})
            entry["keys"] |= choice["delta"].keys()
            assert entry["finish_reason"] is None, "a choice goes on after its end"
            entry["finish_reason"] = choice["finish_reason"]
    return found


@pytest.mark.parametrize("name", STREAMED_CHATS)
def test_a_stream_is_as_the_contract_says(recorded: dict[str, Recording], name: str) -> None:
    recording = recorded[name]
    *chunks, done = recording.events
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    options = recording.kind.body.get("stream_options") or {}
    if options.get("include_usage"):
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens_details"].keys() >= {"reasoning_tokens"}
        assert last["usage"]["prompt_tokens_details"].keys() >= {"cached_tokens"}
        in_each = options.get("continuous_usage_stats", False)
        assert all((chunk["usage"] is not None) == in_each for chunk in chunks)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    by_choice: dict[int, list[Any]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        by_choice.setdefault(choice["index"], []).append(choice)
    assert list(by_choice) == sorted(by_choice), "SDKs append choices in the order in which they come"
    for first, *inner, last in by_choice.values():
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert last["delta"] == {}
        assert all(choice["delta"] and "role" not in choice["delta"] for choice in inner)
        assert all(choice["finish_reason"] is None for choice in (first, *inner))


@pytest.mark.parametrize("name", WHOLE_CHATS)
def test_a_whole_answer_says_what_it_has_not(recorded: dict[str, Recording], name: str) -> None:
    recording = recorded[name]
    for choice in recording.body["choices"]:
        assert choice["message"]["refusal"] is None
        assert (choice["logprobs"] is None) == (not recording.kind.body.get("logprobs"))
        assert "content" in choice["message"]
    assert recording.body["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("name", WHOLE_CHATS)
def test_both_modes_say_the_same(recorded: dict[str, Recording], name: str) -> None:
    whole = recorded[name].body
    for suffix in ("streamed", "streamed with usage", "streamed with usage in each"):
        recording = recorded[f"{name}, {suffix}"]
        for choice in whole["choices"]:
            said = _added_up(recording, choice["index"])
            message = {key: value for key, value in choice["message"].items() if key != "refusal"}
            assert _without_ids(said) == _without_ids({**message, "content": message["content"] or ""})
            logprobs = [
                entry
                for event in recording.events[:-1]
                for part in event["choices"]
                if part["index"] == choice["index"]
                for entry in (part.get("logprobs") or {}).get("content") or ()
            ]
            assert len(logprobs) == len((choice["logprobs"] or {}).get("content") or ())
        if "usage" in suffix:
            usage = recording.events[-2]["usage"]
            for key in ("prompt_tokens", "completion_tokens", "completion_tokens_details"):
                assert usage[key] == whole["usage"][key]


def _added_up(recording: Recording, index: int) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for event in recording.events[:-1]:
        for choice in event["choices"]:
            if choice["index"] == index:
                _add(message, choice["delta"])
    return message


def _add(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            calls = message.setdefault(key, [])
            for part in value:
                if part["index"] == len(calls):
                    calls.append({})
                _add(calls[part["index"]], {k: v for k, v in part.items() if k != "index"})
        elif isinstance(value, dict):
            _add(message.setdefault(key, {}), value)
        else:
            message[key] = message.get(key, "") + value


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": None} for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("name", TEXTS)
def test_a_completion_is_of_its_kind(recorded: dict[str, Recording], name: str) -> None:
    recording = recorded[name]
    bodies = [recording.body] if recording.body else list(recording.events[:-1])
    choices = [choice for body in bodies for choice in body["choices"]]
    ends = {choice["index"]: choice["finish_reason"] for choice in choices}
    assert set(ends.values()) == {recording.kind.finish}
    asked = recording.kind.body
    listed = isinstance(asked["prompt"], list) and isinstance(asked["prompt"][0], str)
    prompts = len(asked["prompt"]) if listed else 1
    assert sorted(ends) == list(range(prompts * asked.get("n", 1)))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_ends_with_its_error(recorded: dict[str, Recording], name: str) -> None:
    *events, error, done = recorded[name].events
    assert done == "[DONE]"
    assert error.keys() == {"error"}
    assert error["error"]["type"] == "server_error"
    assert events
    assert not any("error" in event for event in events)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_its_headers(recorded: dict[str, Recording], name: str) -> None:
    recording = recorded[name]
    assert recording.headers["content-type"] == "application/json"
    assert recording.headers["x-request-id"]
    assert ("retry-after" in recording.headers) == (recording.status in (429, 503))
    assert ("x-should-retry" in recording.headers) == (recording.status == 501)


# What makes these checks worth something


def test_every_error_of_the_contract_was_recorded(recorded: dict[str, Recording]) -> None:
    statuses = {recording.status for recording in recorded.values()}
    assert statuses == {200, 400, 401, 403, 404, 405, 409, 413, 429, 500, 501, 502, 503, 504}


@pytest.mark.parametrize(
    "amendment", AMENDMENTS, ids=lambda amendment: f"{amendment.where}-{amendment.field}"
)
def test_each_difference_from_the_description_is_met(
    recorded: dict[str, Recording], amendment: Amendment
) -> None:
    description = Description(one for one in AMENDMENTS if one is not amendment)
    name = amendment.where.partition(".")[0]
    faults = (
        description.faults(schema, value)
        for recording in recorded.values()
        for schema, value in parts(recording)
        if name in (schema, *_INSIDE.get(schema, ()))
    )
    assert any(faults)


_INSIDE = {
    "CreateChatCompletionResponse": ("ChatCompletionResponseMessage",),
    "CreateChatCompletionStreamResponse": ("ChatCompletionStreamResponseDelta",),
    "CreateEmbeddingResponse": ("Embedding",),
    "ListModelsResponse": ("Model",),
}


def test_the_check_finds_what_is_missing_or_too_much(
    recorded: dict[str, Recording], description: Description
) -> None:
    name = "chat with reasoning, calls and logprobs"
    good = recorded[name].body
    schema = schema_of(recorded[name].kind)
    assert description.faults(schema, good) == []
    missed = []
    for path in _objects(good):
        for key in (*_at(good, path), "surplus"):
            bad = copy.deepcopy(good)
            target = _at(bad, path)
            target[key] = object() if key in target else 1
            if not description.faults(schema, bad):
                missed.append((*path, key))
    assert missed == []


def _objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            yield from _objects(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(itertools.islice(value, 1)):
            yield from _objects(inner, (*path, number))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def test_what_was_said_came_through(recorded: dict[str, Recording]) -> None:
    assert recorded["chat plain"].body["choices"][0]["message"]["content"] == SAID
    assert recorded["completion plain"].body["choices"][0]["text"] == SAID
