"""What all policies have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from wsgi_router.settings import Settings
from wsgi_router.workers.hints import Hints
from wsgi_router.workers.worker import Lease, Worker


class Policy(ABC):
    """Chooses a worker. Used by all requests of a model in this process, maybe by several threads at once."""

    reads_key: ClassVar[bool] = False
    """Whether it goes by `Hints.key`."""
    reads_prefix: ClassVar[bool] = False
    """Whether it goes by `Hints.prefix`."""
    reads_prompt: ClassVar[bool] = False
    """Whether it goes by `Hints.prompt`."""
    bounded: ClassVar[bool] = False
    """Whether it is asked for each of a request's choices, else all follow the first one to its worker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @abstractmethod
    def select(self, workers: Sequence[Worker], hints: Hints) -> Worker:
        """One of `workers`, which are those that may be asked, at least one."""

    def lease(self, workers: Sequence[Worker], hints: Hints) -> Lease:
        """A lease on the one that `select` chooses."""
        return self.select(workers, hints).lease()
