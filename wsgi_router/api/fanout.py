"""Answers that have one result for each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import Struct

from wsgi_router.errors import RouterError, WorkerProtocolError
from wsgi_router.workers.worker import Worker

_M = TypeVar("_M", bound=Message)


def results(
    answers: Iterable[tuple[Worker, bytes | RouterError]], shown: Callable[[bytes], dict[str, Any]]
) -> list[dict[str, Any]]:
    """For JSON: each worker's URL with what `shown` makes of its answer, or with its error."""
    return [{"worker": worker.url, **_result(answer, shown)} for worker, answer in answers]


def _result(answer: bytes | RouterError, shown: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    try:
        if isinstance(answer, RouterError):
            raise answer
        return shown(answer)
    except RouterError as error:
        return {"success": False, "message": error.message, "code": error.code}


def read(kind: type[_M], answer: bytes) -> _M:
    """A worker's message. Raises WorkerProtocolError."""
    try:
        return kind.FromString(answer)
    except DecodeError:
        raise WorkerProtocolError("The worker's message cannot be read.") from None


def plain(message: Message) -> dict[str, Any]:
    """A message's fields by their own names, zeros too, for JSON."""
    fields: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields


def plain_struct(struct: Struct) -> dict[str, Any]:
    """A Struct's values for JSON. It knows doubles alone: those without a fraction are shown as integers."""
    values: dict[str, Any] = _whole(MessageToDict(struct))
    return values


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
