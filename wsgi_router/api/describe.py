"""What a view says of itself for /openapi.json: `@describe(...)`, below the route that it is for.

The errors are classes of the error tree; those that any route may meet
(InternalError), and those of a worker's gRPC statuses, come by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from wsgi_router.errors import (
    BodyTooLargeError,
    ContextLengthError,
    InvalidRequestError,
    ModelNotFoundError,
    NotFoundError,
    NoTokenizerError,
    NoWorkerError,
    OverloadedError,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    RouterError,
    WorkerAbortError,
    WorkerProtocolError,
)

_V = TypeVar("_V", bound=Callable[..., Any])
_KEY: Final = "description_"

Errors = tuple[type[RouterError], ...]

BODY: Final[Errors] = (InvalidRequestError, BodyTooLargeError, RequestTimeoutError)
"""Of every route that reads a body."""
QUERY: Final[Errors] = (InvalidRequestError,)
MODEL: Final[Errors] = (ModelNotFoundError, NoWorkerError)
TOKENS: Final[Errors] = (ContextLengthError, NoTokenizerError)
WORKER: Final[Errors] = (NoWorkerError, WorkerProtocolError, WorkerAbortError)
"""With these go the statuses of the table GRPC_STATUS."""
ABSENT: Final[Errors] = (NotFoundError,)
CAPACITY: Final[Errors] = (QueueFullError, QueueTimeoutError, OverloadedError)
GENERATION: Final[Errors] = (*BODY, *MODEL, *TOKENS, *WORKER, *CAPACITY)


@dataclass(frozen=True, slots=True)
class Query:
    """One parameter of the query."""

    name: str
    schema: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Description:
    answer: type[msgspec.Struct] | None
    """None: text, as for /metrics and the description itself."""
    answer_type: str
    summary: str
    request: str
    """Name of its schema in `schema.description`, empty if there is none."""
    errors: Errors
    event: type[msgspec.Struct] | None
    """JSON of each event, where the answer may be a stream."""
    may_be_list: bool
    """A batch is answered with a list of answers."""
    query: tuple[Query, ...]
    admin: bool
    """Needs ADMIN_KEY."""


def describe(
    answer: type[msgspec.Struct] | None,
    summary: str,
    *,
    answer_type: str = "application/json",
    request: str = "",
    errors: Errors = (),
    event: type[msgspec.Struct] | None = None,
    may_be_list: bool = False,
    query: tuple[Query, ...] = (),
    admin: bool = False,
) -> Callable[[_V], _V]:
    """Puts a Description on a view."""
    given = Description(answer, answer_type, summary, request, errors, event, may_be_list, query, admin)

    def put(view: _V) -> _V:
        setattr(view, _KEY, given)
        return view

    return put


def description_of(view: Callable[..., Any]) -> Description:
    """Raises LookupError for a view that has none."""
    found: Description | None = getattr(view, _KEY, None)
    if found is None:
        raise LookupError(f"{view.__module__}.{view.__name__} lacks @describe")
    return found
