"""POST /v1/completions and /generate: prompts that are not put into a chat template."""

from __future__ import annotations

from typing import Any

from flask import Blueprint

from wsgi_router import observability, preprocess, schema
from wsgi_router.api.body import read_body, rest_after
from wsgi_router.api.describe import GENERATION, describe
from wsgi_router.api.generation import Answer, generate, generating
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
    rest_after(body)
    return generate(
        services,
        record,
        environ,
        asked,
        preprocess.prepare_completion,
        label=asked.rid,
        model=asked.model,
        key=asked.prompt_cache_key,
    )


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
    rest_after(body)
    label = asked.label or ",".join(asked.names)
    return generate(
        services, record, environ, asked, preprocess.prepare_generate, label=label, model=asked.model
    )
