"""Who is served next, and who gives way when the queue is full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgi_router.fair_queue import FairQueue, Flow


def fill(*flows: Flow) -> FairQueue[int]:
    """Things are numbered as they come."""
    queue: FairQueue[int] = FairQueue()
    for number, flow in enumerate(flows):
        queue.push(flow, number)
    return queue


def drained(queue: FairQueue[int]) -> list[int]:
    return [queue.pop() for _ in range(len(queue))]


A, B, C = Flow("a"), Flow("b"), Flow("c")
FIRST, LAST = Flow("a", 5), Flow("b", -1)


def test_first_come_first_served_within_a_key() -> None:
    assert drained(fill(A, A, A)) == [0, 1, 2]


def test_keys_take_turns() -> None:
    assert drained(fill(A, A, A, A, B, B, C)) == [0, 4, 6, 1, 5, 2, 3]


def test_a_key_that_was_served_goes_behind_the_others() -> None:
    queue = fill(A, A, B)
    assert queue.pop() == 0
    queue.push(C, 9)
    assert drained(queue) == [2, 1, 9]


def test_higher_priorities_are_served_first() -> None:
    assert drained(fill(LAST, A, LAST, FIRST, A, FIRST)) == [3, 5, 1, 4, 0, 2]


def test_nobody_waits() -> None:
    queue = fill()
    with pytest.raises(IndexError):
        queue.pop()
    assert queue.unfairer_than(A) is None
    assert not queue.remove(A, 0)


def test_one_that_leaves_is_not_served() -> None:
    queue = fill(A, A, B)
    assert queue.remove(A, 0)
    assert not queue.remove(A, 0)
    assert not queue.remove(Flow("a", 1), 1)
    assert not queue.remove(C, 1)
    assert drained(queue) == [1, 2]
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("waiting", "comes", "gives_way"),
    [
        ((A, A, A), B, (A, 2)),  # the newest of the key that has most
        ((A, A, A), A, None),
        ((A, A, B, B), B, None),
        ((A, A, B, B, B), A, None),  # one more would make it as many
        ((A, A, A, B), B, (A, 2)),
        ((A, LAST), B, (LAST, 1)),  # the lowest priority, however few it has
        ((A, A, A), LAST, None),
        ((FIRST, FIRST, A, A), FIRST, (A, 3)),
        ((FIRST, FIRST), A, None),
        ((B,), A, None),  # as many: who came first stays
    ],
)
def test_who_gives_way(waiting: tuple[Flow, ...], comes: Flow, gives_way: tuple[Flow, int] | None) -> None:
    assert fill(*waiting).unfairer_than(comes) == gives_way


FLOWS = st.builds(Flow, st.sampled_from("abc"), st.integers(0, 1))


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove", "oust"]), FLOWS), max_size=60))
def test_each_leaves_once_and_in_order(steps: list[tuple[str, Flow]]) -> None:
    """Against a list of what waits: pops follow priority, keys and order; nothing is lost or doubled."""
    queue: FairQueue[int] = FairQueue()
    model: list[tuple[Flow, int]] = []
    for number, (step, flow) in enumerate(steps):
        mine = [thing for other, thing in model if other == flow]
        if step == "push":
            queue.push(flow, number)
            model.append((flow, number))
        elif step == "pop" and model:
            taken = queue.pop()
            (owner,) = [other for other, thing in model if thing == taken]
            assert owner.priority == max(other.priority for other, _ in model)
            assert taken == next(thing for other, thing in model if other == owner)
            model.remove((owner, taken))
        elif step == "remove" and mine:
            assert queue.remove(flow, mine[-1])
            model.remove((flow, mine[-1]))
        elif step == "oust" and (found := queue.unfairer_than(flow)) is not None:
            owner, thing = found
            assert owner.priority <= flow.priority
            assert thing == [one for other, one in model if other == owner][-1]
        assert len(queue) == len(model)
    assert sorted(drained(queue)) == sorted(thing for _, thing in model)
