"""GET /v1/models and /v1/models/{id}: what the workers serve, with the LoRA adapters they have loaded."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from wsgi_router.api.answers import json_response
from wsgi_router.api.describe import MODEL, describe
from wsgi_router.api.services import current
from wsgi_router.errors import ModelNotFoundError
from wsgi_router.schema.answers import Model, ModelList
from wsgi_router.workers.worker import ModelCard

blueprint = Blueprint("models", __name__)


@blueprint.get("/v1/models")
@describe(ModelList, "What the workers serve")
def list_models() -> Response:
    services = current()
    models: list[dict[str, Any]] = []
    for card in services.pool.models():
        models.append(_model(card))
        adapters = services.adapters.listed(card.name)
        models += [_adapter(card, name, adapter.path) for name, adapter in adapters.items()]
    return json_response({"object": "list", "data": models})


@blueprint.get("/v1/models/<path:model>")
@describe(Model, "One model; its name may have slashes", errors=MODEL)
def one_model(model: str) -> Response:
    services = current()
    card, name = services.pool.split_model(model)
    if not name:
        return json_response(_model(card))
    if not services.adapters.find(card.name, name):
        raise ModelNotFoundError(model)
    adapter = services.adapters.listed(card.name).get(name)
    return json_response(_adapter(card, name, adapter.path if adapter else ""))


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": current().started_at,
        "owned_by": "sglang",
        "root": card.model_path or card.name,
        "max_model_len": card.context_length or None,
    }


def _adapter(card: ModelCard, name: str, path: str) -> dict[str, Any]:
    """An adapter as a model, under the name that requests may give as theirs."""
    return {**_model(card), "id": f"{card.name}:{name}", "root": path or name, "parent": card.name}
