"""Workers' KV events over both transports: what a simulator tells of its cache is what the table knows."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import modes, tiny
from tests.support.flow import Flow
from tests.support.processes import Worker, wait_until
from tests.support.scheduler import generate_request
from wsgi_router import kv_events, native, runtime
from wsgi_router.kv_events import KvEvents, Subscription, forget
from wsgi_router.pb import common_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.breaker import Event, State
from wsgi_router.workers.transport import RpcFailure
from wsgi_router.workers.worker import Worker as Known

IDS = [*range(100)]
PATIENCE = 30


class Followed:
    """A process's flow with its table, and what that knows of prompts."""

    def __init__(self, *ports: int) -> None:
        self.flow = Flow(*ports, policy="cache_aware", cache_index_mib=1)
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer = native.Tokenizer(str(tiny.write(Path(folder))))
        self.table = native.prefix_table(self.flow.settings)
        self.events = KvEvents(self.flow.pool, self.flow.transport, self.table)

    def close(self) -> None:
        self.events.close()
        wait_until(lambda: native.live_handles()["followers"] == 0, PATIENCE, "no followers")
        self.flow.pool.close()
        self.flow.transport.close()

    def call(self, place: int, method: str, request: bytes) -> bytes:
        return self.flow.transport.unary(self.flow.pool.workers[place], method, request, 20)

    def generate(self, ids: list[int], place: int = 0) -> None:
        request = generate_request("r", ids, stream=False, sampling={"max_new_tokens": 1})
        self.call(place, "Generate", request.SerializeToString())

    def prompt(self, ids: list[int]) -> Any:
        return self.table.prompt(self.tokenizer.prepare(json.dumps({"input_ids": ids}).encode()))

    def matched(self, place: int = 0, ids: list[int] = IDS) -> int:
        return int(self.prompt(ids).known([self.flow.pool.workers[place].column])[0][0])

    def wait(self, blocks: int, place: int = 0) -> None:
        wait_until(lambda: self.matched(place) == blocks, PATIENCE, f"{blocks} blocks, {self.events}")


def follows_scenario(port: int, other: int) -> None:
    followed = Followed(port, other)
    followed.generate(IDS)  # before anybody follows
    followed.events.start()
    followed.wait(6)
    assert followed.matched(1) == 0
    followed.generate(IDS[:50], place=1)
    followed.wait(3, place=1)
    column = followed.flow.pool.workers[0].column
    assert followed.table.is_fed(column)
    assert pb.FlushCacheResponse.FromString(followed.call(0, "FlushCache", b"")).success
    followed.wait(0)
    followed.close()
    wait_until(lambda: not followed.table.is_fed(column), PATIENCE, "given up")


@pytest.mark.parametrize("mode", modes.TRANSPORT_MODES)
def test_a_worker_s_cache_is_known_by_its_events(mode: str) -> None:
    with Worker("--kv-tokens", "4096") as one, Worker("--kv-tokens", "4096") as other:
        modes.run(mode, follows_scenario, one.port, other.port, seconds=120)


def test_a_worker_that_is_started_anew_is_known_anew() -> None:
    with Worker() as worker:
        followed = Followed(worker.port)
        followed.events.start()
        followed.generate(IDS)
        followed.wait(6)
        worker.kill()
        with Worker(port=worker.port):
            wait_until(lambda: followed.flow.pool.workers[0].available(), PATIENCE)
            followed.generate([7] * 40)
            followed.wait(0)
            assert followed.matched(0, [7] * 40) == 2
            followed.close()


def test_a_worker_without_events_goes_by_what_was_sent_until_it_was_down() -> None:
    with Worker("--no-kv-events") as worker:
        followed = Followed(worker.port)
        followed.events.start()
        known = followed.flow.pool.workers[0]
        followed.prompt(IDS).note(known.column)
        assert followed.matched() == 6
        worker.kill()
        wait_until(lambda: known.state is State.DOWN, PATIENCE, "down")
        with Worker("--no-kv-events", port=worker.port):
            followed.wait(0)
            assert not followed.table.is_fed(known.column)
            followed.prompt(IDS).note(known.column)
            forget(followed.table, known)
            assert followed.matched() == 0
            followed.close()


STAY = b""
"""The worker goes on without an event."""


class Scripted:
    """A transport that answers each subscription as told, by the number of its first batch."""

    def __init__(self, *answers: list[bytes | RpcFailure]) -> None:
        self.answers = list(answers)
        self.starts: list[int] = []

    def messages(self, worker: Any, method: str, request: bytes) -> Any:
        assert method == "SubscribeKvEvents"
        self.starts.append(pb.SubscribeKvEventsRequest.FromString(request).start_sequence_number)
        return ScriptedStream(self.answers.pop(0) if self.answers else [RpcFailure("UNIMPLEMENTED")])


class ScriptedStream:
    def __init__(self, items: list[bytes | RpcFailure]) -> None:
        self.items = items
        self.closed = threading.Event()

    def __iter__(self) -> Any:
        for item in self.items:
            if isinstance(item, RpcFailure):
                raise item
            if item is STAY:
                self.closed.wait()
            else:
                yield item

    def close(self) -> None:
        self.closed.set()


