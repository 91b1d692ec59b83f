"""Tokens that only the files beside a tokenizer.json name: a folder means what it means to transformers."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support import byte_fallback, tiny
from wsgi_router import native


def token(content: str, special: bool = False, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {"content": content, "special": special, **plain, **flags}


KNOWN = {"256": token("<|im_start|>", True), "257": token("<|im_end|>", True)}
CASES: dict[str, dict[str, Any]] = {
    "in order": {"added_tokens_decoder": {**KNOWN, "258": token("<t>"), "259": token("<u>", True)}},
    "ids with a gap": {"added_tokens_decoder": {**KNOWN, "300": token("<t>"), "290": token("<u>", True)}},
    "ids as text sort otherwise": {"added_tokens_decoder": {"1000": token("<t>"), "999": token("<u>", True)}},
    "one is the start of another": {"added_tokens_decoder": {"258": token("<t>"), "259": token("<t>x")}},
    "a list": {"additional_special_tokens": ["<t>", "<|im_start|>", "<u>"]},
    "the newer list": {"extra_special_tokens": ["<t>"]},
    "the newer list wins": {"extra_special_tokens": ["<t>"], "additional_special_tokens": ["<u>"]},
    "named": {"extra_special_tokens": {"boi": "<t>"}},
    "named for the model": {"model_specific_special_tokens": {"boi": "<t>"}},
    "roles": {"bos_token": "<t>", "pad_token": "<u>"},
    "a role of its own": {"image_token": "<t>"},
    "a role with flags": {"bos_token": {"__type": "AddedToken", **token("<t>", True)}},
    "a role that the vocabulary has": {"bos_token": "a"},
    "a role makes special": {"bos_token": "<t>", "added_tokens_decoder": {**KNOWN, "258": token("<t>")}},
    "flags win": {"added_tokens_decoder": {"256": token("<|im_start|>"), "257": token("<|im_end|>", True)}},
    "an id that is taken": {"added_tokens_decoder": {"256": token("<t>", True)}},
    "one of the vocabulary": {"added_tokens_decoder": {**KNOWN, "97": token("a", True)}},
    "stripped left": {"added_tokens_decoder": {**KNOWN, "258": token("<t>", lstrip=True)}},
    "stripped right": {"added_tokens_decoder": {**KNOWN, "258": token("<t>", rstrip=True)}},
    "whole words": {"added_tokens_decoder": {**KNOWN, "258": token("<t>", single_word=True)}},
    "normalized": {"added_tokens_decoder": {**KNOWN, "258": token("<t>", normalized=True)}},
    "decoder and list": {
        "added_tokens_decoder": {**KNOWN, "258": token("<t>")},
        "additional_special_tokens": ["<t>", "<u>"],
    },
    "with spaces": {"added_tokens_decoder": {**KNOWN, "258": token("   "), "259": token("日 本", True)}},
}
PIECES = ("<t>", "<u>", "<|im_start|>", "<|im_end|>", "a", " ", "   ", "x", "<", "日", "日 本", "\n", "é")


def reference(folder: Path) -> Any:
    """transformers' tokenizer of the folder."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def compare(folder: Path) -> None:
    ours, theirs = native.Tokenizer(str(folder)), reference(folder)
    seeded = random.Random(3)
    last = max(theirs.get_vocab().values())
    for _ in range(150):
        text = "".join(seeded.choice(PIECES) for _ in range(seeded.randint(0, 10)))
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, False) == ids, text
        ids = [*ids, *(seeded.randint(max(last - 6, 0), last) for _ in range(4))]
        for skip in (True, False):
            want = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip) == want, ids


def compare_ends(folder: Path) -> None:
    ours, theirs = native.Tokenizer(str(folder)), reference(folder)
    for text in ("", "x", "a<t> "):
        assert ours.encode(text, True) == theirs.encode(text)


def configure(folder: Path, config: dict[str, Any]) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", **config}), "utf-8")


@pytest.mark.parametrize("case", CASES)
def test_a_folder_means_what_it_means_to_transformers(tmp_path: Path, case: str) -> None:
    tiny.write(tmp_path)
    configure(tmp_path, CASES[case])
    compare(tmp_path)


@pytest.mark.parametrize("case", ["in order", "roles", "normalized", "a list"])
def test_so_it_is_where_text_is_normalized(tmp_path: Path, case: str) -> None:
    byte_fallback.write(tmp_path)
    config = json.loads(json.dumps(CASES[case]).replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>"))
    configure(tmp_path, {**config, "eos_token": "</s>"})
    compare(tmp_path)


@pytest.mark.parametrize("before", [None, True, False])
@pytest.mark.parametrize("after", [None, True, False])
@pytest.mark.parametrize("bos", [None, "<t>"])
@pytest.mark.parametrize("file", [tiny, byte_fallback])
def test_the_tokenizer_says_what_is_around_a_text_not_the_config(
    tmp_path: Path, before: bool | None, after: bool | None, bos: str | None, file: Any
) -> None:
    file.write(tmp_path)
    flags = {"add_bos_token": before, "add_eos_token": after}
    asked = {key: value for key, value in flags.items() if value is not None}
    configure(tmp_path, {**asked, **({"bos_token": bos} if bos else {})})
    compare_ends(tmp_path)


def test_a_flag_of_the_tokenizer_gives_way_to_a_role(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    file = tmp_path / "tokenizer.json"
    tokenizer = json.loads(file.read_text("utf-8"))
    tokenizer["added_tokens"].append({"id": 258, **token("<t>")})
    file.write_text(json.dumps(tokenizer), "utf-8")
    configure(tmp_path, {"eos_token": "<t>"})
    compare(tmp_path)
    configure(tmp_path, {"eos_token": "<t>", "added_tokens_decoder": {**KNOWN, "258": token("<t>")}})
    compare(tmp_path)


def test_older_files_count_where_the_config_has_no_decoder(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    configure(tmp_path, {})
    special = {"bos_token": "<t>", "additional_special_tokens": ["<u>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special), "utf-8")
    compare(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"   ": 260, "<t>": 258}), "utf-8")
    compare(tmp_path)
    configure(tmp_path, {"added_tokens_decoder": {**KNOWN, "258": token("日 本")}})
    compare(tmp_path)


def test_the_id_goes_into_stops_and_roles(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    configure(tmp_path, {"eos_token": "<t>", "pad_token": "<u>"})
    info = native.Tokenizer(str(tmp_path)).info
    assert info["eos_token_ids"] == [258]
    assert info["special_tokens"] == {"eos_token": "<t>", "pad_token": "<u>"}
