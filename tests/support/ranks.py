"""tiktoken's files, written from vocabularies that are there, and what tiktoken itself makes of them."""

from __future__ import annotations

import base64
import functools
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiktoken

from . import models, tiny

THREE_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ONE_DIGIT = THREE_DIGITS.replace("{1,3}", "")
HAN_APART = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def ranks(name: str) -> dict[bytes, int]:
    """The ranks behind a byte-level tokenizer.json, whose vocabulary is in their order."""
    alphabet = {character: byte for byte, character in enumerate(tiny.byte_alphabet())}
    vocab = json.loads((models.folder(name) / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    return {bytes(alphabet[character] for character in token): rank for token, rank in vocab.items()}


def write(folder: Path, file: str, mergeable: Mapping[bytes, int], config: dict[str, Any] | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in mergeable.items())
    (folder / file).write_bytes(b"".join(lines))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


@dataclass(frozen=True)
class Family:
    """A model's own tokenizer: its file, its config, and what its Python code gives to tiktoken."""

    file: str
    source: str
    pattern: str
    config: dict[str, Any] | None
    special: tuple[str, ...]
    nfc: bool = False
    before: tuple[str, ...] = ()

    def encoding(self, mergeable: dict[bytes, int]) -> tiktoken.Encoding:
        special = {token: len(mergeable) + index for index, token in enumerate(self.special)}
        return tiktoken.Encoding(
            self.file, pat_str=self.pattern, mergeable_ranks=mergeable, special_tokens=special
        )


def _kimi(base: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Names as Kimi K2's config has them, on a vocabulary of `base` tokens."""
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "[EOT]"}
    names |= {11: "<|im_system|>", 17: "<|im_middle|>", 256: "[UNK]", 257: "[PAD]"}
    calls = {11 + n: name for n, name in enumerate(("section_begin", "section_end", "begin"), 1)}
    names |= {offset: f"<|tool_calls_{name}|>" for offset, name in calls.items()}
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    decoder = {
        str(base + offset): {"content": name, "special": "tool" not in name, **flags}
        for offset, name in names.items()
    }
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "added_tokens_decoder": decoder,
        "chat_template": "{% for m in messages %}<|im_user|>{{ m.content }}<|im_end|>{% endfor %}",
    }
    return config, tuple(names.get(n, f"<|reserved_token_{base + n}|>") for n in range(258))


_KIMI_CONFIG, _KIMI_SPECIAL = _kimi(151643)
_LLAMA_SPECIAL = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
    *(f"<|reserved_special_token_{n}|>" for n in range(3, 248)),
)
FAMILIES = {
    # Kimi's own ranks are in no package: its pattern and tokens, on Qwen's.
    "kimi": Family("tiktoken.model", "qwen3", HAN_APART, _KIMI_CONFIG, _KIMI_SPECIAL),
    "qwen": Family(
        "qwen.tiktoken",
        "qwen3",
        ONE_DIGIT,
        {
            "tokenizer_class": "QWenTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]},
        },
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205))),
        nfc=True,
    ),
    "llama": Family(
        "tokenizer.model", "llama3_1", THREE_DIGITS, None, _LLAMA_SPECIAL, before=("<|begin_of_text|>",)
    ),
}


@functools.cache
def encoding(name: str) -> tiktoken.Encoding:
    family = FAMILIES[name]
    return family.encoding(ranks(family.source))


def encoded(name: str, text: str) -> list[int]:
    """What the model's own code makes of `text`, special tokens in it included."""
    if FAMILIES[name].nfc:
        text = unicodedata.normalize("NFC", text)
    return encoding(name).encode(text, allowed_special="all")
