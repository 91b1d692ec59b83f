"""GET /v1/models and /v1/models/{id}: what the workers serve."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from wsgi_router.api.answers import json_response
from wsgi_router.api.describe import MODEL, describe
from wsgi_router.api.services import current
from wsgi_router.schema.answers import Model, ModelList
from wsgi_router.workers.worker import ModelCard

blueprint = Blueprint("models", __name__)


@blueprint.get("/v1/models")
@describe(ModelList, "What the workers serve")
def list_models() -> Response:
    cards = current().pool.models()
    return json_response({"object": "list", "data": [_model(card) for card in cards]})


@blueprint.get("/v1/models/<path:model>")
@describe(Model, "One model; its name may have slashes", errors=MODEL)
def one_model(model: str) -> Response:
    return json_response(_model(current().pool.resolve_model(model)))


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": current().started_at,
        "owned_by": "sglang",
        "root": card.model_path or card.name,
        "max_model_len": card.context_length or None,
    }
