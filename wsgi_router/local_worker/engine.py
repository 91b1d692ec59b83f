"""The embedded model as an ``Engine``: the event loop passes messages, a thread of its own decodes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from wsgi_router.local_worker.fetch import find_gguf, tokenizer_folder
from wsgi_router.local_worker.llama import Llama
from wsgi_router.local_worker.sampling import plan
from wsgi_router.local_worker.slots import Job, SlotLoop
from wsgi_router.worker_api.engine import Engine, EngineError, EngineLoads, GenerationRequest, ModelInfo, Step


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """``model`` is a folder made by ``fetch``; lengths are tokens for each slot."""

    model: Path
    slots: int = 4
    context_length: int = 4096
    threads: int = 1
    served_model_name: str = ""
    max_waiting: int = 1024


class LocalEngine(Engine):
    """SmolLM2 (or another byte-level BPE model of llama.cpp's) in this process."""

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self._gguf = find_gguf(options.model)
        self._llama: Llama | None = None
        self._loop: SlotLoop | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<LocalEngine {self._gguf.name} {self._loop!r}>"

    async def start(self) -> None:
        """Load the model; it takes under a second. ModelError if it cannot be."""
        options = self._options
        self._llama = await asyncio.to_thread(
            Llama, self._gguf, options.context_length, options.slots, options.threads
        )
        self._loop = SlotLoop(self._llama, options.max_waiting)
        self._thread = threading.Thread(target=self._loop.run, name="decode", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End the thread, free the model."""
        if self._loop is not None and self._thread is not None and self._llama is not None:
            self._loop.close()
            await asyncio.to_thread(self._thread.join)
            self._llama.close()
        self._loop = self._thread = self._llama = None

    def _ready(self) -> tuple[Llama, SlotLoop]:
        if self._llama is None or self._loop is None:
            raise EngineError(grpc.StatusCode.UNAVAILABLE, "the model is not loaded")
        return self._llama, self._loop

    def model_info(self) -> ModelInfo:
        """Read from the model file."""
        llama, _ = self._ready()
        architecture = llama.meta("general.architecture")
        return ModelInfo(
            model_path=str(self._options.model),
            served_model_name=self._options.served_model_name
            or self._gguf.stem.rpartition(".")[0]
            or self._gguf.stem,
            max_context_length=llama.context_length,
            vocab_size=llama.vocab_size,
            eos_token_ids=llama.eos_ids,
            tokenizer_path=str(tokenizer_folder(self._options.model)),
            model_type=architecture,
            architectures=(f"{architecture.capitalize()}ForCausalLM",),
            pad_token_id=llama.vocab.token_pad(),
            bos_token_id=llama.vocab.token_bos(),
            max_req_input_len=llama.context_length - 1,
        )

    def validate(self, request: GenerationRequest) -> None:
        """Refuse what cannot be served, by field."""
        plan(request, self._ready()[0])

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Step]:
        """Steps as they are decoded; closing frees the slot before the next decode step."""
        llama, loop = self._ready()
        events: asyncio.Queue[Step | EngineError] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def deliver(event: Step | EngineError) -> None:
            here.call_soon_threadsafe(events.put_nowait, event)

        job = Job(request, plan(request, llama), deliver)
        loop.submit(job)
        try:
            while True:
                event = await events.get()
                if isinstance(event, EngineError):
                    raise event
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            loop.cancel(job)

    def loads(self) -> EngineLoads:
        """The slots' state."""
        return self._ready()[1].loads()

    async def flush_cache(self) -> tuple[bool, str]:
        """Forget the kept prefixes, unless a request is running."""
        _, loop = self._ready()
        here = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = here.create_future()

        def tell(done: bool) -> None:
            here.call_soon_threadsafe(answer.set_result, done)

        loop.flush(tell)
        if await answer:
            return True, "cache flushed"
        return False, "cache not flushed: requests are running or waiting"

    async def health(self) -> tuple[bool, str]:
        """Unhealthy once decoding has failed, until a step succeeds, and when the thread is gone."""
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            return False, "the decode loop is not running"
        return not self._loop.fault, self._loop.fault or "healthy"

    def tokenizer_dir(self) -> Path | None:
        """The folder that ``fetch`` wrote."""
        folder = tokenizer_folder(self._options.model)
        return folder if folder.is_dir() else None

    def server_args(self) -> dict[str, Any]:
        """The options."""
        options = self._options
        return {
            "model_path": str(options.model),
            "served_model_name": self.model_info().served_model_name,
            "context_length": self._ready()[0].context_length,
            "max_running_requests": options.slots,
            "threads": options.threads,
        }
