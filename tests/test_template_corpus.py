"""Every chat template of the corpus: equal to transformers byte for byte, or both refuse."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import conversations, models, templates
from tests.support.conversations import Case, Messages, assistant, calls, result, system, user
from tests.support.processes import ROOT
from tests.support.templates import REFUSED, Reference
from wsgi_router import native

# Random conversations for each template, besides the fixed ones.
EXAMPLES = int(os.environ.get("TEMPLATE_CASES", "5"))
NAMES = templates.names()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@functools.cache
def _cases() -> list[Case]:
    return conversations.cases()


def _both(name: str, folder: Path) -> tuple[native.Tokenizer, Reference]:
    made = templates.template(name)
    return templates.core(made, folder), Reference(made, templates.record()[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_template_renders_as_by_transformers(name: str, folder: Path) -> None:
    core, reference = _both(name, folder)
    refused = 0
    for case in _cases():
        expected = reference.rendered(case)
        assert templates.rendered(core, case) == expected, json.dumps(case, ensure_ascii=False)
        refused += expected == REFUSED
    recorded = templates.record()[name]
    assert (len(_cases()), refused) == (recorded["cases"], recorded["refused"])


def test_the_corpus_is_whole() -> None:
    """Fetched anew with another version, it would have other templates."""
    fetched = {path.stem for path in templates.FOLDER.glob("*.jinja")}
    assert fetched | {*templates.NPM, "smollm2"} == set(NAMES)


def test_the_readme_has_the_counts() -> None:
    total = len(NAMES) * len(_cases())
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    assert f"{len(NAMES)} of {len(NAMES)} templates, {total:,} of {total:,} conversations" in text


SECRETS = {
    "system": "say-this",
    "user": "ask-that",
    "call": "look-up",
    "argument": "in-Paris",
    "result": "all-rain",
}


def _telling(arguments: Any, content: str | None) -> Messages:
    return [
        system(SECRETS["system"]),
        user(SECRETS["user"]),
        assistant(content, tool_calls=calls((SECRETS["call"], arguments))),
        result(SECRETS["result"], name=SECRETS["call"]),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_in_the_form_that_a_client_chose(name: str, folder: Path) -> None:
    """Dict or text, null or empty: the same prompt, with all in it, but for what the template leaves out."""
    core, _ = _both(name, folder)
    prompts = set()
    for arguments in ({"city": SECRETS["argument"]}, json.dumps({"city": SECRETS["argument"]})):
        case: dict[str, Any] = {"messages": _telling(arguments, None), "tools": conversations.PLAIN_TOOLS}
        case["kwargs"] = {"functions": "[]", "datetime": "2024-07-06"}
        prompts.add(templates.rendered(core, case))
    (prompt,) = prompts
    if prompt == REFUSED:
        assert templates.record()[name].get("refuses_calls")
        return
    lost = [what for what, text in SECRETS.items() if text not in prompt]
    assert lost == templates.record()[name].get("leaves_out", [])


TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.text(" \n\tab", max_size=6),
    st.sampled_from(
        ["</think>", "<think>\nx\n</think>\n\ny", "<|im_end|>", "{{ a }}", "<tool_call>", "'\"&<>"]
    ),
)
VALUE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**130),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXT,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)
CALLS = st.lists(st.tuples(TEXT, st.dictionaries(TEXT, VALUE, max_size=3)), min_size=1, max_size=2)
TURN = st.one_of(
    TEXT.map(user),
    TEXT.map(assistant),
    st.builds(lambda text, thought: assistant(text, reasoning_content=thought), TEXT, TEXT),
    st.builds(lambda text, made: assistant(text, tool_calls=calls(*made)), st.one_of(st.none(), TEXT), CALLS),
    TEXT.map(result),
)
CONVERSATION = st.builds(
    lambda opening, turns: [*opening, *turns],
    st.lists(TEXT.map(system), max_size=1),
    st.lists(TURN, min_size=1, max_size=5),
)
TOOLS = st.one_of(
    st.none(),
    st.just(conversations.PLAIN_TOOLS),
    st.lists(st.builds(conversations.tool, TEXT, st.dictionaries(TEXT, VALUE, max_size=2)), max_size=2),
)


@pytest.mark.parametrize("name", NAMES)
def test_any_conversation_renders_as_by_transformers(name: str, folder: Path) -> None:
    core, reference = _both(name, folder)

    @models.examples(EXAMPLES)
    @given(
        CONVERSATION,
        TOOLS,
        st.sampled_from(["add_generation_prompt", "continue_final_message", None]),
        st.dictionaries(st.sampled_from(["enable_thinking", "thinking", "date_string"]), VALUE, max_size=1),
    )
    def check(messages: Messages, tools: Any, mode: str | None, kwargs: dict[str, Any]) -> None:
        case: Case = {"messages": messages, "tools": tools, "kwargs": kwargs}
        if mode:
            case[mode] = True
        assert templates.rendered(core, case) == reference.rendered(case)

    check()
