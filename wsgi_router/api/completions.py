"""POST /v1/completions and /generate: prompts that are not put into a chat template."""

from __future__ import annotations

from typing import Any

from flask import Blueprint

from wsgi_router import observability, preprocess, schema
from wsgi_router.api.body import read_body, rest_after
from wsgi_router.api.describe import GENERATION, describe
from wsgi_router.api.generation import Answer, arrive, generate, generating
from wsgi_router.api.services import Services
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
@generating
def completions(services: Services, record: observability.RequestRecord, environ: dict[str, Any]) -> Answer:
    settings = services.settings
    body = read_body(environ, settings)
    asked = schema.parse_completion(body, settings.max_choices, settings.max_batch)
    record.label(asked.rid)
    record.unknown_fields(asked.unknown)
    rest_after(body)
    card, adapters = services.adapters.resolve(asked.model, asked.adapters)
    record.model = card.name
    tokenizer = services.tokenizer_of(card)
    hints = services.routing.hints(environ, asked.prompt_cache_key, asked.user)
    flow = arrive(services, environ, card.name, asked.user)
    prepared = preprocess.prepare_completion(asked, card, tokenizer, settings, adapters, hints)
    return generate(services, record, environ, prepared, tokenizer, flow)


@blueprint.route("/generate", methods=["POST", "PUT"])
@describe(
    Generated,
    "SGLang's own generation",
    request="GenerateRequest",
    errors=GENERATION,
    event=Generated,
    may_be_list=True,
)
@generating
def generate_natively(
    services: Services, record: observability.RequestRecord, environ: dict[str, Any]
) -> Answer:
    """SGLang's own route; its clients use PUT too."""
    settings = services.settings
    body = read_body(environ, settings)
    asked = schema.parse_generate(body, settings.max_choices, settings.max_batch)
    record.label(asked.label or ",".join(asked.names))
    record.unknown_fields(asked.unknown)
    rest_after(body)
    card, adapters = services.adapters.resolve(None, asked.adapters)
    record.model = card.name
    tokenizer = services.tokenizer_of(card)
    hints = services.routing.hints(environ, asked.user)
    flow = arrive(services, environ, card.name, asked.user)
    prepared = preprocess.prepare_generate(asked, card, tokenizer, settings, adapters, hints)
    return generate(services, record, environ, prepared, tokenizer, flow)
