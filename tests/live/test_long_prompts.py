"""Prompts of 100,000 tokens through the running router."""

from __future__ import annotations

import concurrent.futures
import time

import httpx

from tests.live import script
from tests.live.test_chat import ask
from tests.support.processes import Router, Worker
from tests.test_native_long import prose

CHATS = 4
#: Tells a router that hangs from one that works: preparing takes some tens of milliseconds a chat.
SECONDS = 5


def chat(url: str, number: int) -> httpx.Response:
    body = ask(f"{number} {prose()} say-text")
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)


def test_health_answers_while_long_prompts_are_prepared(simulator_flags: tuple[str, ...]) -> None:
    long = (*simulator_flags, "--context-length", "400000", "--kv-tokens", "4000000")
    with Worker(*long) as worker, Router(worker.url) as router:
        router.wait_serving()
        waits: list[float] = []
        with concurrent.futures.ThreadPoolExecutor(CHATS) as pool:
            chats = [pool.submit(chat, router.url, number) for number in range(CHATS)]
            while not all(each.done() for each in chats):
                begin = time.monotonic()
                assert httpx.get(f"{router.url}/health", timeout=30).status_code == 200
                waits.append(time.monotonic() - begin)
        for each in chats:
            answer = each.result()
            assert answer.status_code == 200, answer.text[:500]
            assert answer.json()["usage"]["prompt_tokens"] > 100_000
            assert answer.json()["choices"][0]["message"]["content"] == script.TEXT
        assert len(waits) > 1
        assert max(waits) < SECONDS
