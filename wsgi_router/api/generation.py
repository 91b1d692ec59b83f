"""What the routes that generate have in common: from a prepared request to the answer.

Such a route is a handler: a function of the process's services, the request's record and its WSGI environ.
The application calls it past Flask where it can (`app.RouterApp`); `generating` makes Flask's view of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from flask import Response, g, request

from wsgi_router import auth, native, observability, postprocess, preprocess
from wsgi_router.api.services import Services, current
from wsgi_router.client_watch import ClientWatch
from wsgi_router.fair_queue import Flow
from wsgi_router.postprocess import StreamResponse
from wsgi_router.settings import Settings
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.worker import ModelCard

_WARNING_NAMES: Final = 10
_WARNING_BYTES: Final = 1024
_STREAM_HEADERS: Final = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)
_WHOLE_TYPE: Final = ("Content-Type", "application/json")


class Answer(NamedTuple):
    """An answer of status 200: its body, whole or as it comes, and headers to which the caller may add."""

    body: bytes | StreamResponse
    headers: list[tuple[str, str]]

    def response(self) -> Response:
        # The server iterates and closes the events themselves, without a layer for each chunk in between.
        stream = isinstance(self.body, StreamResponse)
        return Response(self.body, headers=self.headers, direct_passthrough=stream)


Handler = Callable[[Services, observability.RequestRecord, dict[str, Any]], Answer]
"""Answers a request of this environ. Raises RouterError before anything is sent."""

_HANDLER: Final = "handler_"


def generating(handler: Handler) -> Callable[[], Response]:
    """The view of a handler."""

    @functools.wraps(handler)
    def view() -> Response:
        return handler(current(), g.record, request.environ).response()

    setattr(view, _HANDLER, handler)
    return view


def handler_of(view: Callable[..., Any]) -> Handler | None:
    """What `generating` has made a view of; None for other views."""
    return getattr(view, _HANDLER, None)


def arrive(services: Services, environ: dict[str, Any], model: str, user: str | None) -> Flow | None:
    """To be called with what is right in itself, before it costs anything. None where there is no limit.

    Raises CapacityError if it is too much; see `admission`.
    """
    admission = services.admission
    if admission is None:
        return None
    return admission.arrive(environ.get(auth.KEY), user, model)


@contextmanager
def entered(services: Services, flow: Flow | None, client: ClientWatch, until: float) -> Iterator[None]:
    """Within, the request has been allowed to run; `flow` is what `arrive` has said, `until` its deadline."""
    if flow is None or services.admission is None:
        yield
        return
    slot = services.admission.enter(flow, client, until)
    try:
        yield
    finally:
        slot.release()


class Asked(Protocol):
    """What is used of a checked request."""

    @property
    def adapters(self) -> Sequence[str]: ...
    @property
    def unknown(self) -> Sequence[str]: ...
    @property
    def user(self) -> str | None: ...


_A = TypeVar("_A", bound=Asked)

Prepare = Callable[
    [_A, ModelCard, native.Tokenizer, Settings, Sequence[str], Hints],
    preprocess.Prepared,
]
"""See `preprocess.prepare`."""


def generate(
    services: Services,
    record: observability.RequestRecord,
    environ: dict[str, Any],
    asked: _A,
    prepare: Prepare[_A],
    *,
    label: str | None,
    model: str | None,
    key: str | None = None,
) -> Answer:
    """The answer to a request, streamed if it asks so. Raises RouterError before anything is sent.

    `label`: what the client calls the request; `key`: by which it is routed, before its user.
    """
    record.label(label)
    record.unknown_fields(asked.unknown)
    card, adapters = services.adapters.resolve(model, asked.adapters)
    record.model = card.name
    tokenizer = services.tokenizer_of(card)
    hints = services.routing.hints(environ, key, asked.user)
    flow = arrive(services, environ, card.name, asked.user)
    prepared = prepare(asked, card, tokenizer, services.settings, adapters, hints)
    return _run(services, record, environ, prepared, tokenizer, flow)


def _run(
    services: Services,
    record: observability.RequestRecord,
    environ: dict[str, Any],
    prepared: preprocess.Prepared,
    tokenizer: native.Tokenizer,
    flow: Flow | None,
) -> Answer:
    stream = native.new_stream(tokenizer, prepared.stream_options)
    client, until = ClientWatch(environ), services.deadline(record)
    on_close = None
    if flow is not None and services.admission is not None:
        on_close = services.admission.enter(flow, client, until).release
    generation = services.dispatcher.open(
        prepared.jobs, client, answer=stream, until=until, on_close=on_close
    )
    record.first_token()
    if prepared.streaming:
        events = postprocess.stream_response(generation, stream, services.settings, record.answered)
        record.deferred = True
        answer = Answer(events, [*_STREAM_HEADERS])
    else:
        body = postprocess.aggregate(generation, stream, record.answered)
        answer = Answer(body, [_WHOLE_TYPE, ("Content-Length", str(len(body)))])
    if prepared.warnings:
        answer.headers.append((WARNING, warning_header(prepared.warnings)))
    return answer


WARNING: Final = "X-Router-Warning"


def warn(response: Response, names: tuple[str, ...]) -> None:
    """Names fields without effect in the header X-Router-Warning, if there are any."""
    if names:
        response.headers[WARNING] = warning_header(names)


def warning_header(names: tuple[str, ...]) -> str:
    """Value of X-Router-Warning: fields that the router does not know, or that workers may not honour."""
    shown = [observability.printable(name, 100).replace(",", "?") for name in names[:_WARNING_NAMES]]
    return ("fields without effect: " + ", ".join(shown))[:_WARNING_BYTES]
