"""The tables of formats: names, models, switches, and their agreement with the core's tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from wsgi_router import parsers, settings
from wsgi_router.settings import SettingsError


@pytest.mark.parametrize(
    ("model", "tools", "reasoning"),
    [
        ("Qwen/Qwen3-8B", "qwen", "qwen3"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen", None),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen", "qwen3_thinking"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen_coder", None),
        ("Qwen/Qwen3-Coder-Next", "qwen_coder", None),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen", None),
        ("Qwen/Qwen3.5-9B", "qwen_coder", "qwen3"),
        ("Qwen/QwQ-32B", "qwen", "deepseek_r1"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "qwen", None),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama", None),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "pythonic", None),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral", None),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral", None),
        ("mistralai/Magistral-Small-2509", "mistral", "mistral"),
        ("mistralai/Ministral-3-14B-Reasoning-2512", "mistral", "mistral"),
        ("mistralai/Ministral-3-14B-Instruct-2512", "mistral", None),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek_v3", None),
        ("deepseek-ai/DeepSeek-R1", "deepseek_v3", "deepseek_r1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "json", "deepseek_r1"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek_v31", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek_v31", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek_v32", "deepseek_v3"),
        ("zai-org/GLM-4.5-Air", "glm45", "glm45"),
        ("zai-org/GLM-4.7", "glm47", "glm45"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi_k2", None),
        ("moonshotai/Kimi-K2-Thinking", "kimi_k2", "kimi_k2"),
        ("/models/Kimi_K2_Thinking", "kimi_k2", "kimi_k2"),
        ("MiniMaxAI/MiniMax-M2", "minimax_m2", "minimax"),
        ("stepfun-ai/step3", "step3", "step3"),
        ("CohereLabs/c4ai-command-r7b-12-2024", "cohere", None),
        ("CohereLabs/command-a-reasoning-08-2025", "cohere", "cohere"),
        ("openai/gpt-oss-20b", "gpt-oss", "gpt-oss"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", "nemotron", "nemotron"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "json", None),
        ("m", "json", None),
    ],
)
def test_formats_of_models(model: str, tools: str, reasoning: str | None) -> None:
    form = parsers.TOOLS.choose(parsers.AUTO, [model])
    assert form is not None
    assert form.name == tools
    thinking = parsers.REASONING.choose(parsers.AUTO, [model])
    assert (thinking.name if thinking else None) == reasoning


def test_the_first_known_name_counts() -> None:
    assert chosen(["served", "Qwen/Qwen3-8B", "gpt-oss"]) == "qwen"
    assert chosen([]) == "json"


def chosen(models: list[str], setting: str = parsers.AUTO) -> str | None:
    form = parsers.TOOLS.choose(setting, models)
    return form.name if form else None


@pytest.mark.parametrize(
    ("word", "name"),
    [("auto", "auto"), (" None ", "none"), ("qwen25", "qwen"), ("HERMES", "qwen"), ("gpt_oss", "gpt-oss")],
)
def test_settings_take_every_name(word: str, name: str) -> None:
    loaded = settings.load({"WSGI_ROUTER_TOOL_CALL_PARSER": word})
    assert loaded.tool_call_parser == name
    assert chosen(["Qwen/Qwen3-8B"], name) == {"none": None, "auto": "qwen"}.get(name, name)


@pytest.mark.parametrize("name", ["TOOL_CALL_PARSER", "REASONING_PARSER"])
@pytest.mark.parametrize("word", ["qwem", "", "base,qwen3"])
def test_an_unknown_name_stops_the_start(name: str, word: str) -> None:
    with pytest.raises(SettingsError, match=f"WSGI_ROUTER_{name}: must be one of auto, none, ") as caught:
        settings.load({f"WSGI_ROUTER_{name}": word})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("table", [parsers.TOOL_FORMATS, parsers.REASONING_FORMATS])
def test_no_name_and_no_part_of_a_model_stands_twice(table: Any) -> None:
    names = [word for row in table for word in (row.name, *row.aliases)]
    assert len(set(names)) == len(names)
    parts = [part for row in table for part in row.models]
    assert len(set(parts)) == len(parts)
    assert all(part == part.lower() and "_" not in part for part in parts)


@pytest.mark.parametrize(
    ("name", "arguments", "thinking"),
    [
        (None, {}, False),
        ("deepseek_r1", {}, True),
        ("deepseek_r1", {"enable_thinking": False}, True),
        ("qwen3", {}, True),
        ("qwen3", {"enable_thinking": None}, True),
        ("qwen3", {"enable_thinking": False, "thinking": False}, False),
        ("qwen3", {"thinking": False}, True),
        ("deepseek_v3", {}, False),
        ("deepseek_v3", {"thinking": True}, True),
        ("kimi_k25", {"thinking": False}, False),
    ],
)
def test_the_switch_of_thinking(name: str | None, arguments: dict[str, Any], thinking: bool) -> None:
    form = parsers.REASONING.choose(name, []) if name else None
    assert parsers.thinks(form, arguments) is thinking


@pytest.mark.parametrize(
    ("name", "prompt", "inside"),
    [
        (None, "<think>", False),
        ("qwen3", "<|im_start|>assistant\n", None),
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "say <think> to me<|im_start|>assistant\n", None),
        ("deepseek_v3", "<｜Assistant｜></think>", False),
        ("cohere", "<|CHATBOT_TOKEN|><|START_THINKING|>", True),
        ("mistral", "[INST]hi[/INST]", None),
        ("mistral", "[INST]hi[/INST][THINK]", True),
        ("qwen3", "", None),
    ],
)
def test_where_the_answer_begins(name: str | None, prompt: str, inside: bool | None) -> None:
    form = parsers.REASONING.choose(name, []) if name else None
    assert parsers.starts_inside(form, prompt) is inside


CORE = Path(__file__).parent.parent / "_native/core/src/parsers"


def core_strings(name: str) -> set[str]:
    """The string literals in a file of the core's."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"', (CORE / name).read_text("utf-8"))
    return {text.replace('\\"', '"').replace("\\n", "\n") for text in found}


def test_the_core_has_these_tool_formats() -> None:
    """That it reads calls in the form that these markers give them, a test of the core's shows."""
    strings = core_strings("formats.rs")
    for form in parsers.TOOL_FORMATS:
        assert {form.name, *form.aliases} <= strings


def test_the_core_has_these_reasoning_formats() -> None:
    strings = core_strings("reasoning.rs")
    for form in parsers.REASONING_FORMATS:
        assert (form.parser or form.name) in strings
        if form.name != "gpt-oss":
            assert {form.start, form.end} <= strings
