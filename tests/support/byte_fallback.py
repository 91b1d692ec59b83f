"""A SentencePiece-like tokenizer with byte fallback, as Llama 2 has one, small enough for a test to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

END = 2
FIRST_BYTE = 3
PIECES = ("▁", *"abcdefghijklmnopqrstuvwxyz.,!?", "日", "本")


def byte_id(byte: int) -> int:
    return FIRST_BYTE + byte


def piece_id(piece: str) -> int:
    return FIRST_BYTE + 256 + PIECES.index(piece)


def write(folder: Path) -> Path:
    """tokenizer.json and its config in `folder`; ids: <unk>, <s>, </s>, the 256 bytes, `PIECES`."""
    folder.mkdir(parents=True, exist_ok=True)
    special = ("<unk>", "<s>", "</s>")
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    spaces = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    back = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": text, **added} for index, text in enumerate(special)],
        "normalizer": {"type": "Sequence", "normalizers": spaces},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": back},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}), "utf-8")
    return folder
