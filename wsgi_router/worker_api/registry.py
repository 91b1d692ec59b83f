"""The requests a servicer holds, their counts, and the last ones for tests to look at."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from google.protobuf.json_format import MessageToDict

from wsgi_router.pb import sglang_scheduler_pb2
from wsgi_router.worker_api.engine import EngineError, GenerationRequest, Step, invalid


class Outcome(StrEnum):
    """How a Generate call ended."""

    LIVE = "live"
    FINISHED = "finished"
    ABORTED = "aborted"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True)
class Sample:
    """One of a call's samples: the task that draws its steps from the engine, and what it has sent."""

    request: GenerationRequest
    engine_id: str
    task: asyncio.Task[None] | None = None
    completion_tokens: int = 0
    kept: Step = field(default_factory=lambda: Step([]))
    done: bool = False


@dataclass(slots=True)
class Call:
    """One Generate RPC. Steps and errors of all its samples meet in ``events``."""

    request_id: str
    samples: list[Sample]
    message: sglang_scheduler_pb2.GenerateRequest
    events: asyncio.Queue[tuple[Sample, Step | EngineError]] = field(default_factory=asyncio.Queue)
    outcome: Outcome = Outcome.LIVE


class Registry:
    """Live calls by id, counts of how calls ended, and a bounded history."""

    def __init__(self, history: int) -> None:
        self._live: dict[str, Call] = {}
        self._history: deque[Call] = deque(maxlen=history)
        self._counts: Counter[Outcome] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()
        self.calls = 0

    def __len__(self) -> int:
        return len(self._live)

    def __repr__(self) -> str:
        return f"<Registry live={len(self._live)} calls={self.calls} {dict(self._counts)}>"

    def begin(self, message: sglang_scheduler_pb2.GenerateRequest, samples: list[Sample]) -> Call:
        """Register a call; EngineError(INVALID_ARGUMENT) if its id is live already."""
        if message.request_id in self._live:
            raise invalid(f"request id {message.request_id} is already running")
        call = Call(message.request_id, samples, message)
        self._live[call.request_id] = call
        self._history.append(call)
        self._idle.clear()
        return call

    def end(self, call: Call, outcome: Outcome) -> None:
        """Take the call out; an abort by RPC outranks how the stream went on to end."""
        if call.outcome is Outcome.LIVE:
            call.outcome = outcome
        self._counts[call.outcome] += 1
        del self._live[call.request_id]
        if not self._live:
            self._idle.set()

    def refuse(self) -> None:
        """Count a call that was refused before it began."""
        self._counts[Outcome.FAILED] += 1

    def matching(self, prefix: str) -> list[tuple[Call, Sample]]:
        """Unfinished samples whose engine id begins with ``prefix``; none for an empty one."""
        if not prefix:
            return []
        return [
            (call, sample)
            for call in self._live.values()
            for sample in call.samples
            if not sample.done and sample.engine_id.startswith(prefix)
        ]

    async def wait_idle(self, timeout: float) -> bool:
        """Wait until no call is live, at most ``timeout`` seconds; whether that came about."""
        if self._idle.is_set():
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def report(self) -> dict[str, Any]:
        """Counts, live ids, and the last calls: ids, how they ended, what was asked, tokens given."""
        counts = {str(outcome): self._counts[outcome] for outcome in Outcome if outcome is not Outcome.LIVE}
        return {
            **counts,
            "generate_calls": self.calls,
            "live_request_ids": list(self._live),
            "last_request_ids": [call.request_id for call in self._history],
            "last_requests": [
                {
                    "request_id": call.request_id,
                    "outcome": str(call.outcome),
                    "completion_tokens": sum(sample.completion_tokens for sample in call.samples),
                    "request": MessageToDict(call.message, preserving_proto_field_name=True),
                }
                for call in self._history
            ],
        }
