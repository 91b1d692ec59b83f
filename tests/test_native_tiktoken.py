"""Folders with tiktoken's ranks instead of a tokenizer.json, against the `tiktoken` package."""

from __future__ import annotations

import functools
import json
import random
import unicodedata
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from tests.support import answers, models, ranks
from tests.support.texts import HARD, TEXTS
from wsgi_router import native

NAMES = pytest.mark.parametrize("name", ranks.FAMILIES)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiktoken")


@pytest.fixture(name="core")
def core_fixture(name: str, written: Path) -> native.Tokenizer:
    return core(name, written)


@functools.cache
def core(name: str, written: Path) -> native.Tokenizer:
    family = ranks.FAMILIES[name]
    mergeable = ranks.ranks(family.source)
    return native.Tokenizer(str(ranks.write(written / name, family.file, mergeable, family.config)))


@NAMES
def test_hard_text_is_encoded_as_by_tiktoken(name: str, core: native.Tokenizer) -> None:
    before = [ranks.encoding(name).encode_single_token(token) for token in ranks.FAMILIES[name].before]
    inside = "".join(ranks.FAMILIES[name].special[n] + HARD[n % len(HARD)] for n in range(0, 200, 7))
    for text in ("", *HARD, " ".join(HARD), "".join(HARD) * 3, inside):
        assert core.encode(text, False) == ranks.encoded(name, text), text
        assert core.encode(text, True) == before + ranks.encoded(name, text)


@NAMES
def test_any_text_is_encoded_as_by_tiktoken(name: str, core: native.Tokenizer) -> None:
    special = st.sampled_from(ranks.FAMILIES[name].special)

    @models.examples(150)
    @given(st.lists(st.one_of(TEXTS, special), max_size=3).map("".join))
    def check(text: str) -> None:
        assert core.encode(text, False) == ranks.encoded(name, text)

    check()


@NAMES
def test_any_ids_are_decoded_as_by_tiktoken_whole_and_for_every_cut(
    name: str, core: native.Tokenizer
) -> None:
    encoding = ranks.encoding(name)
    size = encoding.n_vocab
    partial = encoding.encode("𠮷é😀ก\U0010ffff", disallowed_special=())
    token = st.one_of(st.integers(0, size - 1), st.sampled_from(partial), st.integers(size - 300, size - 1))

    @models.examples(150)
    @given(st.lists(token, max_size=30), st.lists(st.integers(1, 9), max_size=30))
    def check(ids: list[int], cuts: list[int]) -> None:
        expected = encoding.decode(ids)
        assert core.decode(ids, False) == expected
        streamed = answers.streamed(core, answers.messages(ids, cuts, "repeat"), skip_special_tokens=False)
        assert streamed.text == expected

    check()


@NAMES
def test_every_token_is_decoded_as_by_tiktoken(name: str, core: native.Tokenizer) -> None:
    encoding = ranks.encoding(name)
    for token in range(0, encoding.n_vocab, 7):
        want = encoding.decode_single_token_bytes(token)
        assert core.decode([token], False) == want.decode("utf-8", "replace")
    assert core.decode([encoding.n_vocab], False) == ""


def test_a_folder_of_ranks_is_the_tokenizer_json_of_the_same_model(written: Path) -> None:
    """Llama's file in Meta's form and in Hugging Face's: the same ids, beyond the names of special ones."""
    ours, theirs = core("llama", written), models.core("llama3_1")
    for text in HARD:
        if "<|eot_id|>" not in text:
            assert ours.encode(text) == theirs.encode(text)
    assert ours.info["eos_token_ids"] == [128001, 128008, 128009]


def test_what_hides_and_what_ends_an_answer(written: Path) -> None:
    kimi = core("kimi", written)
    ids = kimi.encode("<|im_user|>hi<|tool_calls_begin|><|im_end|>", False)
    assert kimi.decode(ids, True) == "hi<|tool_calls_begin|>"
    assert kimi.info["eos_token_ids"] == [151644]
    assert kimi.info["special_tokens"]["pad_token"] == "[PAD]"
    assert kimi.decode(core("qwen", written).encode("<|extra_3|>x<|im_end|>", False), False)
    assert core("qwen", written).decode([151643, 151645, 151646, 87], True) == "x"


