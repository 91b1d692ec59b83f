"""The process around a servicer: listen, say so, drain on SIGTERM, end on SIGINT."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from wsgi_router.pb import sglang_scheduler_pb2
from wsgi_router.worker_api.engine import Engine
from wsgi_router.worker_api.servicer import SchedulerServicer, ServicerOptions

SERVICE = sglang_scheduler_pb2.DESCRIPTOR.services_by_name["SglangScheduler"]
MESSAGE_BYTES = 256 << 20
MIN_PING_MS = 10_000
DRAIN_SECONDS = 30.0

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    # As SGLang's server: a client that pings more often gets GOAWAY too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # A call that a crowded machine does not come to within 30 s would be cancelled; who calls has a deadline.
    ("grpc.server_max_unrequested_time_in_server", 600),
    # A second worker on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
)


def _serialize(message: Any) -> bytes:
    # Bytes pass as they are: faults that the simulator sends on purpose.
    return message if isinstance(message, bytes) else message.SerializeToString()


def handlers(servicer: SchedulerServicer) -> grpc.GenericRpcHandler:
    """The service's handlers, bound by name; every RPC of the description must be there."""
    table: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in SERVICE.methods:
        streams = method.server_streaming
        make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        table[method.name] = make(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=_serialize,
        )
    return grpc.method_handlers_generic_handler(SERVICE.full_name, table)


class WorkerServer:
    """A listening worker. ``address`` is HOST:PORT once started; port 0 in ``bind`` takes a free one.

    ``tls``: of `tls_credentials`; None listens in the clear.
    """

    def __init__(
        self, engine: Engine, bind: str, options: ServicerOptions | None = None, tls: Any = None
    ) -> None:
        self.engine = engine
        self.bind = bind
        self.tls = tls
        self.address = ""
        self.servicer = SchedulerServicer(engine, options)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((handlers(self.servicer),))

    def __repr__(self) -> str:
        return f"<WorkerServer {self.address or 'not listening'} {self.servicer!r}>"

    async def start(self) -> None:
        """Start the engine, then listen. RuntimeError if the port is taken."""
        await self.engine.start()
        if self.tls is None:
            port = self._server.add_insecure_port(self.bind)
        else:
            port = self._server.add_secure_port(self.bind, self.tls)
        await self._server.start()
        self.address = f"{self.bind.rpartition(':')[0]}:{port}"

    async def stop(self, drain: float) -> None:
        """Take no new calls, give running ones ``drain`` seconds, then close the engine."""
        self.servicer.draining.set()
        await self._server.stop(drain)
        await self.engine.close()


def tls_credentials(certificate: Path, key: Path, client_ca: Path | None = None) -> Any:
    """gRPC's server credentials of PEM files. With ``client_ca`` clients must show a certificate it signed.

    OSError for a file that cannot be read.
    """
    authorities = None if client_ca is None else client_ca.read_bytes()
    pair = (key.read_bytes(), certificate.read_bytes())
    return grpc.ssl_server_credentials([pair], authorities, client_ca is not None)


async def serve(
    engine: Engine,
    bind: str,
    options: ServicerOptions | None = None,
    drain: float = DRAIN_SECONDS,
    tls: Any = None,
) -> None:
    """Serve until told to stop. SIGTERM: open streams finish (``drain`` seconds). SIGINT: they are cut."""
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[float] = asyncio.Queue()
    loop.add_signal_handler(signal.SIGTERM, told.put_nowait, drain)
    loop.add_signal_handler(signal.SIGINT, told.put_nowait, 0.0)
    server = WorkerServer(engine, bind, options, tls)
    starting = asyncio.create_task(server.start())
    stopping = asyncio.create_task(told.get())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return
    await starting
    scheme = "grpc" if tls is None else "grpcs"
    print(f"worker ready on {scheme}://{server.address}", flush=True)
    grace = await stopping
    # A second signal may shorten the drain, as a later stop() does in gRPC.
    impatient = asyncio.create_task(told.get())
    ending = asyncio.create_task(server.stop(grace))
    await asyncio.wait({impatient, ending}, return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        await server.stop(0.0)
    impatient.cancel()
    await ending
