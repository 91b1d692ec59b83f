"""The decode loop: one thread, a fixed number of slots, every step decodes all busy slots together.

A slot is one sequence of the context. A step feeds each busy slot either its last sampled token or the
next part of its prompt; what ends in a wanted row of logits is sampled. Between requests a slot keeps its
tokens, so that a prompt with the same beginning is not computed again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from wsgi_router.local_worker.grammar import GrammarError
from wsgi_router.local_worker.llama import BATCH, Llama
from wsgi_router.local_worker.logprobs import token_logprob
from wsgi_router.local_worker.matcher import Matcher
from wsgi_router.local_worker.sampling import Plan
from wsgi_router.worker_api.engine import (
    EngineError,
    EngineLoads,
    GenerationRequest,
    Step,
    TokenLogprob,
    invalid,
)

# Prompt tokens a step while others are generating: more would hold up their next token.
_PROMPT_PART = 32
# A prompt row of logits is a list of the vocabulary's size.
_LOGPROB_PART = 16
_RATE_WINDOW = 2.0


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way. ``deliver`` is called on the loop's thread; an error or a last Step ends it."""

    request: GenerationRequest
    plan: Plan
    deliver: Callable[[Step | EngineError], None]
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class Slot:
    """``tokens`` is the prompt and all that was generated, the first ``fed`` of them are in the context."""

    sequence: int
    tokens: list[int] = field(default_factory=list)
    fed: int = 0
    last_used: float = 0.0
    job: Job | None = None
    sampler: Any = None
    matcher: Matcher | None = None
    cached: int = 0
    generated: list[int] = field(default_factory=list)
    pending: Step | None = None
    prompt_rows: list[TokenLogprob] = field(default_factory=list)

    def begin(self, job: Job, reused: int) -> None:
        """Take a job whose first ``reused`` prompt tokens are in the context already."""
        self.job, self.cached, self.fed = job, reused, reused
        self.tokens = list(job.request.input_ids)
        self.generated, self.pending, self.prompt_rows, self.sampler = [], None, [], None
        self.matcher = None if job.plan.constraint is None else Matcher(job.plan.constraint.rules)

    def free(self) -> None:
        """Let the job go; what has been fed stays for the next prompt."""
        self.job = self.sampler = self.matcher = self.pending = None
        del self.tokens[self.fed :]
        self.last_used = time.monotonic()


@dataclass(slots=True)
class Row:
    """A wanted row of logits: entry ``index`` of the batch, after position ``at`` of the slot."""

    slot: Slot
    index: int
    at: int


