"""GET /get_model_info: SGLang's description of the model, from the workers."""

from __future__ import annotations

from flask import Blueprint, Response

from wsgi_router.api.answers import json_response
from wsgi_router.api.services import current
from wsgi_router.errors import NoWorkerError

blueprint = Blueprint("info", __name__)


@blueprint.get("/get_model_info")
def model_info() -> Response:
    cards = current().pool.models()
    if not cards:
        raise NoWorkerError("No worker has answered yet.")
    card = cards[0]
    return json_response(
        {
            "model_path": card.model_path,
            "tokenizer_path": card.tokenizer_path,
            "is_generation": card.is_generation,
            "preferred_sampling_params": card.preferred_sampling_params or None,
            "weight_version": card.weight_version,
            "has_image_understanding": card.supports_vision,
            "model_type": card.model_type,
            "architectures": list(card.architectures),
            "served_model_name": card.name,
            "max_context_length": card.context_length or None,
            "vocab_size": card.vocab_size or None,
            "eos_token_ids": list(card.eos_token_ids),
        }
    )
