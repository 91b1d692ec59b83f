"""The WSGI application: `create_app(settings)` puts the parts together and starts nothing."""

from __future__ import annotations

import logging
import os

from flask import Flask, Response, g, request

from wsgi_router import api, auth, native, observability, settings
from wsgi_router.api.answers import install_error_handlers
from wsgi_router.api.services import MakeTransport, Services, attach, current

_LOG = logging.getLogger(__name__)
_UNKNOWN_ROUTE = "unknown"


def create_app(
    configured: settings.Settings | None = None, make_transport: MakeTransport | None = None
) -> Flask:
    """A Flask application with these settings, by default those of the environment. Raises SettingsError.

    `make_transport` is what the setting TRANSPORT names unless it is given.

    The services of a process (`services(app)`) start with `services(app).start()` or the first request.
    """
    configured = settings.load() if configured is None else configured
    observability.configure_logging(configured.log_level)
    observability.set_token_bounds(native.ITL_BOUNDS)
    app = Flask("wsgi_router", static_folder=None)
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False  # 405, as any other method
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    attach(app, Services(configured, make_transport))
    install_error_handlers(app)
    app.before_request(_begin)
    app.after_request(_end)
    for blueprint in api.blueprints():
        app.register_blueprint(blueprint)
    for name in settings.unknown_variables(os.environ):
        _LOG.warning("%s sets nothing: there is no such setting", name)
    if configured.public() and not configured.api_keys:
        _LOG.warning("listening on %s without API keys: set WSGI_ROUTER_API_KEYS", configured.bind)
    return app


def services(app: Flask) -> Services:
    """The services of `app`."""
    with app.app_context():
        return current()


def _begin() -> None:
    rule = request.url_rule
    sent = request.headers.get("X-Request-Id")
    g.record = observability.RequestRecord(
        request.method, _UNKNOWN_ROUTE if rule is None else rule.rule, observability.request_id(sent)
    )
    keys = current().settings.api_keys
    if keys and auth.guarded(request.path if rule is None else rule.rule):
        auth.check_key(keys, request.headers.get("Authorization"))
    current().start()


def _end(response: Response) -> Response:
    record: observability.RequestRecord = g.record
    response.headers["X-Request-Id"] = record.request_id
    record.status = response.status_code
    if not record.deferred:
        record.finish()
    return response
