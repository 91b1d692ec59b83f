"""``python -m tests.support.hung_worker COUNT``: COUNT workers that say what they serve and then hang.

One line ``hung PORT …`` tells the ports. GetLoads gives back its request; all the rest never answers.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from tests.support.processes import Process
from wsgi_router.pb import sglang_scheduler_pb2 as pb

SERVICE = "/sglang.grpc.scheduler.SglangScheduler/"


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """By method name; bytes in and out."""

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        if details.method == SERVICE + "GetModelInfo":
            return grpc.unary_unary_rpc_method_handler(self.model_info)
        if details.method == SERVICE + "GetLoads":
            return grpc.unary_unary_rpc_method_handler(self.echo)
        if details.method == SERVICE + "Generate":
            return grpc.unary_stream_rpc_method_handler(self.generate)
        return grpc.unary_unary_rpc_method_handler(self.hang)

    async def model_info(self, request: bytes, context: Any) -> bytes:
        return pb.GetModelInfoResponse(served_model_name="hung").SerializeToString()

    async def echo(self, request: bytes, context: Any) -> bytes:
        return request

    async def hang(self, request: bytes, context: Any) -> bytes:
        await asyncio.sleep(3600)
        return b""

    async def generate(self, request: bytes, context: Any) -> Any:
        await asyncio.sleep(3600)
        yield b""


async def main(count: int) -> None:
    sizes = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=sizes)
    server.add_generic_rpc_handlers([Handlers()])
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(count)]
    await server.start()
    print("hung", *ports, flush=True)
    await server.wait_for_termination()


class HungWorkers(Process):
    """The process that holds them."""

    def __init__(self, count: int) -> None:
        super().__init__([sys.executable, "-m", __name__, str(count)])
        self.ports: list[int] = []

    def wait_ready(self) -> None:
        self.require(lambda: self.output().endswith("\n"), "ports")
        self.ports = [int(word) for word in self.output().split()[1:]]


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
