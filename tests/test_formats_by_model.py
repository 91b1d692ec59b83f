"""Formats of calls and reasoning, and chat templates, of two models whose names tell nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import sse, tiny
from tests.support.app import ask, complete
from tests.test_tokenizers import FIRST, SECOND, Models, folder_with, pieces

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
ARGUMENTS = '{"a": 1}'
QWEN_CALL = f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>'
MISTRAL_CALL = f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGUMENTS}}}]'
FORMATS: dict[str, Any] = {
    "tool_call_parsers": (("one", "qwen"), ("two", "mistral"), ("nobody", "llama")),
    "reasoning_parsers": (("two", "deepseek_r1"),),
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Models]]:
    made: list[Models] = []

    def new(**settings: Any) -> Models:
        app = Models(FIRST, SECOND, **settings)
        made.append(app)
        for url, model in ((FIRST, "one"), (SECOND, "two")):
            app.serve(url, model, pieces(folder_with(tmp_path / model, model)))
        app.wait_ready("one", "two")
        return app

    yield new
    for app in made:
        app.services.close()


def message(app: Models, model: str, text: str, **fields: Any) -> dict[str, Any]:
    """What comes of a worker's `text`."""
    app.transport.answers = [(complete(text), None)]
    answer = app.post(ask(model=model, **fields)).get_json()
    found: dict[str, Any] = answer["choices"][0]["message"]
    return found


def called(found: dict[str, Any]) -> list[tuple[str, str]]:
    calls = found.get("tool_calls") or ()
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.mark.parametrize(
    ("model", "text", "is_call"),
    [
        ("one", QWEN_CALL, True),
        ("one", MISTRAL_CALL, False),
        ("two", f"</think>{MISTRAL_CALL}", True),
        ("two", f"</think>{QWEN_CALL}", False),
    ],
)
def test_calls_are_read_in_the_models_own_format(
    make: Callable[..., Models], model: str, text: str, is_call: bool
) -> None:
    app = make(**FORMATS)
    found = message(app, model, text, tools=[TOOL])
    assert called(found) == ([("f", ARGUMENTS)] if is_call else [])
    assert found["content"] == (None if is_call else text.removeprefix("</think>"))
    app.transport.answers = [(complete(text), None)]
    streamed = sse.events(app.chat(model=model, tools=[TOOL], stream=True).text.splitlines())
    deltas = [event["choices"][0]["delta"] for event in streamed if isinstance(event, dict)]
    written = "".join(
        call["function"].get("arguments", "") for delta in deltas for call in delta.get("tool_calls", ())
    )
    assert written == (ARGUMENTS if is_call else "")


def test_a_forced_call_is_constrained_in_the_models_own_format(make: Callable[..., Models]) -> None:
    app = make(**FORMATS)
    message(app, "one", "[]", tools=[TOOL], tool_choice="required")
    message(app, "two", "", tools=[TOOL], tool_choice="required")
    one, two = (stream.request.sampling_params for stream in app.transport.streams[-2:])
    assert (bool(one.json_schema), one.structural_tag) == (True, "")
    assert "[TOOL_CALLS]" in two.structural_tag


def test_reasoning_is_read_in_the_models_own_format(make: Callable[..., Models]) -> None:
    app = make(**FORMATS)
    found = message(app, "two", "so</think>yes")
    assert (found["reasoning_content"], found["content"]) == ("so", "yes")
    found = message(app, "one", "so</think>yes")
    assert (found.get("reasoning_content"), found["content"]) == (None, "so</think>yes")


def test_other_models_have_the_format_of_all(make: Callable[..., Models]) -> None:
    app = make(tool_call_parser="qwen", tool_call_parsers=(("two", "none"),), reasoning_parser="base")
    assert called(message(app, "one", QWEN_CALL, tools=[TOOL])) == [("f", ARGUMENTS)]
    assert message(app, "two", QWEN_CALL, tools=[TOOL])["content"] == QWEN_CALL
    for model in ("one", "two"):
        assert message(app, model, "<think>so</think>yes")["reasoning_content"] == "so"


@pytest.mark.parametrize("path", ["workers", "TOKENIZER_PATH", "TOKENIZERS"])
def test_a_model_has_a_chat_template_of_its_own(
    make: Callable[..., Models], tmp_path: Path, path: str
) -> None:
    """Wherever its tokenizer is from; another one has that of CHAT_TEMPLATE, or its tokenizer's."""
    for mark in "XY":
        (tmp_path / f"{mark}.jinja").write_text(mark + tiny.TEMPLATE)
    named = str(folder_with(tmp_path / "named", "N"))
    settings: dict[str, dict[str, Any]] = {
        "workers": {},
        "TOKENIZER_PATH": {"tokenizer_path": named},
        "TOKENIZERS": {"tokenizers": (("one", named), ("two", named))},
    }
    app = make(
        chat_template=str(tmp_path / "X.jinja"),
        chat_templates=(("two", str(tmp_path / "Y.jinja")), ("nobody", str(tmp_path / "X.jinja"))),
        **settings[path],
    )
    assert app.prompt("two").startswith("Y<|im_start|>user\nhi")
    assert app.prompt("one").startswith("N<" if path == "TOKENIZERS" else "X<")
