"""Chat completions through the real gunicorn, a real gRPC server and the openai SDK."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.live.conftest import MODEL
from tests.live.script import TEXT
from tests.support import sse
from tests.support.processes import Router, Worker, wait_until


def ask(text: str, **extra: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **extra}


def stream(router: Router, body: dict[str, Any]) -> list[Any]:
    with httpx.stream("POST", f"{router.url}/v1/chat/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        return list(sse.events(answer.iter_lines()))


def post(router: Router, body: dict[str, Any], status: int = 200) -> Any:
    answer = httpx.post(f"{router.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("word", ["say-text", "in-chunks"])
def test_a_stream_has_the_shape_that_clients_expect(router: Router, word: str) -> None:
    chunks = stream(router, ask(word, stream_options={"include_usage": True}))
    assert chunks.pop() == "[DONE]"
    usage = chunks.pop()
    assert usage["choices"] == []
    assert (
        usage["usage"]["total_tokens"]
        == usage["usage"]["prompt_tokens"] + usage["usage"]["completion_tokens"]
    )
    assert all(chunk["usage"] is None for chunk in chunks)
    first, *inner, last = [chunk["choices"][0] for chunk in chunks]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert last["delta"] == {}
    assert last["finish_reason"] == "stop"
    assert all(choice["finish_reason"] is None for choice in (first, *inner))
    assert all(choice["delta"].keys() == {"content"} and choice["delta"]["content"] for choice in inner)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert sse.content(chunks) == TEXT


def test_the_headers_of_a_stream(router: Router) -> None:
    with httpx.stream(
        "POST", f"{router.url}/v1/chat/completions", json=ask("say-text", stream=True)
    ) as answer:
        answer.read()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]


def test_both_modes_give_the_same_text_and_usage(router: Router) -> None:
    whole = post(router, ask("say-text"))
    chunks = stream(router, ask("say-text", stream_options={"include_usage": True}))
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["content"] == sse.content(chunks) == TEXT
    assert message["refusal"] is None
    assert whole["choices"][0]["logprobs"] is None
    assert whole["choices"][0]["finish_reason"] == "stop"
    streamed = chunks[-2]["usage"]
    assert {**whole["usage"], "prompt_tokens_details": None} == {**streamed, "prompt_tokens_details": None}


def test_the_sdk_reads_both_modes(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "say-text"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages)
    assert whole.choices[0].message.content == TEXT
    with client.chat.completions.stream(model=MODEL, messages=messages) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.choices[0].finish_reason == "stop"


def test_tokens_end_with_max_tokens(router: Router) -> None:
    answer = post(router, ask("say-text", max_tokens=3))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("streaming", [False, True])
def test_a_stop_word_ends_the_workers_request(
    router: Router, simulators: tuple[Worker, Worker], streaming: bool
) -> None:
    body = ask("say-stop", stop=["STOP"])
    if streaming:
        chunks = stream(router, body)
        text, finish = sse.content(chunks), chunks[-2]["choices"][0]
    else:
        finish = post(router, body)["choices"][0]
        text = finish["message"]["content"]
    assert text == "one two "
    assert finish["finish_reason"] == "stop"
    assert finish["matched_stop"] == "STOP"
    wait_until(
        lambda: all(worker.server_info()["running"] == 0 for worker in simulators), 2, "no request left"
    )


def test_choices_are_answered_side_by_side(router: Router) -> None:
    whole = post(router, ask("say-text", n=3))
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in whole["choices"]} == {TEXT}
    chunks = stream(router, ask("say-text", n=3, stream_options={"include_usage": True}))
    finished = [c["index"] for chunk in chunks[:-2] for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]
    assert all(sse.content(chunks, choice) == TEXT for choice in range(3))
    assert chunks[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert chunks[-2]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("word", "status", "code"),
    [("refuse-input", 400, None), ("out-of-memory", 429, None), ("abort-first", 500, "worker_aborted")],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_failure_before_the_first_token_is_a_status(
    router: Router, word: str, status: int, code: str | None, streaming: bool
) -> None:
    error = post(router, ask(word, stream=streaming), status)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert code in (None, error["code"])


@pytest.mark.parametrize("word", ["break-midway", "abort-midway", "speak-garbage", "end-early"])
def test_a_failure_after_the_first_token(router: Router, word: str) -> None:
    chunks = stream(router, ask(word))
    assert chunks[-1] == "[DONE]"
    assert chunks[-2].keys() == {"error"}
    assert chunks[-2]["error"].keys() == {"message", "type", "param", "code"}
    assert TEXT.startswith(sse.content(chunks))
    answer = httpx.post(f"{router.url}/v1/chat/completions", json=ask(word), timeout=30)
    assert answer.status_code >= 500
    assert answer.json()["error"]["message"]


def test_many_streams_at_once(router: Router, simulators: tuple[Worker, Worker]) -> None:
    def one(number: int) -> str:
        return sse.content(stream(router, ask(f"say-text {number}")))

    with ThreadPoolExecutor(64) as threads:
        assert set(threads.map(one, range(500))) == {TEXT}
    wait_until(
        lambda: all(worker.server_info()["running"] == 0 for worker in simulators), 5, "no request left"
    )
    wait_until(lambda: router.metric("wsgi_router_requests_in_flight") == 0, 5, "no request in flight")


def test_five_hundred_streams_at_once(router: Router, simulators: tuple[Worker, Worker]) -> None:
    """All of them are open before the first one gets its first token."""

    async def one(client: httpx.AsyncClient) -> str:
        body = ask("wait-first", stream=True)
        async with client.stream("POST", f"{router.url}/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            chunks = list(sse.events([line async for line in answer.aiter_lines()]))
        assert chunks[-1] == "[DONE]"
        return sse.content(chunks)

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            return await asyncio.gather(*(one(client) for _ in range(500)))

    assert set(asyncio.run(all_of_them())) == {TEXT}
    wait_until(lambda: router.metric("wsgi_router_requests_in_flight") == 0, 5, "no request in flight")
    wait_until(
        lambda: all(worker.server_info()["running"] == 0 for worker in simulators), 5, "no request left"
    )


def test_unused_tokens_of_json_are_escaped_in_the_model_name(router: Router) -> None:
    error = post(router, ask("x") | {"model": 'no"such\nmodel'}, 404)["error"]
    assert error["code"] == "model_not_found"
    assert json.dumps(error)


def test_models_and_information(router: Router, client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert httpx.get(f"{router.url}/get_model_info").json()
    for path in ("/health", "/liveness", "/readiness"):
        assert router.status(path) == 200


def test_metrics_are_right_over_processes(router: Router) -> None:
    name = "wsgi_router_time_to_first_token_seconds_count"
    before = router.settled_metric(name)
    for _ in range(10):
        stream(router, ask("say-text"))
    wait_until(lambda: router.metric(name) >= before + 10, what="ten more")
    assert router.settled_metric(name) == before + 10
