"""The routes beside chat through the real gunicorn, real gRPC servers and the openai SDK."""

from __future__ import annotations

import base64
import itertools
import math
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from tests.live.conftest import EOS, MODEL
from tests.live.script import TEXT
from tests.support import sse
from tests.support.processes import QWEN3, Router, Worker, wait_until

DIMENSIONS = 24
ADMIN = {"Authorization": "Bearer root-key"}


@pytest.fixture(scope="module")
def embedder() -> Iterator[Worker]:
    flags = ("--model-name", MODEL, "--context-length", "64", "--embedding-dim", str(DIMENSIONS))
    with Worker("--tokenizer", str(QWEN3), "--eos", EOS, *flags) as worker:
        yield worker


@pytest.fixture(scope="module")
def embedding_router(embedder: Worker) -> Iterator[Router]:
    with Router(embedder.url, admin_key="root-key") as router:
        router.wait_serving()
        yield router


@pytest.fixture
def embeddings(embedding_router: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embedding_router.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(router: Router, path: str, body: dict[str, Any], status: int = 200, **options: Any) -> Any:
    answer = httpx.post(f"{router.url}{path}", json=body, timeout=60, **options)
    assert answer.status_code == status, answer.text
    return answer.json()


def stream(router: Router, path: str, body: dict[str, Any]) -> list[Any]:
    with httpx.stream("POST", f"{router.url}{path}", json={**body, "stream": True}, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(sse.events(answer.iter_lines()))


def wait_idle(*workers: Worker) -> None:
    wait_until(lambda: all(worker.server_info()["running"] == 0 for worker in workers), 10, "nothing runs")


# Completions


def test_the_sdk_reads_a_completion_in_both_modes(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="say-text", max_tokens=100)
    assert whole.choices[0].text == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens > 0
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt="say-text",
            max_tokens=100,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == TEXT
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_prompts_times_choices(
    client: openai.OpenAI, router: Router, simulators: tuple[Worker, Worker]
) -> None:
    prompts = ["say-text", "say-stop", "say-text again"]
    whole = client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=100)
    texts = [choice.text for choice in whole.choices]
    assert texts == [TEXT] * 2 + ["one two STOP three four"] * 2 + [TEXT] * 2
    counts = post(router, "/v1/tokenize", {"prompt": prompts})["count"]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == sum(counts)  # once, however many answers each has
    seen = [""] * 6
    for chunk in client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=100, stream=True):
        for choice in chunk.choices:
            seen[choice.index] += choice.text
    assert seen == texts
    wait_idle(*simulators)


def test_the_text_reaches_the_worker_without_a_template(router: Router) -> None:
    tokenizer = Tokenizer.from_file(str(QWEN3 / "tokenizer.json"))
    ids = tokenizer.encode("say-text, 你好").ids
    by_text = post(router, "/v1/completions", {"model": MODEL, "prompt": "say-text, 你好", "max_tokens": 99})
    by_ids = post(router, "/v1/completions", {"model": MODEL, "prompt": ids, "max_tokens": 99})
    assert by_text["usage"]["prompt_tokens"] == by_ids["usage"]["prompt_tokens"] == len(ids)
    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("prompt", ["say-text ", ["say-text ", "say-stop "]])
def test_echo_and_logprobs(client: openai.OpenAI, prompt: Any) -> None:
    answer = client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=2, max_tokens=3)
    prompts = [prompt] if isinstance(prompt, str) else prompt
    for choice, text in zip(answer.choices, prompts, strict=True):
        assert choice.text.startswith(text)
        scored = choice.logprobs
        assert scored is not None
        assert scored.tokens is not None
        assert scored.token_logprobs is not None
        assert scored.text_offset is not None
        assert "".join(scored.tokens) == choice.text
        assert scored.token_logprobs[0] is None
        assert all(isinstance(logprob, float) for logprob in scored.token_logprobs[1:])
        assert scored.text_offset[0] == 0


def test_a_prompt_is_scored_without_an_answer(client: openai.OpenAI, router: Router) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="say-text foo", echo=True, logprobs=1, max_tokens=0
    )
    scored = answer.choices[0].logprobs
    assert scored is not None
    assert scored.tokens == ["say", "-text", " foo"]
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("say-text foo", "length")
    body = {"text": "say-text foo", "return_logprob": True, "logprob_start_len": 0}
    info = post(router, "/generate", {**body, "sampling_params": {"max_new_tokens": 0}})["meta_info"]
    assert [row[0] for row in info["input_token_logprobs"]] == scored.token_logprobs
    assert info["output_token_logprobs"] == []


