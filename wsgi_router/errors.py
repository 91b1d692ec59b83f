"""One tree of errors; each carries all that an HTTP answer in OpenAI's shape needs.

    RouterError                     status type                   code                      whose fault
    ├─ InvalidRequestError          400    invalid_request_error  invalid_value, …          client
    │  ├─ ContextLengthError        400    invalid_request_error  context_length_exceeded   client
    │  ├─ BodyTooLargeError         413    invalid_request_error  request_too_large         client
    │  └─ RequestTimeoutError       408    invalid_request_error  request_timeout           client
    ├─ AuthenticationError          401    invalid_request_error  invalid_api_key           client
    ├─ PermissionDeniedError        403    invalid_request_error  permission_denied         client
    ├─ NotFoundError                404    invalid_request_error  not_found                 client
    │  └─ ModelNotFoundError        404    invalid_request_error  model_not_found           client
    ├─ MethodNotAllowedError        405    invalid_request_error  method_not_allowed        client
    ├─ ClientGone                   499    (never sent)           client_gone               client
    ├─ InternalError                500    server_error           internal_error            ours
    ├─ CapacityError                                                                        load
    │  ├─ QueueFullError            429    rate_limit_error       queue_full                load
    │  ├─ QueueTimeoutError         503    server_error           queue_timeout             load
    │  └─ OverloadedError           503    server_error           workers_overloaded        load
    ├─ NoWorkerError                503    server_error           no_worker_available       operator
    ├─ NoTokenizerError             503    server_error           no_tokenizer              operator
    ├─ DrainingError                503    server_error           draining                  operator
    └─ UpstreamError                by the table GRPC_STATUS                                worker
       ├─ DeadlineError             504    server_error           deadline_exceeded         worker
       ├─ WorkerAbortError          500    server_error           worker_aborted            worker
       └─ WorkerProtocolError       502    server_error           worker_protocol_error     worker

Two questions about trying again are kept apart. `failover`: may the router itself ask another worker,
as long as nothing was sent? `retryable`: can the same request succeed later? SDKs try 408, 409, 429
and 5xx again by themselves; where that cannot help, the answer carries `x-should-retry: false`.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

_SDK_RETRIES: Final = frozenset({408, 409, 429})
_MESSAGE_LIMIT: Final = 4096
_SHOWN_CHARS: Final = 100
RETRY_AFTER_SECONDS: Final = 1


class RouterError(Exception):
    """An error that ends a request. `param` is the JSON path at fault, if there is one."""

    status: int = 500
    code: str = "internal_error"
    retryable: bool = False
    failover: bool = False
    retry_after: int = RETRY_AFTER_SECONDS
    """Seconds, told with 429 and 503."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.message = _clean(message)
        self.param = _clean(param) if param else None
        if code is not None:
            self.code = code
        super().__init__(self.message)

    @property
    def type(self) -> str:
        """The `type` that OpenAI sends with this status."""
        return error_type(self.status)

    def body(self) -> bytes:
        """The whole `{"error": {…}}` object, ASCII only."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode("ascii")

    def headers(self) -> dict[str, str]:
        """Headers that go with the answer besides its content type."""
        headers: dict[str, str] = {}
        if self.status in (429, 503):  # whoever is told to come back is told when
            headers["Retry-After"] = str(self.retry_after)
        if not self.retryable and (self.status in _SDK_RETRIES or self.status >= 500):
            headers["x-should-retry"] = "false"
        return headers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.status} {self.code}: {self.message!r})"


def error_type(status: int) -> str:
    """OpenAI's error type for an HTTP status."""
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def shown(value: object) -> str:
    """`value` as a message may repeat it: a client's text may be as long as a request."""
    text = str(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _clean(text: str) -> str:
    """Bounded, and without lone surrogates, which would make an escaped JSON string that parsers refuse."""
    return text[:_MESSAGE_LIMIT].encode("utf-8", "replace").decode("utf-8")


class InvalidRequestError(RouterError):
    status = 400
    code = "invalid_value"


class ContextLengthError(InvalidRequestError):
    code = "context_length_exceeded"


class BodyTooLargeError(InvalidRequestError):
    status = 413
    code = "request_too_large"


class RequestTimeoutError(InvalidRequestError):
    status = 408
    code = "request_timeout"
    retryable = True

    def __init__(self, message: str = "The request body did not come in time.") -> None:
        super().__init__(message)


class AuthenticationError(RouterError):
    status = 401
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "WWW-Authenticate": "Bearer"}


class PermissionDeniedError(RouterError):
    status = 403
    code = "permission_denied"


class NotFoundError(RouterError):
    status = 404
    code = "not_found"


class ModelNotFoundError(NotFoundError):
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model `{shown(model)}` does not exist.", param="model")


class MethodNotAllowedError(RouterError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str = "") -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {**super().headers(), **({"Allow": self.allow} if self.allow else {})}


class ClientGone(RouterError):
    """The client closed its connection. Ends the request's work; nobody is left to read an answer."""

    status = 499
    code = "client_gone"

    def __init__(self, message: str = "The client closed the connection.") -> None:
        super().__init__(message)


