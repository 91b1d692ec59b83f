"""Errors: the shape, the table of gRPC statuses, what may be tried again."""

from __future__ import annotations

import json

import pytest

from wsgi_router import errors
from wsgi_router.api.admin import NotFlushedError


def subclasses(kind: type[errors.RouterError]) -> set[type[errors.RouterError]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    for kind in subclasses(errors.RouterError):
        if kind.__module__ == errors.__name__:
            assert kind.__name__ in drawn
    for line in drawn.splitlines():
        words = line.replace("├─", "").replace("└─", "").replace("│", "").split()
        if len(words) > 2 and words[1].isdigit():
            kind = getattr(errors, words[0])
            assert str(kind.status) == words[1], line
            assert kind.code in line, line


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("INVALID_ARGUMENT", 400, "invalid_request_error"),
        ("FAILED_PRECONDITION", 400, "invalid_request_error"),
        ("OUT_OF_RANGE", 400, "invalid_request_error"),
        ("UNAUTHENTICATED", 401, "invalid_request_error"),
        ("PERMISSION_DENIED", 403, "invalid_request_error"),
        ("NOT_FOUND", 404, "invalid_request_error"),
        ("ALREADY_EXISTS", 409, "invalid_request_error"),
        ("ABORTED", 409, "invalid_request_error"),
        ("RESOURCE_EXHAUSTED", 429, "rate_limit_error"),
        ("UNIMPLEMENTED", 501, "server_error"),
        ("UNAVAILABLE", 503, "server_error"),
        ("DEADLINE_EXCEEDED", 504, "server_error"),
        ("INTERNAL", 500, "server_error"),
        ("UNKNOWN", 500, "server_error"),
        ("CANCELLED", 500, "server_error"),
        ("DATA_LOSS", 500, "server_error"),
        ("SOMETHING_NEW", 500, "server_error"),
    ],
)
def test_statuses_of_grpc(code: str, status: int, kind: str) -> None:
    error = errors.UpstreamError.from_grpc(code, "details")
    body = json.loads(error.body())["error"]
    assert (error.status, body["type"]) == (status, kind)
    assert body.keys() == {"message", "type", "param", "code"}
    assert ("Retry-After" in error.headers()) == (status in (429, 503))
    assert not (error.failover and status < 500), "a refusal of the request is not tried elsewhere"


def test_addresses_stay_inside() -> None:
    error = errors.UpstreamError.from_grpc("UNAVAILABLE", "connect to 10.1.2.3:30001 failed")
    assert "10.1.2.3" not in error.body().decode()


def test_the_workers_words_reach_the_client() -> None:
    assert errors.UpstreamError.from_grpc("INVALID_ARGUMENT", "too hot").message == "too hot"
    assert errors.UpstreamError.from_grpc("INTERNAL", "").message


def test_sdks_are_told_when_trying_again_is_vain() -> None:
    def told(error: errors.RouterError) -> bool:
        return error.headers().get("x-should-retry") == "false"

    assert told(errors.InternalError())
    assert told(errors.UpstreamError.from_grpc("UNIMPLEMENTED", ""))
    assert told(errors.UpstreamError.from_grpc("ALREADY_EXISTS", ""))
    assert not told(errors.UpstreamError.from_grpc("UNAVAILABLE", ""))
    assert not told(errors.NoWorkerError())
    assert not told(errors.InvalidRequestError("no SDK tries a 400 again"))


@pytest.mark.parametrize("text", ["\ud800 alone", 'quote " and \n', "x" * 100_000, "naïve 𠜎"])
def test_any_text_makes_a_valid_body(text: str) -> None:
    body = errors.InvalidRequestError(text, param=text).body()
    assert body.isascii()
    assert len(body) < 60_000
    json.loads(body)["error"]["message"].encode("utf-8")


def test_every_429_and_503_says_when_to_come_back() -> None:
    """Those of the routes, too, such as a cache that is not flushed."""
    asked = [kind for kind in subclasses(errors.RouterError) if kind.status in (429, 503)]
    assert NotFlushedError in asked
    for kind in asked:
        error = kind.__new__(kind)
        assert int(error.headers()["Retry-After"]) > 0
