"""POST /v1/completions and /generate: prompts that are not put into a chat template."""

from __future__ import annotations

from flask import Blueprint, Response, g, request

from wsgi_router import observability, preprocess, schema
from wsgi_router.api.body import read_body
from wsgi_router.api.describe import GENERATION, describe
from wsgi_router.api.generation import generate
from wsgi_router.api.services import current
from wsgi_router.schema.answers import Generated, TextCompletion

blueprint = Blueprint("completions", __name__)


@blueprint.post("/v1/completions")
@describe(
    TextCompletion,
    "A text completion",
    request="CompletionRequest",
    errors=GENERATION,
    event=TextCompletion,
)
def completions() -> Response:
    services = current()
    settings = services.settings
    record: observability.RequestRecord = g.record
    body = read_body(request.environ, settings)
    asked = schema.parse_completion(body, settings.max_choices, settings.max_batch)
    record.label(asked.rid)
    record.unknown_fields(asked.unknown)
    tokenizer = services.tokenizer
    card, adapters = services.adapters.resolve(asked.model, asked.adapters)
    record.model = card.name
    hints = services.routing.hints(request.environ, asked.prompt_cache_key, asked.user)
    prepared = preprocess.prepare_completion(asked, card, tokenizer, settings, adapters, hints)
    return generate(services, record, prepared)


@blueprint.route("/generate", methods=["POST", "PUT"])
@describe(
    Generated,
    "SGLang's own generation",
    request="GenerateRequest",
    errors=GENERATION,
    event=Generated,
    may_be_list=True,
)
def generate_natively() -> Response:
    """SGLang's own route; its clients use PUT too."""
    services = current()
    settings = services.settings
    record: observability.RequestRecord = g.record
    body = read_body(request.environ, settings)
    asked = schema.parse_generate(body, settings.max_choices, settings.max_batch)
    record.label(asked.label or ",".join(asked.names))
    record.unknown_fields(asked.unknown)
    tokenizer = services.tokenizer
    card, adapters = services.adapters.resolve(None, asked.adapters)
    record.model = card.name
    hints = services.routing.hints(request.environ, asked.user)
    prepared = preprocess.prepare_generate(asked, card, tokenizer, settings, adapters, hints)
    return generate(services, record, prepared)
