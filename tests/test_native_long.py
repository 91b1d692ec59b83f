"""Inputs of 100,000 tokens and more, prose of several scripts and monotonous runs: the ids and the text are
right, and nothing takes time by the square or memory by the token."""

from __future__ import annotations

import functools
import json
import os
import random
import time

import psutil
import pytest

from tests.support import answers, models
from tests.support.texts import HARD
from wsgi_router import native

CHARACTERS = 400_000
#: What takes time by the square of the length needs an hour for one piece of so many characters.
SECONDS = 60

SENTENCES = (
    "The committee adjourned at 11:45, having approved 3 of the 17 proposals; the rest (see p. 204) wait. ",
    "def parse(self, text: str) -> list[Token]:\n    return [t for t in self.scan(text) if t.kind]\n\n",
    "会议于上午十一点四十五分休会，十七项提案中有三项获得批准，其余的留待下周讨论。",
    "委員会は午前11時45分に休会し、17件の提案のうち3件を承認した。残りは来週に持ち越される。\n",
    "Комитет прервал работу в 11:45, одобрив 3 из 17 предложений; остальные рассмотрят позже. ",
    "انتهت اللجنة من عملها بعد أن وافقت على ثلاثة مقترحات من أصل سبعة عشر. ",
    "הוועדה סיימה את דיוניה לאחר שאישרה שלוש הצעות מתוך שבע־עשרה. ",
    "समिति ने सत्रह में से तीन प्रस्तावों को मंज़ूरी दी। ",
    "위원회는 17건 중 3건의 제안을 승인하고 오전 11시 45분에 휴회했다. ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 ",
)
RUNS = {
    "a letter": "a",
    "spaces": " ",
    "newlines": "\n",
    "digits": "7",
    "a han character": "语",
    "an emoji": "🎉",
    "marks": "!",
    "a word": "lorem",
    "a combining mark": "\u0301",
    "control characters": "\x00",
    "the start of a special token": "<|im_",
    "special tokens": "<|im_end|><|eot_id|>",
    "two spaces and a letter": "  x",
}


@functools.cache
def prose() -> str:
    """At least 100,000 tokens; no two stretches are alike."""
    seeded = random.Random(1)
    parts: list[str] = []
    length = 0
    while length < CHARACTERS:
        parts.append(seeded.choice((*SENTENCES, *HARD, f"{seeded.random()} ")))
        length += len(parts[-1])
    return "".join(parts)


@functools.cache
def prose_ids(name: str) -> list[int]:
    return list(models.wheel(name).encode(prose(), add_special_tokens=False).ids)


@pytest.mark.parametrize("name", models.NAMES)
def test_long_prose_is_encoded_and_decoded_as_by_the_wheel(name: str) -> None:
    core = models.core(name)
    ids = prose_ids(name)
    assert len(ids) > 100_000
    assert core.encode(prose(), False) == ids
    for skip in (True, False):
        assert core.decode(ids, skip) == models.wheel(name).decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_monotonous_text_is_encoded_as_by_the_wheel(name: str, run: str) -> None:
    text = RUNS[run] * (100_000 // len(RUNS[run]))
    core = models.core(name)
    ids = models.wheel(name).encode(text, add_special_tokens=False).ids
    assert core.encode(text, False) == ids
    assert core.decode(ids, False) == models.wheel(name).decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_characters_alike_take_no_time_by_the_square(name: str, run: str) -> None:
    text = RUNS[run] * (400_000 // len(RUNS[run]))
    begin = time.monotonic()
    ids = models.core(name).encode(text, False)
    models.core(name).decode(ids, False)
    assert ids
    assert time.monotonic() - begin < SECONDS


@pytest.mark.parametrize("name", models.NAMES)
def test_long_prose_streams_token_by_token(name: str) -> None:
    """Each token costs the same at the end as at the beginning, and none is remembered."""
    ids = prose_ids(name)
    fed = answers.messages(ids, [1] * len(ids), "rest")
    stream = native.Stream(models.core(name), answers.options(streaming=True, skip_special_tokens=False))
    size = psutil.Process(os.getpid()).memory_info
    text: list[str] = []
    times: list[float] = []
    before = 0
    for at, message in enumerate(fed):
        if at % 25_000 == 0:
            times.append(time.monotonic())
        if at == 25_000:
            before = size().rss
        stream.feed(0, message)
        for event in stream.take().decode().split("\n\n"):
            if event.startswith("data: {") and '"content"' in event:
                text.extend(choice["delta"].get("content", "") for choice in json.loads(event[6:])["choices"])
        if at == 100_000:
            # Room for the list above and for the allocator; the tokens alone would need as much again.
            assert size().rss - before < 32 << 20
    assert "".join(text) == models.wheel(name).decode(ids, skip_special_tokens=False)
    assert times[-1] - times[-2] < 10 * (times[1] - times[0]) + 5
