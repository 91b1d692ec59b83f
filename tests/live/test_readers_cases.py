"""A reader's own cases through the real program: streamed and not, and what the worker was asked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import script
from tests.live.readers import CASES, CONTEXT, EOS, ERRORS, MODEL, QUIET, Case, rules, user
from tests.support import deltas, models
from tests.support.processes import QWEN3, Router, Worker

SECONDS = 30


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    path: Path = script.write(tmp_path_factory.mktemp("script") / "answers.json", {}, rules())
    flags = ["--tokenizer", str(QWEN3), "--model-name", MODEL, "--context-length", str(CONTEXT)]
    flags += ["--eos", str(EOS), "--default-sampling", '{"temperature": 0.625, "top_k": 20}']
    with Worker(*flags, "--script", str(path)) as worker:
        yield worker


@pytest.fixture(scope="module")
def client(worker: Worker) -> Iterator[httpx.Client]:
    with Router(worker.url) as router:
        router.wait_serving()
        with httpx.Client(base_url=router.url, timeout=SECONDS) as client:
            yield client


def last_request(worker: Worker) -> dict[str, Any]:
    calls: Any = worker.server_info()["last_requests"]
    request: dict[str, Any] = dict(calls[-1]["request"])
    return request


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose headers are the contract's."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    return deltas.chunks(answer.text)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    for made in message.get("tool_calls", []):
        made_id = made.pop("id")
        assert made_id.startswith("call_")
        assert len(made_id) == 29
        assert int(made_id[5:], 16) >= 0
    return message


def check_asked(case: Case, worker: Worker) -> None:
    request = last_request(worker)
    for given, expected in ((request["sampling_params"], case.asked), (request, case.request)):
        for name, value in expected.items():
            if value is ...:
                assert name not in given or given[name] in (0, [], False, ""), (name, given[name])
            else:
                found = given[name]
                assert (json.loads(found) if name in ("json_schema", "structural_tag") else found) == value, (
                    name
                )
    if case.prompt is not None:
        ids = [int(token) for token in request["tokenized"]["input_ids"]]
        assert models.wheel("qwen3").decode(ids, skip_special_tokens=False) == case.prompt


def body_of(case: Case, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [user(case.name)], **case.body, **more}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chat(client: httpx.Client, worker: Worker, case: Case) -> None:
    answer = client.post("/v1/chat/completions", json=body_of(case))
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    check_asked(case, worker)
    (choice,) = whole["choices"]
    message = without_ids(choice["message"])
    assert message.pop("role") == "assistant"
    assert message.pop("refusal") is None
    assert message == case.message
    assert choice["finish_reason"] == case.finish
    assert choice["logprobs"] is None
    assert case.choice.items() <= choice.items()
    assert case.usage.items() <= whole["usage"].items()
    assert {"prompt_tokens_details", "completion_tokens_details"} <= whole["usage"].keys()
    assert (case.warning or "") in answer.headers.get("x-router-warning", "")

    asked = body_of(case, stream=True, stream_options={"include_usage": True})
    chunks = events(client.post("/v1/chat/completions", json=asked))
    check_asked(case, worker)
    last = chunks.pop()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    streamed, finish, _ = deltas.gather(chunks)
    assert streamed.pop("role") == "assistant"
    if "tool_calls" in streamed or "function_call" in streamed:
        streamed["content"] = streamed["content"] or None
    assert without_ids(streamed) == case.message
    assert finish["finish_reason"] == case.finish
    assert finish.get("matched_stop") == choice.get("matched_stop")


# What goes beyond one choice's message.


def test_logprobs(client: httpx.Client, worker: Worker) -> None:
    """Each token once, in order; their bytes are the text's, thinking included, a stop word's not."""
    name = "scored-emoji"
    body = {"model": MODEL, "messages": [user(name)], "logprobs": True, "top_logprobs": 2, "stop": "END"}
    text = "<think>\né\n</think>\n\n👩‍👩‍👧 好 🫠 "
    whole = client.post("/v1/chat/completions", json=body).json()["choices"][0]
    request = last_request(worker)
    assert request["return_logprob"] is True
    assert request["top_logprobs_num"] == 2
    assert request["logprob_start_len"] == -1
    entries = whole["logprobs"]["content"]
    spoken = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert spoken == text.removesuffix(" ").encode() + b" END", "the stop word's token brought the space"
    for entry in entries:
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
    chunks = events(client.post("/v1/chat/completions", json={**body, "stream": True}))
    message, finish, scores = deltas.gather(chunks)
    assert scores == entries
    assert message["content"] == whole["message"]["content"] == "👩‍👩‍👧 好 🫠 "
    assert finish["matched_stop"] == "END"


def test_logprobs_without_alternatives(client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [user("any-object")], "logprobs": True, **QUIET}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert "".join(tokens) == '{"a": []}<|im_end|>', "the end of text is a token of the answer, too"


def test_three_choices(client: httpx.Client, worker: Worker) -> None:
    """The usage is the prompt once and all answers; a stop word ends its own choice."""
    body = {"model": MODEL, "messages": [user("three-choices")], "n": 3, "stop": ["b "], **QUIET}
    before = worker.server_info()["generate_calls"]
    whole = client.post("/v1/chat/completions", json=body).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["a "] * 3
    assert worker.server_info()["generate_calls"] == before + 3
    one = client.post("/v1/chat/completions", json={**body, "n": 1}).json()["usage"]
    assert whole["usage"]["completion_tokens"] == 3 * one["completion_tokens"]
    assert whole["usage"]["prompt_tokens"] == one["prompt_tokens"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(
        client.post("/v1/chat/completions", json={**body, "stream": True, "stream_options": options})
    )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        **whole["usage"],
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"],
    }
    assert all(chunk["usage"]["prompt_tokens"] for chunk in chunks[1:])
    for index in range(3):
        message, finish, _ = deltas.gather(chunks[:-1], index)
        assert (message["content"], finish["finish_reason"], finish["matched_stop"]) == ("a ", "stop", "b ")


def test_stream_reasoning_whole(client: httpx.Client) -> None:
    body = {
        "model": MODEL,
        "messages": [user("schema-after-thinking")],
        "stream_reasoning": False,
        "stream": True,
    }
    deltas = [
        chunk["choices"][0]["delta"] for chunk in events(client.post("/v1/chat/completions", json=body))
    ]
    assert [delta for delta in deltas if "reasoning_content" in delta] == [{"reasoning_content": "\n6*7\n"}]


def test_exact_bytes_of_a_stream(client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [user("grammar")], "stream": True, **QUIET}
    answer = client.post("/v1/chat/completions", json=body)
    first = json.loads(answer.text.split("\n\n", 1)[0][6:])
    head = (
        f'{{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},'
        f'"model":"{MODEL}","system_fingerprint":"{first["system_fingerprint"]}","choices":[{{"index":0,"delta":'
    )
    assert answer.text == (
        f'data: {head}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"content":"yes"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{}},"finish_reason":"stop"}}]}}\n\n'
        "data: [DONE]\n\n"
    )
    assert first["id"].startswith("chatcmpl-")


def test_unknown_fields_are_named(client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [user("any-object")], "wat": 1, "ünknown\r\nX-Evil: 1": 2, **QUIET}
    answer = client.post("/v1/chat/completions", json=body)
    warning = answer.headers["x-router-warning"]
    assert answer.status_code == 200
    assert "wat" in warning
    assert warning.isascii()
    assert warning.isprintable()
    assert "x-evil" not in answer.headers


def test_completion_echo_and_logprobs(client: httpx.Client, worker: Worker) -> None:
    """OpenAI's old form: the prompt is in the text and in the scores, the first token has none."""
    prompt = "echo-é-completion"
    body = {"model": MODEL, "prompt": prompt, "echo": True, "logprobs": 1, "n": 2, "max_tokens": 50}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    assert last_request(worker).get("logprob_start_len", 0) == 0
    assert whole["object"] == "text_completion"
    for choice in whole["choices"]:
        assert choice["text"] == prompt + " ünd 好"
        scores = choice["logprobs"]
        assert scores["token_logprobs"][0] is None
        assert all(score < 0 for score in scores["token_logprobs"][1:])
        assert scores["tokens"][-4:] == ["bytes:\\x20\\xe5", "bytes:\\xa5", "bytes:\\xbd", "<|im_end|>"]
        length = len(choice["text"])
        assert scores["text_offset"][-4:] == [length - 2, length - 1, length - 1, length]
    chunks = events(client.post("/v1/completions", json={**body, "stream": True}))
    for index in range(2):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == prompt + " ünd 好"
        tokens = [token for choice in own if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
        assert tokens == whole["choices"][index]["logprobs"]["tokens"]
        offsets = [at for choice in own if choice["logprobs"] for at in choice["logprobs"]["text_offset"]]
        assert offsets == whole["choices"][index]["logprobs"]["text_offset"]
        assert [choice["finish_reason"] for choice in own][-1] == "stop"


def test_completions_of_two_prompts(client: httpx.Client) -> None:
    """Choices are prompt by prompt; a batch's usage is the sum."""
    body = {"model": MODEL, "prompt": ["any-object", "grammar"], "stop": "e", "max_tokens": 40}
    whole = client.post("/v1/completions", json=body).json()
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(0, '{"a": []}'), (1, "y")]
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(client.post("/v1/completions", json=asked))
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    texts = ["", ""]
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == ['{"a": []}', "y"]


