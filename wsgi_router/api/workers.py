"""/workers: the list of workers, changed while running; for the operator alone, whose key is ADMIN_KEY."""

from __future__ import annotations

from flask import Blueprint, Response, request

from wsgi_router import auth, schema
from wsgi_router.api.answers import json_response
from wsgi_router.api.body import read_body
from wsgi_router.api.describe import ABSENT, BODY, describe
from wsgi_router.api.generation import warn
from wsgi_router.api.services import Services, current
from wsgi_router.errors import NotFoundError, shown
from wsgi_router.schema.answers import WorkerList, WorkerState
from wsgi_router.workers.breaker import State
from wsgi_router.workers.membership import WorkerExistsError
from wsgi_router.workers.roles import Role
from wsgi_router.workers.worker import Worker, worker_id

blueprint = Blueprint("workers", __name__)


@blueprint.get("/workers")
@describe(WorkerList, "All workers", admin=True)
def list_workers() -> Response:
    """All workers, in the order of the settings, those added later at the end."""
    workers = [_state(worker) for worker in _operator().pool.workers]
    return json_response(WorkerList(workers, len(workers)))


@blueprint.post("/workers")
@describe(WorkerState, "Adds a worker", request="NewWorker", errors=(*BODY, WorkerExistsError), admin=True)
def add_worker() -> Response:
    """Adds a worker, which is asked for what it serves and used once it has answered."""
    services = _operator()
    asked = schema.parse_new_worker(read_body(request.environ, services.settings))
    services.pool.membership.add(asked.url, asked.part)
    return _changed(services, worker_id(asked.url), asked.unknown)


@blueprint.get("/workers/<name>")
@describe(WorkerState, "One worker", errors=ABSENT, admin=True)
def show_worker(name: str) -> Response:
    """One worker."""
    return json_response(_state(_find(_operator(), name)))


@blueprint.put("/workers/<name>")
@describe(WorkerState, "Drains a worker", request="WorkerChange", errors=(*BODY, *ABSENT), admin=True)
def change_worker(name: str) -> Response:
    """A worker that is draining takes no new requests; those it has go on to their end."""
    services = _operator()
    worker = _find(services, name)
    asked = schema.parse_worker_change(read_body(request.environ, services.settings))
    services.pool.membership.drain(worker.url, asked.draining)
    return _changed(services, name, asked.unknown)


@blueprint.delete("/workers/<name>")
@describe(WorkerState, "Removes a worker", errors=ABSENT, admin=True)
def remove_worker(name: str) -> Response:
    """Removes a worker: it takes no new requests, those it has go on to their end."""
    services = _operator()
    worker = _find(services, name)
    services.pool.membership.remove(worker.url)
    services.pool.follow()
    return json_response(_state(worker))


def _operator() -> Services:
    services = current()
    auth.check_admin(services.settings.admin_key, request.headers.get("Authorization"))
    services.pool.catch_up()  # the operator's last request may have gone to another process
    return services


def _changed(services: Services, name: str, unknown: list[str]) -> Response:
    services.pool.follow()
    response = json_response(_state(_find(services, name)))
    warn(response, tuple(unknown))
    return response


def _find(services: Services, name: str) -> Worker:
    for worker in services.pool.workers:
        if worker.id == name:
            return worker
    raise NotFoundError(f"There is no worker '{shown(name)}'.")


def _state(worker: Worker) -> WorkerState:
    return WorkerState(
        id=worker.id,
        url=worker.url,
        model_id=worker.card.name if worker.card else None,
        state=worker.state.value,
        is_healthy=worker.state is State.UP,
        breaker=worker.phase.value,
        draining=worker.draining,
        role=worker.part.role,
        bootstrap_port=worker.part.bootstrap_port if worker.part.role is Role.PREFILL else None,
        load=worker.load,
    )
