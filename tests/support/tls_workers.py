"""Workers behind TLS, each with credentials of its own on a port of its own, in this process."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tests.support.certificates import Pair
from wsgi_router.worker_api.server import SERVER_OPTIONS, tls_credentials

_SERVICE = "/sglang.grpc.scheduler.SglangScheduler/"


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Generate: as many messages as are asked for; GetServerInfo: who called whom; all the rest: an echo."""

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        method = details.method.removeprefix(_SERVICE)
        if method == "Generate":
            return grpc.unary_stream_rpc_method_handler(self.generate)
        return grpc.unary_unary_rpc_method_handler(self.who if method == "GetServerInfo" else self.echo)

    def echo(self, request: bytes, context: Any) -> bytes:
        return request

    def who(self, request: bytes, context: Any) -> bytes:
        names = [name.decode() for name in context.peer_identities() or ()]
        # What the call says in :authority is shown nowhere else.
        host = context._rpc_event.call_details.host.decode()
        return json.dumps({"client": names, "authority": host}).encode()

    def generate(self, request: bytes, context: Any) -> Iterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number


class Workers:
    """One server with many ports."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((Handlers(),))

    def add(self, pair: Pair | None = None, client_ca: Any = None, address: str = "127.0.0.1:0") -> int:
        """The port; without a pair it is a plain one."""
        port: int
        if pair is None:
            port = self._server.add_insecure_port(address)
        else:
            credentials = tls_credentials(pair.certificate, pair.key, client_ca)
            port = self._server.add_secure_port(address, credentials)
        return port

    def __enter__(self) -> Workers:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


@contextlib.contextmanager
def tls_sockets(context: ssl.SSLContext) -> Iterator[int]:
    """A port that does the handshake of `context`, and says nothing more until the other side has left."""

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
            while encrypted.recv(4096):
                pass

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
