"""The limit of running requests, on the routes that generate: every answer gives its slot back."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from werkzeug.test import EnvironBuilder, run_wsgi_app

from tests.support import modes
from tests.support.app import CHAT, MODEL, App, RpcFailure, ask, chunk, complete, embedder, error_of, whole
from tests.support.processes import wait_until
from wsgi_router import runtime
from wsgi_router.admission import Admission, Slot
from wsgi_router.errors import QueueFullError
from wsgi_router.fair_queue import Flow
from wsgi_router.observability import metrics
from wsgi_router.peers import Peers
from wsgi_router.settings import Settings
from wsgi_router.workers.board import Board

LIMITED: dict[str, Any] = {"max_concurrent_requests": 1, "queue_limit": 0}
STREAM = (chunk("good "), complete("good day"), None)


def slots(app: App) -> Admission:
    found = app.services.admission
    assert found is not None
    return found


def occupied(app: App) -> Slot:
    return slots(app).enter(Flow("other"))


BODIES = {
    "chat": (CHAT, ask()),
    "chat, streamed": (CHAT, ask(stream=True)),
    "completions": ("/v1/completions", {"model": MODEL, "prompt": "one"}),
    "completions, two prompts": ("/v1/completions", {"model": MODEL, "prompt": ["one", "two"]}),
    "generate": ("/generate", {"text": "one", "sampling_params": {"max_new_tokens": 4}}),
    "embeddings": ("/v1/embeddings", {"model": MODEL, "input": "one"}),
}


@pytest.mark.parametrize("route", list(BODIES))
def test_every_route_that_generates_is_limited(make: Callable[..., App], route: str) -> None:
    path, body = BODIES[route]
    app = make(whole("x"), whole("y"), **LIMITED)
    embedder(app)
    held = occupied(app)
    assert error_of(app.post(body, path), 429)["code"] == "queue_full"
    assert not app.transport.streams
    assert app.transport.asked.count("Embed") == 0
    held.release()
    answer = app.post(body, path)
    assert answer.status_code == 200, answer.text
    answer.get_data()
    assert slots(app).running == 0


@pytest.mark.parametrize(
    ("answers", "fields"),
    [
        ((whole("x"),), {}),
        ((STREAM,), {"stream": True}),
        ((whole("x"), whole("y")), {"n": 2}),
        (((RpcFailure("INVALID_ARGUMENT", "no"),),), {}),
        (((RpcFailure("INVALID_ARGUMENT", "no"),),), {"stream": True}),
        ((RpcFailure("UNAVAILABLE", "down"),), {}),
        (((chunk("good "), RpcFailure("INTERNAL", "late")),), {"stream": True}),
        (((chunk("good "), None),), {}),
        (((b"\xff\xff\xff\xff", None),), {}),
    ],
)
def test_the_slot_goes_back_however_the_answer_ends(
    make: Callable[..., App], answers: tuple[Any, ...], fields: dict[str, Any]
) -> None:
    app = make(*answers, **LIMITED)
    app.chat(**fields).get_data()
    assert slots(app).running == 0
    assert slots(app).stats() == (0, 0)


def open_stream(app: App) -> Any:
    """The body of a streamed answer, of which one piece was taken."""
    environ = EnvironBuilder(CHAT, method="POST", json=ask(stream=True)).get_environ()
    body, status, _ = run_wsgi_app(app.flask, environ)
    assert status.startswith("200")
    assert next(iter(body))
    return body


def test_a_stream_holds_its_slot_until_it_is_closed(make: Callable[..., App]) -> None:
    app = make((chunk("good "),), **LIMITED)
    body = open_stream(app)
    assert slots(app).running == 1
    error_of(app.chat(), 429)
    body.close()
    body.close()
    assert slots(app).running == 0


def test_a_server_that_forgets_to_close(make: Callable[..., App]) -> None:
    app = make((chunk("good "),), **LIMITED)
    body = open_stream(app)
    assert slots(app).running == 1
    del body
    gc.collect()
    wait_until(lambda: slots(app).running == 0, 10, "the slot")


def test_bad_input_does_not_wait(make: Callable[..., App]) -> None:
    app = make(**{**LIMITED, "queue_limit": 5})
    held = occupied(app)
    error_of(app.chat(temperature=9), 400)
    error_of(app.chat(model="other"), 404)
    error_of(app.chat(max_tokens=10**6), 400)
    error_of(app.post({"model": MODEL, "input": []}, "/v1/embeddings"), 400)
    assert slots(app).stats() == (1, 0)
    held.release()


def test_other_routes_are_not_limited(make: Callable[..., App]) -> None:
    app = make(**LIMITED)
    held = occupied(app)
    for path in ("/health", "/readiness", "/v1/models", "/metrics"):
        assert app.client.get(path).status_code == 200
    assert app.post({"model": MODEL, "prompt": "one"}, "/v1/tokenize").status_code == 200
    held.release()


def test_a_request_waits_its_turn(make: Callable[..., App]) -> None:
    app = make(whole("good day"), **{**LIMITED, "queue_limit": 5})
    held = occupied(app)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(app.chat()))
    asking.start()
    wait_until(lambda: slots(app).waiting == 1, 10, "a place in the queue")
    assert not app.transport.streams
    held.release()
    asking.join(20)
    assert answers[0].get_json()["choices"][0]["message"]["content"] == "good day"
    assert slots(app).stats() == (0, 0)


def test_a_wait_that_is_too_long_is_503(make: Callable[..., App]) -> None:
    app = make(**{**LIMITED, "queue_limit": 5, "queue_timeout": 0.05})
    held = occupied(app)
    answer = app.chat()
    error = error_of(answer, 503)
    assert error["code"] == "queue_timeout"
    assert int(answer.headers["Retry-After"]) >= 1
    assert "x-should-retry" not in answer.headers
    held.release()


def test_the_requests_own_deadline_bounds_the_wait(make: Callable[..., App]) -> None:
    app = make(**{**LIMITED, "queue_limit": 5, "request_timeout": 0.2})
    held = occupied(app)
    assert error_of(app.chat(), 504)["code"] == "deadline_exceeded"
    assert slots(app).stats() == (1, 0)
    held.release()


def test_keys_take_turns_and_have_priorities(make: Callable[..., App]) -> None:
    answers = [whole(letter) for letter in "abcd"]
    keys = {"api_keys": ("one", "two", "best"), "key_priorities": (("best", 1),)}
    app = make(*answers, **{**LIMITED, "queue_limit": 9, **keys})
    held = occupied(app)
    threads = []
    texts: dict[str, str] = {}

    def asked(name: str, key: str) -> None:
        answer = app.post(ask(), headers={"Authorization": f"Bearer {key}"})
        texts[name] = answer.get_json()["choices"][0]["message"]["content"]

    for number, key in enumerate(("one", "one", "two", "best")):
        threads.append(threading.Thread(target=asked, args=(f"{key} {number}", key)))
        threads[-1].start()
        wait_until(lambda: slots(app).waiting == len(threads), 10, "a place in the queue")
    held.release()
    for thread in threads:
        thread.join(20)
    assert texts == {"best 3": "a", "one 0": "b", "two 2": "c", "one 1": "d"}


def test_users_take_turns_where_there_are_no_keys(
    make: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make(whole("x"), **{**LIMITED, "queue_limit": 1})
    seen: list[Flow | None] = []
    arrive = slots(app).arrive

    def noted(*args: Any) -> Flow | None:
        seen.append(arrive(*args))
        return seen[-1]

    monkeypatch.setattr(slots(app), "arrive", noted)
    app.chat(user="ann")
    assert seen == [Flow("ann")]


def refusals(reason: str) -> float:
    metrics().flush()
    return float(metrics().refused.labels(reason)._value.get())


def test_metrics(make: Callable[..., App]) -> None:
    before = refusals("queue_full"), refusals("queue_timeout")
    app = make(whole("x"), **{**LIMITED, "queue_timeout": 0.05})
    held = occupied(app)
    error_of(app.chat(), 429)
    text = app.client.get("/metrics").text
    assert "wsgi_router_requests_running 1.0" in text
    assert "wsgi_router_requests_waiting 0.0" in text
    assert (refusals("queue_full"), refusals("queue_timeout")) == (before[0] + 1, before[1])
    held.release()
    assert app.chat().status_code == 200
    assert "wsgi_router_queue_seconds_count" in app.client.get("/metrics").text


def test_without_a_limit_there_is_nothing(make: Callable[..., App]) -> None:
    app = make(whole("x"))
    assert app.services.admission is None
    assert app.chat().status_code == 200
    assert "wsgi_router_requests_running" not in app.client.get("/metrics").text


# Greenlets and threads


def enter_and_leave() -> None:
    """Many at once, each with a user of its own: all begin, never more than the limit at once."""
    where = Admission(Settings(max_concurrent_requests=4, queue_limit=500), Peers(Board()))
    most, done = 0, 0
    lock = threading.Lock()

    def one(number: int) -> None:
        nonlocal most, done
        slot = where.enter(Flow(number % 7))
        with lock:
            most = max(most, where.running)
        time.sleep(0.001)
        slot.release()
        with lock:
            done += 1

    for number in range(200):
        runtime.spawn(one, number)
    wait_until(lambda: done == 200, 30, "all")
    assert most == 4
    assert where.stats() == (0, 0)


def wait_too_long() -> None:
    where = Admission(Settings(max_concurrent_requests=1, queue_limit=1, queue_timeout=0.2), Peers(Board()))
    slot = where.enter(Flow(""))
    codes: list[str] = []

    def one() -> None:
        try:
            where.enter(Flow(""))
        except Exception as error:
            codes.append(getattr(error, "code", ""))

    runtime.spawn(one)
    wait_until(lambda: where.waiting == 1, 5, "a place")
    runtime.spawn(one)
    wait_until(lambda: len(codes) == 2, 10, "both ends")
    assert codes == [QueueFullError.code, "queue_timeout"]
    slot.release()
    assert where.stats() == (0, 0)


def both() -> None:
    enter_and_leave()
    wait_too_long()


@pytest.mark.parametrize("mode", modes.MODES)
def test_greenlets_and_threads(mode: str) -> None:
    modes.run(mode, both)
