"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from flask import Blueprint

from wsgi_router import observability, preprocess, schema
from wsgi_router.api.body import read_body, rest_after
from wsgi_router.api.describe import GENERATION, describe
from wsgi_router.api.generation import Answer, generate, generating
from wsgi_router.api.services import Services
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
@generating
def chat_completions(
    services: Services, record: observability.RequestRecord, environ: dict[str, Any]
) -> Answer:
    body = read_body(environ, services.settings)
    asked = schema.parse_chat(body, services.settings.max_choices)
    rest_after(body)
    return generate(
        services,
        record,
        environ,
        asked,
        preprocess.prepare,
        label=asked.rid,
        model=asked.model,
        key=asked.prompt_cache_key,
    )
