"""The servicer in front of an engine that a test drives by hand, over real grpc.aio on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from tests.support.scheduler import SERVICE, chunk_ids, completes, generate_request
from wsgi_router.pb import common_pb2
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.worker_api.engine import (
    Engine,
    EngineLoads,
    GenerationRequest,
    ModelInfo,
    Step,
    TokenLogprob,
    invalid,
)
from wsgi_router.worker_api.server import WorkerServer
from wsgi_router.worker_api.servicer import ServicerOptions

PROMPT = [1, 2, 3]


class HandEngine(Engine):
    """Gives out ``script``; with a gate closed it waits before each step. Notes who holds a slot."""

    def __init__(self, script: list[Step | Exception] | None = None, folder: Path | None = None) -> None:
        self.script = script or [Step([10]), Step([11, 12]), Step([13], finish_reason="length")]
        self.gate = asyncio.Event()
        self.gate.set()
        self.hold_after: int | None = None
        self.running: set[tuple[str, int]] = set()
        self.seen: list[GenerationRequest] = []
        self.flushed = 0
        self.folder = folder

    def model_info(self) -> ModelInfo:
        return ModelInfo("path", "name", max_context_length=100, vocab_size=50, eos_token_ids=(2, 3))

    def validate(self, request: GenerationRequest) -> None:
        if len(request.input_ids) > 2_000_000:
            raise invalid("too long")

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Step]:
        self.seen.append(request)
        holder = (request.request_id, request.index)
        self.running.add(holder)
        try:
            for number, step in enumerate(self.script):
                if number == self.hold_after:
                    self.gate.clear()
                await self.gate.wait()
                if isinstance(step, Exception):
                    raise step
                yield step
                await asyncio.sleep(0)
        finally:
            self.running.discard(holder)

    def loads(self) -> EngineLoads:
        return EngineLoads(len(self.running), 3, used_tokens=25, max_total_tokens=100, max_running=8)

    async def flush_cache(self) -> tuple[bool, str]:
        self.flushed += 1
        return True, "flushed"

    def tokenizer_dir(self) -> Path | None:
        return self.folder


class Client:
    """Calls by RPC name on an aio channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    def __getattr__(self, name: str) -> Any:
        method = SERVICE.methods_by_name[name]
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        return make(
            f"/{SERVICE.full_name}/{name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )

    async def generate(self, *args: Any, **kwargs: Any) -> list[pb.GenerateResponse]:
        return [event async for event in self.Generate(generate_request(*args, **kwargs), timeout=20)]


Scenario = Callable[[Client, WorkerServer], Awaitable[None]]


def run(engine: Engine, scenario: Scenario, options: ServicerOptions | None = None) -> None:
    """A server, a client, the scenario."""

    async def main() -> None:
        server = WorkerServer(engine, "127.0.0.1:0", options)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                async with asyncio.timeout(30):
                    await scenario(Client(channel), server)
        finally:
            await server.stop(0)

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def first_of(call: Any) -> pb.GenerateResponse:
    event: pb.GenerateResponse = await anext(aiter(call))
    return event


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        if isinstance(call, grpc.aio.UnaryStreamCall):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call did not fail")


@pytest.mark.parametrize(
    ("mode", "chunked", "completed"),
    [
        ("repeat", [10, 11, 12, 13], [13]),
        ("only", [10, 11, 12], [13]),
        ("all", [10, 11, 12, 13], [10, 11, 12, 13]),
        ("none", [10, 11, 12, 13], []),
    ],
)
def test_what_a_streamed_complete_carries(mode: Any, chunked: list[int], completed: list[int]) -> None:
    async def scenario(client: Client, server: WorkerServer) -> None:
        events = await client.generate("a", PROMPT)
        assert chunk_ids(events) == chunked
        complete = completes(events)[0]
        assert list(complete.output_ids) == completed
        assert (complete.prompt_tokens, complete.completion_tokens) == (3, 4)
        assert events[-1].HasField("complete")
        counts = [event.chunk.completion_tokens for event in events[:-1]]
        assert counts == [1, 3, 4][: len(counts)]

    run(HandEngine(), scenario, ServicerOptions(complete_ids=mode))


def test_without_stream_one_complete_has_everything() -> None:
    script: list[Step | Exception] = [
        Step([10], [TokenLogprob(10, -0.5)], input_logprobs=[TokenLogprob(1, None), TokenLogprob(2, -2.0)]),
        Step([11], [TokenLogprob(11, -0.25)], cached_tokens=2, finish_reason="stop", matched_token_id=11),
    ]

    async def scenario(client: Client, server: WorkerServer) -> None:
        (event,) = await client.generate("a", PROMPT, stream=False)
        complete = event.complete
        assert list(complete.output_ids) == [10, 11]
        assert list(complete.output_logprobs.token_logprobs) == [-0.5, -0.25]
        assert [e.HasField("value") for e in complete.input_logprobs.token_logprobs] == [False, True]
        assert (complete.finish_reason, complete.matched_token_id, complete.cached_tokens) == ("stop", 11, 2)

    run(HandEngine(script), scenario)


def test_logprobs_stream_with_their_ids() -> None:
    entry = TokenLogprob(10, -0.5, top=((10, -0.5), (4, -1.0)), wanted=((7, -3.0),))
    script: list[Step | Exception] = [
        Step([10], [entry], input_logprobs=[TokenLogprob(1, None)]),
        Step([11], [TokenLogprob(11, -1.5)], finish_reason="length"),
    ]

    async def scenario(client: Client, server: WorkerServer) -> None:
        first, second, last = await client.generate("a", PROMPT)
        rows = first.chunk.output_logprobs
        assert (list(rows.top_logprobs[0].token_ids), list(rows.top_logprobs[0].values)) == (
            [10, 4],
            [-0.5, -1.0],
        )
        assert list(rows.token_ids_logprobs[0].token_ids) == [7]
        assert first.chunk.HasField("input_logprobs")
        assert not second.chunk.HasField("input_logprobs")
        assert list(second.chunk.output_logprobs.token_ids) == [11]
        assert list(last.complete.output_logprobs.token_ids) == [11]

    run(HandEngine(script), scenario)


def test_every_field_of_a_request_reaches_the_engine() -> None:
    engine = HandEngine()
    sampling = {
        "temperature": 0.5,
        "top_p": 0.75,
        "top_k": 7,
        "min_p": 0.25,
        "frequency_penalty": -1.0,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.25,
        "max_new_tokens": 9,
        "stop": ["x"],
        "stop_token_ids": [4, 5],
        "skip_special_tokens": True,
        "json_schema": "{}",
        "min_new_tokens": 2,
        "ignore_eos": True,
        "no_stop_trim": True,
        "stream_interval": 3,
        "logit_bias": {"17": -1.5},
        "custom_params": {"seed": 42.0},
    }

    async def scenario(client: Client, server: WorkerServer) -> None:
        await client.generate(
            "a",
            PROMPT,
            text="hi",
            sampling=sampling,
            return_logprob=True,
            logprob_start_len=1,
            top_logprobs_num=2,
            token_ids_logprob=[8],
            disaggregated_params=pb.DisaggregatedParams(
                bootstrap_host="h", bootstrap_port=8998, bootstrap_room=5
            ),
            lora_id="l",
            data_parallel_rank=0,
            require_reasoning=True,
        )
        (seen,) = engine.seen
        for name, value in sampling.items():
            got = getattr(seen.sampling, name)
            if name == "logit_bias":
                value = {17: -1.5}
            assert got == (type(got)(value) if isinstance(value, list) else value), name
        assert seen.sampling.regex is None
        assert (seen.original_text, seen.input_ids, seen.lora_id) == ("hi", PROMPT, "l")
        assert (seen.return_logprob, seen.logprob_start_len, seen.top_logprobs_num) == (True, 1, 2)
        assert (seen.token_ids_logprob, seen.data_parallel_rank, seen.require_reasoning) == ((8,), 0, True)
        assert seen.disaggregated is not None
        assert (seen.disaggregated.host, seen.disaggregated.port, seen.disaggregated.room) == ("h", 8998, 5)

    run(engine, scenario)


def test_samples_have_indices_and_are_aborted_one_by_one_or_all() -> None:
    engine = HandEngine()
    engine.script = [Step([10]), Step([11], finish_reason="stop")]

    async def scenario(client: Client, server: WorkerServer) -> None:
        events = await client.generate("a", PROMPT, sampling={"n": 3})
        assert [chunk_ids(events, index) for index in range(3)] == [[10, 11]] * 3
        assert sorted(completes(events)) == [0, 1, 2]

        engine.gate.clear()
        call = asyncio.create_task(client.generate("b", PROMPT, sampling={"n": 3}))
        await until(lambda: len(engine.running) == 3)
        assert (await client.Abort(pb.AbortRequest(request_id="b-1"))).success
        await until(lambda: engine.running == {("b", 0), ("b", 2)})
        assert (await client.Abort(pb.AbortRequest(request_id="b"))).success
        ends = completes(await call)
        assert {index: end.finish_reason for index, end in ends.items()} == dict.fromkeys(range(3), "abort")
        assert not engine.running
        assert not (await client.Abort(pb.AbortRequest(request_id="b"))).success
        assert not (await client.Abort(pb.AbortRequest(request_id=""))).success

    run(engine, scenario)


def test_abort_keeps_what_has_come_and_may_be_a_status() -> None:
    engine = HandEngine()
    engine.hold_after = 1

    async def scenario(client: Client, server: WorkerServer) -> None:
        call = client.Generate(generate_request("abc-1", PROMPT))
        first = await first_of(call)
        assert list(first.chunk.token_ids) == [10]
        await client.Abort(pb.AbortRequest(request_id="abc", reason="enough"))
        assert await status_of(call) == (grpc.StatusCode.UNAVAILABLE, "Request aborted: enough")
        assert server.servicer.registry.report()["aborted"] == 1

    run(engine, scenario, ServicerOptions(abort_as=grpc.StatusCode.UNAVAILABLE))


def test_a_client_that_leaves_frees_all_slots() -> None:
    engine = HandEngine()
    engine.gate.clear()

    async def scenario(client: Client, server: WorkerServer) -> None:
        call = client.Generate(generate_request("a", PROMPT, sampling={"n": 4}))
        reading = asyncio.create_task(first_of(call))
        await until(lambda: len(engine.running) == 4)
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await until(lambda: not engine.running and not len(server.servicer.registry))
        report = server.servicer.registry.report()
        assert (report["cancelled"], report["live_request_ids"]) == (1, [])
        assert report["last_requests"][0]["outcome"] == "cancelled"

    run(engine, scenario)


def test_a_live_id_cannot_be_used_twice() -> None:
    engine = HandEngine()
    engine.gate.clear()

    async def scenario(client: Client, server: WorkerServer) -> None:
        first = asyncio.create_task(client.generate("a", PROMPT))
        await until(lambda: engine.running)
        code, message = await status_of(client.Generate(generate_request("a", PROMPT)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "already running" in message
        engine.gate.set()
        assert chunk_ids(await first) == [10, 11, 12, 13]
        assert chunk_ids(await client.generate("a", PROMPT)) == [10, 11, 12, 13]

    run(engine, scenario)


@pytest.mark.parametrize(
    ("sampling", "word"),
    [
        ({"n": 0}, "n must"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
    ],
)
def test_sampling_out_of_range_is_the_callers_fault(sampling: dict[str, Any], word: str) -> None:
    engine = HandEngine()

    async def scenario(client: Client, server: WorkerServer) -> None:
        code, message = await status_of(client.Generate(generate_request("a", PROMPT, sampling=sampling)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert word in message
        assert not engine.seen
        assert server.servicer.registry.report()["failed"] == 1

    run(engine, scenario)


def test_requests_that_are_none() -> None:
    async def scenario(client: Client, server: WorkerServer) -> None:
        for request in (
            generate_request("", PROMPT),
            generate_request("a", []),
            pb.GenerateRequest(request_id="a"),
        ):
            code, _ = await status_of(client.Generate(request))
            assert code is grpc.StatusCode.INVALID_ARGUMENT

    run(HandEngine(), scenario)


@pytest.mark.parametrize("broken", [[Step([10]), RuntimeError("boom")], [Step([10])]])
def test_an_engine_that_breaks_is_an_internal_error(broken: list[Step | Exception]) -> None:
    async def scenario(client: Client, server: WorkerServer) -> None:
        call = client.Generate(generate_request("a", PROMPT))
        assert list((await first_of(call)).chunk.token_ids) == [10]
        assert (await status_of(call))[0] is grpc.StatusCode.INTERNAL
        assert not len(server.servicer.registry)

    run(HandEngine(broken), scenario)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("Embed", pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=[1]))),
        ("SubscribeKvEvents", common_pb2.SubscribeKvEventsRequest()),
        ("StartProfile", common_pb2.StartProfileRequest()),
        ("StopProfile", common_pb2.StopProfileRequest()),
        ("LoadLoRAAdapter", pb.LoadLoRAAdapterRequest(lora_id="a", lora_name="a")),
        ("UnloadLoRAAdapter", pb.UnloadLoRAAdapterRequest(lora_name="a")),
        ("ListLoadedLoRAAdapters", pb.ListLoadedLoRAAdaptersRequest()),
    ],
)
def test_what_the_engine_cannot_do_is_unimplemented(name: str, request_: Any) -> None:
    async def scenario(client: Client, server: WorkerServer) -> None:
        code, message = await status_of(getattr(client, name)(request_))
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert name in message

    run(HandEngine(), scenario)


def test_flush_waits_for_idleness_as_long_as_told() -> None:
    engine = HandEngine()
    engine.gate.clear()

    async def scenario(client: Client, server: WorkerServer) -> None:
        running = asyncio.create_task(client.generate("a", PROMPT))
        await until(lambda: engine.running)
        refused = await client.FlushCache(common_pb2.FlushCacheRequest())
        assert (refused.success, engine.flushed) == (False, 0)
        waiting = asyncio.create_task(client.FlushCache(common_pb2.FlushCacheRequest(timeout_s=10)).code())
        await asyncio.sleep(0.1)
        assert engine.flushed == 0
        engine.gate.set()
        await running
        assert await waiting is grpc.StatusCode.OK
        assert engine.flushed == 1

    run(engine, scenario)


def test_loads_have_the_sections_asked_for() -> None:
    async def scenario(client: Client, server: WorkerServer) -> None:
        plain = await client.GetLoads(pb.GetLoadsRequest())
        (load,) = plain.loads
        assert (load.num_waiting_reqs, load.num_used_tokens, load.token_usage) == (3, 25, 0.25)
        assert not load.HasField("queues")
        assert not load.HasField("memory")
        assert plain.aggregate.total_reqs == 3
        full = await client.GetLoads(pb.GetLoadsRequest(include=["all"]))
        assert full.loads[0].queues.waiting == 3
        assert full.loads[0].memory.token_capacity == 100
        assert full.loads[0].disaggregation.mode == "null"
        assert not (await client.GetLoads(pb.GetLoadsRequest(dp_rank=1))).loads

    run(HandEngine(), scenario)


def test_model_and_server_info() -> None:
    async def scenario(client: Client, server: WorkerServer) -> None:
        model = await client.GetModelInfo(pb.GetModelInfoRequest())
        assert (model.served_model_name, model.max_context_length, model.max_req_input_len) == (
            "name",
            100,
            99,
        )
        assert list(model.eos_token_ids) == [2, 3]
        await client.generate("a", PROMPT)
        await client.generate("b", PROMPT)
        info = await client.GetServerInfo(pb.GetServerInfoRequest())
        told = MessageToDict(info.scheduler_info)
        assert (told["generate_calls"], told["finished"], told["last_request_ids"]) == (2, 2, ["a", "b"])
        assert told["last_requests"][1]["request"]["tokenized"]["input_ids"] == PROMPT
        assert info.uptime_seconds >= 0
        assert info.server_type == "grpc"
        assert "live=0" in repr(server)

    run(HandEngine(), scenario)


def test_messages_beyond_grpcs_own_limit_pass() -> None:
    engine = HandEngine()

    async def scenario(client: Client, server: WorkerServer) -> None:
        await client.generate("a", [70_000] * 2_000_000)
        assert len(engine.seen[0].input_ids) == 2_000_000

    run(engine, scenario)


def test_the_tokenizer_comes_as_a_zip(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"a": 1}' * 1000)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")

    async def scenario(client: Client, server: WorkerServer) -> None:
        chunks = [c async for c in client.GetTokenizer(common_pb2.GetTokenizerRequest())]
        data = b"".join(chunk.data for chunk in chunks)
        assert hashlib.sha256(data).hexdigest() == chunks[-1].sha256
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.namelist() == ["tokenizer.json", "tokenizer_config.json"]
            assert archive.read("tokenizer.json") == (tmp_path / "tokenizer.json").read_bytes()

    run(HandEngine(folder=tmp_path), scenario)


def test_no_tokenizer_is_not_found() -> None:
    async def scenario(client: Client, server: WorkerServer) -> None:
        call = client.GetTokenizer(common_pb2.GetTokenizerRequest())
        assert (await status_of(call))[0] is grpc.StatusCode.NOT_FOUND

    run(HandEngine(), scenario)
