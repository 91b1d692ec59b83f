"""A queue that is fair between those who fill it. No I/O, no locks."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


class Flow(NamedTuple):
    """Whose request it is: all of one key take turns with those of the others of their priority."""

    key: Hashable
    priority: int = 0
    """The higher one is served first."""


class FairQueue(Generic[_T]):
    """Higher priorities first; within one, the keys take turns; within a key, first come, first served."""

    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[Hashable, deque[_T]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, flow: Flow, thing: _T) -> None:
        level = self._levels.setdefault(flow.priority, OrderedDict())
        level.setdefault(flow.key, deque()).append(thing)
        self._length += 1

    def pop(self) -> _T:
        """Takes out whose turn it is. IndexError if nobody waits."""
        if not self._levels:
            raise IndexError("nobody waits")
        priority = max(self._levels)
        key, things = next(iter(self._levels[priority].items()))
        thing = things.popleft()
        self._levels[priority].move_to_end(key)
        self._took(Flow(key, priority))
        return thing

    def remove(self, flow: Flow, thing: _T) -> bool:
        """Takes out one that does not wait any more; False if it was not there."""
        level = self._levels.get(flow.priority)
        things = None if level is None else level.get(flow.key)
        if things is None or thing not in things:
            return False
        things.remove(thing)
        self._took(flow)
        return True

    def unfairer_than(self, flow: Flow) -> tuple[Flow, _T] | None:
        """Who should give way to one more of `flow` when the queue is full; None if that one itself should.

        It is the newest of the key that has most waiting, in the lowest priority: so nobody fills the queue
        for the others.
        """
        if not self._levels:
            return None
        priority = min(self._levels)
        if priority > flow.priority:
            return None
        level = self._levels[priority]
        key = max(level, key=lambda key: len(level[key]))
        own = len(level.get(flow.key, ())) if priority == flow.priority else -1
        if len(level[key]) <= own + 1:
            return None
        return Flow(key, priority), level[key][-1]

    def _took(self, flow: Flow) -> None:
        self._length -= 1
        level = self._levels[flow.priority]
        if not level[flow.key]:
            del level[flow.key]
        if not level:
            del self._levels[flow.priority]

    def __repr__(self) -> str:
        keys = sum(len(level) for level in self._levels.values())
        return f"<FairQueue of {self._length} from {keys} keys>"
