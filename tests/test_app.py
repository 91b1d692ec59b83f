"""The HTTP surface in one process: answers, errors, headers, limits. No network, the real native core."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client, TestResponse

from tests.support import sse
from tests.support.app import CHAT, MODEL, WORKER, App, RpcFailure, ask, chunk, complete, error_of, whole
from tests.support.processes import wait_until
from wsgi_router import api, runtime, settings
from wsgi_router.api.services import TRANSPORTS, Services
from wsgi_router.observability import LOGGER, metrics
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.pool import WorkerPool


def events(answer: TestResponse) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return list(sse.events(answer.text.splitlines()))


def cancellations() -> float:
    metrics().flush()
    return float(metrics().cancellations._value.get())


# Chat completions


HUGE = "` - at `$.x" * 300_000


def test_an_answer(make: Callable[..., App]) -> None:
    app = make(whole("good day"))
    answer = app.chat(max_tokens=20).get_json()
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "good day", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["model"] == MODEL
    assert answer["id"].startswith("chatcmpl-")
    assert answer["system_fingerprint"] == "v7"
    assert answer["usage"]["completion_tokens"] == 9


def test_what_the_worker_gets(make: Callable[..., App]) -> None:
    app = make(whole("x"))
    app.chat(max_tokens=20, temperature=0, top_k=3, seed=7, stop_token_ids=[5], logit_bias={"65": -2})
    request = app.transport.streams[0].request
    prompt = b"".join(bytes([token]) if token < 256 else b"|" for token in request.tokenized.input_ids)
    assert prompt == b"|user\nhi|\n|assistant\n"
    sampling = request.sampling_params
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.n) == (0, 1, 3, 1)
    assert (sampling.max_new_tokens, sampling.repetition_penalty) == (20, 1)
    assert list(sampling.stop_token_ids) == [5]
    assert dict(sampling.logit_bias) == {"65": -2}
    assert sampling.custom_params["seed"] == 7
    assert not request.stream


def test_stop_strings_are_never_sent(make: Callable[..., App]) -> None:
    app = make((chunk("one two"), chunk(" three", 7)))
    choice = app.chat(stop=" t").get_json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")
    request = app.transport.streams[0].request
    assert request.stream
    assert not request.sampling_params.stop
    assert app.transport.streams[0].closes == 1


def test_a_stream(make: Callable[..., App]) -> None:
    app = make((chunk("good "), chunk("day", 5), complete("good day"), None))
    answer = app.chat(stream=True, stream_options={"include_usage": True})
    assert answer.content_type == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers["X-Request-Id"]
    seen = events(answer)
    assert seen[-1] == "[DONE]"
    assert sse.content(seen) == "good day"
    assert seen[-2]["usage"]["completion_tokens"] == 9


def test_several_choices(make: Callable[..., App]) -> None:
    app = make(whole("one"), whole("two"))
    answer = app.chat(n=2).get_json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["one", "two"]
    ids = {stream.request.request_id for stream in app.transport.streams}
    assert len(ids) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "retry", "after"),
    [
        ("INVALID_ARGUMENT", 400, None, None),
        ("RESOURCE_EXHAUSTED", 429, None, "1"),
        ("UNIMPLEMENTED", 501, "false", None),
        ("UNAVAILABLE", 503, None, "1"),
        ("DEADLINE_EXCEEDED", 504, None, None),
        ("UNKNOWN", 500, None, None),
    ],
)
def test_a_refusal_of_the_worker_is_a_status(
    make: Callable[..., App], stream: bool, code: str, status: int, retry: str | None, after: str | None
) -> None:
    app = make((RpcFailure(code, "said so"),))
    answer = app.chat(stream=stream)
    error_of(answer, status)
    assert answer.headers.get("x-should-retry") == retry
    assert answer.headers.get("Retry-After") == after


def test_an_abort_before_the_first_token(make: Callable[..., App]) -> None:
    app = make((complete("", "abort"), None))
    assert error_of(app.chat(stream=True), 500)["code"] == "worker_aborted"


def test_a_failure_after_the_start(make: Callable[..., App]) -> None:
    app = make((chunk("good "),))
    answer = app.post(ask(stream=True), buffered=False)
    pieces = answer.iter_encoded()
    text = next(pieces)
    app.transport.streams[0].put(RpcFailure("INTERNAL", "engine broke"))
    text += b"".join(pieces)
    seen: list[Any] = list(sse.events(text.decode().splitlines()))
    assert sse.content(seen) == "good "
    assert seen[-2]["error"]["message"] == "engine broke"
    assert seen[-1] == "[DONE]"


def test_a_stream_that_is_dropped_ends_at_the_worker(make: Callable[..., App]) -> None:
    app = make((chunk("good "),))
    before = cancellations()
    answer = app.post(ask(stream=True), buffered=False)
    assert next(iter(answer.response))
    answer.close()
    assert app.transport.streams[0].closes == 1
    assert len(app.transport.aborted) == 1
    assert app.services.pool.workers[0].in_flight == 0
    assert cancellations() == before + 1


def test_a_second_worker_is_asked_once(folder: Path) -> None:
    second = "grpc://127.0.0.1:2"
    app = App(folder, RpcFailure("UNAVAILABLE", "gone"), whole("x"), workers=(WORKER, second))
    app.transport.infos[second] = app.transport.infos[WORKER]
    wait_until(lambda: all(worker.available() for worker in app.services.pool.workers), 10, "two workers")
    before = metrics().retries._value.get()
    assert app.chat().status_code == 200
    assert metrics().retries._value.get() == before + 1


def test_a_first_token_may_be_waited_for_less_long_than_a_whole_answer(make: Callable[..., App]) -> None:
    app = make((), (), first_token_timeout=0.2, answer_timeout=1)
    for streamed, least in ((True, 0.2), (False, 1)):
        start = time.monotonic()
        error_of(app.chat(stream=streamed), 504)
        assert time.monotonic() - start >= least


def test_unknown_fields_are_named(make: Callable[..., App]) -> None:
    app = make(*[whole("x")] * 4)
    assert "X-Router-Warning" not in app.chat(user="me").headers
    assert app.chat(tmperature=1, seed=1).headers["X-Router-Warning"].endswith(": seed, tmperature")
    few = app.chat(**{f"x{number}": 1 for number in range(30)}).headers["X-Router-Warning"]
    assert few.endswith(": " + ", ".join(f"x{number}" for number in range(10)))
    names = {f"naïve\r\nX-Evil: {number}" + "y" * 300: 1 for number in range(30)}
    warning = app.chat(**names, seed=1).headers["X-Router-Warning"]
    assert ": seed, " in warning
    assert warning.isascii()
    assert warning.isprintable()
    assert len(warning) <= 1024


# Models, health, metrics


def test_models(app: App) -> None:
    models = app.client.get("/v1/models").get_json()
    assert [model["id"] for model in models["data"]] == [MODEL]
    assert models["data"][0]["max_model_len"] == 2000
    assert app.client.get(f"/v1/models/{MODEL}").get_json() == models["data"][0]
    assert app.client.get("/v1/models/org%2Ftiny").status_code == 200
    assert error_of(app.client.get("/v1/models/other"), 404)["code"] == "model_not_found"


def test_an_unknown_model_is_refused_before_anything_is_tokenised(make: Callable[..., App]) -> None:
    app = make()
    error = error_of(
        app.chat(model='no"such\nmodel', messages=[{"role": "user", "content": "x" * 9000}]), 404
    )
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": HUGE, "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": HUGE}]}]},
        {"model": HUGE},
        {"reasoning_effort": HUGE},
        {"seed": 10**4000},
        {"tools": HUGE},
    ],
)
def test_errors_repeat_a_little_of_what_was_sent(app: App, fields: dict[str, Any]) -> None:
    start = time.monotonic()
    assert len(app.chat(**fields).text) < 600
    assert time.monotonic() - start < 2, "it holds up all other requests"


def test_a_path_is_repeated_in_part(app: App) -> None:
    assert len(error_of(app.client.get("/v1/" + "x" * 5000), 404)["message"]) < 200


def test_a_prompt_that_is_too_long(app: App) -> None:
    error = error_of(app.chat(messages=[{"role": "user", "content": "x" * 3000}], stream=True), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert error_of(app.chat(max_tokens=1999), 400)["code"] == "context_length_exceeded"


def test_model_info(app: App) -> None:
    info = app.client.get("/get_model_info").get_json()
    assert info["served_model_name"] == MODEL
    assert info["is_generation"] is True
    assert info["max_context_length"] == 2000


def test_health(app: App) -> None:
    for path in ("/health", "/liveness", "/readiness"):
        assert app.client.get(path).status_code == 200


def test_without_a_worker(make: Callable[..., App]) -> None:
    app = make(up=False)
    assert app.client.get("/health").status_code == 200
    for answer in (app.client.get("/readiness"), app.chat(), app.client.get("/get_model_info")):
        error_of(answer, 503)
        assert answer.headers["Retry-After"]
    assert app.client.get("/v1/models").get_json()["data"] == []


def test_without_a_tokenizer(make: Callable[..., App]) -> None:
    app = make(tokenizer_path="")
    answer = app.client.get("/readiness")
    assert error_of(answer, 503)["code"] == "no_tokenizer"
    assert int(answer.headers["Retry-After"]) > 0
    assert "x-should-retry" not in answer.headers
    assert error_of(app.chat(), 503)["code"] == "no_tokenizer"
    assert app.client.get("/health").status_code == 200


def test_readiness_while_draining(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = runtime.Drain()
    monkeypatch.setattr(api.health, "drain", drain)
    assert app.client.get("/readiness").status_code == 200
    drain.begin(60)
    answer = app.client.get("/readiness")
    assert error_of(answer, 503)["code"] == "draining"
    assert answer.headers["Retry-After"]
    assert app.client.get("/health").status_code == 200


def sample(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def test_metrics(make: Callable[..., App]) -> None:
    app = make((chunk("good "), chunk("day", 5), complete("good day"), None))
    before = app.client.get("/metrics").text
    app.chat(stream=True).get_data()
    after = app.client.get("/metrics").text

    def added(name: str) -> float:
        return sample(after, name) - sample(before, name)

    assert added('wsgi_router_requests_total{route="/v1/chat/completions",status="200"}') == 1
    assert added("wsgi_router_time_to_first_token_seconds_count") == 1
    assert added('wsgi_router_tokens_total{kind="completion"}') == 9
    assert added('wsgi_router_tokens_total{kind="prompt"}') == 9
    assert added("wsgi_router_inter_token_seconds_count") == 4
    assert sample(after, "wsgi_router_requests_in_flight") == 0
    assert sample(after, 'wsgi_router_worker_up{worker="grpc://127.0.0.1:1"}') == 1


def test_metrics_can_be_switched_off(make: Callable[..., App]) -> None:
    error_of(make(metrics=False).client.get("/metrics"), 404)


def test_clients_cannot_make_labels(app: App) -> None:
    app.client.get("/v1/models/made-up-name")
    app.client.get("/made-up-path")
    app.client.open("/v1/models", method="MADEUP")
    assert "made" not in app.client.get("/metrics").text.lower()


# Routes, headers, faults


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v2/chat/completions", 404),
        ("GET", CHAT, 405),
        ("HEAD", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("BREW", "/v1/models", 405),
        ("GET", "/v1/models/", 200),
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/health", 200),
        ("OPTIONS", CHAT, 405),
        ("OPTIONS", "/health", 405),
    ],
)
def test_routes(app: App, method: str, path: str, status: int) -> None:
    answer = app.client.open(path, method=method)
    assert answer.status_code == status
    assert answer.headers["X-Request-Id"]
    if method == "HEAD":
        assert answer.data == b""
    elif status >= 400:
        error_of(answer, status)
    if status == 405:
        assert answer.headers["Allow"]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-123", True), ("x" * 128, True), ("x" * 129, False), ("", False), ("a b", False), ("ä", False)],
)
def test_request_ids(app: App, sent: str, kept: bool) -> None:
    answer = app.client.get("/health", headers={"X-Request-Id": sent})
    assert (answer.headers["X-Request-Id"] == sent) == kept
    assert answer.headers["X-Request-Id"].isascii()


def test_an_exception_in_a_view_is_a_500_that_is_not_retried(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_self: WorkerPool) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(WorkerPool, "models", fail)
    answer = app.client.get("/v1/models")
    error = error_of(answer, 500)
    assert error["code"] == "internal_error"
    assert "secret" not in answer.text
    assert answer.headers["x-should-retry"] == "false"


def test_mounted_under_a_prefix(make: Callable[..., App]) -> None:
    app = make(whole("x"), api_keys=("key",))

    def elsewhere(_environ: Any, start: Any) -> list[bytes]:
        start("404 Not Found", [])
        return [b"elsewhere"]

    client = Client(DispatcherMiddleware(elsewhere, {"/llm": app.flask}))
    keys = {"Authorization": "Bearer key"}
    assert client.get("/llm/health").status_code == 200
    assert client.get("/health").text == "elsewhere"
    error_of(client.get("/llm/nothing"), 404)
    error_of(client.get("/llm/v1/models"), 401)
    assert client.post("/llm" + CHAT, data=json.dumps(ask()), headers=keys).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1/nothing", "/v1", "/generate"])
def test_keys_guard_the_api(make: Callable[..., App], path: str) -> None:
    app = make(api_keys=("one", "two"))
    error_of(app.client.get("/", environ_overrides={"PATH_INFO": "/" + path}), 401)
    answer = app.client.get(path)
    assert error_of(answer, 401)["code"] == "invalid_api_key"
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    error_of(app.client.get(path, headers={"Authorization": "Bearer three"}), 401)
    assert app.client.get(path, headers={"Authorization": "Bearer two"}).status_code in (200, 404, 405)
    assert app.client.get("/health").status_code == 200


def test_services_start_once_and_close(make: Callable[..., App]) -> None:
    app = make()
    pool = app.services.pool
    app.services.start()
    assert app.services.pool is pool
    app.services.close()
    app.services.close()
    assert repr(app.services) == "<Services not started>"
    app.client.get("/health")
    assert app.services.pool is not pool
    wait_until(app.services.pool.usable, 10, "a usable worker")


def lookers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "_take_turns" in thread.name]


def test_closed_services_leave_no_thread(make: Callable[..., App]) -> None:
    before = set(lookers())
    app = make()
    for _ in range(5):
        app.services.close()
        app.services.start()
    app.services.close()
    wait_until(lambda: set(lookers()) <= before, 10, "the lookers ended")


def test_the_setting_names_the_transport() -> None:
    words = settings.FIELDS["transport"].metadata["cast"]
    for name, kind in TRANSPORTS.items():
        assert Services(settings.Settings(transport=words(name)))._make_transport is kind
    with pytest.raises(ValueError, match=f"one of {', '.join(TRANSPORTS)}"):
        words("carrier pigeon")


def test_unknown_fields_are_logged_at_debug(
    make: Callable[..., App], caplog: pytest.LogCaptureFixture
) -> None:
    app = make(whole("x"), whole("x"), log_level="debug")
    caplog.set_level("DEBUG", "wsgi_router")
    LOGGER.addHandler(caplog.handler)
    try:
        app.chat(**{"temprature": 1, "x\ny": "secret"})
        (line,) = [text for text in caplog.messages if "unknown" in text]
        assert line.endswith("has 2 unknown fields: temprature x?y")
        LOGGER.setLevel("INFO")
        caplog.clear()
        app.chat(temprature=1)
        assert "temprature" not in caplog.text
    finally:
        LOGGER.removeHandler(caplog.handler)
        LOGGER.setLevel("INFO")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "hi"}] * 10_001}, "messages"),
        ({"min_tokens": 1990}, "min_tokens"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"now\0": 1}}, "chat_template_kwargs.now\0"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(app: App, fields: dict[str, Any], param: str) -> None:
    before = len(app.transport.streams)
    assert error_of(app.chat(**fields), 400)["param"] == param
    assert len(app.transport.streams) == before


def test_defaults_of_the_worker_fill_what_the_client_left_out(make: Callable[..., App]) -> None:
    app = make(whole("x"), whole("x"), up=False)
    app.transport.infos["grpc://127.0.0.1:1"] = pb.GetModelInfoResponse(
        served_model_name=MODEL, default_sampling_params_json='{"temperature":0.6,"top_k":20,"x":[1]}'
    )
    wait_until(app.services.pool.usable, 10, "a usable worker")
    app.chat(top_k=4)
    sampling = app.transport.streams[0].request.sampling_params
    assert sampling.temperature == pytest.approx(0.6)
    assert (sampling.top_k, sampling.top_p) == (4, 1)


def test_the_log_tells_how_a_request_ended(
    make: Callable[..., App], caplog: pytest.LogCaptureFixture
) -> None:
    app = make(whole("x"), (RpcFailure("UNIMPLEMENTED", "no"),), (RpcFailure("INVALID_ARGUMENT", "no"),))
    caplog.set_level("INFO", "wsgi_router")
    LOGGER.addHandler(caplog.handler)
    try:
        statuses = [app.chat().status_code for _ in range(3)] + [app.post(b"{").status_code]
    finally:
        LOGGER.removeHandler(caplog.handler)
    lines = [text.split(" ")[:4] for text in caplog.messages if text.startswith("POST ")]
    assert lines == [
        ["POST", CHAT, str(status), outcome]
        for status, outcome in zip(statuses, ("complete", "failed", "refused", "refused"), strict=True)
    ]
    assert statuses == [200, 501, 400, 400]
