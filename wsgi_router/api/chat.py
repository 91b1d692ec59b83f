"""POST /v1/chat/completions."""

from __future__ import annotations

from flask import Blueprint, Response, g, request

from wsgi_router import observability, preprocess, schema
from wsgi_router.api.body import read_body
from wsgi_router.api.describe import GENERATION, describe
from wsgi_router.api.generation import generate
from wsgi_router.api.services import current
from wsgi_router.schema.answers import ChatCompletion, ChatCompletionChunk

blueprint = Blueprint("chat", __name__)


@blueprint.post("/v1/chat/completions")
@describe(
    ChatCompletion,
    "A chat completion",
    request="ChatRequest",
    errors=GENERATION,
    event=ChatCompletionChunk,
)
def chat_completions() -> Response:
    services = current()
    record: observability.RequestRecord = g.record
    body = read_body(request.environ, services.settings)
    asked = schema.parse_chat(body, services.settings.max_choices)
    record.label(asked.rid)
    record.unknown_fields(asked.unknown)
    tokenizer = services.tokenizer
    card, adapters = services.adapters.resolve(asked.model, asked.adapters)
    record.model = card.name
    hints = services.routing.hints(request.environ, asked.prompt_cache_key, asked.user)
    prepared = preprocess.prepare(asked, card, tokenizer, services.settings, adapters, hints)
    return generate(services, record, prepared)
