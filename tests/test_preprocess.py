"""From a checked request to the job for the core and the options of the answer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from wsgi_router import native, preprocess
from wsgi_router.errors import InvalidRequestError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.schema import ChatRequest, parse_chat
from wsgi_router.settings import Settings
from wsgi_router.workers.worker import ModelCard

CARD = ModelCard("m", context_length=4096, weight_version="w1")


def request(**fields: Any) -> ChatRequest:
    return parse_chat(
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    )


def job(card: ModelCard = CARD, **fields: Any) -> dict[str, Any]:
    return preprocess.chat_job(request(**fields), card)


def test_a_plain_job() -> None:
    made = job()
    assert made["messages"] == [{"role": "user", "content": "x"}]
    assert made["add_generation_prompt"] is True
    assert made["continue_final_message"] is False
    assert made["context_length"] == 4096
    assert made["max_tokens"] is None
    assert made["stream"] is False
    assert made["sampling"] == {}


def test_an_unknown_context_is_no_limit() -> None:
    assert job(ModelCard("m"))["context_length"] is None


@pytest.mark.parametrize(
    ("fields", "asked_as_stream"),
    [
        ({}, False),
        ({"stream": True}, True),
        ({"stop": "x"}, True),
        ({"stop": []}, False),
        ({"n": 2}, True),  # the others start at the first one's first event
        ({"n": 1}, False),
    ],
)
def test_when_the_worker_streams(fields: dict[str, Any], asked_as_stream: bool) -> None:
    assert job(**fields)["stream"] is asked_as_stream


def test_a_continued_message_has_no_generation_prompt() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    made = job(messages=messages, continue_final_message=True)
    assert (made["continue_final_message"], made["add_generation_prompt"]) == (True, False)
    assert job(add_generation_prompt=False)["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, {}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (
            {"reasoning_effort": "none"},
            {"reasoning_effort": "none", "thinking": False, "enable_thinking": False},
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "thinking": False, "enable_thinking": True},
        ),
    ],
)
def test_template_arguments(fields: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert job(**fields)["chat_template_kwargs"] == arguments


def test_the_clients_parameters_win_over_the_workers_defaults() -> None:
    card = ModelCard(
        "m",
        default_sampling_params='{"temperature": 0.6, "top_k": 20, "top_p": 0.95}',
        preferred_sampling_params='{"top_k": 30}',
    )
    assert job(card, temperature=0)["sampling"] == {"temperature": 0, "top_k": 30, "top_p": 0.95}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"temperature": "hot", "top_k": null, "min_p": true, "stop": ["x"]}',
        '{"top_k": 1e300}',
        '{"top_k": 0, "top_p": 0, "min_new_tokens": -1, "repetition_penalty": 3}',
    ],
)
def test_defaults_that_cannot_be_used_are_passed_over(text: str) -> None:
    assert preprocess.model_defaults(text) == {}


def test_the_template_gets_the_tools_that_may_be_called() -> None:
    assert "tools" not in job()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert job(tools=[tool])["tools"] == [tool]
    assert "tools" not in job(tools=[tool], tool_choice="none")


def test_a_seed_rides_with_the_custom_parameters() -> None:
    assert job(seed=3)["sampling"]["custom_params"] == {"seed": 3}
    assert job(seed=3, custom_params={"a": 1})["sampling"]["custom_params"] == {"a": 1, "seed": 3}
    assert job(seed=3, custom_params={"seed": 4})["sampling"]["custom_params"] == {"seed": 4}


def test_sampling_has_the_workers_names() -> None:
    fields: dict[str, Any] = {
        "min_tokens": 2,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "logit_bias": {"5": 1},
    }
    assert job(**fields)["sampling"] == {
        "min_new_tokens": 2,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "logit_bias": {"5": 1},
    }


@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
def test_what_is_not_zero_is_not_zero_on_the_wire(name: str) -> None:
    """The protocol has single precision."""
    fields: dict[str, Any] = {name: 1e-320}
    sent = struct.unpack("f", struct.pack("f", job(**fields)["sampling"][name]))[0]
    assert 0 < sent < 1e-30
    fields = {name: 0.1}
    assert job(**fields)["sampling"] == fields


def test_arguments_of_calls_are_no_way_around_the_bound_of_values() -> None:
    """They may be JSON within a string, which is not counted with the body."""

    def called(*arguments: object) -> dict[str, Any]:
        calls = [{"function": {"name": "f", "arguments": one}} for one in arguments]
        return {"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]}

    text = json.dumps({"code": '[{"a",' * 200_000})
    assert (
        job(**called(text, {"a": 1}, "{}"))["messages"][0]["tool_calls"][0]["function"]["arguments"] == text
    )
    many = '{"a": [' + "1," * 900_000 + "1]}"
    assert job(**called(many))
    with pytest.raises(InvalidRequestError) as caught:
        job(**called(many, many))
    assert (caught.value.param, caught.value.code) == ("messages", "too_many_values")


def test_a_bias_of_an_id_that_the_model_lacks_is_refused() -> None:
    """The vocabulary is the worker's, where it tells: a model's may be larger than the tokenizer's."""
    assert job(logit_bias={"151935": 1})["sampling"]["logit_bias"] == {"151935": 1}
    card = ModelCard("m", vocab_size=151936)
    assert job(card, logit_bias={"151935": 1})["sampling"]["logit_bias"] == {"151935": 1}
    with pytest.raises(InvalidRequestError) as caught:
        job(card, logit_bias={"5": 1, "151936": 1})
    assert caught.value.param == "logit_bias.151936"


