"""/workers: the list of workers, changed while running."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.support.app import MODEL, WORKER, App, error_of, whole
from tests.support.processes import wait_until
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.worker import worker_id

OTHER = "grpc://127.0.0.1:2"
URL = f"/workers/{worker_id(WORKER)}"
KEY = {"Authorization": "Bearer root"}


def call(app: App, method: str, path: str, body: Any = None) -> TestResponse:
    return app.client.open(path, method=method, json=body, headers=KEY)


def listed(app: App) -> dict[str, dict[str, Any]]:
    answer = call(app, "GET", "/workers").get_json()
    assert answer["total"] == len(answer["workers"])
    return {worker["url"]: worker for worker in answer["workers"]}


def test_they_are_listed_and_shown(make: Callable[..., App]) -> None:
    app = make(admin_key="root")
    expected = {
        "id": worker_id(WORKER),
        "url": WORKER,
        "model_id": MODEL,
        "state": "up",
        "is_healthy": True,
        "breaker": "closed",
        "draining": False,
        "role": "regular",
        "bootstrap_port": None,
        "load": 0,
    }
    assert listed(app) == {WORKER: expected}
    assert call(app, "GET", URL).get_json() == expected
    app.services.pool.select(MODEL)
    assert call(app, "GET", URL).get_json()["load"] == 1


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_only_the_operator_may(make: Callable[..., App], method: str) -> None:
    for path in ("/workers", URL):
        if (method, path) in {("PUT", "/workers"), ("DELETE", "/workers"), ("POST", URL)}:
            continue
        error_of(make().client.open(path, method=method, json={}), 403)
        app = make(admin_key="root", api_keys=("user",))
        error_of(app.client.open(path, method=method, json={}), 401)
        answer = app.client.open(path, method=method, json={}, headers={"Authorization": "Bearer user"})
        error_of(answer, 401)
        assert list(listed(app)) == [WORKER]


def test_an_added_worker_is_used_once_it_answers(make: Callable[..., App]) -> None:
    app = make(whole("a"), admin_key="root")
    answer = call(app, "POST", "/workers", {"url": "127.0.0.1:2/"})
    assert answer.status_code == 200
    assert (answer.get_json()["url"], answer.get_json()["state"]) == (OTHER, "unknown")
    assert app.services.pool.select(MODEL, exclude=[]).worker.url == WORKER
    app.transport.infos[OTHER] = pb.GetModelInfoResponse(served_model_name="another")
    wait_until(lambda: listed(app)[OTHER]["is_healthy"], 10, "it is up")
    assert [card.name for card in app.services.pool.models()] == ["another", MODEL]
    assert app.services.pool.select("another").worker.url == OTHER


@pytest.mark.parametrize(
    ("sent", "role", "port"),
    [
        ({}, "regular", None),
        ({"role": "decode"}, "decode", None),
        ({"role": "prefill"}, "prefill", 8998),
        ({"role": "prefill", "bootstrap_port": 9001}, "prefill", 9001),
        ({"worker_type": "prefill", "bootstrap_port": 9001}, "prefill", 9001),
        ({"worker_type": "decode", "role": "decode"}, "decode", None),
    ],
)
def test_a_role(make: Callable[..., App], sent: dict[str, Any], role: str, port: int | None) -> None:
    app = make(admin_key="root")
    shown = call(app, "POST", "/workers", {"url": OTHER, **sent}).get_json()
    assert (shown["role"], shown["bootstrap_port"]) == (role, port)
    assert listed(app)[OTHER] == shown


@pytest.mark.parametrize(("sent", "role"), [({}, "prefill"), ({"role": "regular"}, "regular")])
def test_one_that_was_removed_comes_back_as_what_it_was(
    make: Callable[..., App], sent: dict[str, Any], role: str
) -> None:
    """Unless the request says otherwise."""
    app = make(admin_key="root", prefill_workers=(f"{OTHER} 9001",))
    call(app, "DELETE", f"/workers/{worker_id(OTHER)}")
    assert list(listed(app)) == [WORKER]
    shown = call(app, "POST", "/workers", {"url": OTHER, **sent}).get_json()
    assert (shown["role"], shown["bootstrap_port"]) == (role, 9001 if role == "prefill" else None)


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"role": "both"}, "role"),
        ({"role": "prefill", "bootstrap_port": 0}, "bootstrap_port"),
        ({"role": "prefill", "bootstrap_port": 65536}, "bootstrap_port"),
        ({"role": "decode", "bootstrap_port": 9001}, "bootstrap_port"),
        ({"bootstrap_port": 9001}, "bootstrap_port"),
        ({"role": "decode", "worker_type": "prefill"}, "worker_type"),
    ],
)
def test_a_bad_role(make: Callable[..., App], sent: dict[str, Any], param: str) -> None:
    app = make(admin_key="root")
    error = error_of(call(app, "POST", "/workers", {"url": OTHER, **sent}), 400)
    assert error["param"] == param
    assert list(listed(app)) == [WORKER]


@pytest.mark.parametrize(
    ("sent", "url"),
    [
        ("worker_1.example:65535", "grpc://worker_1.example:65535"),
        ("grpcs://10.0.0.1:1/", "grpcs://10.0.0.1:1"),
        ("[::1]:30000", "grpc://[::1]:30000"),
    ],
)
def test_addresses_of_every_kind_are_taken_and_described(folder: Path, sent: str, url: str) -> None:
    app = App(folder, admin_key="root")
    schemas = app.client.get("/openapi.json").get_json()["components"]["schemas"]
    assert re.search(schemas["NewWorker"]["properties"]["url"]["pattern"], sent)
    assert call(app, "POST", "/workers", {"url": sent}).get_json()["url"] == url


def test_one_that_is_there_is_refused(make: Callable[..., App]) -> None:
    app = make(admin_key="root")
    error = error_of(call(app, "POST", "/workers", {"url": WORKER}), 409)
    assert (error["code"], error["param"]) == ("worker_exists", "url")


def test_a_draining_worker_takes_no_new_requests(make: Callable[..., App]) -> None:
    app = make(whole("a"), admin_key="root")
    lease = app.services.pool.select(MODEL)
    shown = call(app, "PUT", URL, {"draining": True}).get_json()
    assert (shown["draining"], shown["load"], shown["state"]) == (True, 1, "up")
    error_of(app.chat(), 503)
    error_of(app.client.get("/readiness"), 503)
    lease.release()
    assert list(listed(app)) == [WORKER]  # it stays in the list
    call(app, "PUT", URL, {"draining": False})
    assert app.chat().status_code == 200


def test_a_removed_worker_keeps_what_it_has(make: Callable[..., App]) -> None:
    app = make(admin_key="root")
    lease = app.services.pool.select(MODEL)
    answer = call(app, "DELETE", URL)
    assert (answer.status_code, answer.get_json()["draining"]) == (200, True)
    assert listed(app) == {}
    error_of(app.chat(), 503)
    error_of(call(app, "GET", URL), 404)
    error_of(call(app, "DELETE", URL), 404)
    assert app.client.get("/v1/models").get_json()["data"] == []
    assert "worker_up{" not in app.client.get("/metrics").text
    assert app.transport.forgotten == []
    lease.release()
    wait_until(lambda: app.transport.forgotten == [WORKER], 5, "its connection is dropped")
    assert not app.services.pool._leaving


def test_a_removed_worker_may_come_back_meanwhile(make: Callable[..., App]) -> None:
    app = make(whole("a"), admin_key="root")
    worker = app.services.pool.workers[0]
    lease = app.services.pool.select(MODEL)
    call(app, "DELETE", URL)
    assert call(app, "POST", "/workers", {"url": WORKER}).get_json()["load"] == 1
    assert app.services.pool.workers == (worker,)
    lease.release()
    assert app.chat().status_code == 200


def test_unknown_fields_are_named(make: Callable[..., App]) -> None:
    answer = call(make(admin_key="root"), "POST", "/workers", {"url": OTHER, "priority": 3})
    assert "priority" in answer.headers["X-Router-Warning"]


def test_a_list_that_cannot_be_kept(make: Callable[..., App], tmp_path: Any) -> None:
    app = make(admin_key="root", workers_file=str(tmp_path / "nowhere" / "w.json"))
    for method, path, body in (
        ("POST", "/workers", {"url": OTHER}),
        ("PUT", URL, {"draining": True}),
        ("DELETE", URL, None),
    ):
        error_of(call(app, method, path, body), 500)
    assert list(listed(app)) == [WORKER]
