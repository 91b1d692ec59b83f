"""HTTP: one blueprint a file, short views. `blueprints()` lists them."""

from flask import Blueprint

from wsgi_router.api import (
    admin,
    chat,
    completions,
    embeddings,
    health,
    info,
    metrics,
    models,
    openapi,
    tokenize,
    workers,
)


def blueprints() -> list[Blueprint]:
    """All routes of the router."""
    modules = (
        chat,
        completions,
        embeddings,
        tokenize,
        models,
        health,
        info,
        admin,
        workers,
        metrics,
        openapi,
    )
    return [module.blueprint for module in modules]
