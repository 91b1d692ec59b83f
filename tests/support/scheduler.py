"""A plain client of SGLang's scheduler service: raw method calls, as any router makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from wsgi_router.pb import sglang_scheduler_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["SglangScheduler"]
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "n": 1}
DEADLINE = 20.0


def generate_request(
    request_id: str,
    ids: list[int],
    *,
    stream: bool = True,
    sampling: dict[str, Any] | None = None,
    **fields: Any,
) -> pb.GenerateRequest:
    """A request with neutral sampling parameters but for those given."""
    text = fields.pop("text", "")
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=ids, original_text=text),
        sampling_params=pb.SamplingParams(**{**NEUTRAL, **(sampling or {})}),
        stream=stream,
        **fields,
    )


class SchedulerClient:
    """One channel to a worker; ``client.Abort(message)`` calls the RPC of that name."""

    def __init__(self, port: int) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()

    def __getattr__(self, name: str) -> Any:
        method = SERVICE.methods_by_name[name]
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call = make(
            f"/{SERVICE.full_name}/{name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )

        def invoke(request: Any = None, timeout: float = DEADLINE) -> Any:
            return call(GetMessageClass(method.input_type)() if request is None else request, timeout=timeout)

        return invoke

    def generate(self, *args: Any, **kwargs: Any) -> list[pb.GenerateResponse]:
        """All events of one Generate call."""
        return list(self.Generate(generate_request(*args, **kwargs)))

    def info(self) -> dict[str, Any]:
        """The worker's counts and last requests."""
        info: dict[str, Any] = MessageToDict(self.GetServerInfo().scheduler_info)
        return info


def refused(call: Iterator[Any]) -> tuple[str, str]:
    """Status name and message of a call that fails."""
    try:
        list(call)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError("the call did not fail")


def chunk_ids(events: list[pb.GenerateResponse], index: int = 0) -> list[int]:
    """Ids of one sample's chunks, in order."""
    return [
        t
        for e in events
        if e.WhichOneof("response") == "chunk" and e.chunk.index == index
        for t in e.chunk.token_ids
    ]


def completes(events: list[pb.GenerateResponse]) -> dict[int, pb.GenerateComplete]:
    """The Completes by sample; every sample has one only."""
    found: dict[int, pb.GenerateComplete] = {}
    for event in events:
        if event.HasField("complete"):
            assert event.complete.index not in found
            found[event.complete.index] = event.complete
    return found
