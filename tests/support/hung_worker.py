"""``python -m tests.support.hung_worker COUNT``: COUNT workers that say what they serve and then hang.

One line ``hung PORT …`` tells the ports. Generate and Abort never answer.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from wsgi_router.pb import sglang_scheduler_pb2 as pb

SERVICE = "/sglang.grpc.scheduler.SglangScheduler/"


class Handlers(grpc.GenericRpcHandler):
    """By method name; bytes in and out."""

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        if details.method == SERVICE + "GetModelInfo":
            return grpc.unary_unary_rpc_method_handler(self.model_info)
        if details.method == SERVICE + "Generate":
            return grpc.unary_stream_rpc_method_handler(self.generate)
        return grpc.unary_unary_rpc_method_handler(self.hang)

    async def model_info(self, request: bytes, context: Any) -> bytes:
        return pb.GetModelInfoResponse(served_model_name="hung").SerializeToString()

    async def hang(self, request: bytes, context: Any) -> bytes:
        await asyncio.sleep(3600)
        return b""

    async def generate(self, request: bytes, context: Any) -> Any:
        await asyncio.sleep(3600)
        yield b""


async def main(count: int) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Handlers()])
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(count)]
    await server.start()
    print("hung", *ports, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
