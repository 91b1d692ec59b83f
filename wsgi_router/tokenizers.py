"""A tokenizer for each model: the one that the settings name, else the one that the model's workers give out.

One process of a server asks a worker (GetTokenizer), the others take what it has kept (`tokenizer_store`).
The first tokenizer of a model stays until the server is reloaded. The leading process looks whether the
model's other workers have the same one.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from wsgi_router import native, observability, runtime
from wsgi_router.errors import NoTokenizerError, NoWorkerError
from wsgi_router.pb import common_pb2 as pb
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.tokenizer_cache import Files, digests
from wsgi_router.tokenizer_store import MOST_PACKED, Record, Store, UnusableZipError, unpack
from wsgi_router.workers import board
from wsgi_router.workers.breaker import State
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import RpcFailure, Transport
from wsgi_router.workers.worker import Worker

_LOG = logging.getLogger(__name__)

FIRST_SECONDS: Final = 20.0
"""Longest wait of a new process for the tokenizers of the models that it knows."""
_FETCH_SECONDS: Final = 60.0
_LOCK_SECONDS: Final = 2 * _FETCH_SECONDS
_LOOK_SECONDS: Final = 0.5
"""About the longest time until it is seen that there is a new model, or a worker that was not compared."""
_PAUSES: Final = (1.0, 2.0, 5.0, 15.0)
"""Seconds between tries to get a tokenizer; the last one again and again."""
_INDIFFERENT: Final = frozenset({"config.json", "generation_config.json", "README.md"})
"""Files that may differ between two workers of a model, by their quantisation for instance."""
_INDIFFERENT_END: Final = "processor_config.json"


class UnusableTokenizerError(Exception):
    """What a worker has given is no tokenizer; the text says why."""


class Tokenizers:
    """Finds the tokenizer of a model. One for each process, made after the fork.

    `known`: those that the settings name.
    """

    def __init__(
        self, settings: Settings, pool: WorkerPool, transport: Transport, known: native.Tokenizers
    ) -> None:
        self.named: Final = known.keys() - {native.DEFAULT}
        """Models whose tokenizers the settings name."""
        self._settings = settings
        self._pool = pool
        self._transport = transport
        self._default = known.get(native.DEFAULT)
        self._loaded = {model: known[model] for model in self.named}
        self._store: Store | None = None
        self._getting: set[str] = set()
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._told: set[str] = set()
        self._first = runtime.wakeup()
        self._looking = runtime.PeriodicTask("looking after the tokenizers", self._look, _LOOK_SECONDS)
        self._compared: set[Worker] = set()
        self._comparing = False

    def of(self, model: str) -> native.Tokenizer:
        """The tokenizer of a served model. Raises NoTokenizerError."""
        tokenizer = self._loaded.get(model, self._default)
        if tokenizer is None:
            raise NoTokenizerError(model)
        return tokenizer

    def check_ready(self) -> None:
        """Raises NoTokenizerError, NoWorkerError if no worker may be asked whose model has its tokenizer."""
        served = [one for worker in self._pool.workers if worker.usable() and (one := self._served(worker))]
        if not served and self._default is None:
            raise NoWorkerError
        if self._default is None and not any(model in self._loaded for model in served):
            raise NoTokenizerError(served[0])

    def start(self) -> None:
        """Begins to get what the settings do not name. Once, after the fork."""
        if self._default is None:
            cache, most = self._settings.tokenizer_cache, self._settings.tokenizer_cache_mib
            self._store = Store(board.current(), cache, most)
            self._looking.start()

    def wait(self, seconds: float = FIRST_SECONDS) -> None:
        """Returns once the models that are known now have tokenizers, or getting one has failed.

        A process that takes requests before would refuse them.
        """
        deadline = time.monotonic() + seconds
        models = self._missing()
        while any(not self._is_settled(model) for model in models):
            left = deadline - time.monotonic()
            if left <= 0 or self._looking.stopped:
                return
            self._first.wait(min(left, _LOOK_SECONDS))

    def close(self) -> None:
        """Ends what `start` began. Idempotent."""
        self._looking.stop()
        if self._store is not None:
            self._store.close()

    def _is_settled(self, model: str) -> bool:
        return model in self._loaded or model in self._failures

    def _missing(self) -> list[str]:
        if self._default is not None:
            return []
        return [card.name for card in self._pool.models() if card.name not in self._loaded]

    def _served(self, worker: Worker) -> str:
        """The name under which a worker's model is served, "" if it is not known."""
        return "" if worker.card is None else self._settings.model or worker.card.name

    def _look(self) -> None:
        now = time.monotonic()
        self._drop_unserved()
        for model in self._missing():
            if self._due.get(model, 0.0) <= now and model not in self._getting:
                runtime.spawn_noted(self._getting, model, self._get)
        self._begin_to_compare()

    def _drop_unserved(self) -> None:
        """A model that has no workers any more needs no memory; should it come back, the files are there."""
        served = {card.name for card in self._pool.models()}
        for model in self._loaded.keys() - served - self.named:
            del self._loaded[model]
            self._its_store().release(model)

    def _get(self, model: str) -> None:
        try:
            self._loaded[model] = self._get_from_workers(model)
        except (UnusableTokenizerError, SettingsError, RpcFailure, OSError) as error:
            self._failed(model, str(error))
        except NoWorkerError:  # it is down by now
            self._due[model] = time.monotonic() + _PAUSES[0]
            self._failures.setdefault(model, 0)
        except Exception:
            _LOG.exception("getting the tokenizer of %s failed", observability.printable(model, 100))
            self._failed(model, "see above")
        else:
            self._failures.pop(model, None)
        finally:
            self._getting.discard(model)
            self._first.set()
            self._looking.wake()

    def _failed(self, model: str, why: str) -> None:
        if self._looking.stopped:
            return
        count = self._failures.get(model, 0)
        self._failures[model] = count + 1
        self._due[model] = time.monotonic() + _PAUSES[min(count, len(_PAUSES) - 1)]
        text = observability.printable(f"{model} has no tokenizer yet: {why}", 1000)
        if text not in self._told:  # it is tried again and again
            self._told.add(text)
            _LOG.error("the model %s; a path may be given in TOKENIZERS or TOKENIZER_PATH", text)

    def _get_from_workers(self, model: str) -> native.Tokenizer:
        """Raises UnusableTokenizerError, NoWorkerError, RpcFailure, SettingsError, OSError."""
        store = self._its_store()
        with store.locked(model, _LOCK_SECONDS) as record:
            folder = runtime.call_in_pool(store.folder, record) if record else None
            if record is not None and folder is not None:
                try:
                    return self._load(folder, record)
                except SettingsError as error:
                    text = observability.printable(str(error), 500)
                    _LOG.warning("what worker %s gave is of no use any more: %s", record.worker, text)
            return self._fetch(model, store)

    def _load(self, folder: Path, record: Record) -> native.Tokenizer:
        try:
            tokenizer = runtime.call_in_pool(native.open_tokenizer, folder, record.model, self._settings)
        except BaseException:
            self._its_store().release(record.model)
            raise
        model = observability.printable(record.model, 100)
        _LOG.info("the tokenizer of %s is that of worker %s (%.12s)", model, record.worker, record.folder)
        return tokenizer

    def _fetch(self, model: str, store: Store) -> native.Tokenizer:
        """Keeps the tokenizer of one of the model's workers; of the next one where that fails."""
        failure: Exception = NoWorkerError()
        for worker in self._workers_of(model):
            try:
                return self._fetch_from(worker, model, store)
            except (UnusableTokenizerError, SettingsError, RpcFailure, OSError) as error:
                failure = UnusableTokenizerError(f"worker {worker.url}: {error}")
        raise failure

    def _fetch_from(self, worker: Worker, model: str, store: Store) -> native.Tokenizer:
        """Raises UnusableTokenizerError, RpcFailure, SettingsError, OSError."""
        record = runtime.call_in_pool(store.put, model, worker.url, self._ask(worker))
        folder = runtime.call_in_pool(store.folder, record)
        if folder is None:
            raise UnusableTokenizerError("its files have changed meanwhile")
        tokenizer = self._load(folder, record)
        runtime.call_in_pool(store.keep, record)  # not before it was opened: the other processes go by it
        self._compared.add(worker)
        return tokenizer

    def _workers_of(self, model: str) -> list[Worker]:
        return [one for one in self._pool.workers if one.usable() and self._served(one) == model]

    def _ask(self, worker: Worker) -> Files:
        """The files of a worker's tokenizer, checked. Raises RpcFailure, UnusableTokenizerError."""
        request = pb.GetTokenizerRequest().SerializeToString()
        most = MOST_PACKED + MOST_PACKED // 16  # what is around the pieces
        messages = self._transport.gather(worker, "GetTokenizer", request, _FETCH_SECONDS, most)
        return runtime.call_in_pool(_files, messages)

    def _its_store(self) -> Store:
        assert self._store is not None
        return self._store

    def _begin_to_compare(self) -> None:
        """Looks at the workers that nobody has compared with their model's tokenizer, one after the other."""
        workers = self._pool.workers
        self._compared &= {worker for worker in workers if worker.state is not State.DOWN}
        if self._comparing or not any(self._is_new(worker) for worker in workers) or not self._pool.leads():
            return
        self._comparing = True
        runtime.spawn(self._compare_all)

    def _is_new(self, worker: Worker) -> bool:
        model = self._served(worker)
        return (
            worker not in self._compared
            and worker.available()
            and model in self._loaded
            and model not in self.named
        )

    def _compare_all(self) -> None:
        try:
            for worker in self._pool.workers:
                if self._is_new(worker) and not self._looking.stopped:
                    self._compared.add(worker)
                    self._compare(worker)
        finally:
            self._comparing = False

    def _compare(self, worker: Worker) -> None:
        record = self._its_store().record(self._served(worker))
        if record is None or record.worker == worker.url:
            return
        try:
            theirs = runtime.call_in_pool(digests, self._ask(worker))
        except (UnusableTokenizerError, RpcFailure) as error:
            _LOG.warning("worker %s: its tokenizer cannot be compared: %s", worker.url, error)
            return
        if names := _different(record.files, theirs):
            _LOG.error(
                "worker %s has another tokenizer than worker %s, whose one is used for %s: %s differ",
                worker.url,
                record.worker,
                observability.printable(record.model, 100),
                observability.printable(", ".join(names), 500),
            )

    def __repr__(self) -> str:
        return f"<Tokenizers of {sorted(self._loaded)} default={self._default is not None}>"


def _different(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Names of files that are not the same, and matter."""
    return [
        name
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
        and name not in _INDIFFERENT
        and not name.endswith(_INDIFFERENT_END)
    ]


def _files(messages: Iterable[bytes]) -> Files:
    """The files in the pieces of a zip. Raises UnusableTokenizerError."""
    try:
        pieces = [pb.GetTokenizerChunk.FromString(message) for message in messages]
    except DecodeError:
        raise UnusableTokenizerError("what it has sent cannot be read") from None
    data = b"".join(piece.data for piece in pieces)
    told = pieces[-1].sha256 if pieces else ""
    if not data:
        raise UnusableTokenizerError("it has sent nothing")
    if hashlib.sha256(data).hexdigest() != told.lower():
        raise UnusableTokenizerError("what it has sent does not have the hash that it says")
    try:
        return unpack(data)
    except UnusableZipError as error:
        raise UnusableTokenizerError(f"its zip is refused: {error}") from None
