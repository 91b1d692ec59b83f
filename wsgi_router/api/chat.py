"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response, g, request

from wsgi_router import native, observability, postprocess, preprocess, schema
from wsgi_router.api.body import read_body
from wsgi_router.api.services import Services, current
from wsgi_router.dispatch import Generation
from wsgi_router.runtime import ClientWatch

blueprint = Blueprint("chat", __name__)

_WARNING_NAMES: Final = 10
_WARNING_BYTES: Final = 1024
_STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


@blueprint.post("/v1/chat/completions")
def chat_completions() -> Response:
    services = current()
    record: observability.RequestRecord = g.record
    body = read_body(request.environ, services.settings.max_body_bytes)
    asked = schema.parse_chat(body, services.settings.max_choices)
    record.label(asked.rid)
    record.unknown_fields(asked.unknown)
    tokenizer = services.tokenizer
    card = services.pool.resolve_model(asked.model)
    record.model = card.name
    prepared = preprocess.prepare(asked, card, tokenizer, services.settings)
    stream = native.new_stream(tokenizer, prepared.stream_options)
    generation = services.dispatcher.open(prepared.job, ClientWatch(request.environ))
    record.first_token()
    answer = _stream if asked.stream else _whole
    response = answer(generation, stream, services, record)
    if prepared.warnings:
        response.headers["X-Router-Warning"] = warning_header(prepared.warnings)
    return response


def _stream(
    generation: Generation, stream: native.Stream, services: Services, record: observability.RequestRecord
) -> Response:
    events = postprocess.stream_response(generation, stream, services.settings, record.answered)
    record.deferred = True
    # The server iterates and closes the events themselves, without a layer for each chunk in between.
    return Response(events, headers=_STREAM_HEADERS, direct_passthrough=True)


def _whole(
    generation: Generation, stream: native.Stream, services: Services, record: observability.RequestRecord
) -> Response:
    body = postprocess.aggregate(generation, stream, record.answered)
    return Response(body, content_type="application/json")


def warning_header(names: tuple[str, ...]) -> str:
    """Value of X-Router-Warning: fields that the router does not know, or that workers may not honour."""
    shown = [observability.printable(name, 100).replace(",", "?") for name in names[:_WARNING_NAMES]]
    return ("fields without effect: " + ", ".join(shown))[:_WARNING_BYTES]
