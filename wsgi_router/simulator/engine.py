"""The simulated engine: plans an answer, waits its turn, and gives it out on the timing model's clock."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, cycle, repeat
from pathlib import Path
from random import Random
from typing import Any

from wsgi_router.simulator.answers import Answerer, Plan
from wsgi_router.simulator.cache import BlockCache, KvEventLog, Lease
from wsgi_router.simulator.config import SimulatorConfig
from wsgi_router.simulator.rendezvous import PrefillRooms, collect
from wsgi_router.simulator.scheduler import Scheduler
from wsgi_router.simulator.script import Answer, Fault, Script, load_script
from wsgi_router.simulator.text import TextCodec
from wsgi_router.worker_api.engine import (
    Engine,
    EngineError,
    EngineLoads,
    GenerationRequest,
    KvBatch,
    LoraAdapter,
    ModelInfo,
    Step,
    invalid,
)

PLAIN = Answer()
EXIT_CODE = 70


class SimulatedEngine(Engine):
    """An engine without a model. ``script`` in place of the configured file serves tests in-process."""

    def __init__(self, config: SimulatorConfig, script: Script | None = None) -> None:
        self.config = config
        self._text = TextCodec(config.tokenizer)
        self._answers = Answerer(config, self._text)
        if script is None:
            path = config.script
            script = Script() if path is None else load_script(path, self._text.encode, config.eos)
        self._script = script
        self._events = KvEventLog()
        cache = BlockCache(
            config.kv_tokens, config.block_size, config.seed, self._events.publish, config.prefix_cache
        )
        self._scheduler = Scheduler(cache, config.max_running)
        self._rooms = PrefillRooms(config.bootstrap_timeout)
        self._loras = {adapter.lora_id: adapter for adapter in config.loras}
        self._number = 0
        self.healthy = not config.fail_health
        self.bootstrap_port = 0

    def __repr__(self) -> str:
        return f"<SimulatedEngine {self.config.model_name} {self._scheduler!r}>"

    async def start(self) -> None:
        """Take the configured time to start; a prefill worker listens for its decode peers."""
        await asyncio.sleep(self.config.start_delay)
        if self.config.role == "prefill":
            self.bootstrap_port = await self._rooms.listen(self.config.host, self.config.bootstrap_port)

    async def close(self) -> None:
        """Stop listening for peers."""
        await self._rooms.close()

    def model_info(self) -> ModelInfo:
        """What the options say."""
        path = str(self.config.tokenizer or self.config.model_name)
        return ModelInfo(
            model_path=path,
            tokenizer_path=path,
            served_model_name=self.config.model_name,
            max_context_length=self.config.context_length,
            vocab_size=self._answers.vocab_size,
            eos_token_ids=self.config.eos,
            weight_version=self.config.weight_version,
            model_type="simulated",
            architectures=("SimulatedForCausalLM",),
            default_sampling_params_json=self.config.default_sampling,
            is_generation=not self.config.embedding_dim,
        )

    def validate(self, request: GenerationRequest) -> None:
        """Refuse what the scheduler would: prompt size, ids, stop words, adapters, grammars, rooms."""
        config = self.config
        size = len(request.input_ids)
        longest = min(config.context_length, config.kv_tokens) - 1
        if size > longest:
            raise invalid(f"the prompt has {size} tokens, at most {longest} fit")
        if max(request.input_ids) >= self._answers.vocab_size:
            raise invalid(f"token ids must be below {self._answers.vocab_size}")
        if request.sampling.stop and not (config.accept_stop_strings and self._text):
            raise invalid("string stop sequences need a tokenizer, which this worker does not have")
        if request.lora_id and request.lora_id not in self._loras:
            raise invalid(f"no LoRA adapter has the id {request.lora_id}")
        if request.logprob_start_len < -1 or request.logprob_start_len > size:
            raise invalid(f"logprob_start_len {request.logprob_start_len} is outside the prompt")
        if request.data_parallel_rank not in (None, -1, 0):
            raise invalid(f"there is no data parallel rank {request.data_parallel_rank}")
        if config.role != "null" and request.disaggregated is None:
            raise invalid("a disaggregated worker needs disaggregated_params")
        _check_json(request.sampling.json_schema, "json_schema")
        _check_json(request.sampling.structural_tag, "structural_tag")

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Step]:
        """One sample: its turn, its prefill, its steps."""
        answer = self._answer(request)
        prompt = len(request.input_ids)
        room = min(self.config.context_length, self.config.kv_tokens) - prompt
        plan = self._answers.plan(request, answer, room)
        if self.config.role == "prefill":
            # The first token is all that prefill computes.
            plan = Plan(plan.token_ids[:1], "length")
        # A prompt's own log probabilities must be computed, so that part does not come from the cache.
        scored = request.return_logprob and request.logprob_start_len >= 0
        limit = request.logprob_start_len if scored else prompt
        tokens = min(prompt + len(plan.token_ids), self.config.kv_tokens)
        lease = await self._scheduler.admit(request.input_ids, tokens, limit)
        try:
            if self.config.role != "null" and answer.fault is not None and answer.fault.after_tokens == 0:
                # What goes wrong at once does so before the other half is met.
                step = await self._fail(answer.fault, 0)
                yield step
                if step.finish_reason is not None:
                    return
                answer = replace(answer, fault=None)
            await self._prefill(request, lease, limit)
            cached = lease.cached_tokens if answer.cached_tokens is None else answer.cached_tokens
            async for step in self._steps(request, answer, plan, cached):
                self._scheduler.count(len(step.token_ids))
                if step.finish_reason is not None:
                    self._scheduler.cache.store(lease, [*request.input_ids, *plan.token_ids])
                yield step
        finally:
            self._scheduler.release(lease)

    def _answer(self, request: GenerationRequest) -> Answer:
        # The samples of one call begin in one go, so that the number is theirs too.
        self._number += request.index == 0
        return self._script.answer(request, self._number, lambda: self._prompt(request)) or PLAIN

    def _prompt(self, request: GenerationRequest) -> str:
        return request.original_text or self._text.decode(request.input_ids)

    async def _prefill(self, request: GenerationRequest, lease: Lease, limit: int) -> None:
        meeting = request.disaggregated
        size = len(request.input_ids)
        if self.config.role == "decode" and meeting is not None:
            await collect(meeting, size, self.config.bootstrap_timeout)
        else:
            await self._compute(lambda: self._missing(request, lease, limit))
        self._scheduler.cache.store(lease, request.input_ids)
        if self.config.role == "prefill" and meeting is not None:
            await self._rooms.hand_over(meeting.room, size)

    async def _compute(self, tokens: Callable[[], int]) -> None:
        """Take the time a prompt takes; how many `tokens` are computed is asked once its turn has come."""
        if each := self.config.prefill_per_token:
            await self._scheduler.prefill(lambda: each * tokens())

    def _missing(self, request: GenerationRequest, lease: Lease, limit: int) -> int:
        # Engines match a prompt when they take it up: one before it in the line may have begun alike.
        self._scheduler.cache.extend(lease, request.input_ids, limit)
        return len(request.input_ids) - lease.cached_tokens

    async def _steps(
        self, request: GenerationRequest, answer: Answer, plan: Plan, cached: int
    ) -> AsyncIterator[Step]:
        """The plan in chunks, each at its time, with the fault at its place."""
        fault = answer.fault
        sizes = _sizes(answer.chunks or (request.sampling.stream_interval or self.config.tokens_per_chunk,))
        ids = plan.token_ids
        if fault is not None and fault.after_tokens > len(ids):
            fault = None
        sent = 0
        due = time.monotonic()
        delays = self._delays(answer)
        # Who goes on from another one's work knows nothing of the prompt.
        inputs = None if self.config.role == "decode" else self._answers.input_logprobs(request)
        while True:
            if fault is not None and sent == fault.after_tokens:
                step = await self._fail(fault, cached)
                yield step
                if step.finish_reason is not None:
                    return
                fault = None
            if sent == len(ids) and sent > 0:
                # Only a fault after the last id leaves the finish to a step of its own.
                yield self._finish(Step([], cached_tokens=cached), answer, plan)
                return
            end = min(sent + next(sizes), len(ids))
            if fault is not None:
                end = min(end, fault.after_tokens)
            due += next(delays)(end - sent)
            await _sleep_until(due)
            part = list(ids[sent:end])
            step = Step(part, cached_tokens=cached, input_logprobs=inputs)
            if request.return_logprob:
                step.logprobs = self._answers.logprobs(request, part, len(request.input_ids) + sent)
            step.reasoning_tokens = min(answer.reasoning_tokens, end)
            inputs = None
            sent = end
            if sent == len(ids) and fault is None:
                yield self._finish(step, answer, plan)
                return
            yield step

    def _finish(self, step: Step, answer: Answer, plan: Plan) -> Step:
        step.finish_reason = plan.finish_reason
        step.matched_token_id = plan.matched_token_id
        step.matched_stop = plan.matched_stop
        step.reasoning_tokens = min(answer.reasoning_tokens, len(plan.token_ids))
        return step

    def _delays(self, answer: Answer) -> Iterator[Any]:
        """For each step a function of its size to the seconds before it."""
        if answer.delays:
            scripted = chain(answer.delays, repeat(answer.delays[-1]))
            return (_constant(delay) for delay in scripted)
        ttft = self.config.ttft if answer.ttft is None else answer.ttft
        itl = self.config.itl if answer.itl is None else answer.itl
        return chain([lambda size: ttft + itl * max(size - 1, 0)], repeat(lambda size: itl * size))

    async def _fail(self, fault: Fault, cached: int) -> Step:
        """Make the fault happen: raise, never return, or give the step that goes out in its place."""
        if fault.kind == "error":
            raise EngineError(fault.status, fault.message)
        if fault.kind == "hang":
            await asyncio.Event().wait()
        if fault.kind == "exit":
            os._exit(EXIT_CODE)
        if fault.kind == "garbage":
            return Step([], raw=fault.data)
        if fault.kind == "no_complete":
            return Step([], finish_reason="stop", raw=b"")
        return Step([], cached_tokens=cached, finish_reason="abort")

    def loads(self) -> EngineLoads:
        """The scheduler's figures."""
        scheduler = self._scheduler
        return EngineLoads(
            running=scheduler.running,
            waiting=scheduler.waiting,
            used_tokens=scheduler.cache.used,
            max_total_tokens=scheduler.cache.capacity,
            max_running=scheduler.max_running,
            gen_throughput=scheduler.throughput,
            cache_hit_rate=scheduler.cache.hit_rate,
            waiting_uncached_tokens=scheduler.waiting_uncached,
            disaggregation_mode=self.config.role,
            lora_slots_used=len(self._loras),
            lora_slots_total=len(self._loras),
        )

    async def flush_cache(self) -> tuple[bool, str]:
        """Forget all blocks."""
        if self._scheduler.running:
            return False, f"not flushed: {self._scheduler.running} requests are running"
        self._scheduler.cache.clear()
        return True, "Cache flushed successfully"

    async def health(self) -> tuple[bool, str]:
        """As told by --fail-health and SIGUSR1, after the configured time."""
        await asyncio.sleep(self.config.health_delay)
        return (True, "Health check passed") if self.healthy else (False, "Health check failed on purpose")

    def tokenizer_dir(self) -> Path | None:
        """What --tokenizer names."""
        return self.config.tokenizer

    def server_args(self) -> dict[str, Any]:
        """The options."""
        return self.config.shown

    def scheduler_info(self) -> dict[str, Any]:
        """What SGLang's scheduler tells at its start, where prefill is met, and the cache's counts."""
        return {
            "max_total_num_tokens": self.config.kv_tokens,
            "max_req_input_len": self.config.context_length - 1,
            "bootstrap_port": self.bootstrap_port,
            "prompt_tokens": self._scheduler.cache.asked,
            "cached_tokens": self._scheduler.cache.hits,
        }

    async def embed(self, request_id: str, input_ids: list[int]) -> list[float]:
        """A steady unit vector of the ids."""
        if not self.config.embedding_dim:
            return await super().embed(request_id, input_ids)
        rng = Random(blake2b(repr((self.config.seed, input_ids)).encode()).digest())
        await self._compute(lambda: len(input_ids))
        vector = [rng.gauss(0, 1) for _ in range(self.config.embedding_dim)]
        length = math.sqrt(sum(value * value for value in vector))
        return [value / length for value in vector]

    def kv_events(self, start_sequence: int) -> AsyncIterator[KvBatch]:
        """Blocks stored and removed."""
        if not self.config.kv_events:
            return super().kv_events(start_sequence)
        return self._events.subscribe(start_sequence)

    async def load_lora(self, adapter: LoraAdapter) -> None:
        """Note an adapter by its id and name, both unique."""
        taken = [a for a in self._loras.values() if adapter.lora_name == a.lora_name]
        if not adapter.lora_id or not adapter.lora_name or adapter.lora_id in self._loras or taken:
            raise invalid(f"an adapter needs an id and a name of its own, got {adapter}")
        self._loras[adapter.lora_id] = adapter

    async def unload_lora(self, lora_name: str, lora_id: str) -> None:
        """Forget an adapter."""
        found = next((a for a in self._loras.values() if a.lora_name == lora_name), None)
        if found is None or lora_id not in ("", found.lora_id):
            raise invalid(f"no adapter has the name {lora_name} and the id {lora_id}")
        del self._loras[found.lora_id]

    async def list_loras(self) -> list[LoraAdapter]:
        """All adapters."""
        return list(self._loras.values())


def _check_json(text: str | None, name: str) -> None:
    if text is not None:
        try:
            json.loads(text)
        except ValueError as error:
            raise invalid(f"{name} is no JSON: {error}") from None


def _sizes(sizes: tuple[int, ...]) -> Iterator[int]:
    return cycle(sizes)


def _constant(delay: float) -> Any:
    return lambda size: delay


async def _sleep_until(moment: float) -> None:
    # Also at no distance: a thousand streams without delays must take turns.
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
