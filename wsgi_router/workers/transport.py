"""What the router asks of a gRPC implementation; no implementation is named here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from wsgi_router.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class GenerateJob:
    """What a worker is to do. `body` is a GenerateRequest without its request_id; ids are put in front."""

    model: str
    body: bytes
    choices: int = 1
    hints: Mapping[str, str] = field(default_factory=dict)
    """What routing policies may go by."""
    streamed: bool = True
    """Whether `body` asks for the tokens as they come; else the worker's one message is the whole answer."""
    adapter: str = ""
    """Name of the LoRA adapter; its id differs from worker to worker, and is added for each."""


class RpcFailure(Exception):
    """An RPC ended with another status than OK. `code` is the status's name, such as "UNAVAILABLE"."""

    def __init__(self, code: str, details: str = "") -> None:
        super().__init__(f"{code}: {details}" if details else code)
        self.code = code
        self.details = details


class MessageStream(Protocol):
    """The answer to one Generate RPC: raw GenerateResponse messages, in order."""

    def __iter__(self) -> Iterator[bytes]:
        """Blocks for the next message; ends with status OK, raises RpcFailure for any other."""

    def close(self) -> None:
        """Cancels the RPC if it still runs; the iteration then ends. Idempotent, callable from anywhere."""


class Transport(Protocol):
    """Calls to workers. One for each process, made after the fork."""

    def open_stream(self, worker: Worker, request: bytes) -> MessageStream:
        """Starts Generate with a serialised GenerateRequest; does not wait for the worker."""

    def unary(self, worker: Worker, method: str, request: bytes, timeout: float) -> bytes:
        """One call of `method` (its short name), blocking; raises RpcFailure. Bounded in number."""

    def abort(self, worker: Worker, request_id: str) -> None:
        """Tells the worker to drop a request. Does not wait, never raises; bounded in number and time."""

    def forget(self, worker: Worker) -> None:
        """Drops the connection to `worker`; the next call makes a new one."""

    def close(self) -> None:
        """Cancels what runs and drops all connections."""