def test_any_ranks_give_tiktokens_ids(tmp_path: Path) -> None:
    """Vocabularies of random strings, which no training would make: nothing depends on a real one."""
    seeded = random.Random(11)
    for index in range(40):
        letters = seeded.choice(["ab", "a", "abc1 ", "é日 \n"])
        tokens = [bytes([byte]) for byte in range(256)]
        seeded.shuffle(tokens)
        extra = {
            "".join(seeded.choice(letters) for _ in range(seeded.randint(2, 6))).encode() for _ in range(40)
        }
        tokens += sorted(extra - set(tokens), key=lambda _: seeded.random())
        mergeable = {token: rank for rank, token in enumerate(tokens)}
        special = {"<|endoftext|>": len(tokens), "<|im_start|>": len(tokens) + 1}
        oracle = tiktoken.Encoding(
            "random", pat_str=ranks.ONE_DIGIT, mergeable_ranks=mergeable, special_tokens=special
        )
        config = {"tokenizer_class": "QWenTokenizer"}
        loaded = native.Tokenizer(str(ranks.write(tmp_path / str(index), "qwen.tiktoken", mergeable, config)))
        for _ in range(30):
            text = "".join(seeded.choice([*letters, *special]) for _ in range(seeded.randint(0, 40)))
            assert loaded.encode(text) == oracle.encode(text, allowed_special="all"), (index, text)


#: What a character may stand beside: each pattern tells these neighbours apart.
PLACES = (
    "{} ",
    " {}",
    "!{}",
    "!!{}",
    "1{}",
    "{}1",
    "a{}",
    "{}a",
    "A{}b",
    "{}{}",
    "中{}",
    "{}中",
    "\u0301{}",
    "\n{}",
    "!{}\n",
)
SEEN = " !1aAb\nx"


def characters() -> list[str]:
    """Every character that Python knows, which are older than either library's tables; a few of those in long
    rows that are all alike."""
    known = (
        chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")
    )
    alike = ("CJK UNIFIED IDEOGRAPH", "HANGUL SYLLABLE", "TANGUT", "EGYPTIAN", "CUNEIFORM", "KHITAN", "NUSHU")
    return [c for c in known if ord(c) % 61 == 0 or not unicodedata.name(c, "").startswith(alike)]


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ("TikTokenTokenizer", ranks.HAN_APART),
        ("QWenTokenizer", ranks.ONE_DIGIT),
        ("ChatGLM4Tokenizer", ranks.THREE_DIGITS),
    ],
)
def test_every_character_is_cut_off_as_by_tiktoken(tmp_path: Path, config: str, pattern: str) -> None:
    """In a vocabulary that merges the bytes at every joint, a cut in another place gives other ids."""
    ends, starts = range(0x80, 0xC0), range(0xC2, 0xF5)
    seen = SEEN.encode()
    joints = [
        *((a, b) for a in seen for b in (*seen, *starts)),
        *((a, b) for a in ends for b in (*starts, *seen)),
    ]
    tokens = [*(bytes([byte]) for byte in range(256)), *(bytes(joint) for joint in joints)]
    mergeable = {token: rank for rank, token in enumerate(tokens)}
    oracle = tiktoken.Encoding("joints", pat_str=pattern, mergeable_ranks=mergeable, special_tokens={})
    loaded = native.Tokenizer(
        str(ranks.write(tmp_path, "x.tiktoken", mergeable, {"tokenizer_class": config}))
    )
    for character in characters():
        text = "\ue000x\ue000".join(place.replace("{}", character) for place in PLACES)
        plain = unicodedata.normalize("NFC", text) if config == "QWenTokenizer" else text
        assert loaded.encode(text, False) == oracle.encode(plain, disallowed_special=()), ascii(character)


def test_a_vocabulary_beyond_the_newer_backend_goes_to_the_older(tmp_path: Path) -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes([first, second]) for first in range(256) for second in range(256)]
    mergeable = {token: rank for rank, token in enumerate(tokens)}
    config = {"tokenizer_class": "QWenTokenizer"}
    loaded = native.Tokenizer(str(ranks.write(tmp_path, "x.tiktoken", mergeable, config)))
    assert loaded.encode("abc") == [mergeable[b"ab"], mergeable[b"c"]]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"tokenizer_class": "FooTokenizer"}, "FooTokenizer"),
        ({"auto_map": {"AutoTokenizer": ["tokenization_bar.BarTokenizer", None]}}, "BarTokenizer"),
        (None, "names no tokenizer class"),
    ],
)
def test_an_unknown_model_is_a_clear_error(tmp_path: Path, config: dict[str, str] | None, told: str) -> None:
    mergeable = {bytes([byte]): byte for byte in range(256)}
    folder = ranks.write(tmp_path, "tiktoken.model", mergeable, config)
    with pytest.raises(native.NativeError) as caught:
        native.Tokenizer(str(folder))
    assert told in str(caught.value)
    assert "tiktoken.model" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sentencepiece_model_is_not_taken_for_ranks(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\xff")
    with pytest.raises(native.NativeError, match=r"tokenizer\.model.*SentencePiece"):
        native.Tokenizer(str(tmp_path))


def test_a_chat_is_prepared(written: Path) -> None:
    job = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "sampling": {}}
    prepared = native.prepare(core("kimi", written), json.dumps(job).encode(), 1_000_000)
    assert prepared.prompt == "<|im_user|>Hi<|im_end|>"
