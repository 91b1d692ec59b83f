"""The prompt cache: the same ids with it as without, over conversations that share their beginnings."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import models
from tests.support.processes import ROOT
from wsgi_router import native, observability
from wsgi_router.settings import Settings

FOLDERS = sorted({*models.FOLDERS.values(), *(ROOT / ".cache/models").glob("*")})
PLAIN = "{% for m in messages %}{{ bos_token }}{{ m.role }}\n{{ m.content }}{{ eos_token }}{% endfor %}"
PIECES = (
    "Be short and polite. ",
    "<|im_end|>",
    "<|im_start|>user\n",
    "<|eot_id|>",
    "<end_of_turn>",
    "<｜User｜>",
    "</s> ",
    " <s>",
    "<|im_",
    "\n\n",
    "  ",
    "\u0301",
    "\u200d",
    "你好，〇1〇 ",
    "12345 ",
    "I'll don't ",
    "",
)
RAW_PIECES = (
    *PIECES,
    "\r\n",
    "\r\n\r\n ",
    " \t \n  ",
    "\u3000\u00a0",
    "1234567890123",
    "٣٤٥",
    "👩\u200d👩\u200d👧 𠮷",
    "e\u0301\u0323",
    "\u1100\u1161\u11a8",
    "▁▁a",
    "The customer's order, ",
)


def added_tokens(folder: Path) -> list[str]:
    """The first and the last few of the tokens that a tokenizer matches in raw text."""
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return [token["content"] for token in (*tokens[:4], *tokens[-4:])]


def raw_prompts(seed: int, pieces: Sequence[str]) -> list[bytes]:
    """Jobs: prompts that begin as an earlier one does, up to any character."""
    chance = random.Random(seed)
    prompts = ["".join(chance.choices(pieces, k=100))]
    for _ in range(200):
        shared = chance.choice(prompts)
        shared = shared[: chance.randint(0, len(shared))]
        prompts.append(shared + "".join(chance.choices(pieces, k=chance.randrange(1, 80))))
    return [json.dumps({"prompt": prompt}).encode() for prompt in prompts if prompt]


def turn(chance: random.Random) -> str:
    return "".join(chance.choice(PIECES) for _ in range(chance.randrange(90)))


def conversations(seed: int) -> list[bytes]:
    """Jobs: conversations of a few turns, each grown turn by turn under one of two system prompts."""
    chance = random.Random(seed)
    systems = [turn(chance) + "Look an order's number up first. " * 20 for _ in range(2)]
    jobs = []
    for _ in range(3):
        messages: list[dict[str, Any]] = [{"role": "system", "content": chance.choice(systems)}]
        for n in range(6):
            messages.append({"role": ("user", "assistant")[n % 2], "content": turn(chance)})
            if n % 2 == 0:
                jobs.append(json.dumps({"messages": messages, "add_generation_prompt": True}).encode())
    return jobs


def reused(cached: native.Tokenizer, plain: native.Tokenizer, jobs: Sequence[bytes]) -> int:
    """Tokens that came out of the cache, the same as without it."""
    known = 0
    for job in jobs:
        prepared, want = cached.prepare(job), plain.prepare(job)
        assert prepared.token_ids() == want.token_ids(), job
        assert (prepared.body, want.reused_tokens) == (want.body, 0)
        known += prepared.reused_tokens
    return known


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: str(path.relative_to(ROOT / ".cache")))
def test_ids_are_the_same_with_and_without(path: Path) -> None:
    folder = str(path)
    for seed, template in enumerate((None, PLAIN)):
        plain = native.Tokenizer(folder, template)
        if not plain.info["has_chat_template"]:
            continue
        cached = native.Tokenizer(folder, template, 1 << 20)
        assert reused(cached, plain, conversations(seed)) > 0
    assert reused(cached, plain, raw_prompts(seed, [*RAW_PIECES, *added_tokens(path)])) > 0


def count(name: str) -> float:
    values = observability.metrics()
    values.flush()
    return values.registry.get_sample_value(f"wsgi_router_{name}_total") or 0.0


def test_hits_are_metered_and_the_setting_turns_it_off() -> None:
    path = str(models.folder("qwen3"))
    content = "Look an order's number up first. " * 40
    job = json.dumps(
        {"messages": [{"role": "user", "content": content}], "add_generation_prompt": True}
    ).encode()
    for mebibytes, hits in ((1, 1), (0, 0)):
        tokenizer = native.load_tokenizer(Settings(tokenizer_path=path, prompt_cache_mib=mebibytes))
        assert tokenizer is not None
        before = (count("prompt_cache_hits"), count("prompt_cache_tokens"))
        first, second = (native.prepare(tokenizer, job, 1 << 20) for _ in range(2))
        assert first.token_ids() == second.token_ids()
        assert (first.reused_tokens, second.reused_tokens > 200) == (0, bool(hits))
        assert count("prompt_cache_hits") == before[0] + hits
        assert count("prompt_cache_tokens") == before[1] + second.reused_tokens
