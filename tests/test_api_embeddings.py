"""/v1/embeddings in one process, with a worker that the test plays."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.app import MODEL, App, RpcFailure, embedder, error_of
from wsgi_router.pb import sglang_scheduler_pb2 as pb

EMBEDDINGS = "/v1/embeddings"


def embed(app: App, **fields: Any) -> Any:
    return app.post({"model": MODEL, "input": "abc", **fields}, EMBEDDINGS)


def test_an_embedding(make: Callable[..., App]) -> None:
    app = make()
    asked = embedder(app)
    assert embed(app).get_json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [3, 0.5, 0.5, 0.5]}],
        "model": MODEL,
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert list(asked[0].tokenized.input_ids) == list(b"abc")
    assert len(asked[0].request_id) > 30


def test_many_embeddings_come_in_order(make: Callable[..., App]) -> None:
    app = make()
    embedder(app)
    answer = embed(app, input=["x" * size for size in range(1, 101)]).get_json()
    assert [row["index"] for row in answer["data"]] == list(range(100))
    assert [row["embedding"][0] for row in answer["data"]] == list(range(1, 101))
    assert answer["usage"]["prompt_tokens"] == 5050
    assert embed(app, input=[[1, 2], [3]]).get_json()["usage"]["total_tokens"] == 3
    assert embed(app, input=[1, 2]).get_json()["data"][0]["embedding"][0] == 2


def test_a_worker_that_counts_no_tokens(make: Callable[..., App]) -> None:
    app = make()
    app.transport.unary_answers = {"Embed": pb.EmbedResponse(embedding=[1.0])}
    usage = embed(app, input=["abc", "de"]).get_json()["usage"]
    assert usage == {"prompt_tokens": 5, "total_tokens": 5}


def test_fields_without_effect_are_named(make: Callable[..., App]) -> None:
    app = make()
    embedder(app)
    assert embed(app, zorg=1).headers["X-Router-Warning"] == "fields without effect: zorg"
    assert "X-Router-Warning" not in embed(app, user="me").headers


def test_base64(make: Callable[..., App]) -> None:
    app = make()
    embedder(app)
    text = embed(app, encoding_format="base64").get_json()["data"][0]["embedding"]
    assert struct.unpack("<4f", base64.b64decode(text)) == (3, 0.5, 0.5, 0.5)


def test_the_models_own_dimensions_are_fine_and_others_are_not(make: Callable[..., App]) -> None:
    app = make()
    embedder(app)
    assert embed(app, dimensions=4).status_code == 200
    for dimensions in (2, 5):
        assert error_of(embed(app, dimensions=dimensions), 400)["param"] == "dimensions"


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"is_matryoshka": True}, {2, 3}),
        ({"matryoshka_dimensions": [2, 4]}, {2}),
        ({"is_matryoshka": 0}, set()),
    ],
)
def test_a_model_that_says_so_is_cut(
    make: Callable[..., App], arguments: dict[str, Any], taken: set[int]
) -> None:
    app = make()
    embedder(app, **arguments)
    for dimensions in (2, 3, 5):
        answer = embed(app, dimensions=dimensions)
        if dimensions in taken:
            vector = answer.get_json()["data"][0]["embedding"]
            assert len(vector) == dimensions
            assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-6)
            assert math.isclose(vector[0] / vector[1], 6, rel_tol=1e-6)
        else:
            error_of(answer, 400)


@pytest.mark.parametrize(
    ("code", "status"), [("UNIMPLEMENTED", 501), ("INVALID_ARGUMENT", 400), ("UNKNOWN", 500)]
)
def test_a_worker_that_refuses_to_embed(make: Callable[..., App], code: str, status: int) -> None:
    app = make()
    app.transport.unary_answers = {"Embed": RpcFailure(code, "no")}
    answer = embed(app, input=["a", "b"])
    error_of(answer, status)
    assert (answer.headers.get("x-should-retry") == "false") == (status == 501)
    assert app.services.pool.workers[0].in_flight == 0


@pytest.mark.parametrize("response", [pb.EmbedResponse(), pb.EmbedResponse(embedding=[math.nan])])
def test_a_vector_that_is_none(make: Callable[..., App], response: pb.EmbedResponse) -> None:
    app = make()
    app.transport.unary_answers = {"Embed": response}
    assert error_of(embed(app), 502)["code"] == "worker_protocol_error"


@pytest.mark.parametrize("method", ["Embed", "GetServerInfo"])
def test_a_message_that_cannot_be_read(make: Callable[..., App], method: str) -> None:
    app = make()
    embedder(app)
    app.transport.unary_answers[method] = b"\xff"
    assert error_of(embed(app, dimensions=4), 502)["code"] == "worker_protocol_error"
    assert app.services.pool.workers[0].in_flight == 0


def test_an_input_beyond_the_context(make: Callable[..., App]) -> None:
    app = make()
    embedder(app)
    assert embed(app, input="x" * 2000).status_code == 200
    error = error_of(embed(app, input=["x", "x" * 2001]), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert "maximum context length is 2000 tokens" in error["message"]