def test_a_stop_word_ends_the_workers_work(
    client: openai.OpenAI, router: Router, simulators: tuple[Worker, Worker]
) -> None:
    answer = client.completions.create(model=MODEL, prompt="say-stop", stop=" STOP", max_tokens=50)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one two", "stop")
    wait_idle(*simulators)


def test_one_prompt_that_fails_ends_all(router: Router, simulators: tuple[Worker, Worker]) -> None:
    body = {"model": MODEL, "prompt": ["go-slowly", "break-midway", "go-slowly"], "max_tokens": 1000}
    assert post(router, "/v1/completions", body, 500)["error"]["message"] == "engine broke"
    wait_idle(*simulators)
    events = stream(router, "/v1/completions", body)
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["message"] == "engine broke"
    wait_idle(*simulators)


def test_a_refusal_is_a_status(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="refuse-input", stream=True)
    assert "no such thing" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x " * 5000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_the_client_of_many_prompts_leaves(router: Router, simulators: tuple[Worker, Worker]) -> None:
    body = {"model": MODEL, "prompt": ["go-slowly"] * 8, "max_tokens": 1000, "stream": True}
    with httpx.stream("POST", f"{router.url}/v1/completions", json=body, timeout=30) as answer:
        next(answer.iter_lines())
    wait_idle(*simulators)


# /generate


def test_generate_in_both_modes(router: Router) -> None:
    body = {"text": "say-text", "sampling_params": {"max_new_tokens": 100, "temperature": 0}, "rid": "mine"}
    whole = post(router, "/generate", body)
    assert whole["text"] == TEXT
    assert whole["meta_info"]["id"] == "mine"
    events = stream(router, "/generate", body)
    assert events.pop() == "[DONE]"
    assert events[-1]["text"] == TEXT
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "stop"
    texts = [event["text"] for event in events]
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    for name in ("prompt_tokens", "completion_tokens"):
        assert events[-1]["meta_info"][name] == whole["meta_info"][name]


def test_a_batch_for_generate(router: Router, simulators: tuple[Worker, Worker]) -> None:
    body = {"text": ["say-text", "say-stop"], "sampling_params": {"max_new_tokens": 100}}
    assert [one["text"] for one in post(router, "/generate", body)] == [TEXT, "one two STOP three four"]
    last: dict[int, str] = {}
    for event in stream(router, "/generate", body)[:-1]:
        last[event["index"]] = event["text"]
    assert last == {0: TEXT, 1: "one two STOP three four"}
    wait_idle(*simulators)


