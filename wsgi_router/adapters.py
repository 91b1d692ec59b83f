"""Which workers have a LoRA adapter loaded.

Workers load and unload adapters while they run, and each gives an adapter an id of its own. So a worker's
list (`Worker.adapters`) is asked for when a request first names an adapter, and again when it has grown old
or does not have the name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from wsgi_router import runtime
from wsgi_router.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    RouterError,
    UpstreamError,
    WorkerProtocolError,
    shown,
)
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import RpcFailure, Transport
from wsgi_router.workers.worker import Adapter, ModelCard, Worker

_LOG = logging.getLogger(__name__)

FRESH_SECONDS: Final = 10.0
"""Age at which a list that has the name is asked for again, without a request's waiting for it."""
LEAST_SECONDS: Final = 1.0
"""Least age of a list that is asked for again since it does not have the name."""
LISTING_SECONDS: Final = 1.0
"""Longest wait of those who only want to see what there is."""
_NONE: Final = frozenset({"UNIMPLEMENTED", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND"})
"""How workers answer that were started without adapters."""


class _Asking:
    """A call under way, with those who wait for it."""

    def __init__(self) -> None:
        self.done = False
        self.error: RouterError | None = None
        self.waiters: list[runtime.Wakeup] = []


class Adapters:
    """Finds adapters by name. One for each process, made after the fork."""

    def __init__(self, pool: WorkerPool, transport: Transport, settings: Settings) -> None:
        self._pool = pool
        self._transport = transport
        self._timeout = settings.health_timeout
        self._asking: dict[Worker, _Asking] = {}
        self._lock = threading.Lock()

    def resolve(self, model: str | None, given: Sequence[str]) -> tuple[ModelCard, tuple[str, ...]]:
        """The card of a requested model, and the adapter of each prompt, "" for none.

        `given` is what `lora_path` says for each prompt; "MODEL:ADAPTER" as the model says it for all. None
        is the first model that generates. Raises NoWorkerError, ModelNotFoundError, InvalidRequestError,
        UpstreamError.
        """
        if model is None:
            card, named = self._pool.default_model(generating=True), ""
        else:
            card, named = self._pool.split_model(model)
        if named and not self.find(card.name, named):
            raise ModelNotFoundError(model or "")
        names = tuple(name or named for name in given)
        for name in dict.fromkeys(names):
            self._check(card, name, named)
        return card, names

    def _check(self, card: ModelCard, name: str, named: str) -> None:
        if not name or name == named:
            return
        if named:
            raise InvalidRequestError(
                f"'model' names the adapter '{shown(named)}', and 'lora_path' another one.", param="lora_path"
            )
        if not self.find(card.name, name):
            raise InvalidRequestError(
                f"No worker has a LoRA adapter named '{shown(name)}'.", param="lora_path"
            )

    def find(self, model: str, name: str) -> bool:
        """Whether a worker that serves `model` has the adapter. Raises RouterError if that cannot be told."""
        workers = self._pool.candidates(model)

        def known() -> bool:
            return any(name in worker.adapters for worker in workers)

        if known():
            self._ask_older(workers, FRESH_SECONDS)
            return True
        asking = self._ask_older(workers, LEAST_SECONDS)
        self._wait(asking, known, self._timeout)
        if known():
            return True
        for one in asking:
            if one.error is not None:  # that worker may have it
                raise one.error
        return False

    def listed(self, model: str) -> dict[str, Adapter]:
        """All adapters by name, as far as the workers tell in time. Never raises."""
        try:
            workers = self._pool.candidates(model)
        except RouterError:
            return {}
        self._wait(self._ask_older(workers, FRESH_SECONDS), lambda: False, LISTING_SECONDS)
        found = {name: one for worker in workers for name, one in worker.adapters.items()}
        return dict(sorted(found.items()))

    def _ask_older(self, workers: Iterable[Worker], seconds: float) -> list[_Asking]:
        """Asks the workers whose lists are older, each once at a time; returns the calls without waiting."""
        older = time.monotonic() - seconds
        return [asking for worker in workers if (asking := self._ask(worker, older)) is not None]

    def _ask(self, worker: Worker, older: float) -> _Asking | None:
        """The call under way, or a new one if the list was asked for before `older`; else None."""
        with self._lock:
            if worker.adapters_at >= older:
                return None
            asking = self._asking.get(worker)
            if asking is not None:
                return asking
            asking = self._asking[worker] = _Asking()
        runtime.spawn(self._call, worker, asking)
        return asking

    def _wait(self, asking: Sequence[_Asking], enough: Callable[[], bool], seconds: float) -> None:
        """Returns once all calls have ended or it is enough, after `seconds` at the latest."""
        wakeup = runtime.wakeup()
        for one in asking:
            one.waiters.append(wakeup)
        deadline = time.monotonic() + seconds
        while not all(one.done for one in asking) and not enough():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            wakeup.wait(left)

    def _call(self, worker: Worker, asking: _Asking) -> None:
        found: dict[str, Adapter] | None = None
        try:
            found = self._list(worker)
        except RouterError as error:
            asking.error = error.with_traceback(None)
        except Exception as error:
            _LOG.exception("asking %s for its adapters failed", worker.url)
            asking.error = WorkerProtocolError(f"The worker's adapters are unknown: {type(error).__name__}.")
        finally:
            with self._lock:  # who finds a name may forget the list again, and ask anew
                del self._asking[worker]
                if found is not None:
                    worker.set_adapters(found)
            asking.done = True
            for waiter in asking.waiters:
                waiter.set()

    def _list(self, worker: Worker) -> dict[str, Adapter]:
        request = pb.ListLoadedLoRAAdaptersRequest().SerializeToString()
        try:
            answer = self._transport.unary(worker, "ListLoadedLoRAAdapters", request, self._timeout)
            loaded = pb.ListLoadedLoRAAdaptersResponse.FromString(answer).loaded_adapters
        except RpcFailure as failure:
            if failure.code in _NONE:
                return {}
            self._pool.report_failure(worker, failure)
            raise UpstreamError.from_grpc(failure.code, failure.details) from None
        except DecodeError:
            raise WorkerProtocolError("The worker's list of adapters cannot be read.") from None
        return {one.lora_name: Adapter(one.lora_id, one.lora_path) for one in loaded if one.lora_id}
