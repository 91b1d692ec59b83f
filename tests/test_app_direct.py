"""The two ways through the application: past Flask, and by it. The answers are the same."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
import pytest
from flask import Response, g, request, signals
from werkzeug.test import EnvironBuilder, run_wsgi_app

from tests.support.app import CHAT, MODEL, App, RpcFailure, ask, chunk, complete, error_of, whole
from tests.support.transport import Answer
from wsgi_router.app import RouterApp
from wsgi_router.dispatch import Dispatcher
from wsgi_router.errors import RouterError

Taken = Callable[[App], bool]


@pytest.fixture
def by_flask(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """Whether a request to this application takes Flask's way."""
    seen: list[object] = []
    dispatch = flask.Flask.full_dispatch_request

    def noted(app: flask.Flask) -> Response:
        seen.append(app)
        return dispatch(app)

    monkeypatch.setattr(flask.Flask, "full_dispatch_request", noted)

    def taken(app: App) -> bool:
        seen.clear()
        assert app.chat().status_code == 200
        return bool(seen)

    return taken


TEXT = {"model": MODEL, "prompt": ["one", "two"]}
NATIVE = {"text": "one", "sampling_params": {"max_new_tokens": 4}}
WHOLE = (whole("good day"), whole("good day"))
LATE: tuple[Answer, ...] = ((chunk("good "), RpcFailure("INTERNAL", "late")),)
STREAM: tuple[Answer, ...] = ((chunk("good "), complete("good day"), None),)

CASES: dict[str, tuple[str, str, object, dict[str, str], tuple[Answer, ...]]] = {
    "whole": ("POST", CHAT, ask(), {}, WHOLE),
    "stream": ("POST", CHAT, ask(stream=True), {}, STREAM),
    "late failure": ("POST", CHAT, ask(stream=True), {}, LATE),
    "warning": ("POST", CHAT, ask(seed=1, colour="red"), {}, WHOLE),
    "warning in a stream": ("POST", CHAT, ask(seed=1, stream=True), {}, STREAM),
    "request id": ("POST", CHAT, ask(), {"X-Request-Id": "mine"}, WHOLE),
    "bad request id": ("POST", CHAT, ask(), {"X-Request-Id": "not mine"}, WHOLE),
    "wrong key": ("POST", CHAT, ask(), {"Authorization": "Bearer other"}, WHOLE),
    "refusal": ("POST", CHAT, ask(), {}, ((RpcFailure("RESOURCE_EXHAUSTED", "full"),),)),
    "refused stream": ("POST", CHAT, ask(stream=True), {}, ((RpcFailure("NOT_FOUND", "?"),),)),
    "no json": ("POST", CHAT, b"{", {}, ()),
    "unknown model": ("POST", CHAT, ask(model="other"), {}, ()),
    "bad value": ("POST", CHAT, ask(temperature=9), {}, ()),
    "odd host": ("POST", CHAT, ask(), {"Host": "a b"}, WHOLE),
    "other method": ("GET", CHAT, b"", {}, ()),
    "slash": ("POST", CHAT + "/", ask(), {}, WHOLE),
    "two slashes": ("POST", "/" + CHAT, ask(), {}, WHOLE),
    "completions": ("POST", "/v1/completions", TEXT, {}, WHOLE),
    "completions, stream": ("POST", "/v1/completions", {**TEXT, "prompt": "one", "stream": True}, {}, STREAM),
    "generate": ("POST", "/generate", NATIVE, {}, WHOLE),
    "generate, put": ("PUT", "/generate", NATIVE, {}, WHOLE),
    "generate, patch": ("PATCH", "/generate", NATIVE, {}, ()),
    "generate, bad": ("POST", "/generate", {}, {}, ()),
}


