"""What the routes that generate have in common: from a prepared request to the response."""

from __future__ import annotations

from typing import Final

from flask import Response, request

from wsgi_router import native, observability, postprocess, preprocess
from wsgi_router.api.services import Services
from wsgi_router.client_watch import ClientWatch
from wsgi_router.dispatch import Generation

_WARNING_NAMES: Final = 10
_WARNING_BYTES: Final = 1024
_STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


def generate(
    services: Services, record: observability.RequestRecord, prepared: preprocess.Prepared
) -> Response:
    """The answer to this request, streamed if it asks so. Raises RouterError before anything is sent."""
    stream = native.new_stream(services.tokenizer, prepared.stream_options)
    generation = services.dispatcher.open(prepared.jobs, ClientWatch(request.environ), answer=stream)
    record.first_token()
    answer = _stream if prepared.streaming else _whole
    response = answer(generation, stream, services, record)
    warn(response, prepared.warnings)
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


def warn(response: Response, names: tuple[str, ...]) -> None:
    """Names fields without effect in the header X-Router-Warning, if there are any."""
    if names:
        response.headers["X-Router-Warning"] = warning_header(names)


def warning_header(names: tuple[str, ...]) -> str:
    """Value of X-Router-Warning: fields that the router does not know, or that workers may not honour."""
    shown = [observability.printable(name, 100).replace(",", "?") for name in names[:_WARNING_NAMES]]
    return ("fields without effect: " + ", ".join(shown))[:_WARNING_BYTES]
