"""The tokenizer folder written from the GGUF: the same ids as llama.cpp, and a template that renders."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_model import MODEL, local_tokenizer_folder
from wsgi_router.local_worker.fetch import find_gguf
from wsgi_router.local_worker.gguf_tokenizer import FILES, byte_alphabet
from wsgi_router.local_worker.llama import load_model

TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", "\t\t x", "a", " a", "Hello, world!", "hello   world  ", "trailing   ",
    "def f(x):\n    return x ** 2  # square\n", "if (a&&b||!c) { return ~d; }", "<html><b>hi</b></html>",
    "1234567890", "3.14159e-10", "٣٤٥ ½ Ⅷ 二十", "don't I'll we've it's they'd I'm you're DON'T",
    "漢字かな交じり文", "你好，世界！", "한국어 문장입니다.", "Привет, мир", "שלום עולם", "مرحبا بالعالم",
    "🎉🎊", "👩‍👩‍👧‍👦 family", "🇩🇪🇯🇵", "é vs e\u0301", "Z͑ͫa̴l̷go", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎𠜱", "\u200b\u2028\ufeff",
    "naïve café ßẞ",
    "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "x<|im_end|>y", " <|im_start|> ", "<|im_start",
    "<repo_name>a/b<file_sep>",
    "\x00\x01\x04\x7f", "a\x13b", "\r\n\r\n", "a\u00a0b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "=====-----_____",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Path:
    return local_tokenizer_folder()


@pytest.fixture(scope="module")
def vocab(folder: Path) -> Iterator[Any]:
    # A vocabulary does not keep its model alive.
    model = load_model(find_gguf(MODEL))
    yield model.get_vocab()
    model.close()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))


def random_texts(count: int) -> list[str]:
    """Words, digits, blanks, special tokens and any characters, mixed; the same each time."""
    chooser = random.Random(20)
    pieces = [
        "the ",
        "Foo",
        "'s",
        " 12",
        "  ",
        "\n",
        "<|im_end|>",
        "é",
        "漢",
        "🎉",
        "\u0301",
        "_",
        "=>",
        "\t",
    ]
    # Not planes 4 to 11, where nothing is assigned: this vocabulary lacks their first bytes. Hugging Face's
    # BPE drops a missing byte before merging its neighbours, llama.cpp after, so the ids differ there.
    ranges = [(0x20, 0xD800), (0xE000, 0x40000), (0xC0000, 0x110000)]
    odd = [chr(chooser.randrange(*chooser.choice(ranges))) for _ in range(300)]
    return ["".join(chooser.choices(pieces + odd, k=chooser.randint(1, 30))) for _ in range(count)]


def test_ids_are_llama_cpps(tokenizer: Any, vocab: Any) -> None:
    assert len(TEXTS) >= 30
    for text in TEXTS + random_texts(400):
        # llama.cpp's call takes no empty text and stops at a NUL.
        expected = vocab.tokenize(text, False, True) if text else []
        if "\x00" not in text:
            assert tokenizer.encode(text, add_special_tokens=False).ids == expected, repr(text)


def test_ids_decode_to_the_text(tokenizer: Any) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        missing = {"\x04", "\x06", "\x13", "\x14", "\x16", "\x1d"}  # not in this vocabulary
        assert tokenizer.decode(ids, skip_special_tokens=False) == "".join(
            c for c in text if c not in missing
        )


def test_transformers_load_it(folder: Path, vocab: Any) -> None:
    auto = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
    assert (auto.bos_token, auto.eos_token, auto.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    for text in TEXTS:
        if text and "\x00" not in text:
            assert auto.encode(text) == vocab.tokenize(text, False, True), repr(text)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    assert auto.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_files(folder: Path, vocab: Any) -> None:
    assert {path.name for path in folder.iterdir()} == set(FILES)
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert ends[0] == vocab.token_eos()
    assert all(vocab.is_eog(token) for token in ends)


def test_byte_alphabet_is_one_to_one() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert len(set(alphabet.values())) == 256
    assert (alphabet[ord("A")], alphabet[ord(" ")], alphabet[ord("\n")]) == ("A", "Ġ", "Ċ")
