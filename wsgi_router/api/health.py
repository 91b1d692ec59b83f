"""GET /health, /liveness: the process answers. GET /readiness: it can serve."""

from __future__ import annotations

from flask import Blueprint, Response

from wsgi_router.api.answers import json_response
from wsgi_router.api.services import current
from wsgi_router.errors import DrainingError, NoWorkerError
from wsgi_router.runtime import drain

blueprint = Blueprint("health", __name__)


@blueprint.get("/health")
@blueprint.get("/liveness")
def alive() -> Response:
    return json_response({"status": "ok"})


@blueprint.get("/readiness")
def readiness() -> Response:
    services = current()
    if drain.begun:
        raise DrainingError
    _ = services.tokenizer
    if not services.pool.usable():
        raise NoWorkerError
    return json_response({"status": "ready"})
