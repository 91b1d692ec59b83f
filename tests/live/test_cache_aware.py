"""The policy cache_aware with real processes: conversations stay where their beginning is cached."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.live.test_chat import ask, post
from tests.support.processes import Router, Worker, wait_until

ADMIN = {"Authorization": "Bearer secret"}
LONG = "tell me of the old lighthouse and its keeper " * 20


def cached(router: Router, text: str) -> int:
    answer = post(router, ask(text, max_tokens=2, temperature=0))
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(params=["true", "false"], ids=["events", "no events"])
def cluster(request: pytest.FixtureRequest, simulator_flags: tuple[str, ...]) -> Iterator[Router]:
    with Worker(*simulator_flags) as one, Worker(*simulator_flags) as other:
        flags = {"policy": "cache_aware", "admin_key": "secret", "cache_events": request.param}
        with Router(one.url, other.url, processes=2, **flags) as router:
            router.wait_serving()
            yield router


def test_prompts_go_where_their_beginning_is(cluster: Router) -> None:
    prompts = [f"{number} {LONG}" for number in range(6)]
    assert [cached(cluster, prompt) for prompt in prompts] == [0] * 6
    for _ in range(3):  # by any process
        again = [cached(cluster, prompt + "What then?") for prompt in prompts]
        assert all(tokens >= 160 for tokens in again), again
    wait_until(lambda: cluster.metric("wsgi_router_prefix_choices_total", reason="match") == 18)
    assert cluster.metric("wsgi_router_prefix_choices_total", reason="load") == 6
    matched = cluster.metric("wsgi_router_prefix_blocks_total", kind="matched")
    assert 18 * 10 <= matched < cluster.metric("wsgi_router_prefix_blocks_total", kind="asked")
    flushed = httpx.post(cluster.url + "/flush_cache?timeout=5", headers=ADMIN, timeout=30)
    assert flushed.status_code == 200, flushed.text

    assert [cached(cluster, prompt) for prompt in prompts] == [0] * 6
    # The first may come before the event that tells of the flush.
    wait_until(lambda: cluster.metric("wsgi_router_prefix_choices_total", reason="load") >= 6 + 5)
