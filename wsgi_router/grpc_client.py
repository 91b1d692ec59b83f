"""The transport on grpcio: one channel a worker, bytes in and bytes out.

Measured rules (grpcio 1.85, gevent 26): each channel with calls holds one thread of gevent's hub pool,
whatever its number of streams. The option SingleThreadedUnaryStream holds one for each waiting stream, and
starves everything else; it is not used. Blocking unary calls hold one each, so unary calls are made as
futures, which ride on their channel's thread. Deadlines are the RPC's own, never a timeout around a call.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import grpc

from wsgi_router import runtime, tls
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.setting_casts import MOST_WORKERS
from wsgi_router.settings import Settings
from wsgi_router.workers.slots import Slots
from wsgi_router.workers.transport import TOO_LONG, Cancel, RpcFailure
from wsgi_router.workers.worker import Worker

_LOG = logging.getLogger(__name__)

_SERVICE: Final = "/sglang.grpc.scheduler.SglangScheduler/"
_MESSAGE_BYTES: Final = 256 * 2**20
_STREAM_WINDOW: Final = 256 * 2**10
_ABORTS_AT_ONCE: Final = 64
_UNARY_AT_ONCE: Final = 16 + 2 * MOST_WORKERS
"""Workers join while running; were it fewer, those that hang would keep the others from being asked."""
_EMBEDS_AT_ONCE: Final = 512


@functools.cache
def _init_gevent() -> None:
    """Once a process, after patching and before any channel."""
    import grpc.experimental.gevent

    grpc.experimental.gevent.init_gevent()


def _channel_options(settings: Settings) -> list[tuple[str, int | str]]:
    return [
        ("grpc.max_send_message_length", _MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", int(settings.keepalive_time * 1000)),
        ("grpc.keepalive_timeout_ms", int(settings.keepalive_timeout * 1000)),
        ("grpc.keepalive_permit_without_calls", 0),
        # A worker that comes back is served within a second or two.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.min_reconnect_backoff_ms", 5000),  # how long one attempt to connect may take
        ("grpc.use_local_subchannel_pool", 1),  # `forget` really drops the connection
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        # Else windows grow with the speed, and what waits for a slow client takes megabytes of each stream.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _STREAM_WINDOW),
    ]


class _Channels:
    """Makes channels, plain ones and those with TLS."""

    def __init__(self, settings: Settings) -> None:
        self._options = _channel_options(settings)
        given = tls.load(settings)
        self._credentials = grpc.ssl_channel_credentials(
            given.roots or None, given.key or None, given.certificate or None
        )
        self._tls_options = list(self._options)
        if given.server_name:
            self._tls_options.append(("grpc.ssl_target_name_override", given.server_name))

    def make(self, worker: Worker) -> Any:
        if not worker.tls:
            return grpc.insecure_channel(worker.address, options=self._options)
        return grpc.secure_channel(worker.address, self._credentials, options=self._tls_options)


class _Connection:
    """A channel with its callables; whoever holds it keeps the channel alive."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.generate = self.channel.unary_stream(_SERVICE + "Generate")
        self._unary: dict[str, Any] = {}

    def stream(self, method: str) -> Any:
        return self.channel.unary_stream(_SERVICE + method)

    def unary(self, method: str) -> Any:
        call = self._unary.get(method)
        if call is None:
            call = self._unary[method] = self.channel.unary_unary(_SERVICE + method)
        return call


class GrpcStream:
    """A call with many answers; see `transport.MessageStream`."""

    def __init__(self, call: Any, connection: _Connection) -> None:
        self._call = call
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise _failure(error) from None

    def close(self) -> None:
        self._call.cancel()

    def __repr__(self) -> str:
        return f"<GrpcStream {'open' if self._call.is_active() else 'ended'}>"