class InternalError(RouterError):
    """A fault of the router itself; the same request would fail again."""

    def __init__(self, message: str = "The router had an internal error.") -> None:
        super().__init__(message)


class CapacityError(RouterError):
    """More was asked for than can be done now; it may be otherwise `retry_after` seconds later."""

    status = 503
    code = "overloaded"
    retryable = True
    message_: str = "There is too much to do at the moment."

    def __init__(self, retry_after: int = RETRY_AFTER_SECONDS) -> None:
        super().__init__(self.message_)
        self.retry_after = retry_after


class QueueFullError(CapacityError):
    status = 429
    code = "queue_full"
    message_ = "Too many requests are waiting."


class QueueTimeoutError(CapacityError):
    code = "queue_timeout"
    message_ = "The request has waited its turn for too long."


class OverloadedError(CapacityError):
    code = "workers_overloaded"
    message_ = "All workers have more to do than they can."


class NoWorkerError(RouterError):
    status = 503
    code = "no_worker_available"
    retryable = True

    def __init__(
        self,
        message: str = "No worker is available at the moment.",
        retry_after: int = RETRY_AFTER_SECONDS,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoTokenizerError(RouterError):
    """The workers have not given the model's tokenizer yet, and the settings name none."""

    status = 503
    code = "no_tokenizer"
    retryable = True

    def __init__(self, model: str = "") -> None:
        of = f"of the model `{shown(model)}` " if model else ""
        super().__init__(f"The tokenizer {of}is not there yet.")


class DrainingError(NoWorkerError):
    code = "draining"

    def __init__(self, message: str = "The router is shutting down.") -> None:
        super().__init__(message)


class GrpcStatus(NamedTuple):
    """What a gRPC status code becomes over HTTP."""

    status: int
    code: str
    retryable: bool = False
    failover: bool = False
    own_text: str = ""
    """Said to the client in place of the details, which would name addresses inside the installation."""


_UNAVAILABLE_TEXT: Final = "The worker is unavailable."
_DEADLINE_TEXT: Final = "The worker did not answer in time."

GRPC_STATUS: Final[dict[str, GrpcStatus]] = {
    "INVALID_ARGUMENT": GrpcStatus(400, "invalid_value"),
    "FAILED_PRECONDITION": GrpcStatus(400, "failed_precondition"),
    "OUT_OF_RANGE": GrpcStatus(400, "out_of_range"),
    "UNAUTHENTICATED": GrpcStatus(401, "worker_unauthenticated"),
    "PERMISSION_DENIED": GrpcStatus(403, "permission_denied"),
    "NOT_FOUND": GrpcStatus(404, "not_found"),
    "ALREADY_EXISTS": GrpcStatus(409, "already_exists"),
    "ABORTED": GrpcStatus(409, "aborted", retryable=True),
    "RESOURCE_EXHAUSTED": GrpcStatus(429, "rate_limit_exceeded", retryable=True),
    "UNIMPLEMENTED": GrpcStatus(501, "not_implemented"),
    "UNAVAILABLE": GrpcStatus(503, "worker_unavailable", True, True, _UNAVAILABLE_TEXT),
    "DEADLINE_EXCEEDED": GrpcStatus(504, "deadline_exceeded", True, False, _DEADLINE_TEXT),
    "INTERNAL": GrpcStatus(500, "worker_error", retryable=True, failover=True),
    "UNKNOWN": GrpcStatus(500, "worker_error", retryable=True, failover=True),
    # The worker has dropped the call; our own cancels are not repeated.
    "CANCELLED": GrpcStatus(500, "worker_error", retryable=True, failover=True),
    "DATA_LOSS": GrpcStatus(500, "worker_error", retryable=True, failover=True),
}
_OTHER: Final = GrpcStatus(500, "worker_error", retryable=True)


class UpstreamError(RouterError):
    """A worker failed or refused the request. Made by `from_grpc`."""

    @classmethod
    def from_grpc(cls, code: str, details: str) -> UpstreamError:
        """The error for gRPC status `code` (its name, such as "UNAVAILABLE") with the worker's `details`."""
        row = GRPC_STATUS.get(code, _OTHER)
        kind = DeadlineError if code == "DEADLINE_EXCEEDED" else UpstreamError
        error = kind(row.own_text or details or f"The worker ended the request with {code}.", code=row.code)
        error.status = row.status
        error.retryable = row.retryable
        error.failover = row.failover
        return error


class DeadlineError(UpstreamError):
    status = 504
    code = "deadline_exceeded"
    retryable = True

    def __init__(
        self, message: str = _DEADLINE_TEXT, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)


class WorkerAbortError(UpstreamError):
    """The worker's scheduler gave the request up (finish_reason "abort") with its `message`."""

    status = 500
    code = "worker_aborted"
    retryable = True
    failover = True

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "The worker aborted the request.")


class WorkerProtocolError(UpstreamError):
    """A worker's message could not be read, or its stream ended without a last message."""

    status = 502
    code = "worker_protocol_error"
    retryable = True
    failover = True
