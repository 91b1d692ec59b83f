"""Every tokenizer that was fetched, as a folder, against transformers: special tokens within text, any ids,
every cut."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import answers, models
from tests.support.processes import ROOT
from tests.support.texts import HARD, TEXTS
from wsgi_router import native

FETCHED = sorted(
    {*models.FOLDERS, *(file.parent.name for file in (ROOT / ".cache/models").glob("*/tokenizer.json"))}
)
MODELS = pytest.mark.parametrize("name", FETCHED)


def folder(name: str) -> str:
    return str(models.folder(name) if name in models.FOLDERS else ROOT / ".cache/models" / name)


@functools.cache
def core(name: str) -> native.Tokenizer:
    return native.Tokenizer(folder(name))


@functools.cache
def reference(name: str) -> Any:
    """transformers' tokenizer of the files, not of a model's class."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder(name))


@functools.cache
def added(name: str) -> list[str]:
    return [token.content for _, token in sorted(reference(name).added_tokens_decoder.items())]


def decoded(name: str, ids: list[int], skip: bool) -> str:
    text = reference(name).decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    return str(text)


@MODELS
def test_special_tokens_within_text(name: str) -> None:
    few = added(name)[:: max(len(added(name)) // 60, 1)]
    texts = [
        "".join(few),
        " ".join(few),
        *(f"a{token}b {token} {HARD[n % 25]}" for n, token in enumerate(few)),
    ]
    for text in texts:
        assert core(name).encode(text, False) == reference(name).encode(text, add_special_tokens=False), text

    @models.examples(80)
    @given(st.lists(st.one_of(TEXTS, st.sampled_from(few)), max_size=6).map("".join))
    def check(text: str) -> None:
        assert core(name).encode(text, False) == reference(name).encode(text, add_special_tokens=False)

    check()


@MODELS
def test_tokens_around_a_text(name: str) -> None:
    for text in ("", "Hi.", " x\n"):
        assert core(name).encode(text, True) == reference(name).encode(text)


@MODELS
def test_any_ids_and_every_cut(name: str) -> None:
    known = reference(name)
    size = max(known.get_vocab().values()) + 1
    partial = known.encode("𠮷é😀ก\U0010ffff", add_special_tokens=False)
    special = sorted(known.added_tokens_decoder)
    token = st.one_of(
        st.integers(0, size - 1), st.sampled_from(partial), st.sampled_from(special), st.just(size + 5)
    )

    @models.examples(80)
    @given(st.lists(token, max_size=30), st.lists(st.integers(1, 9), max_size=30), st.booleans())
    def check(ids: list[int], cuts: list[int], skip: bool) -> None:
        expected = decoded(name, ids, skip)
        assert core(name).decode(ids, skip) == expected
        fed = answers.messages(ids, cuts, "rest")
        assert answers.streamed(core(name), fed, skip_special_tokens=skip).text == expected

    check()


@MODELS
def test_hard_text_comes_back_as_transformers_reads_it(name: str) -> None:
    for text in (*HARD, " ".join(HARD), "".join(HARD)):
        ids = reference(name).encode(text, add_special_tokens=False)
        assert core(name).encode(text, False) == ids, text
        for skip in (True, False):
            assert core(name).decode(ids, skip) == decoded(name, ids, skip)