def test_scoring_a_prompt_alone(client: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": "score me", "echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == "score me"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["score", " me"]


def test_generate(client: httpx.Client, worker: Worker) -> None:
    """SGLang's own: a batch is a list; a stream's text is all so far; the prompt goes as it is."""
    body = {"text": ["any-object", "grammar"], "sampling_params": {"max_new_tokens": 30, "temperature": 0}}
    first, second = client.post("/generate", json=body).json()
    assert (first["text"], second["text"]) == ('{"a": []}', "yes")
    assert first["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
    assert first["meta_info"]["completion_tokens"] == len(first["output_ids"])
    ids = [int(token) for token in last_request(worker)["tokenized"]["input_ids"]]
    assert models.wheel("qwen3").decode(ids, skip_special_tokens=False) in body["text"]
    answer = client.post("/generate", json={**body, "text": "any-object", "stream": True})
    blocks = [block for block in answer.text.split("\n\n") if block]
    assert blocks.pop() == "data: [DONE]"
    texts = [json.loads(block[6:])["text"] for block in blocks]
    assert texts[-1] == '{"a": []}'
    assert all(b.startswith(a) for a, b in itertools.pairwise(texts))


def test_there_and_back(client: httpx.Client) -> None:
    text = "a 👩‍👩‍👧 好\n<|im_end|>"
    made = client.post("/v1/tokenize", json={"model": MODEL, "prompt": [text, "b"]}).json()
    back = client.post(
        "/v1/detokenize", json={"model": MODEL, "tokens": made["tokens"], "skip_special_tokens": False}
    )
    assert back.status_code == 200, back.text
    assert back.json()["text"] == [text, "b"]


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS]
)
def test_refused(
    client: httpx.Client,
    worker: Worker,
    fields: dict[str, Any],
    status: int,
    param: str | None,
    code: str | None,
) -> None:
    before = worker.server_info()["generate_calls"]
    body = json.dumps({"model": MODEL, "messages": [user("hi")], **fields})
    answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert worker.server_info()["generate_calls"] == before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("word", "status", "kind"),
    [
        ("worker-full", 429, "rate_limit_error"),
        ("worker-cannot", 501, "server_error"),
        ("worker-refuses", 400, "invalid_request_error"),
        ("worker-breaks", 500, "server_error"),
    ],
)
def test_the_workers_error_is_a_status(
    client: httpx.Client, word: str, status: int, kind: str, stream: bool
) -> None:
    body = {"model": MODEL, "messages": [user(word)], "stream": stream}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == kind
    assert ("retry-after" in answer.headers) == (status == 429)
    assert (answer.headers.get("x-should-retry") == "false") == (status == 501)


def test_an_error_midway(client: httpx.Client) -> None:
    """Streamed: what came, one error event, the end. Not streamed: a status."""
    body = {"model": MODEL, "messages": [user("breaks-midway")], **QUIET}
    assert client.post("/v1/chat/completions", json=body).status_code == 500
    chunks = events(client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert chunks[-1].keys() == {"error"}
    assert chunks[-1]["error"].keys() == {
        "message",
        "type",
        "param",
        "code",
    }
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "one two"


def test_roads_that_lead_nowhere(client: httpx.Client) -> None:
    assert client.get("/v1/chat/completions").status_code == 405
    assert client.post("/v1/nothing").status_code == 404
    for raw in (b"{", b"[]", b"\xff", b'{"model": NaN}', b""):
        answer = client.post("/v1/chat/completions", content=raw)
        assert answer.status_code == 400
        assert answer.json()["error"].keys() == {
            "message",
            "type",
            "param",
            "code",
        }
    assert client.post("/flush_cache").status_code == 403
