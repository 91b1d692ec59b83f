"""API keys."""

from __future__ import annotations

import pytest

from wsgi_router.auth import check_admin, check_key, guarded
from wsgi_router.errors import AuthenticationError, PermissionDeniedError

KEYS = ("first", "second")


@pytest.mark.parametrize("header", ["Bearer first", "bearer second", "BEARER  first ", "Bearer first "])
def test_keys_that_open(header: str) -> None:
    assert KEYS[check_key(KEYS, header)] == header.split()[1]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "first",
        "Bearer",
        "Bearer ",
        "Bearer firs",
        "Bearer first1",
        "Basic first",
        "Bearer fïrst",
        "Bearer \udcff",
    ],
)
def test_keys_that_do_not(header: str | None) -> None:
    with pytest.raises(AuthenticationError):
        check_key(KEYS, header)


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/v1/models", True),
        ("/v1/chat/completions", True),
        ("/v1", True),
        ("/generate", True),
        ("/v10/models", False),
        ("/health", False),
        ("/health_generate", False),
        ("/metrics", False),
        ("/", False),
    ],
)
def test_what_is_guarded(path: str, needed: bool) -> None:
    assert guarded(path) is needed


def test_the_operators_key() -> None:
    check_admin("root", "Bearer root")
    for header in (None, "Bearer", "Bearer roo", "Bearer roott", "root"):
        with pytest.raises(AuthenticationError):
            check_admin("root", header)


@pytest.mark.parametrize("header", [None, "Bearer ", "Bearer root"])
def test_without_a_key_nobody_is_the_operator(header: str | None) -> None:
    with pytest.raises(PermissionDeniedError):
        check_admin("", header)