class SlotLoop:
    """Owns a ``Llama`` from ``run`` on. All other methods may be called from any thread."""

    def __init__(self, llama: Llama, max_waiting: int) -> None:
        self._llama = llama
        self._slots = [Slot(sequence) for sequence in range(llama.slots)]
        self._max_waiting = max_waiting
        self._waiting: deque[Job] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._rates: deque[tuple[float, int]] = deque()
        self._prompt_tokens = self._cached_tokens = 0
        self.fault = ""

    def __repr__(self) -> str:
        busy = sum(slot.job is not None for slot in self._slots)
        return f"<SlotLoop {busy}/{len(self._slots)} busy, {len(self._waiting)} waiting>"

    def submit(self, job: Job) -> None:
        """Queue a job. EngineError(RESOURCE_EXHAUSTED) if too many wait."""
        with self._changed:
            if self._closing:
                raise EngineError(grpc.StatusCode.UNAVAILABLE, "the worker is closing")
            if len(self._waiting) >= self._max_waiting:
                raise EngineError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._max_waiting} requests wait already"
                )
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Drop a job: its slot is free before the next step."""
        with self._changed:
            job.cancelled = True
            self._changed.notify()

    def flush(self, answer: Callable[[bool], None]) -> None:
        """Forget what free slots keep. ``answer``, on the loop's thread, gets False if a request runs."""
        with self._changed:
            self._calls.append(lambda: answer(self._flush()))
            self._changed.notify()

    def close(self) -> None:
        """End the loop; what is running is told."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def loads(self) -> EngineLoads:
        """The loop's state; read without stopping it."""
        busy = [slot for slot in self._slots if slot.job is not None]
        with self._changed:
            waiting = list(self._waiting)
        limit = time.monotonic() - _RATE_WINDOW
        rate = sum(count for when, count in list(self._rates) if when >= limit) / _RATE_WINDOW
        return EngineLoads(
            running=len(busy),
            waiting=len(waiting),
            used_tokens=sum(slot.fed for slot in busy),
            max_total_tokens=self._llama.context_length * len(self._slots),
            max_running=len(self._slots),
            gen_throughput=rate,
            cache_hit_rate=self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0,
            waiting_uncached_tokens=sum(len(job.request.input_ids) for job in waiting),
            weight_gb=self._llama.weight_bytes / 1e9,
            kv_cache_gb=self._llama.kv_bytes / 1e9,
        )

    def run(self) -> None:
        """Decode until closed."""
        while self._wait_for_work():
            self._drop_cancelled()
            self._admit()
            entries, rows = self._batch()
            if entries:
                self._step(entries, rows)
        self._fail_all(EngineError(grpc.StatusCode.UNAVAILABLE, "the worker is closing"))

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (
                self._closing or self._calls or self._waiting or any(slot.job for slot in self._slots)
            ):
                self._changed.wait()
            calls = list(self._calls)
            self._calls.clear()
        for call in calls:
            call()
        return not self._closing

    def _flush(self) -> bool:
        if self._waiting or any(slot.job for slot in self._slots):
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        self._llama.clear()
        for slot in self._slots:
            slot.tokens, slot.fed = [], 0

    def _drop_cancelled(self) -> None:
        for slot in self._slots:
            if slot.job is not None and slot.job.cancelled:
                slot.free()
        with self._changed:
            for job in [job for job in self._waiting if job.cancelled]:
                self._waiting.remove(job)

    def _admit(self) -> None:
        while free := [slot for slot in self._slots if slot.job is None]:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
            slot = max(free, key=lambda slot: (_reusable(slot, job.request), -slot.last_used))
            reused = _reusable(slot, job.request)
            if not self._llama.keep(slot.sequence, reused):
                self._llama.keep(slot.sequence, 0)
                reused = 0
            slot.begin(job, reused)
            self._prompt_tokens += len(job.request.input_ids)
            self._cached_tokens += reused

    def _batch(self) -> tuple[list[tuple[int, int, int, bool]], list[Row]]:
        busy = [slot for slot in self._slots if slot.job is not None]
        # Those that generate go first, so that a long prompt never crowds them out.
        busy.sort(key=lambda slot: len(slot.tokens) - slot.fed)
        generating = any(slot.generated for slot in busy)
        room = min(BATCH, len(busy) + _PROMPT_PART) if generating else BATCH
        entries: list[tuple[int, int, int, bool]] = []
        rows: list[Row] = []
        for slot in busy:
            part = min(len(slot.tokens) - slot.fed, room - len(entries))
            if _wants_row(slot, slot.fed):
                part = min(part, _LOGPROB_PART)
            for at in range(slot.fed, slot.fed + part):
                wanted = at == len(slot.tokens) - 1 or _wants_row(slot, at)
                if wanted:
                    rows.append(Row(slot, len(entries), at))
                entries.append((slot.tokens[at], at, slot.sequence, wanted))
        return entries, rows

    def _step(self, entries: list[tuple[int, int, int, bool]], rows: list[Row]) -> None:
        try:
            self._llama.decode(entries)
            for _token, at, sequence, _wanted in entries:
                self._slots[sequence].fed = at + 1
            for row in rows:
                self._read(row)
            self.fault = ""
        except Exception as error:  # whatever the binding raises ends these requests, not the worker
            self.fault = f"decoding failed: {error}"
            self._fail_all(EngineError(grpc.StatusCode.INTERNAL, self.fault))
            self._forget()

    def _read(self, row: Row) -> None:
        slot = row.slot
        job = slot.job
        assert job is not None
        if row.at < len(job.request.input_ids) - 1:
            slot.prompt_rows.append(
                token_logprob(self._llama.logits(row.index), slot.tokens[row.at + 1], job.request)
            )
            return
        if job.plan.limit == 0:
            self._emit(slot, job, [], None, "length")
            return
        if slot.sampler is None or len(slot.generated) == job.plan.minimum > 0:
            slot.sampler = job.plan.sampler(self._llama, slot.generated)
        token = self._llama.sample(slot.sampler, row.index)
        entry = None
        if job.request.return_logprob:
            entry = token_logprob(self._llama.logits(row.index), token, job.request)
        slot.tokens.append(token)
        slot.generated.append(token)
        stopped = token in job.plan.stops
        reason = "stop" if stopped else "length" if len(slot.generated) >= job.plan.limit else None
        self._emit(slot, job, [token], entry, reason)
        if reason is None and slot.matcher is not None:
            self._follow(slot, job, slot.matcher, token)

    def _follow(self, slot: Slot, job: Job, matcher: Matcher, token: int) -> None:
        try:
            matcher.feed(self._llama.token_bytes(token))
        except GrammarError as error:
            assert job.plan.constraint is not None
            slot.free()
            job.deliver(invalid(f"{job.plan.constraint.field}: {error}"))

    def _emit(
        self, slot: Slot, job: Job, tokens: list[int], entry: TokenLogprob | None, reason: str | None
    ) -> None:
        self._count(len(tokens))
        step = slot.pending or Step([], [] if job.request.return_logprob else None, slot.cached)
        step.token_ids.extend(tokens)
        if entry is not None and step.logprobs is not None:
            step.logprobs.append(entry)
        if job.request.return_logprob and job.request.logprob_start_len >= 0 and len(slot.generated) <= 1:
            step.input_logprobs = _prompt_logprobs(slot, job.request)
        step.finish_reason = reason
        if reason == "stop":
            step.matched_token_id = tokens[-1]
        if reason is None and len(step.token_ids) < (job.plan.sampling.stream_interval or 1):
            slot.pending = step
            return
        slot.pending = None
        if reason is not None:
            slot.free()
        job.deliver(step)

    def _count(self, tokens: int) -> None:
        now = time.monotonic()
        self._rates.append((now, tokens))
        while self._rates[0][0] < now - _RATE_WINDOW:
            self._rates.popleft()

    def _fail_all(self, error: EngineError) -> None:
        with self._changed:
            jobs = list(self._waiting) if self._closing else []
            if self._closing:
                self._waiting.clear()
        for slot in self._slots:
            if slot.job is not None:
                jobs.append(slot.job)
                slot.free()
        for job in jobs:
            job.deliver(error)


def _wants_row(slot: Slot, at: int) -> bool:
    """Whether prompt position ``at`` predicts a prompt token whose log probability is asked for."""
    assert slot.job is not None
    request = slot.job.request
    start = request.logprob_start_len
    return request.return_logprob and start >= 0 and start <= at + 1 < len(request.input_ids)


def _prompt_logprobs(slot: Slot, request: GenerationRequest) -> list[TokenLogprob]:
    first = [TokenLogprob(request.input_ids[0], None)] if request.logprob_start_len == 0 else []
    return first + slot.prompt_rows


def _reusable(slot: Slot, request: GenerationRequest) -> int:
    """How many tokens of the prompt the slot holds. The last one is always fed: its logits are needed."""
    limit = len(request.input_ids) - 1
    if request.return_logprob and request.logprob_start_len >= 0:
        limit = min(limit, max(request.logprob_start_len - 1, 0))
    same = 0
    for held, wanted in zip(slot.tokens[: slot.fed], request.input_ids[:limit], strict=False):
        if held != wanted:
            break
        same += 1
    return same
