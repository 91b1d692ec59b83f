"""LoRA adapters over HTTP, in one process and without a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.app import CHAT, MODEL, App, ask, error_of, whole
from wsgi_router.pb import sglang_scheduler_pb2 as pb

ROUTES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, ask()),
    ("/v1/completions", {"model": MODEL, "prompt": "hi"}),
    ("/generate", {"text": "hi"}),
]


@pytest.fixture
def app(make: Callable[..., App]) -> App:
    app = make(*[whole("fine")] * 4)
    loaded = [pb.LoadedLoRAAdapter(lora_name="sql", lora_id="id-1", lora_path="/adapters/sql")]
    app.transport.unary_answers = {
        "ListLoadedLoRAAdapters": pb.ListLoadedLoRAAdaptersResponse(loaded_adapters=loaded)
    }
    return app


def ids(app: App) -> list[str]:
    return [stream.request.lora_id for stream in app.transport.streams]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_the_worker_gets_its_id(app: App, path: str, body: dict[str, Any]) -> None:
    assert app.post({**body, "lora_path": "sql"}, path).status_code == 200
    assert app.post({**body, "lora_path": None}, path).status_code == 200
    assert ids(app) == ["id-1", ""]
    assert app.transport.streams[0].request.tokenized.input_ids


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_an_unknown_adapter_is_told_before_anything_is_sent(
    app: App, path: str, body: dict[str, Any]
) -> None:
    error = error_of(app.post({**body, "lora_path": "x" * 5000}, path), 400)
    assert (error["param"], error["code"]) == ("lora_path", "invalid_value")
    assert len(error["message"]) < 300
    assert app.transport.streams == []


def test_a_worker_that_knows_no_adapters(make: Callable[..., App]) -> None:
    assert error_of(make().chat(lora_path="sql"), 400)["param"] == "lora_path"


@pytest.mark.parametrize(("path", "body"), ROUTES[:2])
def test_the_model_may_name_it(app: App, path: str, body: dict[str, Any]) -> None:
    answer = app.post({**body, "model": f"{MODEL}:sql"}, path)
    assert answer.get_json()["model"] == MODEL
    assert ids(app) == ["id-1"]
    error = error_of(app.post({**body, "model": f"{MODEL}:other"}, path), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    other = error_of(app.post({**body, "model": f"{MODEL}:sql", "lora_path": "other"}, path), 400)
    assert other["param"] == "lora_path"


@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/generate", "text")])
def test_each_prompt_may_have_its_own(app: App, path: str, field: str) -> None:
    body = {"model": MODEL, field: ["aa", "b"], "lora_path": ["sql", None]}
    assert app.post(body, path).status_code == 200
    assert sorted(ids(app)) == ["", "id-1"]
    by_prompt = {len(stream.request.tokenized.input_ids): stream for stream in app.transport.streams}
    assert by_prompt[2].request.lora_id == "id-1"


def test_adapters_are_listed_among_the_models(app: App) -> None:
    base, adapter = app.client.get("/v1/models").get_json()["data"]
    assert base["id"] == MODEL
    assert adapter == {**base, "id": f"{MODEL}:sql", "root": "/adapters/sql", "parent": MODEL}
    assert app.client.get(f"/v1/models/{MODEL}:sql").get_json() == adapter
    assert error_of(app.client.get(f"/v1/models/{MODEL}:other"), 404)["code"] == "model_not_found"


def test_tokens_are_the_same_with_and_without(app: App) -> None:
    answer = app.post({"model": f"{MODEL}:sql", "prompt": "hi"}, "/v1/tokenize")
    assert answer.get_json()["count"] == 2
