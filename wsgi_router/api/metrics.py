"""GET /metrics, for Prometheus."""

from __future__ import annotations

from flask import Blueprint, Response

from wsgi_router import observability
from wsgi_router.api.describe import ABSENT, describe
from wsgi_router.api.services import current
from wsgi_router.errors import NotFoundError

blueprint = Blueprint("metrics", __name__)


@blueprint.get("/metrics")
@describe(None, "Metrics for Prometheus", answer_type="text/plain", errors=ABSENT)
def show() -> Response:
    services = current()
    if not services.settings.metrics:
        raise NotFoundError("Metrics are switched off.")
    admission = services.admission
    stats = None if admission is None else admission.stats()
    text, content_type = observability.metrics().render(services.pool.stats(), stats)
    return Response(text, content_type=content_type)
