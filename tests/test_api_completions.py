"""/v1/completions and /generate in one process, without a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import sse
from tests.support.app import MODEL, App, RpcFailure, chunk, complete, error_of, whole

COMPLETIONS, GENERATE, EMBEDDINGS = "/v1/completions", "/generate", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"


def events(answer: Any) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return list(sse.events(answer.text.splitlines()))


def prompts_of(app: App) -> list[str]:
    return [bytes(stream.request.tokenized.input_ids).decode() for stream in app.transport.streams]


def test_a_completion(make: Callable[..., App]) -> None:
    app = make(whole(" world"))
    answer = app.post({"model": MODEL, "prompt": "hello"}, COMPLETIONS).get_json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == MODEL
    choice = answer["choices"][0]
    assert (choice["index"], choice["text"], choice["finish_reason"]) == (0, " world", "stop")
    assert choice["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 7
    request = app.transport.streams[0].request
    assert prompts_of(app) == ["hello"]
    assert request.sampling_params.max_new_tokens == 16
    assert not request.stream
    assert not request.return_logprob


def test_a_streamed_completion(make: Callable[..., App]) -> None:
    app = make((chunk("good "), chunk("day", 5), complete("good day"), None))
    body = {"model": MODEL, "prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
    seen = events(app.post(body, COMPLETIONS))
    assert seen.pop() == "[DONE]"
    assert seen.pop()["usage"]["completion_tokens"] == 9
    assert all(event["object"] == "text_completion" and event["usage"] is None for event in seen)
    assert "".join(event["choices"][0]["text"] for event in seen) == "good day"
    assert [event["choices"][0]["finish_reason"] for event in seen] == [None] * (len(seen) - 1) + ["stop"]


def test_several_prompts_are_several_requests(make: Callable[..., App]) -> None:
    app = make(whole("1"), whole("2"), whole("3"), whole("4"))
    answer = app.post({"model": MODEL, "prompt": ["aa", "b"], "n": 2}, COMPLETIONS).get_json()
    assert sorted(prompts_of(app)) == ["aa", "aa", "b", "b"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    by_prompt = {stream.request.request_id for stream in app.transport.streams}
    assert len(by_prompt) == 4
    assert {choice["text"] for choice in answer["choices"]} == {"1", "2", "3", "4"}


def test_token_ids_as_a_prompt_and_as_prompts(make: Callable[..., App]) -> None:
    app = make(whole("x"), whole("y"), whole("z"))
    assert app.post({"model": MODEL, "prompt": [104, 105]}, COMPLETIONS).status_code == 200
    assert app.post({"model": MODEL, "prompt": [[97], [98, 99]]}, COMPLETIONS).status_code == 200
    assert prompts_of(app) == ["hi", "a", "bc"]


@pytest.mark.parametrize("prompt", ["hé", [104, 0xC3, 0xA9]])
def test_echo(make: Callable[..., App], prompt: Any) -> None:
    app = make(whole("llo"), (chunk("llo"), complete("llo"), None))
    body = {"model": MODEL, "prompt": prompt, "echo": True}
    assert app.post(body, COMPLETIONS).get_json()["choices"][0]["text"] == "héllo"
    seen = events(app.post({**body, "stream": True}, COMPLETIONS))
    assert "".join(event["choices"][0]["text"] for event in seen[:-1]) == "héllo"


def test_logprobs_are_asked_for(make: Callable[..., App]) -> None:
    app = make(whole("a"), whole("b"), whole("c"))
    for fields in ({"logprobs": 0}, {"logprobs": 5}, {"logprobs": 2, "echo": True}):
        app.post({"model": MODEL, "prompt": "x", **fields}, COMPLETIONS)
    asked = [
        (one.return_logprob, one.top_logprobs_num, one.logprob_start_len)
        for one in (stream.request for stream in app.transport.streams)
    ]
    assert asked == [(True, 0, -1), (True, 5, -1), (True, 2, 0)]


def test_stop_words_and_limits_of_completions(make: Callable[..., App]) -> None:
    app = make((chunk("one two"), chunk(" three", 7)))
    body = {"model": MODEL, "prompt": "x", "stop": " t", "max_tokens": 50, "regex": "a+"}
    choice = app.post(body, COMPLETIONS).get_json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("one", "stop")
    sampling = app.transport.streams[0].request.sampling_params
    assert (sampling.max_new_tokens, sampling.regex, list(sampling.stop)) == (50, "a+", [])


def test_the_default_limit_gives_way_to_the_context(make: Callable[..., App]) -> None:
    app = make(whole("a"))
    assert app.post({"model": MODEL, "prompt": "x" * 1990}, COMPLETIONS).status_code == 200
    assert app.transport.streams[0].request.sampling_params.max_new_tokens == 10


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "x" * 1990, "max_tokens": 11}, "prompt"),
        ({"prompt": ["x", "y" * 2000]}, "prompt[1]"),
        ({"prompt": ["x", "y" * 90000]}, "prompt[1]"),
    ],
)
def test_a_prompt_beyond_the_context(app: App, fields: dict[str, Any], param: str) -> None:
    error = error_of(app.post({"model": MODEL, **fields}, COMPLETIONS), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "messages" not in error["message"]


@pytest.mark.parametrize(
    ("path", "field", "prompt", "param"),
    [
        (COMPLETIONS, "prompt", [5, 9999], "prompt[1]"),
        (COMPLETIONS, "prompt", [[5], [5, 6, 9999]], "prompt[1][2]"),
        (COMPLETIONS, "prompt", "", "prompt"),
        (GENERATE, "input_ids", [[5, 9999]], "input_ids[0][1]"),
        (GENERATE, "text", ["x", ""], "text[1]"),
        (EMBEDDINGS, "input", [5, 9999], "input[1]"),
    ],
)
def test_prompts_that_the_tokenizer_refuses(app: App, path: str, field: str, prompt: Any, param: str) -> None:
    error = error_of(app.post({"model": MODEL, field: prompt}, path), 400)
    assert error["param"] == param


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS, TOKENIZE, DETOKENIZE])
def test_an_unknown_model(app: App, path: str) -> None:
    body = {"model": "other", "prompt": "x", "input": "x", "tokens": [1]}
    assert error_of(app.post(body, path), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_one_prompt_that_fails_ends_all(make: Callable[..., App], stream: bool) -> None:
    app = make((RpcFailure("INVALID_ARGUMENT", "no such thing"),), (chunk("a"),), (chunk("b"),))
    body = {"model": MODEL, "prompt": ["a", "b", "c"], "stream": stream}
    answer = app.post(body, COMPLETIONS)
    if answer.status_code == 200:  # another prompt's answer had begun
        assert events(answer)[-2]["error"]["message"] == "no such thing"
    else:
        assert error_of(answer, 400)["message"] == "no such thing"
    assert [one.closes for one in app.transport.streams if one.given] == [1] * 2
    assert app.services.pool.workers[0].in_flight == 0


# /generate


def test_generate(make: Callable[..., App]) -> None:
    app = make(whole("good day"))
    params = {"max_new_tokens": 7, "temperature": 0, "min_new_tokens": 1, "json_schema": "{}"}
    body = {"text": "hello", "sampling_params": params, "rid": "mine"}
    answer = app.post(body, GENERATE).get_json()
    assert answer["text"] == "good day"
    assert answer["meta_info"]["id"] == "mine"
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert answer["meta_info"]["prompt_tokens"] == 9
    request = app.transport.streams[0].request
    assert prompts_of(app) == ["hello"]
    sampling = request.sampling_params
    assert (sampling.max_new_tokens, sampling.temperature, sampling.min_new_tokens) == (7, 0, 1)
    assert sampling.json_schema == "{}"
    assert request.request_id != "mine"


def test_generate_has_sglangs_default_limit(make: Callable[..., App]) -> None:
    app = make(whole("x"))
    app.post({"input_ids": [1, 2]}, GENERATE)
    assert app.transport.streams[0].request.sampling_params.max_new_tokens == 128


def test_generate_streams_all_text_so_far(make: Callable[..., App]) -> None:
    app = make((chunk("good "), chunk("day", 5), complete("good day"), None))
    seen = events(app.post({"text": "x", "stream": True}, GENERATE))
    assert seen.pop() == "[DONE]"
    assert [event["text"] for event in seen[:2]] == ["good ", "good day"]
    assert seen[-1]["meta_info"]["finish_reason"]["type"] == "stop"


def test_a_batch_is_a_list(make: Callable[..., App]) -> None:
    app = make(whole("1"), whole("2"))
    answer = app.post({"text": ["a", "b"], "rid": ["one", "two"]}, GENERATE).get_json()
    assert [(one["text"], one["meta_info"]["id"]) for one in answer] == [("1", "one"), ("2", "two")]
    app = make(whole("1"))
    assert len(app.post({"input_ids": [[1]]}, GENERATE).get_json()) == 1


def test_generate_asks_for_logprobs(make: Callable[..., App]) -> None:
    app = make(whole("a"), whole("a"))
    answer = app.post({"text": "x", "return_logprob": True, "top_logprobs_num": 3}, GENERATE).get_json()
    assert "output_token_logprobs" in answer["meta_info"]
    app.post({"text": "x", "return_logprob": True, "logprob_start_len": 0}, GENERATE)
    asked = [
        (one.return_logprob, one.top_logprobs_num, one.logprob_start_len)
        for one in (stream.request for stream in app.transport.streams)
    ]
    assert asked == [(True, 3, -1), (True, 0, 0)]


def test_where_a_prompts_logprobs_begin_is_within_it(make: Callable[..., App]) -> None:
    app = make(whole("a"), whole("a"))
    body = {"text": ["xyz", "x"], "return_logprob": True, "logprob_start_len": 2}
    error = error_of(app.post(body, GENERATE), 400)
    assert (error["param"], app.transport.streams) == ("logprob_start_len", [])
    # As SGLang has it, it is not looked at where no logprobs are asked for.
    assert app.post({"text": "x", "logprob_start_len": 2}, GENERATE).status_code == 200
    assert app.post({**body, "text": "xy"}, GENERATE).status_code == 200
    assert [one.request.logprob_start_len for one in app.transport.streams] == [-1, 2]


def test_generate_may_name_a_model(make: Callable[..., App]) -> None:
    app = make(whole("a"))
    assert error_of(app.post({"text": "x", "model": "other"}, GENERATE), 404)["code"] == "model_not_found"
    assert app.post({"text": "x", "model": MODEL}, GENERATE).status_code == 200


def test_generate_without_a_prompt(app: App) -> None:
    error = error_of(app.post({"sampling_params": {}}, GENERATE), 400)
    assert error["message"] == "Either text, input_ids or input_embeds should be provided."


def test_generate_needs_a_key_as_v1_does(make: Callable[..., App]) -> None:
    app = make(whole("x"), api_keys=("key",))
    error_of(app.post({"text": "x"}, GENERATE), 401)
    assert app.post({"text": "x"}, GENERATE, headers={"Authorization": "Bearer key"}).status_code == 200


def test_unknown_fields_are_named(make: Callable[..., App]) -> None:
    app = make(whole("x"))
    answer = app.post(
        {"text": "x", "odd": 1, "sampling_params": {"strange": 1, "sampling_seed": 3}}, GENERATE
    )
    warning = answer.headers["X-Router-Warning"]
    assert warning == "fields without effect: sampling_params.sampling_seed, odd, sampling_params.strange"
