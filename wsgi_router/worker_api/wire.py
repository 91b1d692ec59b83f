"""Between the wire's messages and the engine's dataclasses: one function a message, no state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime

from google.protobuf.json_format import MessageToDict

from wsgi_router.pb import common_pb2, sglang_scheduler_pb2
from wsgi_router.worker_api.engine import (
    Disaggregated,
    EngineLoads,
    GenerationRequest,
    KvBatch,
    KvRemoved,
    KvStored,
    ModelInfo,
    Sampling,
    Step,
    TokenLogprob,
    invalid,
)

BLOCK_TIER = common_pb2.KV_CACHE_TIER_DEVICE


def decode_sampling(message: sglang_scheduler_pb2.SamplingParams) -> Sampling:
    """The sampling parameters as sent. Raises EngineError where a key of logit_bias is no token id."""
    constraint = message.WhichOneof("constraint")
    return Sampling(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        repetition_penalty=message.repetition_penalty,
        max_new_tokens=message.max_new_tokens if message.HasField("max_new_tokens") else None,
        stop=tuple(message.stop),
        stop_token_ids=frozenset(message.stop_token_ids),
        skip_special_tokens=message.skip_special_tokens,
        spaces_between_special_tokens=message.spaces_between_special_tokens,
        regex=message.regex if constraint == "regex" else None,
        json_schema=message.json_schema if constraint == "json_schema" else None,
        ebnf_grammar=message.ebnf_grammar if constraint == "ebnf_grammar" else None,
        structural_tag=message.structural_tag if constraint == "structural_tag" else None,
        n=message.n,
        min_new_tokens=message.min_new_tokens,
        ignore_eos=message.ignore_eos,
        no_stop_trim=message.no_stop_trim,
        stream_interval=message.stream_interval if message.HasField("stream_interval") else None,
        logit_bias=decode_logit_bias(message),
        custom_params=MessageToDict(message.custom_params) if message.HasField("custom_params") else {},
    )


def decode_logit_bias(message: sglang_scheduler_pb2.SamplingParams) -> dict[int, float]:
    """Biases by token id; the wire has the ids as text."""
    try:
        return {int(token): value for token, value in message.logit_bias.items()}
    except ValueError:
        raise invalid("logit_bias keys must be token ids") from None


def decode_generate(message: sglang_scheduler_pb2.GenerateRequest) -> GenerationRequest:
    """The request as sent, as sample 0. Raises EngineError for what no engine here can take."""
    if not message.request_id:
        raise invalid("request_id is empty")
    if not message.HasField("tokenized") or not message.tokenized.input_ids:
        raise invalid("tokenized input_ids are missing")
    if message.HasField("mm_inputs") or message.input_embeds:
        raise invalid("only token ids are taken, no multimodal inputs or embeddings")
    meeting = None
    if message.HasField("disaggregated_params"):
        params = message.disaggregated_params
        meeting = Disaggregated(params.bootstrap_host, params.bootstrap_port, params.bootstrap_room)
    return GenerationRequest(
        request_id=message.request_id,
        input_ids=list(message.tokenized.input_ids),
        sampling=decode_sampling(message.sampling_params),
        stream=message.stream,
        return_logprob=message.return_logprob,
        logprob_start_len=message.logprob_start_len,
        top_logprobs_num=message.top_logprobs_num,
        token_ids_logprob=tuple(message.token_ids_logprob),
        disaggregated=meeting,
        lora_id=message.lora_id,
        data_parallel_rank=message.data_parallel_rank if message.HasField("data_parallel_rank") else None,
        require_reasoning=message.require_reasoning,
        original_text=message.tokenized.original_text,
    )


def check_sampling(sampling: Sampling) -> None:
    """Refuse values outside their ranges, as SGLang's scheduler does: EngineError(INVALID_ARGUMENT).

    A proto zero that means nothing (top_p, top_k, repetition_penalty, n) is refused too, so that a client
    that forgets to send a neutral value is noticed.
    """
    s = sampling
    most = s.max_new_tokens
    rules = (
        (s.temperature >= 0, f"temperature must be at least 0, got {s.temperature}"),
        (0 < s.top_p <= 1, f"top_p must be in (0, 1], got {s.top_p}"),
        (s.top_k == -1 or s.top_k >= 1, f"top_k must be -1 or at least 1, got {s.top_k}"),
        (0 <= s.min_p <= 1, f"min_p must be in [0, 1], got {s.min_p}"),
        (-2 <= s.frequency_penalty <= 2, f"frequency_penalty must be in [-2, 2], got {s.frequency_penalty}"),
        (-2 <= s.presence_penalty <= 2, f"presence_penalty must be in [-2, 2], got {s.presence_penalty}"),
        (0 < s.repetition_penalty <= 2, f"repetition_penalty must be in (0, 2], got {s.repetition_penalty}"),
        (s.n >= 1, f"n must be at least 1, got {s.n}"),
        (most is None or s.min_new_tokens <= most, f"min_new_tokens {s.min_new_tokens} exceeds {most}"),
        (s.stream_interval is None or s.stream_interval >= 1, "stream_interval must be at least 1"),
    )
    for holds, message in rules:
        if not holds:
            raise invalid(message)


def output_logprobs(entries: Sequence[TokenLogprob]) -> sglang_scheduler_pb2.OutputLogProbs:
    """Log probabilities of generated tokens, in order."""
    message = sglang_scheduler_pb2.OutputLogProbs(
        token_logprobs=[entry.logprob or 0.0 for entry in entries],
        token_ids=[entry.token_id for entry in entries],
    )
    if any(entry.top for entry in entries):
        message.top_logprobs.extend(_row(entry.top) for entry in entries)
    if any(entry.wanted for entry in entries):
        message.token_ids_logprobs.extend(_row(entry.wanted) for entry in entries)
    return message


def input_logprobs(entries: Sequence[TokenLogprob]) -> sglang_scheduler_pb2.InputLogProbs:
    """Log probabilities of prompt tokens; the first one may have none."""
    message = sglang_scheduler_pb2.InputLogProbs(token_ids=[entry.token_id for entry in entries])
    for entry in entries:
        message.token_logprobs.add(value=entry.logprob)
    if any(entry.top for entry in entries):
        message.top_logprobs.extend(_row(entry.top) for entry in entries)
    return message


def _row(pairs: Iterable[tuple[int, float]]) -> sglang_scheduler_pb2.TopLogProbs:
    pairs = list(pairs)
    return sglang_scheduler_pb2.TopLogProbs(
        values=[value for _, value in pairs], token_ids=[token for token, _ in pairs]
    )


def encode_chunk(
    request: GenerationRequest, step: Step, completion_tokens: int
) -> sglang_scheduler_pb2.GenerateResponse:
    """A streamed step: its new ids, the counts so far."""
    chunk = sglang_scheduler_pb2.GenerateStreamChunk(
        token_ids=step.token_ids,
        prompt_tokens=len(request.input_ids),
        completion_tokens=completion_tokens,
        cached_tokens=step.cached_tokens,
        reasoning_tokens=step.reasoning_tokens,
        index=request.index,
    )
    if step.logprobs is not None:
        chunk.output_logprobs.CopyFrom(output_logprobs(step.logprobs))
    if step.input_logprobs is not None:
        chunk.input_logprobs.CopyFrom(input_logprobs(step.input_logprobs))
    return sglang_scheduler_pb2.GenerateResponse(request_id=request.request_id, chunk=chunk)


def encode_complete(
    request: GenerationRequest, last: Step, completion_tokens: int
) -> sglang_scheduler_pb2.GenerateResponse:
    """A sample's end. ``last`` holds the ids and logprobs that the message shall carry."""
    complete = sglang_scheduler_pb2.GenerateComplete(
        output_ids=last.token_ids,
        finish_reason=last.finish_reason,
        prompt_tokens=len(request.input_ids),
        completion_tokens=completion_tokens,
        cached_tokens=last.cached_tokens,
        reasoning_tokens=last.reasoning_tokens,
        index=request.index,
    )
    if last.matched_token_id is not None:
        complete.matched_token_id = last.matched_token_id
    elif last.matched_stop is not None:
        complete.matched_stop_str = last.matched_stop
    if last.logprobs is not None:
        complete.output_logprobs.CopyFrom(output_logprobs(last.logprobs))
    if last.input_logprobs is not None:
        complete.input_logprobs.CopyFrom(input_logprobs(last.input_logprobs))
    return sglang_scheduler_pb2.GenerateResponse(request_id=request.request_id, complete=complete)


