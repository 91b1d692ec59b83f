"""Text against the `tokenizers` wheel: encoding, decoding, and the streamed text for every cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import answers, models
from tests.support.texts import HARD, TEXTS

CUTS = st.lists(st.integers(1, 9), max_size=60)
CLOSINGS = st.sampled_from(answers.CLOSINGS)
MODELS = pytest.mark.parametrize("name", models.NAMES)


def check_every_way(name: str, ids: Sequence[int], cuts: Sequence[int], closing: str, **fields: Any) -> None:
    """Streamed text is the aggregated text is what the wheel decodes; all ids are counted."""
    skip = fields.get("skip_special_tokens", True)
    expected = models.wheel(name).decode(list(ids), skip_special_tokens=skip)
    fed = answers.messages(ids, cuts, closing)
    streamed = answers.streamed(models.core(name), fed, **fields)
    aggregated = answers.aggregated(models.core(name), fed, **fields)
    assert streamed.text == expected
    assert aggregated == streamed
    assert (streamed.finish, streamed.matched) == ("length", None)
    assert streamed.usage["completion_tokens"] == len(ids)


@MODELS
@pytest.mark.parametrize("special", [True, False])
def test_hard_text_is_encoded_as_by_the_wheel(name: str, special: bool) -> None:
    for text in ("", *HARD, " ".join(HARD), "".join(HARD) * 3):
        expected = models.wheel(name).encode(text, add_special_tokens=special).ids
        assert models.core(name).encode(text, special) == expected, text


@MODELS
def test_any_text_is_encoded_as_by_the_wheel(name: str) -> None:
    @models.examples(150)
    @given(TEXTS)
    def check(text: str) -> None:
        assert models.core(name).encode(text) == models.wheel(name).encode(text).ids

    check()


@MODELS
def test_any_ids_are_decoded_as_by_the_wheel(name: str) -> None:
    size = models.wheel(name).get_vocab_size()

    @models.examples(150)
    @given(st.lists(st.one_of(st.integers(0, size - 1), st.integers(size, size + 1000)), max_size=40))
    def check(ids: list[int]) -> None:
        for skip in (True, False):
            expected = models.wheel(name).decode(ids, skip_special_tokens=skip)
            assert models.core(name).decode(ids, skip) == expected

    check()


@MODELS
def test_every_token_of_the_vocabulary_is_decoded_as_by_the_wheel(name: str) -> None:
    size = models.wheel(name).get_vocab_size()
    ids = list(range(0, size, 1 if size < 60_000 else 5))
    expected = models.wheel(name).decode_batch([[token] for token in ids], skip_special_tokens=False)
    core = models.core(name)
    assert [core.decode([token], False) for token in ids] == expected


@MODELS
def test_any_text_streams_as_itself_for_every_cut(name: str) -> None:
    @models.examples(120)
    @given(TEXTS, CUTS, CLOSINGS)
    @example("", [], "repeat")
    @example("👩‍👩‍👧‍👦", [1] * 20, "rest")
    def check(text: str, cuts: list[int], closing: str) -> None:
        ids = models.wheel(name).encode(text, add_special_tokens=False).ids
        check_every_way(name, ids, cuts, closing)
        check_every_way(name, ids, cuts, closing, skip_special_tokens=False)
        assert models.wheel(name).decode(ids, skip_special_tokens=False) == models.core(name).decode(
            ids, False
        )

    check()


@MODELS
def test_any_ids_stream_as_the_wheel_decodes_them_for_every_cut(name: str) -> None:
    """Ids that no tokenizer would make: parts of characters, special tokens amid text, unknown ones."""
    wheel = models.wheel(name)
    size = wheel.get_vocab_size()
    partial = sorted(set(wheel.encode("𠮷é😀ก\U0010ffff", add_special_tokens=False).ids))
    special = sorted(wheel.get_added_tokens_decoder())
    token = st.one_of(
        st.integers(0, size - 1), st.sampled_from(partial), st.sampled_from(special), st.just(size + 5)
    )

    @models.examples(120)
    @given(st.lists(token, max_size=30), CUTS, CLOSINGS, st.booleans())
    def check(ids: list[int], cuts: list[int], closing: str, skip: bool) -> None:
        check_every_way(name, ids, cuts, closing, skip_special_tokens=skip)

    check()


@MODELS
def test_an_answer_that_ends_by_itself_hides_its_end(name: str) -> None:
    core, wheel = models.core(name), models.wheel(name)
    end = core.info["eos_token_ids"][0]
    ids = [*wheel.encode("All 👍🏽 done.", add_special_tokens=False).ids, end]
    for closing in answers.CLOSINGS:
        for cuts in ([1] * 40, [3, 2, 9], [100], []):
            for known in ({}, {"matched_token_id": end}):
                fed = answers.messages(ids, cuts, closing, "stop", **known)
                streamed = answers.streamed(core, fed)
                assert streamed == answers.aggregated(core, fed)
                assert (streamed.text, streamed.finish, streamed.matched) == ("All 👍🏽 done.", "stop", None)
                assert streamed.usage["completion_tokens"] == len(ids)


def stopped(text: str, words: Sequence[str]) -> tuple[int, str] | None:
    """(end, word) of the first place at which a stop word ends; the longest of those that end there."""
    for end in range(1, len(text) + 1):
        ending = [word for word in words if text.endswith(word, 0, end)]
        if ending:
            return end, max(ending, key=len)
    return None


def check_stop(name: str, ids: Sequence[int], words: list[str], keep: bool, fed: list[bytes]) -> bool:
    """Both modes cut the text where the definition says. True if there was something to cut."""
    wheel, core = models.wheel(name), models.core(name)
    text = wheel.decode(list(ids), skip_special_tokens=True)
    streamed = answers.streamed(core, fed, stop=words, no_stop_trim=keep)
    aggregated = answers.aggregated(core, fed, stop=words, no_stop_trim=keep)
    assert streamed == aggregated
    found = stopped(text, words)
    if found is None:
        assert (streamed.text, streamed.finish, streamed.matched) == (text, "length", None)
        assert streamed.usage["completion_tokens"] == len(ids)
        return False
    end, word = found
    assert streamed.text == text[: end if keep else end - len(word)]
    assert (streamed.finish, streamed.matched) == ("stop", word)
    if "\ufffd" not in text:
        upto = next(
            count for count in range(len(ids) + 1) if wheel.decode(list(ids[:count])).startswith(text[:end])
        )
        assert streamed.usage["completion_tokens"] == upto
    return True


@MODELS
def test_any_stop_words_cut_both_modes_the_same(name: str) -> None:
    hits = 0

    @models.examples(150)
    @given(TEXTS, CUTS, CLOSINGS, st.booleans(), st.data())
    def check(text: str, cuts: list[int], closing: str, keep: bool, data: st.DataObject) -> None:
        nonlocal hits
        ids = models.wheel(name).encode(text, add_special_tokens=False).ids
        shown = models.wheel(name).decode(ids, skip_special_tokens=True)
        places = st.integers(0, max(len(shown) - 1, 0))
        inside = st.tuples(places, st.integers(1, 6)).map(lambda cut: shown[cut[0] : cut[0] + cut[1]])
        word = st.one_of(inside, st.text("ab. \n日", min_size=1, max_size=3)).filter(bool)
        words = data.draw(st.lists(word, min_size=1, max_size=4))
        hits += check_stop(name, ids, words, keep, answers.messages(ids, cuts, closing))

    check()
    assert hits > 20


def test_stop_words_in_long_text_with_random_cuts() -> None:
    """Longer text than properties make, cut at random, against stop words that it nearly contains."""
    seeded = random.Random(5)
    wheel = models.wheel("qwen3")
    hits = 0
    for _ in range(30):
        text = " ".join(seeded.choice(HARD) for _ in range(40))
        ids = wheel.encode(text, add_special_tokens=False).ids
        cuts = [seeded.randint(1, 12) for _ in range(200)]
        shown = wheel.decode(ids)
        place = seeded.randrange(len(shown) // 2, len(shown) - 20)
        words = [shown[place : place + 15] + tail for tail in ("", "\u0001", "\u0002x")]
        hits += check_stop("qwen3", ids, words, seeded.random() < 0.5, answers.messages(ids, cuts, "repeat"))
    assert hits == 30


@MODELS
def test_any_ending_is_the_same_however_it_comes(name: str) -> None:
    """Ends of text, the client's stop ids and stop words, at the end and amid the text, in every combination:
    neither cut nor closing form nor mode changes what the client reads."""
    core, wheel = models.core(name), models.wheel(name)
    end = core.info["eos_token_ids"][0]
    some = wheel.encode("Stop here. 👍🏽 or <|there|>", add_special_tokens=False).ids
    special = sorted(token for token, each in wheel.get_added_tokens_decoder().items() if each.special)
    token = st.one_of(st.sampled_from(some), st.just(end), st.sampled_from(special))
    fates = st.fixed_dictionaries(
        {
            "skip_special_tokens": st.booleans(),
            "no_stop_trim": st.booleans(),
            "ignore_eos": st.booleans(),
            "stop_token_ids": st.lists(st.sampled_from([end, *some]), max_size=2),
            "stop": st.lists(st.sampled_from(["here", ".", "👍", "re. ", "<|", "zz"]), max_size=2),
        }
    )

    @models.examples(120)
    @given(st.lists(token, min_size=1, max_size=14), CUTS, fates, st.sampled_from(["id", "silent", "length"]))
    def check(ids: list[int], cuts: list[int], fate: dict[str, Any], told: str) -> None:
        if fate["ignore_eos"]:
            told = "length"  # An engine then stops at no id.
        elif told == "silent" and fate["no_stop_trim"] and ids[-1] in fate["stop_token_ids"]:
            told = "id"
        elif told == "id" and ids[-1] not in (end, *special, *fate["stop_token_ids"]):
            ids = [*ids, end]  # An engine stops at nothing else.
        matched = {"matched_token_id": ids[-1]} if told == "id" else {}
        reason = "length" if told == "length" else "stop"
        whole = answers.aggregated(core, answers.messages(ids, [], "all", reason, **matched), **fate)
        for closing in answers.CLOSINGS:
            for pieces in (cuts, [1] * len(ids), []):
                fed = answers.messages(ids, pieces, closing, reason, **matched)
                assert answers.streamed(core, fed, **fate) == whole
                assert answers.aggregated(core, fed, **fate) == whole
        if told == "id" and not fate["stop"] and not fate["no_stop_trim"]:
            skip = fate["skip_special_tokens"]
            assert whole.text == wheel.decode(ids[:-1], skip_special_tokens=skip)

    check()
