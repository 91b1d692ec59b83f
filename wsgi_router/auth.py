"""API keys and the operator's key: `Authorization: Bearer KEY`, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from wsgi_router.errors import AuthenticationError, PermissionDeniedError

_GUARDED: Final = ("/v1", "/generate")
_SCHEME: Final = "bearer "
KEY: Final = "wsgi_router.key"
"""Where a WSGI environ has the place of the key that its request was sent with."""


def guarded(path: str) -> bool:
    """Whether a route, or a path (below the mount point) that has none, needs a key."""
    return any(path == prefix or path.startswith(prefix + "/") for prefix in _GUARDED)


def check_key(keys: Sequence[str], authorization: str | None) -> int:
    """Which of `keys` the header holds, by its place among them. Raises AuthenticationError if none."""
    if not authorization:
        raise AuthenticationError("You didn't provide an API key. Send it as 'Authorization: Bearer KEY'.")
    sent = authorization[len(_SCHEME) :].strip() if authorization.lower().startswith(_SCHEME) else ""
    encoded = sent.encode("utf-8", "surrogateescape")
    # All keys are compared, so that the time tells nothing of which one is near.
    matches = [hmac.compare_digest(encoded, key.encode()) for key in keys]
    if not any(matches):
        raise AuthenticationError("Incorrect API key provided.")
    return matches.index(True)


def check_admin(key: str, authorization: str | None) -> None:
    """For what concerns the workers themselves. Raises AuthenticationError unless the header holds `key`;
    PermissionDeniedError if none is set."""
    if not key:
        raise PermissionDeniedError("This needs the setting WSGI_ROUTER_ADMIN_KEY, and none is set.")
    check_key((key,), authorization)
