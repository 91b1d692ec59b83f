"""What the workers say of themselves, and the operator's routes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.app import MODEL, WORKER, App, RpcFailure, embedder, error_of, whole
from wsgi_router.pb import common_pb2
from wsgi_router.pb import sglang_scheduler_pb2 as pb


def test_health_generate(make: Callable[..., App]) -> None:
    app = make(whole("x"))
    assert app.client.get("/health_generate").status_code == 200
    request = app.transport.streams[0].request
    assert (request.sampling_params.max_new_tokens, request.sampling_params.n) == (1, 1)
    assert app.services.pool.workers[0].in_flight == 0
    assert app.transport.aborted == []


def test_health_generate_of_a_worker_that_hangs_or_fails(make: Callable[..., App]) -> None:
    app = make((), (RpcFailure("UNAVAILABLE", "gone"),), health_timeout=0.5)
    error_of(app.client.get("/health_generate"), 504)
    error_of(app.client.get("/health_generate"), 503)


def test_health_generate_of_an_embedding_model(make: Callable[..., App]) -> None:
    app = make(up=False)
    app.transport.infos[WORKER] = pb.GetModelInfoResponse(served_model_name=MODEL, is_generation=False)
    asked = embedder(app)
    app.wait_usable()
    assert app.client.get("/health_generate").status_code == 200
    assert len(asked) == 1


def test_server_info(make: Callable[..., App]) -> None:
    app = make()
    info = pb.GetServerInfoResponse(sglang_version="9.9", uptime_seconds=1.5, active_requests=2)
    info.server_args.update({"tp_size": 2, "api_key": "hidden", "max_total_tokens": 7, "hf_token": "hidden"})
    info.scheduler_info.update({"running": 3})
    app.transport.unary_answers = {"GetServerInfo": info}
    answer = app.client.get("/get_server_info")
    assert "hidden" not in answer.text
    shown = answer.get_json()
    assert (shown["tp_size"], shown["max_total_tokens"], shown["running"]) == (2, 7, 3)
    assert isinstance(shown["tp_size"], int)
    assert (shown["version"], shown["active_requests"], shown["is_paused"]) == ("9.9", 2, False)


def test_any_value_of_a_worker_is_shown(make: Callable[..., App]) -> None:
    app = make()
    info = pb.GetServerInfoResponse()
    nested = {"none": None, "on": True, "nan": math.nan}
    info.server_args.update({"rates": [1, 0.5, math.inf], "nested": nested})
    info.server_args.fields["nothing"].SetInParent()
    app.transport.unary_answers = {"GetServerInfo": info}
    shown = app.client.get("/get_server_info").get_json()
    assert shown["rates"] == [1, 0.5, None]
    assert shown["nested"] == {**nested, "nan": None}
    assert shown["nothing"] is None


def test_a_time_that_is_none(make: Callable[..., App]) -> None:
    app = make()
    info = pb.GetServerInfoResponse()
    info.start_time.seconds = 2**62
    app.transport.unary_answers = {"GetServerInfo": info}
    assert error_of(app.client.get("/get_server_info"), 502)["code"] == "worker_protocol_error"


def test_loads_of_every_worker(make: Callable[..., App]) -> None:
    other = "grpc://127.0.0.1:2"
    app = make(workers=(WORKER, other))
    load = pb.GetLoadsResponse(loads=[pb.SchedulerLoad(num_running_reqs=4)], dp_rank_count=1)
    asked: list[pb.GetLoadsRequest] = []

    def loads(request: bytes, worker: str) -> pb.GetLoadsResponse | RpcFailure:
        asked.append(pb.GetLoadsRequest.FromString(request))
        return load if worker == WORKER else RpcFailure("UNAVAILABLE", "secret address")

    app.transport.unary_answers = {"GetLoads": loads}
    first, second = app.client.get("/get_loads?include=core,queues&dp_rank=0").get_json()["workers"]
    assert (first["worker"], first["loads"][0]["num_running_reqs"]) == (WORKER, 4)
    assert first["loads"][0]["num_waiting_reqs"] == 0
    assert second == {
        "worker": other,
        "success": False,
        "message": "The worker is unavailable.",
        "code": "worker_unavailable",
    }
    assert (list(asked[0].include), asked[0].dp_rank) == (["core", "queues"], 0)
    app.transport.unary_answers = {}
    answer = app.client.get("/get_loads")
    assert answer.status_code == 503
    assert len(answer.get_json()["workers"]) == 2


@pytest.mark.parametrize(("query", "param"), [("include=all,x", "include"), ("dp_rank=-1", "dp_rank")])
def test_bad_questions_about_loads(app: App, query: str, param: str) -> None:
    assert error_of(app.client.get(f"/get_loads?{query}"), 400)["param"] == param


# The operator's routes

ADMIN = {"Authorization": "Bearer root-key"}


def flush(app: App, path: str = "/flush_cache", **options: Any) -> Any:
    return app.client.post(path, **options)


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        ({}, {}, 403),
        ({}, ADMIN, 403),
        ({"api_keys": ("root-key",)}, ADMIN, 403),
        ({"admin_key": "root-key"}, {}, 401),
        ({"admin_key": "root-key"}, {"Authorization": "Bearer root-ke"}, 401),
        ({"admin_key": "root-key", "api_keys": ("key",)}, {"Authorization": "Bearer key"}, 401),
    ],
)
def test_who_may_not_flush(
    make: Callable[..., App], settings: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    app = make(**settings)
    error_of(flush(app, headers=headers), status)


def test_flush_goes_to_every_worker(make: Callable[..., App]) -> None:
    other = "grpc://127.0.0.1:2"
    app = make(workers=(WORKER, other), admin_key="root-key")
    waits: list[float] = []

    def done(request: bytes, worker: str) -> common_pb2.FlushCacheResponse:
        waits.append(common_pb2.FlushCacheRequest.FromString(request).timeout_s)
        return common_pb2.FlushCacheResponse(success=True, message="flushed")

    app.transport.unary_answers = {"FlushCache": done}
    answer = flush(app, "/flush_cache?timeout=2", headers=ADMIN)
    assert answer.status_code == 200
    assert answer.get_json() == {
        "success": True,
        "workers": [{"worker": url, "success": True, "message": "flushed"} for url in (WORKER, other)],
    }
    assert waits == [2, 2]


def test_a_flush_that_fails_somewhere_is_an_error_with_all_results(make: Callable[..., App]) -> None:
    other = "grpc://127.0.0.1:2"
    app = make(workers=(WORKER, other), admin_key="root-key")

    def busy(request: bytes, worker: str) -> common_pb2.FlushCacheResponse:
        return common_pb2.FlushCacheResponse(
            success=worker == WORKER, message="" if worker == WORKER else "busy"
        )

    app.transport.unary_answers = {"FlushCache": busy}
    answer = flush(app, headers=ADMIN)
    assert answer.status_code == 503
    body = answer.get_json()
    assert body["error"]["code"] == "cache_not_flushed"
    assert [(one["worker"], one["success"], one["message"]) for one in body["workers"]] == [
        (WORKER, True, ""),
        (other, False, "busy"),
    ]


@pytest.mark.parametrize("timeout", ["x", "-1", "601", "nan"])
def test_a_bad_timeout(make: Callable[..., App], timeout: str) -> None:
    app = make(admin_key="root-key")
    error_of(flush(app, f"/flush_cache?timeout={timeout}", headers=ADMIN), 400)
