"""Answers in OpenAI's shape: JSON, and errors of every kind."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from wsgi_router.api.body import LastWords, much_unread
from wsgi_router.errors import (
    ClientGone,
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RouterError,
    shown,
)
from wsgi_router.observability import CANCELLED, COMPLETE, FAILED, REFUSED

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_LOG = logging.getLogger(__name__)
_JSON: Final = "application/json"


def json_response(value: Any) -> Response:
    return Response(msgspec.json.encode(value), content_type=_JSON)


def error_response(error: RouterError, more: Mapping[str, Any] | None = None) -> Response:
    """An error as an answer; `more` stands beside it."""
    if g.record.outcome == COMPLETE:
        g.record.outcome = _outcome(error)
    body = error.body()
    if more:
        body = msgspec.json.encode({**msgspec.json.decode(body), **more})
    headers = {**error.headers(), "Content-Type": _JSON, "Content-Length": str(len(body))}
    if much_unread(request.environ):
        words = LastWords(body, request.environ)
        return _LastResponse(words, error.status, headers, direct_passthrough=True)
    return Response(body, error.status, headers)


class _LastResponse(Response):
    """The last answer of its connection, and gunicorn says so: a client would put its next request on it.

    An application may not send the header `Connection`; gunicorn drops it.
    """

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        force_close = getattr(getattr(start_response, "__self__", None), "force_close", None)
        if force_close is not None:
            force_close()
        return super().__call__(environ, start_response)


def _outcome(error: RouterError) -> str:
    if isinstance(error, ClientGone):
        return CANCELLED
    return FAILED if error.status >= 500 else REFUSED


def install_error_handlers(app: Flask) -> None:
    """Every error of `app` is answered in OpenAI's shape."""
    app.register_error_handler(RouterError, error_response)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected)


def _http_error(error: HTTPException) -> Response:
    """Flask's own errors, those of routing above all."""
    where = f"{shown(request.method)} {shown(request.path)}"
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        return error_response(MethodNotAllowedError(f"Not allowed to {where}.", allowed))
    if isinstance(error, NotFound):
        return error_response(NotFoundError(f"Invalid URL ({where})."))
    if error.code is not None and 400 <= error.code < 500:
        ours = InvalidRequestError(error.description or error.name, code="bad_request")
        ours.status = error.code
        return error_response(ours)
    return _unexpected(error)


def _unexpected(error: Exception) -> Response:
    _LOG.error(
        "%s %s failed", request.method, request.path[:256].encode("ascii", "backslashreplace"), exc_info=error
    )
    return error_response(InternalError())
