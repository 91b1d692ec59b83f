"""The description that the router serves, as a judge of requests and answers."""

from __future__ import annotations

import functools
from typing import Any

from jsonschema import Draft202012Validator

from wsgi_router.api.openapi import document
from wsgi_router.app import create_app
from wsgi_router.settings import Settings


@functools.cache
def described(keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """The description of an application that asks for these API keys."""
    settings = Settings(api_keys=keys)
    return document(create_app(settings), settings)


@functools.cache
def judge(name: str) -> Draft202012Validator:
    """Says whether a value is what the schema `name` describes."""
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": described()["components"]}
    )
