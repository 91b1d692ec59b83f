"""Answers that have one result for each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import Struct, Value

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
    """A message's fields by their own names, zeros too, for JSON. Raises WorkerProtocolError."""
    try:
        fields: dict[str, Any] = MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    except SerializeToJsonError:  # a time beyond the year 9999, for example
        raise WorkerProtocolError("The worker's message holds what JSON cannot.") from None
    return fields


def plain_struct(struct: Struct) -> dict[str, Any]:
    """A Struct's values for JSON. It knows doubles alone: those without a fraction are shown as integers.

    (protobuf's own conversion raises for an infinity, which JSON gets as null.)
    """
    return {name: _plain_value(value) for name, value in struct.fields.items()}


def _plain_value(value: Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return plain_struct(value.struct_value)
    if kind == "list_value":
        return [_plain_value(item) for item in value.list_value.values]
    if kind in (None, "null_value"):
        return None
    plain = getattr(value, kind)
    return int(plain) if kind == "number_value" and plain.is_integer() and abs(plain) < 2**53 else plain