def test_generate_with_logprobs(router: Router) -> None:
    body = {
        "input_ids": [9707, 1879, 25],
        "sampling_params": {"max_new_tokens": 4, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 0,
    }
    info = post(router, "/generate", body)["meta_info"]
    assert len(info["output_token_logprobs"]) == 4
    assert [row[1] for row in info["input_token_logprobs"]] == [9707, 1879, 25]
    assert all(len(top) == 2 for top in info["output_top_logprobs"])


# Embeddings


def test_the_sdk_reads_embeddings(embeddings: openai.OpenAI) -> None:
    # Without an encoding the SDK asks for base64 and decodes it.
    answer = embeddings.embeddings.create(model=MODEL, input=["one", "two", "one"])
    assert [row.index for row in answer.data] == [0, 1, 2]
    assert all(len(row.embedding) == DIMENSIONS for row in answer.data)
    assert answer.data[0].embedding == answer.data[2].embedding != answer.data[1].embedding
    floats = embeddings.embeddings.create(model=MODEL, input="one", encoding_format="float")
    assert floats.data[0].embedding == answer.data[0].embedding
    assert math.isclose(math.hypot(*floats.data[0].embedding), 1, rel_tol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 3


def test_embeddings_of_ids_and_in_base64(embedding_router: Router) -> None:
    body = {"model": MODEL, "input": [[603], [19789]], "encoding_format": "base64"}
    rows = post(embedding_router, "/v1/embeddings", body)["data"]
    vectors = [struct.unpack(f"<{DIMENSIONS}f", base64.b64decode(row["embedding"])) for row in rows]
    one = post(embedding_router, "/v1/embeddings", {"model": MODEL, "input": [603]})["data"][0]["embedding"]
    assert list(vectors[0]) == one


def test_many_embeddings(embeddings: openai.OpenAI, embedder: Worker) -> None:
    answer = embeddings.embeddings.create(model=MODEL, input=[f"text {number}" for number in range(300)])
    assert len({tuple(row.embedding) for row in answer.data}) == 300
    wait_idle(embedder)


def test_what_embeddings_refuse(embeddings: openai.OpenAI, client: openai.OpenAI) -> None:
    assert embeddings.embeddings.create(model=MODEL, input="x", dimensions=DIMENSIONS).data
    with pytest.raises(openai.BadRequestError) as caught:
        embeddings.embeddings.create(model=MODEL, input="x", dimensions=8)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError) as caught:
        embeddings.embeddings.create(model=MODEL, input=["x", "x " * 100])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input[1]")
    with pytest.raises(openai.APIStatusError) as failed:
        client.embeddings.create(model=MODEL, input="x")  # of a model that has none
    assert failed.value.status_code == 501
    assert failed.value.response.headers["x-should-retry"] == "false"


# Tokenize and detokenize


@pytest.mark.parametrize("text", ["Hello, wörld!", "你好 👩‍👩‍👧‍👦", "<|im_start|>user\n", ""])
def test_tokenize_and_back(router: Router, text: str) -> None:
    expected = Tokenizer.from_file(str(QWEN3 / "tokenizer.json")).encode(text).ids
    answer = post(router, "/v1/tokenize", {"model": MODEL, "prompt": text})
    assert answer == {"tokens": expected, "count": len(expected), "max_model_len": 4096}
    both = post(router, "/v1/tokenize", {"model": MODEL, "prompt": [text, text]})
    assert both["tokens"] == [expected, expected]
    back = post(router, "/v1/detokenize", {"tokens": expected, "skip_special_tokens": False})
    assert back == {"text": text, "prompt": text}


def test_tokenize_counts_what_chat_counts(router: Router) -> None:
    messages = [{"role": "user", "content": "say-text"}]
    tokens = post(router, "/v1/tokenize", {"model": MODEL, "messages": messages})
    answer = post(router, "/v1/chat/completions", {"model": MODEL, "messages": messages})
    assert tokens["count"] == answer["usage"]["prompt_tokens"]


# What the workers say of themselves, and the operator's routes


def test_health_generate(router: Router, simulators: tuple[Worker, Worker]) -> None:
    assert all(router.status("/health_generate") == 200 for _ in range(6))
    wait_idle(*simulators)


def test_server_info_and_loads(router: Router, simulators: tuple[Worker, Worker]) -> None:
    info = httpx.get(f"{router.url}/get_server_info").json()
    assert info["version"] == "simulated"
    assert info["uptime_seconds"] > 0
    loads = httpx.get(f"{router.url}/get_loads", params={"include": "core,queues"}).json()["workers"]
    assert [one["worker"] for one in loads] == [worker.url for worker in simulators]
    assert all(one["loads"][0]["num_running_reqs"] == 0 for one in loads)


def test_flush_cache(embedding_router: Router, router: Router) -> None:
    url = f"{embedding_router.url}/flush_cache"
    assert httpx.post(url).status_code == 401
    assert httpx.post(f"{router.url}/flush_cache", headers=ADMIN).status_code == 403
    answer = httpx.post(url, headers=ADMIN)
    assert answer.status_code == 200
    assert [one["success"] for one in answer.json()["workers"]] == [True]


def test_the_metrics_count_these_routes(embedding_router: Router) -> None:
    labels = {"route": "/v1/embeddings", "status": "200"}
    before = embedding_router.settled_metric("wsgi_router_requests_total", **labels)
    tokens = embedding_router.metric("wsgi_router_tokens_total", kind="prompt")
    post(embedding_router, "/v1/embeddings", {"model": MODEL, "input": ["one", "two"]})
    assert embedding_router.settled_metric("wsgi_router_requests_total", **labels) == before + 1
    assert embedding_router.metric("wsgi_router_tokens_total", kind="prompt") == tokens + 2
