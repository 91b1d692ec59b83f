"""POST /flush_cache: for the operator alone, whose key is ADMIN_KEY."""

from __future__ import annotations

import math
from typing import Any, Final

from flask import Blueprint, Response, request

from wsgi_router import auth, kv_events
from wsgi_router.api.answers import error_response, json_response
from wsgi_router.api.describe import QUERY, Query, describe
from wsgi_router.api.fanout import read, results
from wsgi_router.api.services import current
from wsgi_router.errors import InvalidRequestError, RouterError
from wsgi_router.pb import common_pb2
from wsgi_router.schema.answers import WorkerResults

blueprint = Blueprint("admin", __name__)

_LONGEST_WAIT: Final = 600.0


class NotFlushedError(RouterError):
    """A worker has kept its cache, most likely because requests run on it."""

    status = 503
    code = "cache_not_flushed"
    retryable = True


@blueprint.post("/flush_cache")
@describe(
    WorkerResults,
    "Every worker forgets its prefix cache",
    errors=(*QUERY, NotFlushedError),
    query=(
        Query(
            "timeout",
            {"type": "number", "minimum": 0, "maximum": _LONGEST_WAIT},
            "Seconds to wait until a worker is idle.",
        ),
    ),
    admin=True,
)
def flush_cache() -> Response:
    """Every worker forgets its prefix cache. `timeout` in the query: seconds to wait until it is idle."""
    services = current()
    auth.check_admin(services.settings.admin_key, request.headers.get("Authorization"))
    wait = _seconds(request.args.get("timeout"))
    message = common_pb2.FlushCacheRequest(timeout_s=wait).SerializeToString()
    timeout = services.settings.health_timeout + wait
    asked = services.calls.ask_all("FlushCache", message, timeout)
    answers = results(asked, _flushed)
    if (table := services.prefix_table) is not None:
        for (worker, _), answer in zip(asked, answers, strict=True):
            if answer["success"]:
                kv_events.forget(table, worker)
    done = all(one["success"] for one in answers)
    body = {"success": done, "workers": answers}
    if done:
        return json_response(body)
    return error_response(NotFlushedError("Not every worker has flushed its cache."), body)


def _flushed(answer: bytes) -> dict[str, Any]:
    response = read(common_pb2.FlushCacheResponse, answer)
    return {"success": response.success, "message": response.message}


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_WAIT:
        raise InvalidRequestError(
            f"'timeout' must be a number of seconds up to {_LONGEST_WAIT:g}.", param="timeout"
        )
    return seconds
