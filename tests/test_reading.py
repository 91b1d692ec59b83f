"""The plan for an answer: what the job, the sampling parameters and the native Stream's options hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wsgi_router import parsers, reading
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.schema.output import parse_output
from wsgi_router.settings import Settings
from wsgi_router.workers.worker import ModelCard

PARAMETERS = {"type": "object", "properties": {}}
F = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
QWEN = ModelCard("served", model_path="Qwen/Qwen3-8B")
KIMI = ModelCard("served", model_path="moonshotai/Kimi-K2-Thinking")
HARMONY = ModelCard("gpt-oss-20b")
CALLS = [{"role": "assistant", "tool_calls": [{}, {}]}, {"role": "tool"}, {"role": "assistant"}]


def plan(
    card: ModelCard = QWEN,
    settings: Settings | None = None,
    messages: Any = (),
    arguments: dict[str, Any] | None = None,
    **fields: Any,
) -> reading.Plan:
    return reading.plan(parse_output(fields), messages, arguments or {}, card, settings or Settings())


def test_a_plain_request() -> None:
    made = plan(settings=Settings(reasoning_parser="none"))
    assert (made.job(), made.sampling()) == ({}, {})
    assert made.options("p") == {
        "tool_format": None,
        "tools": [],
        "parallel": True,
        "read_as": "parser",
        "id_style": "call",
        "calls_before": 0,
        "legacy_function_call": False,
        "reasoning_format": None,
        "starts_inside": False,
        "separate_reasoning": True,
        "stream_reasoning": True,
        "logprobs": None,
    }


def test_tools_that_may_be_called() -> None:
    made = plan(tools=[F])
    options = made.options("")
    assert options["tool_format"] == "qwen"
    assert options["tools"] == [{"name": "f", "parameters": PARAMETERS}]
    assert (options["parallel"], options["read_as"]) == (True, "parser")


@pytest.mark.parametrize(
    ("fields", "read_as", "parallel", "legacy"),
    [
        ({"tools": [F], "tool_choice": "required"}, "calls_array", True, False),
        (
            {"tools": [F], "tool_choice": "required", "parallel_tool_calls": False},
            "calls_array",
            False,
            False,
        ),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "f"}}, "named_arguments", False, False),
        ({"functions": [F["function"]]}, "parser", False, True),
        ({"functions": [F["function"]], "function_call": {"name": "f"}}, "named_arguments", False, True),
    ],
)
def test_how_calls_are_read(fields: dict[str, Any], read_as: str, parallel: bool, legacy: bool) -> None:
    options = plan(**fields).options("")
    found = (options["read_as"], options["parallel"], options["legacy_function_call"])
    assert found == (read_as, parallel, legacy)


def test_no_calls_are_read_without_tools() -> None:
    made = plan(tools=[F], tool_choice="none")
    assert (made.options("")["tool_format"], made.options("")["tools"]) == (None, [])


def test_kimis_ids_count_on() -> None:
    made = plan(KIMI, messages=CALLS, tools=[F], tool_choice="required")
    options = made.options("")
    assert (options["tool_format"], options["id_style"], options["calls_before"]) == ("kimi_k2", "kimi", 2)
    assert "functions.f:2<" in made.sampling()["structural_tag"]


def test_a_constraint_is_a_sampling_parameter() -> None:
    assert plan(regex="a+").sampling() == {"regex": "a+"}
    made = plan(response_format={"type": "json_object"}).sampling()
    assert json.loads(made["json_schema"]) == {"type": "object"}


@pytest.mark.parametrize(
    ("card", "settings", "arguments", "fields", "required"),
    [
        (QWEN, Settings(), {}, {}, True),
        (QWEN, Settings(), {"enable_thinking": False}, {}, False),
        (QWEN, Settings(reasoning_parser="none"), {}, {}, False),
        (ModelCard("m"), Settings(), {}, {}, False),
        (ModelCard("m"), Settings(reasoning_parser="deepseek_r1"), {}, {}, True),
        (HARMONY, Settings(), {}, {}, True),
        # This grammar has the thoughts in it.
        (HARMONY, Settings(), {}, {"response_format": {"type": "json_object"}}, False),
    ],
)
def test_when_the_worker_waits_for_the_reasonings_end(
    card: ModelCard, settings: Settings, arguments: dict[str, Any], fields: dict[str, Any], required: bool
) -> None:
    assert waits(plan(card, settings, arguments=arguments, **fields), "assistant\n") is required


def waits(made: reading.Plan, prompt: str) -> bool:
    return pb.GenerateRequest.FromString(made.body(prompt)).require_reasoning


@pytest.mark.parametrize(
    ("prompt", "required", "inside"),
    [
        ("assistant\n", True, None),
        ("assistant\n<think>\n", True, True),
        ("assistant\n<think>\n\n</think>\n\n", False, False),
    ],
)
def test_the_prompt_has_the_last_word(prompt: str, required: bool, inside: bool | None) -> None:
    made = plan()
    assert (waits(made, prompt), made.options(prompt)["starts_inside"]) == (required, inside)


@pytest.mark.parametrize(
    ("content", "inside"),
    [
        ("So", False),
        ("<think>well", True),
        ("<think>well</think>So", False),
        ([{"type": "text", "text": "<think>"}, {"type": "text", "text": "a"}], True),
        (None, False),
    ],
)
def test_an_answer_that_is_continued(content: Any, inside: bool) -> None:
    messages = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": content}]
    output = parse_output({})
    made = reading.plan(output, messages, {}, QWEN, Settings(), continued=True)
    assert made.options("x<think>")["starts_inside"] is inside
    assert waits(made, "x<think>") is inside


def test_options_of_reasoning() -> None:
    options = plan(separate_reasoning=False, stream_reasoning=False).options("assistant\n<think>\n")
    assert options["reasoning_format"] == "qwen3"
    assert options["starts_inside"] is True
    assert (options["separate_reasoning"], options["stream_reasoning"]) == (False, False)


def test_the_core_knows_a_parser_by_its_own_name() -> None:
    made = plan(settings=Settings(reasoning_parser="deepseek_v3"))
    assert made.options("")["reasoning_format"] == "base"


def test_logprobs() -> None:
    made = plan(logprobs=True, top_logprobs=3)
    assert (made.job()["return_logprob"], made.job()["top_logprobs_num"]) == (True, 3)
    assert made.options("")["logprobs"] == 3
    assert plan().options("")["logprobs"] is None


def test_the_operators_setting_wins() -> None:
    made = plan(settings=Settings(tool_call_parser="llama", reasoning_parser="step3"), tools=[F])
    assert (made.options("")["tool_format"], made.options("")["reasoning_format"]) == ("llama", "step3")
    assert plan(settings=Settings(tool_call_parser=parsers.NONE), tools=[F]).tool_format is None