@pytest.mark.parametrize("case", list(CASES))
def test_both_ways_answer_the_same(folder: Path, case: str) -> None:
    method, path, body, headers, answers = CASES[case]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def asked(touch: bool) -> tuple[str, list[tuple[str, str]], str]:
        app = App(folder, *answers, api_keys=("key",))
        if touch:
            app.flask.before_request(lambda: None)
        sent = {"Authorization": "Bearer key", **headers}
        builder = EnvironBuilder(method=method, base_url="http://x", data=data, headers=[*sent.items()])
        environ = builder.get_environ()
        environ["PATH_INFO"] = path
        parts, status, given = run_wsgi_app(app.flask, environ, buffered=True)
        answer = b"".join(parts)
        if "Content-Length" in given:  # how many digits a latency has is chance
            assert given.pop("Content-Length") == str(len(answer))
        return status, sorted(map(_steady, given)), _VARIABLE.sub("?", answer.decode())

    assert asked(touch=False) == asked(touch=True)


_VARIABLE = re.compile(
    r'(?<="id":")(chatcmpl-|cmpl-)?[0-9a-f]{32}|(?<="created":)\d+|(?<="e2e_latency":)[0-9.e-]+'
)


def _steady(header: tuple[str, str]) -> tuple[str, str]:
    return header[0], re.sub("^req_[0-9a-f]{32}$", "req_?", header[1])


def test_past_flask(folder: Path, by_flask: Taken) -> None:
    app = App(folder, whole("x"), whole("y"))
    assert not by_flask(app)
    with app.flask.test_client() as client:  # which asks for the contexts
        client.post(CHAT, json=ask())
        assert request.path == CHAT
        assert g.record.status == 200


def _view(app: RouterApp) -> None:
    view = app.view_functions["chat.chat_completions"]
    app.view_functions["chat.chat_completions"] = functools.partial(view)


def _signal(app: RouterApp) -> None:
    signals.request_started.connect(_hear, app)


def _hear(_sender: object, **_more: object) -> None: ...


@pytest.mark.parametrize(
    "touch",
    [
        lambda app: app.before_request(lambda: None),
        lambda app: app.after_request(lambda response: response),
        lambda app: app.teardown_request(lambda _error: None),
        lambda app: app.teardown_appcontext(lambda _error: None),
        lambda app: app.url_value_preprocessor(lambda _endpoint, _values: None),
        lambda app: app.config.update(TRUSTED_HOSTS=["localhost"]),
        _view,
        _signal,
    ],
)
def test_whoever_has_a_part_in_requests_gets_it(
    folder: Path, by_flask: Taken, touch: Callable[[flask.Flask], object]
) -> None:
    app = App(folder, whole("x"), whole("y"))
    assert not by_flask(app)  # also once there were requests
    touch(app.flask)
    try:
        assert by_flask(app)
    finally:
        signals.request_started.disconnect(_hear, app.flask)


def test_functions_of_others_run(folder: Path) -> None:
    app = App(folder, whole("x"))
    app.flask.before_request(lambda: Response("stop", 418) if "stop" in request.args else None)

    @app.flask.after_request
    def mark(response: Response) -> Response:
        response.headers["X-Mark"] = "yes"
        return response

    answer = app.post(ask())
    assert (answer.status_code, answer.headers["X-Mark"]) == (200, "yes")
    assert app.post(ask(), CHAT + "?stop=1").status_code == 418


def test_handlers_of_errors_of_others_are_asked(folder: Path) -> None:
    app = App(folder, (RpcFailure("UNAVAILABLE", "gone"),))
    told: list[RouterError] = []

    def tell(error: RouterError) -> tuple[str, int]:
        told.append(error)
        return "told", 599

    app.flask.register_error_handler(RouterError, tell)
    answer = app.chat()
    assert (answer.text, answer.status_code) == ("told", 599)
    assert answer.headers["X-Request-Id"]
    assert [error.status for error in told] == [503]


def test_an_exception_in_a_handler_is_a_500(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(folder)

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(Dispatcher, "open", fail)
    answer = app.chat()
    assert error_of(answer, 500)["code"] == "internal_error"
    assert "secret" not in answer.text
