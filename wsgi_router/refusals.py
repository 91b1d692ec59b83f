"""Under gunicorn: what it refuses by itself, before the application sees it, in OpenAI's shape.

gunicorn picks the status and the reason, and logs; only the page that it would send is another. Where its
function is not as expected, that page is sent.
"""

from __future__ import annotations

import inspect
from http import HTTPStatus
from typing import Any, Final

from wsgi_router.errors import InternalError, InvalidRequestError, RouterError

_EXPECTED: Final = ["sock", "status_int", "reason", "mesg"]
"""The parameters of gunicorn's `write_error`, as old as the function."""
_CODES: Final = {
    403: "permission_denied",
    414: "url_too_long",
    417: "expectation_failed",
    431: "headers_too_large",
    501: "not_implemented",
}


def answer_in_json() -> None:
    """From now on gunicorn's own refusals in this process are JSON. Idempotent."""
    from gunicorn import util

    given = getattr(util, "write_error", None)
    if given is None or not hasattr(util, "write_nonblock"):
        return
    if list(inspect.signature(given).parameters) == _EXPECTED:
        util.write_error = _write_error


def _write_error(sock: Any, status_int: int, reason: str, mesg: str) -> None:
    from gunicorn import util

    util.write_nonblock(sock, answer(status_int, reason, mesg))


def answer(status: int, reason: str, message: str) -> bytes:
    """The whole HTTP answer, the last one of its connection."""
    error = _error(status, message or reason)
    body = error.body()
    headers = {
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **error.headers(),
    }
    lines = (f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} {reason}\r\n{''.join(lines)}\r\n"
    return head.encode("latin-1") + body


def _error(status: int, message: str) -> RouterError:
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return InternalError()
    error = InvalidRequestError(message, code=_CODES.get(status, "bad_request"))
    error.status = status
    return error
