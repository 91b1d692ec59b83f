"""What all processes of a server have in common: made in gunicorn's master before it forks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ProcessShared(Generic[_P, _T]):
    """One thing for all processes that are forked from now on; outside a server, one for each who asks.

    `make` makes it; `alone` makes what one has who shares with nobody.
    """

    def __init__(self, make: Callable[_P, _T], alone: Callable[[], _T]) -> None:
        self._make = make
        self._alone = alone
        self.made: _T | None = None
        """What is shared, if anything is."""

    def share(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Makes what the processes forked from now on share. In the master."""
        self.made = self._make(*args, **kwargs)
        return self.made

    def current(self) -> _T:
        """What the processes share, or a new one of the caller's own where no server has made any."""
        return self._alone() if self.made is None else self.made

    def __repr__(self) -> str:
        return f"<ProcessShared {self.made!r}>"
