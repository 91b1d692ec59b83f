"""The WSGI application: `create_app(settings)` puts the parts together and starts nothing.

Requests to the routes that generate go to their handlers at once, past Flask, whose routing, contexts and
objects are a fifth of what a short answer costs and do nothing for them. Everything else takes Flask's way;
so do these as soon as anybody else has a part in requests, and once they fail. Both ways answer the same.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flask import Flask, Response, g, request, signals

from wsgi_router import api, auth, native, observability, settings
from wsgi_router.api.answers import install_error_handlers
from wsgi_router.api.generation import Handler, handler_of
from wsgi_router.api.services import MakeTransport, Services, attach, current, forget, services_of

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_LOG = logging.getLogger(__name__)
_UNKNOWN_ROUTE: Final = "unknown"
_REQUEST_ID: Final = "X-Request-Id"
_FAILED: Final = "wsgi_router.failed"
_PRESERVE: Final = "werkzeug.debug.preserve_context"
"""With this key Flask's test client asks for the contexts of a request."""
_SIGNALS: Final = (
    signals.request_started,
    signals.request_finished,
    signals.request_tearing_down,
    signals.got_request_exception,
    signals.appcontext_pushed,
    signals.appcontext_popped,
    signals.appcontext_tearing_down,
)


class _Direct(NamedTuple):
    """A route whose handler may be called past Flask, which has `view` for it at `endpoint`."""

    endpoint: str
    view: Callable[..., Any]
    handler: Handler


class RouterApp(Flask):
    """A Flask application that answers what it can without Flask; see above."""

    _direct: dict[tuple[str, str], _Direct]

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
        direct = self._direct.get((method, path))
        if direct is None or _PRESERVE in environ or not self._untouched(direct):
            return super().wsgi_app(environ, start_response)
        record = _record(method, path, environ)
        try:
            services = services_of(self)
            _admit(services, path, environ)
            answer = direct.handler(services, record, environ)
        except Exception as error:
            environ[_FAILED] = record, error
            return super().wsgi_app(environ, start_response)
        answer.headers.append((_REQUEST_ID, record.request_id))
        if not record.deferred:
            record.finish()
        start_response("200 OK", answer.headers)
        return [answer.body] if isinstance(answer.body, bytes) else answer.body

    def _untouched(self, direct: _Direct) -> bool:
        """Whether nobody but the router has a part in requests to this route."""
        return (
            self.view_functions[direct.endpoint] is direct.view
            and self.before_request_funcs == _OURS_BEFORE
            and self.after_request_funcs == _OURS_AFTER
            and not self.teardown_request_funcs
            and not self.teardown_appcontext_funcs
            and not self.url_value_preprocessors
            and self.config["TRUSTED_HOSTS"] is None
            and not any(signal.receivers for signal in _SIGNALS)
        )

    def find_direct(self) -> None:
        """Takes in which routes have handlers; to be called when all of them are there."""
        self._direct = {}
        for rule in self.url_map.iter_rules():
            view = self.view_functions[rule.endpoint]
            handler = handler_of(view)
            if handler is not None and not rule.arguments:
                for method in rule.methods or ():
                    self._direct[method, rule.rule] = _Direct(rule.endpoint, view, handler)


def create_app(
    configured: settings.Settings | None = None, make_transport: MakeTransport | None = None
) -> Flask:
    """A Flask application with these settings, by default the current ones. Raises SettingsError.

    `make_transport` is what the setting TRANSPORT names unless it is given.

    The services of a process (`services(app)`) start with `services(app).start()` or the first request.
    """
    configured = settings.current() if configured is None else configured
    observability.configure_logging(configured.log_level)
    observability.set_token_bounds(native.ITL_BOUNDS)
    app = RouterApp("wsgi_router", static_folder=None)
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
    app.find_direct()
    for name in settings.unknown_variables(os.environ):
        _LOG.warning("%s sets nothing: there is no such setting", name)
    if configured.public() and not configured.api_keys:
        _LOG.warning("listening on %s without API keys: set WSGI_ROUTER_API_KEYS", configured.bind)
    return app


_shared: list[Flask] = []


def share(configured: settings.Settings) -> None:
    """Processes forked from now on have one application, with these settings. Raises SettingsError."""
    made = create_app(configured)
    unshare()
    _shared.append(made)


def unshare() -> None:
    """Processes forked from now on make their own."""
    for old in _shared:
        forget(services_of(old))
    _shared.clear()


def application() -> Flask:
    """The one that is shared, or else a new one; once in each process. Raises SettingsError."""
    if not _shared:
        return create_app()
    services_of(_shared[0]).renew()
    return _shared[0]


def services(app: Flask) -> Services:
    """The services of `app`."""
    return services_of(app)


def _record(method: str, route: str, environ: WSGIEnvironment) -> observability.RequestRecord:
    return observability.RequestRecord(
        method, route, observability.request_id(environ.get("HTTP_X_REQUEST_ID"))
    )


def _admit(services: Services, path: str, environ: WSGIEnvironment) -> None:
    """Raises AuthenticationError if `path` needs a key; starts what each process has for itself."""
    keys = services.settings.api_keys
    if keys and auth.guarded(path):
        environ[auth.KEY] = auth.check_key(keys, environ.get("HTTP_AUTHORIZATION"))
    services.start()


def _begin() -> None:
    failed = request.environ.pop(_FAILED, None)
    if failed is not None:
        g.record, error = failed
        try:
            raise error
        finally:
            del failed, error  # else the error would hold itself by its traceback
    rule, environ = request.url_rule, request.environ
    g.record = _record(request.method, _UNKNOWN_ROUTE if rule is None else rule.rule, environ)
    _admit(current(), request.path if rule is None else rule.rule, environ)


def _end(response: Response) -> Response:
    record: observability.RequestRecord = g.record
    response.headers[_REQUEST_ID] = record.request_id
    record.status = response.status_code
    if not record.deferred:
        record.finish()
    return response


_OURS_BEFORE: Final = {None: [_begin]}
_OURS_AFTER: Final = {None: [_end]}
