"""Workers' KV events over both transports: what a simulator tells of its cache is what the table knows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import modes, tiny
from tests.support.flow import Flow
from tests.support.processes import Worker, wait_until
from tests.support.scheduler import generate_request
from wsgi_router import native, runtime
from wsgi_router.kv_events import KvEvents, Subscription, forget
from wsgi_router.pb import common_pb2 as pb
from wsgi_router.workers.breaker import Event, State
from wsgi_router.workers.transport import RpcFailure

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

    def __iter__(self) -> Any:
        for item in self.items:
            if isinstance(item, RpcFailure):
                raise item
            yield item

    def close(self) -> None:
        pass


def batch(number: int, first: int) -> bytes:
    message = pb.KvEventBatch(sequence_number=number)
    message.events.add().stored.blocks.add(block_hash=first, token_ids=[first] * 16, block_size=16)
    return message.SerializeToString()


def test_what_was_missed_is_asked_for() -> None:
    from wsgi_router.workers.worker import Worker as Known

    late = RpcFailure("OUT_OF_RANGE")
    transport = Scripted(
        [batch(1, 1), batch(2, 2), batch(4, 4)],  # 3 was lost: all anew
        [late],
        [batch(3, 3), RpcFailure("UNAVAILABLE")],  # the worker has forgotten the first ones
        [late],
        [late],
        [batch(9, 9), b"\xff"],  # and the next ones
    )
    known = Known("grpc://127.0.0.1:1")
    known.note(Event.PROBE_OK)
    memory = bytearray(1 << 20)
    table = native.PrefixTable(memory)
    subscription = Subscription(known, transport, table)  # type: ignore[arg-type]
    runtime.spawn(subscription.run)
    wait_until(lambda: not transport.answers, PATIENCE, "all asked for")
    wait_until(lambda: subscription.state == "refused", PATIENCE, "garbage refused")
    assert transport.starts == [1, 1, 3, 1, 4, 0]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = native.Tokenizer(str(tiny.write(Path(folder))))
    there = [
        first
        for first in range(10)
        if table.prompt(tokenizer.prepare(json.dumps({"input_ids": [first] * 16}).encode())).known([0])[0][0]
    ]
    assert there == [1, 2, 3, 9]
    assert not table.is_fed(0)
    subscription.close()