class Alone:
    """A subscription to one scripted worker, whose attempts follow each other fast."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[bytes | RpcFailure]) -> None:
        for pause in ("_AGAIN_SECONDS", "_REFUSED_SECONDS"):
            monkeypatch.setattr(kv_events, pause, 0.05)
        self.transport = Scripted(*answers)
        self.worker = Known("grpc://127.0.0.1:1")
        self.worker.note(Event.PROBE_OK)
        self.table = native.PrefixTable(bytearray(1 << 20))
        self.subscription = Subscription(self.worker, self.transport, self.table)  # type: ignore[arg-type]
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer = native.Tokenizer(str(tiny.write(Path(folder))))
        runtime.spawn(self.subscription.run)

    def prompt(self, first: int) -> Any:
        """A prompt of the one block in `batch`."""
        body = json.dumps({"input_ids": [first] * 16}).encode()
        return self.table.prompt(self.tokenizer.prepare(body))

    def there(self) -> list[int]:
        return [first for first in range(10) if self.prompt(first).known([0])[0][0]]

    def wait_for(self, state: str) -> None:
        wait_until(
            lambda: not self.transport.answers and self.subscription.state == state,
            PATIENCE,
            f"{state}: {self.subscription}",
        )


def batch(number: int, first: int, rank: int = 0) -> bytes:
    message = pb.KvEventBatch(sequence_number=number, dp_rank=rank)
    message.events.add().stored.blocks.add(block_hash=first, token_ids=[first] * 16, block_size=16)
    return message.SerializeToString()


def test_what_was_missed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late = RpcFailure("OUT_OF_RANGE")
    lost = RpcFailure("UNAVAILABLE")
    alone = Alone(
        monkeypatch,
        [batch(1, 1), batch(2, 2), batch(4, 4)],  # 3 was lost
        [batch(3, 3), lost],
        [late],  # the worker has forgotten the first ones
        [batch(4, 4), lost],
        [late],
        [late],
        [batch(9, 9), lost],  # and the next ones
    )
    alone.wait_for("none")
    assert alone.transport.starts[:7] == [1, 3, 1, 4, 1, 5, 0]
    assert alone.there() == [1, 2, 3, 4, 9]
    assert not alone.table.is_fed(0)
    alone.subscription.close()


@pytest.mark.parametrize(
    ("answers", "starts", "there"),
    [
        ([[batch(1, 1), batch(2, 2), batch(4, 4)], [batch(4, 4)]], [1, 3, 0], [1, 2, 9]),
        ([[batch(1, 1), batch(3, 3)], [RpcFailure("OUT_OF_RANGE")]], [1, 2, 0], [1, 9]),
        (
            [[batch(1, 1), batch(3, 3)], [batch(2, 2), batch(4, 4)], [batch(5, 5)]],
            [1, 2, 3, 0],
            [1, 2, 9],
        ),
    ],
)
def test_a_hole_in_what_a_worker_tells_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[list[bytes | RpcFailure]],
    starts: list[int],
    there: list[int],
) -> None:
    alone = Alone(monkeypatch, *answers, [batch(8, 9), STAY])
    alone.wait_for("followed from now on")
    wait_until(lambda: alone.there() == there, PATIENCE, "followed")
    time.sleep(0.5)  # some pauses
    assert alone.transport.starts == starts
    alone.subscription.close()


def test_events_that_came_too_fast_are_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    full = RpcFailure("RESOURCE_EXHAUSTED")
    alone = Alone(monkeypatch, [batch(1, 1), batch(2, 2), full], [batch(3, 3), full], [batch(4, 4), STAY])
    wait_until(lambda: alone.there() == [1, 2, 3, 4], PATIENCE, "followed")
    assert alone.transport.starts == [1, 3, 4]
    assert alone.table.is_fed(0)
    alone.subscription.close()


def test_events_that_come_twice_lead_to_no_second_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = [batch(1, 1), batch(2, 2), batch(2, 2), batch(3, 3)]
    alone = Alone(monkeypatch, [*twice, STAY], [batch(3, 3), STAY])
    wait_until(lambda: alone.there() == [1, 2, 3], PATIENCE, "followed")
    time.sleep(0.5)  # some pauses
    assert alone.transport.starts == [1]
    alone.subscription.close()


@pytest.mark.parametrize("refused", [batch(2, 2, rank=1), b"\xff"])
def test_what_is_refused_is_not_asked_for_again_in_this_life(
    monkeypatch: pytest.MonkeyPatch, refused: bytes
) -> None:
    alone = Alone(monkeypatch, [batch(1, 1), refused])
    alone.wait_for("refused")
    assert alone.there() == []
    alone.prompt(7).note(0)
    alone.transport.answers = [[batch(1, 1), refused]]
    time.sleep(0.5)  # some pauses
    assert (alone.transport.starts, alone.there(), alone.table.is_fed(0)) == ([1], [7], False)
    alone.transport.answers = [[batch(1, 5), RpcFailure("UNAVAILABLE")]]
    for event in (Event.PROBE_FAILED, Event.PROBE_FAILED, Event.PROBE_FAILED, Event.PROBE_OK):
        alone.worker.note(event)
    alone.wait_for("none")
    assert alone.there() == [5]
    alone.subscription.close()


def test_what_breaks_once_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "_LOOK_SECONDS", 0.01)
    asked: list[bool] = []

    def leads() -> bool:
        asked.append(True)
        if len(asked) < 3:
            raise RuntimeError("can't start new thread")
        return False

    pool: Any = SimpleNamespace(workers=(), leads=leads)
    transport: Any = Scripted()
    events = KvEvents(pool, transport, native.prefix_table(Settings(cache_index_mib=1)))
    events.start()
    wait_until(lambda: len(asked) > 3, PATIENCE, "more looks")
    events.close()
