"""SGLang's scheduler service in front of an engine, on grpc.aio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import grpc
from google.protobuf.struct_pb2 import Struct

from wsgi_router.pb import common_pb2, sglang_scheduler_pb2
from wsgi_router.worker_api import wire
from wsgi_router.worker_api.engine import (
    Engine,
    EngineError,
    GenerationRequest,
    LoraAdapter,
    Step,
    invalid,
)
from wsgi_router.worker_api.registry import Call, Outcome, Registry, Sample
from wsgi_router.worker_api.tokenizer_zip import zip_chunks, zip_tokenizer

log = logging.getLogger(__name__)

# What grpc.aio gives a handler (ServicerContext); grpc comes without types that a checker could read.
Context: TypeAlias = Any
CompleteIds: TypeAlias = Literal["repeat", "only", "all", "none"]


@dataclass(frozen=True, slots=True)
class ServicerOptions:
    """How the servicer differs from release to release of SGLang.

    complete_ids: what a streamed Complete carries. ``repeat``: the last chunk's ids again (newer servicers);
    ``only``: the last ids, which no chunk had (older ones); ``all``: every id; ``none``: no ids.
    abort_as: status an aborted call ends with; None: a Complete with finish_reason "abort".
    history: calls kept for GetServerInfo. heartbeat: seconds between load records on an idle KV stream.
    """

    complete_ids: CompleteIds = "repeat"
    abort_as: grpc.StatusCode | None = None
    history: int = 16
    heartbeat: float = 1.0
    version: str = ""


@contextlib.asynccontextmanager
async def engine_errors(context: Context) -> AsyncIterator[None]:
    """End the RPC with the status of an EngineError raised inside."""
    try:
        yield
    except EngineError as error:
        await context.abort(error.code, error.message)


class SchedulerServicer:
    """All RPCs of ``SglangScheduler``; methods bear their RPC's name."""

    def __init__(self, engine: Engine, options: ServicerOptions | None = None) -> None:
        self.engine = engine
        self.options = options or ServicerOptions()
        self.registry = Registry(self.options.history)
        self.draining = asyncio.Event()
        self._started = time.time()
        self._last_step = 0.0
        self._loads_sent = 0
        self._tokenizer: bytes | None = None

    def __repr__(self) -> str:
        return f"<SchedulerServicer {self.engine!r} {self.registry!r}>"

    # Generation

    async def Generate(self, request: sglang_scheduler_pb2.GenerateRequest, context: Context) -> None:
        """Chunks and Completes of all samples as they come; the client's leaving frees their slots."""
        self.registry.calls += 1
        async with engine_errors(context):
            call = self._begin(request)
            outcome = Outcome.CANCELLED
            try:
                for sample in call.samples:
                    sample.task = asyncio.create_task(self._pump(call, sample))
                await self._relay(call, context)
                outcome = Outcome.FINISHED
            except EngineError:
                outcome = Outcome.FAILED
                raise
            finally:
                # Taken out first: were this cancelled a second time, no id would stay behind.
                self.registry.end(call, outcome)
                await self._stop(call)

    def _begin(self, message: sglang_scheduler_pb2.GenerateRequest) -> Call:
        try:
            request = wire.decode_generate(message)
            wire.check_sampling(request.sampling)
            self.engine.validate(request)
            return self.registry.begin(message, self._samples(request))
        except EngineError:
            self.registry.refuse()
            raise

    def _samples(self, request: GenerationRequest) -> list[Sample]:
        n = request.sampling.n
        ids = [request.request_id] if n == 1 else [f"{request.request_id}-{i}" for i in range(n)]
        return [Sample(replace(request, index=index), engine_id) for index, engine_id in enumerate(ids)]

    async def _pump(self, call: Call, sample: Sample) -> None:
        """Draw a sample's steps from the engine. A task of its own, so that Abort can cancel it alone."""
        try:
            async with contextlib.aclosing(_generator(self.engine.generate(sample.request))) as steps:
                async for step in steps:
                    self._last_step = time.time()
                    call.events.put_nowait((sample, step))
        except EngineError as error:
            call.events.put_nowait((sample, error))
        except Exception as error:
            log.exception("generation of %s failed", sample.engine_id)
            call.events.put_nowait((sample, EngineError(grpc.StatusCode.INTERNAL, repr(error))))
        else:
            # Unseen if the last step ended the sample, as it should have.
            lost = EngineError(grpc.StatusCode.INTERNAL, "the engine ended without a finish reason")
            call.events.put_nowait((sample, lost))

    async def _relay(self, call: Call, context: Context) -> None:
        left = len(call.samples)
        while left:
            sample, event = await call.events.get()
            if sample.done:
                continue
            if isinstance(event, EngineError):
                raise event
            for message in self._messages(sample, event):
                await context.write(message)
            if event.finish_reason is not None:
                sample.done = True
                left -= 1

    def _messages(
        self, sample: Sample, step: Step
    ) -> Iterator[sglang_scheduler_pb2.GenerateResponse | bytes]:
        if step.raw is not None:
            if step.raw:
                yield step.raw
            return
        sample.completion_tokens += len(step.token_ids)
        last = step.finish_reason is not None
        ids = self.options.complete_ids if sample.request.stream else "all"
        if ids == "all":
            _keep(sample.kept, step)
        shows = bool(step.token_ids) or step.input_logprobs is not None
        if sample.request.stream and shows and not (last and ids == "only"):
            yield wire.encode_chunk(sample.request, step, sample.completion_tokens)
        if last:
            carried = sample.kept if ids == "all" else step
            if ids == "none":
                carried = replace(step, token_ids=[], logprobs=None)
            yield wire.encode_complete(sample.request, carried, sample.completion_tokens)

    async def _stop(self, call: Call) -> None:
        tasks = [sample.task for sample in call.samples if sample.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def Abort(
        self, request: sglang_scheduler_pb2.AbortRequest, context: Context
    ) -> sglang_scheduler_pb2.AbortResponse:
        """End all samples whose id begins with the given one."""
        found = self.registry.matching(request.request_id)
        for call, sample in found:
            call.outcome = Outcome.ABORTED
            if sample.task is not None:
                sample.task.cancel()
            call.events.put_nowait((sample, self._abort_event(request.reason)))
        verb = "aborted" if found else "not found"
        return sglang_scheduler_pb2.AbortResponse(
            success=bool(found), message=f"Request {request.request_id} {verb}"
        )

    def _abort_event(self, reason: str) -> Step | EngineError:
        message = f"Request aborted: {reason}" if reason else "Request aborted"
        if self.options.abort_as is not None:
            return EngineError(self.options.abort_as, message)
        return Step([], finish_reason="abort")

    async def Embed(
        self, request: sglang_scheduler_pb2.EmbedRequest, context: Context
    ) -> sglang_scheduler_pb2.EmbedResponse:
        """The prompt's vector."""
        async with engine_errors(context):
            ids = list(request.tokenized.input_ids)
            if not ids:
                raise invalid("tokenized input_ids are missing")
            vector = await self.engine.embed(request.request_id, ids)
        return sglang_scheduler_pb2.EmbedResponse(
            embedding=vector, embedding_dim=len(vector), prompt_tokens=len(ids)
        )

    # State

    async def HealthCheck(
        self, request: sglang_scheduler_pb2.HealthCheckRequest, context: Context
    ) -> sglang_scheduler_pb2.HealthCheckResponse:
        """The engine's own word; unhealthy while shutting down."""
        if self.draining.is_set():
            return sglang_scheduler_pb2.HealthCheckResponse(healthy=False, message="shutting down")
        async with engine_errors(context):
            healthy, message = await self.engine.health()
        return sglang_scheduler_pb2.HealthCheckResponse(healthy=healthy, message=message)

    async def GetModelInfo(
        self, request: sglang_scheduler_pb2.GetModelInfoRequest, context: Context
    ) -> sglang_scheduler_pb2.GetModelInfoResponse:
        """What is served."""
        return wire.encode_model_info(self.engine.model_info())

    async def GetServerInfo(
        self, request: sglang_scheduler_pb2.GetServerInfoRequest, context: Context
    ) -> sglang_scheduler_pb2.GetServerInfoResponse:
        """Start options; in scheduler_info the engine's figures and the register's counts and last calls."""
        loads = self.engine.loads()
        info = {
            "running": loads.running,
            "waiting": loads.waiting,
            **self.registry.report(),
            **self.engine.scheduler_info(),
        }
        response = sglang_scheduler_pb2.GetServerInfoResponse(
            server_args=_struct(self.engine.server_args()),
            scheduler_info=_struct(info),
            active_requests=len(self.registry),
            last_receive_timestamp=self._last_step,
            uptime_seconds=time.time() - self._started,
            sglang_version=self.options.version,
            server_type="grpc",
            max_total_num_tokens=loads.max_total_tokens,
        )
        response.start_time.FromMicroseconds(int(self._started * 1e6))
        return response

    async def GetLoads(
        self, request: sglang_scheduler_pb2.GetLoadsRequest, context: Context
    ) -> sglang_scheduler_pb2.GetLoadsResponse:
        """The one rank's load; nothing for another rank."""
        response = wire.encode_loads(self.engine.loads(), request.include)
        response.version = self.options.version
        if request.HasField("dp_rank") and request.dp_rank != 0:
            del response.loads[:]
        return response

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        """Forget the prefix cache, once idle within the time given."""
        async with engine_errors(context):
            if not await self.registry.wait_idle(request.timeout_s):
                message = f"not flushed: {len(self.registry)} requests are running"
                return common_pb2.FlushCacheResponse(success=False, message=message)
            done, message = await self.engine.flush_cache()
        return common_pb2.FlushCacheResponse(success=done, message=message)

    async def GetTokenizer(self, request: common_pb2.GetTokenizerRequest, context: Context) -> None:
        """The tokenizer's files as a zip in pieces."""
        async with engine_errors(context):
            path = self.engine.tokenizer_dir()
            if path is None:
                raise EngineError(grpc.StatusCode.NOT_FOUND, "this worker has no tokenizer files")
            if self._tokenizer is None:
                self._tokenizer = await asyncio.to_thread(zip_tokenizer, path)
            for chunk in zip_chunks(self._tokenizer):
                await context.write(chunk)

    async def SubscribeKvEvents(self, request: common_pb2.SubscribeKvEventsRequest, context: Context) -> None:
        """Batches of KV events with the load, and load records of their own while none come."""
        async with engine_errors(context):
            batches = _generator(self.engine.kv_events(request.start_sequence_number))
        # Sent at once, so that the client knows it will miss nothing from here on.
        await context.send_initial_metadata(())
        last = 0 if request.load_records_before_first_batch else None
        drained = asyncio.create_task(self.draining.wait())
        batch_task: asyncio.Task[Any] = asyncio.create_task(anext(batches))
        try:
            while not drained.done():
                await asyncio.wait(
                    {batch_task, drained}, timeout=self.options.heartbeat, return_when=asyncio.FIRST_COMPLETED
                )
                if batch_task.done():
                    message = wire.encode_kv_batch(batch_task.result())
                    last = message.sequence_number
                    batch_task = asyncio.create_task(anext(batches))
                elif last is None or drained.done():
                    continue
                else:
                    message = common_pb2.KvEventBatch(sequence_number=last, timestamp=time.time(), dp_rank=0)
                self._loads_sent += 1
                load_only = not message.events
                message.load.CopyFrom(
                    wire.encode_engine_load(self.engine.loads(), self._loads_sent, load_only)
                )
                await context.write(message)
        finally:
            drained.cancel()
            batch_task.cancel()
            await asyncio.gather(drained, batch_task, return_exceptions=True)
            await batches.aclose()

    # Profiles and adapters

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        """Tracing on, where the engine can."""
        async with engine_errors(context):
            folder = request.output_dir if request.HasField("output_dir") else None
            message = await self.engine.start_profile(folder)
        return common_pb2.ProfileResponse(success=True, message=message)

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        """Tracing off, where the engine can."""
        async with engine_errors(context):
            message = await self.engine.stop_profile()
        return common_pb2.ProfileResponse(success=True, message=message)

    async def LoadLoRAAdapter(
        self, request: sglang_scheduler_pb2.LoadLoRAAdapterRequest, context: Context
    ) -> sglang_scheduler_pb2.LoadLoRAAdapterResponse:
        """Load an adapter; what the engine refuses is an unsuccessful answer, not a status."""
        adapter = LoraAdapter(request.lora_id, request.lora_name, request.lora_path, request.pinned)
        outcome = await self._change_loras(self.engine.load_lora(adapter), context)
        return sglang_scheduler_pb2.LoadLoRAAdapterResponse(**outcome)

    async def UnloadLoRAAdapter(
        self, request: sglang_scheduler_pb2.UnloadLoRAAdapterRequest, context: Context
    ) -> sglang_scheduler_pb2.UnloadLoRAAdapterResponse:
        """Unload an adapter, answered like the load."""
        change = self.engine.unload_lora(request.lora_name, request.lora_id)
        outcome = await self._change_loras(change, context)
        return sglang_scheduler_pb2.UnloadLoRAAdapterResponse(**outcome)

    async def _change_loras(self, change: Coroutine[Any, Any, None], context: Context) -> dict[str, Any]:
        """What both answers say of a change."""
        async with engine_errors(context):
            message = await _refusal(change)
            loaded = [entry.lora_id for entry in await self.engine.list_loras()]
        return {"success": not message, "message": message, "loaded_lora_ids": loaded}

    async def ListLoadedLoRAAdapters(
        self, request: sglang_scheduler_pb2.ListLoadedLoRAAdaptersRequest, context: Context
    ) -> sglang_scheduler_pb2.ListLoadedLoRAAdaptersResponse:
        """All loaded adapters."""
        async with engine_errors(context):
            adapters = await self.engine.list_loras()
        response = sglang_scheduler_pb2.ListLoadedLoRAAdaptersResponse()
        for entry in adapters:
            response.loaded_adapters.add(
                lora_id=entry.lora_id,
                lora_name=entry.lora_name,
                lora_path=entry.lora_path,
                pinned=entry.pinned,
            )
        return response


async def _refusal(action: Any) -> str:
    """Await an adapter operation: empty, or why it was refused; UNIMPLEMENTED stays a status."""
    try:
        await action
    except EngineError as error:
        if error.code is grpc.StatusCode.UNIMPLEMENTED:
            raise
        return error.message
    return ""


def _keep(kept: Step, step: Step) -> None:
    """Add a step to what a sample has given so far."""
    kept.token_ids.extend(step.token_ids)
    if step.logprobs is not None:
        kept.logprobs = (kept.logprobs or []) + step.logprobs
    if step.input_logprobs is not None:
        kept.input_logprobs = step.input_logprobs
    kept.cached_tokens = step.cached_tokens
    kept.reasoning_tokens = step.reasoning_tokens
    kept.finish_reason = step.finish_reason
    kept.matched_token_id = step.matched_token_id
    kept.matched_stop = step.matched_stop


def _generator(steps: AsyncIterator[Any]) -> Any:
    """An engine's iterator as what can be closed; engines return async generators."""
    if not hasattr(steps, "aclose"):
        raise TypeError(f"{steps!r} is no async generator")
    return steps


def _struct(values: dict[str, Any]) -> Struct:
    message = Struct()
    message.update(values)
    return message