def encode_model_info(info: ModelInfo) -> sglang_scheduler_pb2.GetModelInfoResponse:
    """What is served; the longest prompt defaults to the context less one token of answer."""
    return sglang_scheduler_pb2.GetModelInfoResponse(
        model_path=info.model_path,
        tokenizer_path=info.tokenizer_path or info.model_path,
        is_generation=info.is_generation,
        preferred_sampling_params=info.preferred_sampling_params,
        weight_version=info.weight_version,
        served_model_name=info.served_model_name,
        max_context_length=info.max_context_length,
        vocab_size=info.vocab_size,
        supports_vision=info.supports_vision,
        model_type=info.model_type,
        eos_token_ids=info.eos_token_ids,
        pad_token_id=info.pad_token_id,
        bos_token_id=info.bos_token_id,
        max_req_input_len=info.max_req_input_len or info.max_context_length - 1,
        architectures=info.architectures,
        id2label_json=info.id2label_json,
        num_labels=info.num_labels,
        default_sampling_params_json=info.default_sampling_params_json,
    )


def _rank_load(loads: EngineLoads, sections: Collection[str]) -> sglang_scheduler_pb2.SchedulerLoad:
    load = sglang_scheduler_pb2.SchedulerLoad(
        num_running_reqs=loads.running,
        num_waiting_reqs=loads.waiting,
        num_total_reqs=loads.running + loads.waiting,
        num_used_tokens=loads.used_tokens,
        max_total_num_tokens=loads.max_total_tokens,
        token_usage=loads.token_usage,
        gen_throughput=loads.gen_throughput,
        cache_hit_rate=loads.cache_hit_rate,
        utilization=loads.utilization,
        max_running_requests=loads.max_running,
        num_waiting_uncached_tokens=loads.waiting_uncached_tokens,
    )
    if "memory" in sections:
        load.memory.weight_gb = loads.weight_gb
        load.memory.kv_cache_gb = loads.kv_cache_gb
        load.memory.token_capacity = loads.max_total_tokens
    if "lora" in sections and loads.lora_slots_total:
        load.lora.slots_used = loads.lora_slots_used
        load.lora.slots_total = loads.lora_slots_total
        load.lora.utilization = loads.lora_slots_used / loads.lora_slots_total
    if "disagg" in sections:
        load.disaggregation.mode = loads.disaggregation_mode
    if "queues" in sections:
        load.queues.waiting = loads.waiting
    return load


