"""What a request's headers and fields say about the worker it should go to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wsgi_router.settings import Settings
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.policies import reads_key

TARGET_HEADER: Final = "x-smg-target-worker"
"""Names a worker; SGLang's gateway calls it so."""


class Routing:
    """Makes hints of requests, as far as the settings make use of them."""

    def __init__(self, settings: Settings) -> None:
        self._reads_key = reads_key(settings)
        self._headers = [_variable(name) for name in settings.routing_key_headers if self._reads_key]
        self._target = _variable(TARGET_HEADER) if settings.target_worker_header else ""

    def hints(self, environ: Mapping[str, Any], *fields: str | None) -> Hints:
        """The hints of a request with these headers; `fields` are keys in its body, the first one wins.

        A key in a header comes before all of them: a proxy can set it for clients that know nothing of it.
        """
        target = environ.get(self._target, "").strip() if self._target else ""
        key = self._key(environ, fields) if self._reads_key else ""
        return Hints(target, key) if target or key else NO_HINTS

    def _key(self, environ: Mapping[str, Any], fields: tuple[str | None, ...]) -> str:
        sent = (_text(environ.get(variable, "")) for variable in self._headers)
        return next((key for key in (*sent, *fields) if key), "")


def _variable(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


def _text(value: str) -> str:
    """A header's text, where WSGI has a character for each byte: a key is the same in a header and a body."""
    return value.strip().encode("latin-1", "replace").decode("utf-8", "backslashreplace")
