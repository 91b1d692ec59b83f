"""POST and PUT of /workers."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from wsgi_router import setting_casts
from wsgi_router.schema.decode import bad, decode_object
from wsgi_router.schema.fields import Fields
from wsgi_router.workers.roles import BOOTSTRAP_PORT, Part, Role

_URL: Final[dict[str, Any]] = {"pattern": r"^(grpcs?://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}/*$"}


class NewWorker(msgspec.Struct, kw_only=True):
    url: Annotated[str, Meta(extra_json_schema=_URL)]
    role: Role | None = None
    worker_type: Role | None = None
    """What SGLang's gateway calls the role."""
    bootstrap_port: Annotated[int, Meta(ge=1, le=65535)] | None = None

    unknown: list[str] = msgspec.field(default_factory=list)

    @property
    def part(self) -> Part | None:
        """None where the request does not say."""
        role = self.role or self.worker_type
        return Part(role, self.bootstrap_port or BOOTSTRAP_PORT) if role else None


class WorkerChange(msgspec.Struct, kw_only=True):
    draining: bool

    unknown: list[str] = msgspec.field(default_factory=list)


class Inert(msgspec.Struct):
    """Nothing is accepted without an effect."""


NEW_WORKER: Final = Fields(NewWorker, Inert, {}, filled=("unknown",))
WORKER_CHANGE: Final = Fields(WorkerChange, Inert, {}, filled=("unknown",))


def parse_new_worker(body: bytes) -> NewWorker:
    """The request in `body`, its URL as the settings have it. Raises InvalidRequestError (400)."""
    value = decode_object(body)
    request = NEW_WORKER.convert(value)
    try:
        request.url = setting_casts.worker_url(request.url)
    except ValueError as error:
        raise bad("url", f"'url': {error}.") from None
    if request.role and request.worker_type and request.role != request.worker_type:
        raise bad("worker_type", "'worker_type' is another name of 'role', which differs.")
    role = request.part.role if request.part else Role.REGULAR
    if request.bootstrap_port is not None and role is not Role.PREFILL:
        raise bad("bootstrap_port", "'bootstrap_port' is for workers of the role 'prefill' alone.")
    request.unknown = NEW_WORKER.unknown(value)
    return request


def parse_worker_change(body: bytes) -> WorkerChange:
    """The request in `body`. Raises InvalidRequestError (400)."""
    value = decode_object(body)
    request = WORKER_CHANGE.convert(value)
    request.unknown = WORKER_CHANGE.unknown(value)
    return request