def test_options_of_the_answer() -> None:
    options = preprocess.stream_options(
        request(
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
            n=3,
            stop=["a", "b"],
            stop_token_ids=[7],
            no_stop_trim=True,
            skip_special_tokens=False,
        ),
        CARD,
        11,
    )
    assert options.pop("id").startswith("chatcmpl-")
    assert options.pop("created") > 1_700_000_000
    assert options == {
        "model": "m",
        "system_fingerprint": "w1",
        "choices": 3,
        "streaming": True,
        "include_usage": True,
        "continuous_usage": True,
        "stop": ["a", "b"],
        "stop_token_ids": [7],
        "ignore_eos": False,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "prompt_tokens": 11,
    }


def test_ids_of_answers_differ() -> None:
    ids = {preprocess.stream_options(request(), CARD, 1)["id"] for _ in range(100)}
    assert len(ids) == 100


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "constraint", "value"),
    [
        ({}, None, ""),
        ({"regex": "a+"}, "regex", "a+"),
        ({"ebnf": "root ::= [é]"}, "ebnf_grammar", "root ::= [é]"),
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        (
            {"structural_tag": {"format": {"type": "any_text"}}},
            "structural_tag",
            '{"type":"structural_tag","format":{"type":"any_text"}}',
        ),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "json_schema",
            '{"type":"object"}',
        ),
    ],
)
def test_the_worker_gets_the_constraint(
    fields: dict[str, Any],
    constraint: str | None,
    value: str,
    tmp_path: Path,
) -> None:
    tokenizer = native.Tokenizer(str(tiny.write(tmp_path)))
    card = ModelCard("qwen3")
    made = preprocess.prepare(request(**fields, logprobs=True, top_logprobs=3), card, tokenizer, Settings())
    sent = pb.GenerateRequest.FromString(made.jobs[0].body)
    assert sent.sampling_params.WhichOneof("constraint") == constraint
    assert constraint is None or getattr(sent.sampling_params, constraint) == value
    assert (sent.return_logprob, sent.top_logprobs_num, sent.logprob_start_len) == (True, 3, -1)
    assert sent.require_reasoning
    assert json.loads(made.stream_options)["reasoning_format"] == "qwen3"
