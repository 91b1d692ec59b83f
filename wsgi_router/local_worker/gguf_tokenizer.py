"""Writes a Hugging Face tokenizer folder from what a GGUF file says about its own tokenizer.

``tokenizer.json`` (byte-level BPE), ``tokenizer_config.json`` (special tokens, chat template) and
``generation_config.json`` (ids that end a generation). Nothing else is read, nothing is downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")

# GGUF names the way a text is cut before BPE; these are the ones written as Hugging Face's own steps.
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    },
}


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        alphabet.setdefault(byte, chr(256 + len(alphabet) - len(printable)))
    return alphabet


def write_tokenizer(gguf: Path, folder: Path) -> None:
    """Write the three files of ``gguf``'s tokenizer into ``folder``; ModelError if it is of another kind."""
    from wsgi_router.local_worker.llama import ModelError, cyllama, end_ids, load_model

    meta: dict[str, Any] = cyllama().GGUFContext.from_file(str(gguf)).get_all_metadata()
    model, cut = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if model != "gpt2" or cut not in _PRE_TOKENIZERS:
        raise ModelError(f"{gguf}: no Hugging Face tokenizer can be written for model {model!r}, pre {cut!r}")
    # A vocabulary does not keep its model alive.
    loaded = load_model(gguf)
    vocab = loaded.get_vocab()
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    special = [token for token in range(len(tokens)) if vocab.is_control(token)]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "tokenizer_config.json", _config(meta, tokens, special))
    _write(folder / "generation_config.json", _generation(meta, end_ids(vocab)))
    # Last: the folder counts as complete once this file is there.
    _write(folder / "tokenizer.json", _tokenizer(meta, tokens, special, _PRE_TOKENIZERS[cut]))


def _write(path: Path, content: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def _added(content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": content, **flags, "special": True}


def _tokenizer(
    meta: dict[str, Any], tokens: list[str], special: list[int], cut: dict[str, Any]
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, **_added(tokens[token])} for token in special],
        "normalizer": None,
        "pre_tokenizer": cut,
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in meta["tokenizer.ggml.merges"]],
        },
    }


def _named(meta: dict[str, Any], tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: meta.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {name: tokens[token] for name, token in ids.items() if token is not None}


def _config(meta: dict[str, Any], tokens: list[str], special: list[int]) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        "added_tokens_decoder": {str(token): _added(tokens[token]) for token in special},
        **_named(meta, tokens),
        "model_max_length": meta[f"{meta['general.architecture']}.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }


def _generation(meta: dict[str, Any], ends: tuple[int, ...]) -> dict[str, Any]:
    ids = {
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(ends),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }
    return {name: value for name, value in ids.items() if value is not None}
