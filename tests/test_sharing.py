"""What is made before the fork is the same for all; without a server each has its own."""

from __future__ import annotations

from wsgi_router.sharing import ProcessShared


class Thing:
    def __init__(self, size: int, name: str = "") -> None:
        self.size = size
        self.name = name


def test_it_is_everybodys_own_until_it_is_shared() -> None:
    things = ProcessShared(Thing, lambda: Thing(0))
    assert things.made is None
    alone = things.current()
    assert alone.size == 0
    assert things.current() is not alone
    made = things.share(3, name="x")
    assert (made.size, made.name) == (3, "x")
    assert things.current() is things.current() is things.made is made
    again = things.share(4)
    assert things.current() is again