def encode_loads(loads: EngineLoads, include: Iterable[str]) -> sglang_scheduler_pb2.GetLoadsResponse:
    """The one rank's load with the sections asked for, and the aggregate over it."""
    wanted = set(include)
    sections = {"memory", "lora", "disagg", "queues"} if "all" in wanted else wanted
    return sglang_scheduler_pb2.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        dp_rank_count=1,
        loads=[_rank_load(loads, sections)],
        aggregate=sglang_scheduler_pb2.AggregateMetrics(
            total_running_reqs=loads.running,
            total_waiting_reqs=loads.waiting,
            total_reqs=loads.running + loads.waiting,
            avg_token_usage=loads.token_usage,
            avg_throughput=loads.gen_throughput,
            avg_utilization=loads.utilization,
        ),
    )


def encode_engine_load(loads: EngineLoads, sample: int, load_only: bool) -> common_pb2.EngineLoad:
    """The load as it rides on the KV event stream."""
    return common_pb2.EngineLoad(
        running_requests=loads.running,
        waiting_requests=loads.waiting,
        waiting_uncached_tokens=loads.waiting_uncached_tokens,
        token_usage=loads.token_usage,
        gen_throughput=loads.gen_throughput,
        max_running_requests=loads.max_running,
        sample=sample,
        load_only=load_only,
        cache_hit_rate=loads.cache_hit_rate if load_only else None,
        num_used_tokens=loads.used_tokens if load_only else None,
        max_total_num_tokens=loads.max_total_tokens if load_only else None,
    )


def encode_kv_batch(batch: KvBatch) -> common_pb2.KvEventBatch:
    """One batch of KV events, numbered within the batch from its sequence on."""
    message = common_pb2.KvEventBatch(sequence_number=batch.sequence, timestamp=batch.timestamp, dp_rank=0)
    for number, event in enumerate(batch.events):
        entry = message.events.add(event_id=(batch.sequence << 16) + number)
        if isinstance(event, KvStored):
            entry.stored.tier = BLOCK_TIER
            if event.parent is not None:
                entry.stored.parent_block_hash = event.parent
            for block in event.blocks:
                entry.stored.blocks.add(
                    block_hash=block.block_hash, token_ids=block.token_ids, block_size=len(block.token_ids)
                )
        elif isinstance(event, KvRemoved):
            entry.removed.block_hashes.extend(event.block_hashes)
            entry.removed.tier = BLOCK_TIER
        else:
            entry.cleared.SetInParent()
    return message
