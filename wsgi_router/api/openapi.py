"""GET /openapi.json: the description of all routes of this application, in OpenAPI 3.1.

It is made from what answers: the routes from the URL map, requests from the types that read them, errors from
the error tree and the table of gRPC statuses, keys from the settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Final

from flask import Blueprint, Flask, Response, current_app, request
from werkzeug.routing import Rule

from wsgi_router import auth
from wsgi_router.api.answers import json_response
from wsgi_router.api.describe import WORKER, Description, describe, description_of
from wsgi_router.api.services import current
from wsgi_router.errors import (
    GRPC_STATUS,
    AuthenticationError,
    InternalError,
    PermissionDeniedError,
    RouterError,
    error_type,
)
from wsgi_router.schema import answers, description
from wsgi_router.settings import Settings

blueprint = Blueprint("openapi", __name__)

Json = dict[str, Any]

_NO_WORD: Final = re.compile(r"\W+")
_VARIABLE: Final = re.compile(r"<(?:\w+:)?(\w+)>")
_JSON: Final = "application/json"
_KEPT: Final = "wsgi_router_openapi"
_REQUEST_ID: Final = {
    "X-Request-Id": {"description": "The request's id, as in the log.", "schema": {"type": "string"}}
}


@blueprint.get("/openapi.json")
@describe(None, "This description", answer_type=_JSON)
def openapi() -> Response:
    """Open to all, as /health is."""
    kept = current_app.extensions
    if _KEPT not in kept:  # made once: it takes a while, and anybody may ask
        kept[_KEPT] = document(current_app, current().settings)
    return json_response({**kept[_KEPT], "servers": [{"url": request.script_root or "/"}]})


def document(app: Flask, settings: Settings) -> Json:
    """The description of `app` but for where it is served. Raises LookupError for an undescribed route."""
    paths: dict[str, Json] = {}
    structs: list[type] = [answers.Error]
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: rule.rule):
        found = description_of(app.view_functions[rule.endpoint])
        structs += [kind for kind in (found.answer, found.event) if kind is not None]
        path = _VARIABLE.sub(r"{\1}", rule.rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            verb = method.lower()
            name = verb + _NO_WORD.sub("_", path).rstrip("_")
            paths.setdefault(path, {})[verb] = {"operationId": name, **_operation(rule, found, settings)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wsgi-router",
            "version": metadata.version("wsgi-router"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "OpenAI's HTTP API in front of SGLang workers.",
        },
        "paths": paths,
        "components": {"schemas": description.components(structs), "securitySchemes": _SCHEMES},
    }


_SCHEMES: Final[dict[str, Json]] = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "One of the setting API_KEYS."},
    "adminKey": {"type": "http", "scheme": "bearer", "description": "The setting ADMIN_KEY."},
}


def _operation(rule: Rule, found: Description, settings: Settings) -> Json:
    errors: list[type[RouterError]] = [InternalError, *found.errors]
    operation: Json = {"summary": found.summary, "parameters": _parameters(rule, found)}
    if found.admin:
        operation["security"] = [{"adminKey": []}]
        errors += [AuthenticationError, PermissionDeniedError]
    elif auth.guarded(rule.rule) and settings.api_keys:
        operation["security"] = [{"apiKey": []}]
        errors.append(AuthenticationError)
    if found.request:
        body = {"schema": _ref(found.request)}
        operation["requestBody"] = {"required": True, "content": {_JSON: body}}
    operation["responses"] = {"200": _answer(found), **_failures(errors)}
    return operation


def _ref(name: str) -> Json:
    return {"$ref": description.REF.format(name=name)}


def _parameters(rule: Rule, found: Description) -> list[Json]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in sorted(rule.arguments)
    ]
    in_query = [
        {"name": one.name, "in": "query", "description": one.text, "schema": one.schema}
        for one in found.query
    ]
    return in_path + in_query


def _answer(found: Description) -> Json:
    content: Json = {found.answer_type: {"schema": {"type": "string"} if found.answer_type != _JSON else {}}}
    if found.answer is not None:
        one = _ref(found.answer.__name__)
        schema = {"anyOf": [one, {"type": "array", "items": one}]} if found.may_be_list else one
        content = {_JSON: {"schema": schema}}
    if found.event is not None:
        text = f"Where `stream` is true: events `data: {found.event.__name__}`, then `data: [DONE]`."
        content["text/event-stream"] = {"schema": {"type": "string", "description": text}}
    headers: Json = dict(_REQUEST_ID)
    if found.request:
        text = "Names fields of the request that have no effect."
        headers["X-Router-Warning"] = {"description": text, "schema": {"type": "string"}}
    return {"description": "The answer.", "headers": headers, "content": content}


def _failures(errors: Iterable[type[RouterError]]) -> Json:
    """Answers by status, each with its possible codes."""
    codes: dict[int, set[str]] = {}
    for error in errors:
        codes.setdefault(error.status, set()).add(error.code)
    if set(WORKER) <= set(errors):
        for row in GRPC_STATUS.values():
            codes.setdefault(row.status, set()).add(row.code)
    return {str(status): _failure(status, sorted(codes[status])) for status in sorted(codes)}


def _failure(status: int, codes: list[str]) -> Json:
    headers: Json = dict(_REQUEST_ID)
    if status in (429, 503):
        headers["Retry-After"] = {"description": "Seconds.", "schema": {"type": "integer"}}
    text = f"{error_type(status)}: {', '.join(codes)}{' and others' if status == 400 else ''}."
    return {"description": text, "headers": headers, "content": {_JSON: {"schema": _ref("Error")}}}