class GrpcTransport:
    """See `transport.PulledTransport`. To be made after the fork; under gevent, after patching."""

    feeds: Literal[False] = False

    def __init__(self, settings: Settings) -> None:
        if runtime.patched():
            _init_gevent()
        self._expected = len(settings.all_workers())
        runtime.init_process(self._expected)
        self._channels = _Channels(settings)
        self._abort_timeout = settings.abort_timeout
        self._connections: dict[str, _Connection] = {}
        self._lock = threading.Lock()
        self._unary_slots = Slots(_UNARY_AT_ONCE)
        self._embed_slots = Slots(_EMBEDS_AT_ONCE)
        self._aborts: set[Any] = set()

    def open_stream(self, worker: Worker, request: bytes) -> GrpcStream:
        connection = self._connection(worker)
        return _stream(connection, connection.generate, request)

    def messages(self, worker: Worker, method: str, request: bytes) -> GrpcStream:
        connection = self._connection(worker)
        return _stream(connection, connection.channel.unary_stream(_SERVICE + method), request)

    def heard(self, worker: Worker) -> float:
        return worker.heard

    def unary(
        self, worker: Worker, method: str, request: bytes, timeout: float, cancel: Cancel | None = None
    ) -> bytes:
        slots = self._embed_slots if method == "Embed" else self._unary_slots
        with slots.held(timeout, cancel) as left, _failures():
            connection = self._connection(worker)
            call = connection.unary(method).future(request, timeout=left)
            with (cancel or Cancel()).calling(call.cancel):
                answer: bytes = call.result()
            return answer

    def gather(self, worker: Worker, method: str, request: bytes, timeout: float, most: int) -> list[bytes]:
        with self._unary_slots.held(timeout) as left, _failures():
            call = self._connection(worker).stream(method)(request, timeout=left, wait_for_ready=False)
            try:
                return _gather(call, most)
            finally:
                call.cancel()

    def abort(self, worker: Worker, request_id: str) -> None:
        if len(self._aborts) >= _ABORTS_AT_ONCE:
            _LOG.debug("abort of %s left out: %d are under way", request_id, len(self._aborts))
            return
        request = pb.AbortRequest(request_id=request_id, reason="client gone").SerializeToString()
        try:
            call = self._connection(worker).unary("Abort").future(request, timeout=self._abort_timeout)
        except ValueError:  # the channel was closed in between
            return
        self._aborts.add(call)
        call.add_done_callback(self._aborts.discard)

    def forget(self, worker: Worker) -> None:
        with self._lock:
            connection = self._connections.pop(worker.url, None)
        if connection is not None:
            connection.channel.close()

    def close(self) -> None:
        with self._lock:
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.channel.close()

    def _connection(self, worker: Worker) -> _Connection:
        connection = self._connections.get(worker.url)
        if connection is None:
            with self._lock:
                connection = self._connections.get(worker.url)
                if connection is None:
                    connection = _Connection(self._channels.make(worker))
                    self._connections[worker.url] = connection
                    if len(self._connections) > self._expected:  # a worker that was added while running
                        self._expected += 1
                        runtime.init_process(1)
        return connection

    def __repr__(self) -> str:
        return f"<GrpcTransport connections={len(self._connections)} aborts={len(self._aborts)}>"


def _stream(connection: _Connection, start: Any, request: bytes) -> GrpcStream:
    try:
        return GrpcStream(start(request, wait_for_ready=False), connection)
    except ValueError as error:  # the channel was closed in between
        raise RpcFailure("UNAVAILABLE", str(error)) from None


def _gather(messages: Iterable[bytes], most: int) -> list[bytes]:
    gathered: list[bytes] = []
    for message in messages:
        most -= len(message)
        if most < 0:
            raise RpcFailure("RESOURCE_EXHAUSTED", TOO_LONG)
        gathered.append(message)
    return gathered


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Raises RpcFailure in place of grpc's errors."""
    try:
        yield
    except grpc.RpcError as error:
        raise _failure(error) from None
    except grpc.FutureCancelledError:
        raise RpcFailure("CANCELLED", "dropped, or nobody waits for the answer") from None
    except ValueError as error:  # the channel was closed in between
        raise RpcFailure("UNAVAILABLE", str(error)) from None


def _failure(error: Any) -> RpcFailure:
    return RpcFailure(error.code().name, error.details() or "")
