"""/v1/tokenize and /v1/detokenize."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.app import MODEL, App, error_of

TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"


@pytest.mark.parametrize(
    ("prompt", "tokens", "count"),
    [("hé", [104, 195, 169], 3), ("", [], 0), (["a", "bc"], [[97], [98, 99]], [1, 2])],
)
def test_tokenize(app: App, prompt: Any, tokens: Any, count: Any) -> None:
    answer = app.post({"model": MODEL, "prompt": prompt}, TOKENIZE).get_json()
    assert answer == {"tokens": tokens, "count": count, "max_model_len": 2000}


def test_tokenize_a_conversation(app: App) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = app.post({"messages": messages}, TOKENIZE).get_json()
    text = app.post({"tokens": answer["tokens"], "skip_special_tokens": False}, DETOKENIZE).get_json()["text"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert answer["count"] == len(answer["tokens"])
    bare = app.post({"messages": messages, "add_generation_prompt": False}, TOKENIZE).get_json()
    assert bare["count"] < answer["count"]


def test_tokenize_a_conversation_with_tools(make: Callable[..., App], tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}|")
    app = make(chat_template=str(template))
    body = {"messages": [{"role": "user", "content": "x"}], "functions": [{"name": "f"}]}
    assert app.post(body, TOKENIZE).get_json()["tokens"] == list(b"f|")
    assert app.post({**body, "function_call": "none"}, TOKENIZE).get_json()["tokens"] == list(b"|")


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([104, 195, 169, 257], "hé"),
        ([], ""),
        ([[97], [98, 99]], ["a", "bc"]),
        ([[], [97], []], ["", "a", ""]),
    ],
)
def test_detokenize(app: App, tokens: Any, text: Any) -> None:
    answer = app.post({"model": MODEL, "tokens": tokens}, DETOKENIZE).get_json()
    assert answer == {"text": text, "prompt": text}


def test_detokenize_names_an_unknown_id(app: App) -> None:
    error = error_of(app.post({"tokens": [[1], [2, 99999]]}, DETOKENIZE), 400)
    assert error["param"] == "tokens[1][1]"


def test_tokenizing_needs_no_worker(make: Callable[..., App]) -> None:
    app = make(up=False)
    answer = app.post({"prompt": "a"}, TOKENIZE).get_json()
    assert answer == {"tokens": [97], "count": 1, "max_model_len": None}
    assert app.post({"tokens": [97]}, DETOKENIZE).get_json()["text"] == "a"
    error_of(app.post({"prompt": "a", "model": MODEL}, TOKENIZE), 503)
