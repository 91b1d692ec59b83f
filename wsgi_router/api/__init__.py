"""HTTP: one blueprint a file, short views. `blueprints()` lists them."""

from flask import Blueprint

from wsgi_router.api import chat, health, info, metrics, models


def blueprints() -> list[Blueprint]:
    """All routes of the router."""
    return [chat.blueprint, models.blueprint, health.blueprint, info.blueprint, metrics.blueprint]
