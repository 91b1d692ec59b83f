"""The simulator's slots, queue, clock, cache, KV events, and its prefill and decode halves."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.support.processes import ROOT, Worker, free_port, wait_until
from tests.support.scheduler import (
    SchedulerClient,
    chunk_ids,
    generate_request,
    refused,
)
from tests.support.simulator import FLAGS, settled
from wsgi_router.pb import common_pb2
from wsgi_router.pb import sglang_scheduler_pb2 as pb


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(*FLAGS) as worker:
        yield worker


@pytest.fixture
def client(worker: Worker) -> Iterator[SchedulerClient]:
    with SchedulerClient(worker.port) as client:
        yield client


# Slots, queue, leaving


def test_leaving_frees_the_slot_and_the_queue() -> None:
    with Worker(*FLAGS, "--max-running", "1") as worker, SchedulerClient(worker.port) as client:
        held = client.Generate(generate_request("held", [105]))
        assert list(next(held).chunk.token_ids) == [5]
        gives_up = client.Generate(generate_request("gives-up", [1]))
        waits = client.Generate(generate_request("waits", [1], sampling={"max_new_tokens": 3}))
        wait_until(lambda: client.info()["waiting"] == 2, 5, "two in the queue")
        load = client.GetLoads().loads[0]
        assert (load.num_running_reqs, load.num_waiting_reqs, load.max_running_requests) == (1, 2, 1)
        assert load.utilization == 1
        gives_up.cancel()
        wait_until(lambda: client.info()["waiting"] == 1, 5, "one in the queue")
        begun = time.monotonic()
        held.cancel()
        assert len(chunk_ids(list(waits))) == 3
        assert time.monotonic() - begun < 10
        settled(client)
        info = client.info()
        assert (info["cancelled"], info["finished"], info["generate_calls"]) == (2, 1, 3)
        assert info["last_request_ids"] == ["held", "gives-up", "waits"]
        assert client.GetLoads().loads[0].num_used_tokens == 0


def test_leaving_with_samples_in_the_queue() -> None:
    with Worker(*FLAGS, "--max-running", "1") as worker, SchedulerClient(worker.port) as client:
        for _ in range(3):
            held = client.Generate(generate_request("held", [109], sampling={"n": 4}))
            wait_until(lambda: client.info()["waiting"] == 3, 5, "three in the queue")
            held.cancel()
            settled(client)
        stays = client.Generate(generate_request("stays", [109]))
        waits = client.Generate(generate_request("waits", [1]))
        wait_until(lambda: client.info()["waiting"] == 1, 5, "one in the queue")
        assert client.Abort(pb.AbortRequest(request_id="waits")).success
        assert [event.complete.finish_reason for event in waits] == ["abort"]
        stays.cancel()
        settled(client)
        assert client.generate("last", [1], sampling={"max_new_tokens": 1})


def test_abort_by_prefix(client: SchedulerClient) -> None:
    before = client.info()["aborted"]
    streams = [client.Generate(generate_request(f"ab-{number}", [109])) for number in range(2)]
    other = client.Generate(generate_request("other", [109]))
    wait_until(lambda: client.info()["running"] == 3, 5, "three running")
    assert client.Abort(pb.AbortRequest(request_id="ab-")).success
    for stream in streams:
        assert [e.complete.finish_reason for e in stream] == ["abort"]
    assert client.info()["live_request_ids"] == ["other"]
    other.cancel()
    settled(client)
    assert client.info()["aborted"] == before + 2
    assert not client.Abort(pb.AbortRequest(request_id="ab-")).success


def test_abort_as_status() -> None:
    flags = (*FLAGS, "--abort-as", "INTERNAL")
    with Worker(*flags) as worker, SchedulerClient(worker.port) as client:
        stream = client.Generate(generate_request("a", [109]))
        wait_until(lambda: client.info()["running"] == 1, 5, "running")
        client.Abort(pb.AbortRequest(request_id="a", reason="tired"))
        assert refused(stream) == ("INTERNAL", "Request aborted: tired")


def test_a_thousand_streams_at_once() -> None:
    flags = ("--max-running", "1000", "--ttft-ms", "3000", "--kv-tokens", "100000")
    with Worker(*flags) as worker, SchedulerClient(worker.port) as client:
        streams = [
            client.Generate(
                generate_request(f"r{number}", [number], sampling={"max_new_tokens": 5}), timeout=60
            )
            for number in range(1, 1001)
        ]
        wait_until(lambda: client.info()["running"] == 1000, 20, "1000 running")
        assert all(len(chunk_ids(list(stream))) == 5 for stream in streams)
        settled(client)
        assert client.info()["finished"] == 1000


def test_the_clock_of_an_answer(client: SchedulerClient) -> None:
    begun = time.monotonic()
    times = [
        time.monotonic() - begun
        for event in client.Generate(generate_request("a", [114]))
        if event.chunk.token_ids
    ]
    assert times[0] >= 0.15
    assert times[-1] >= 0.3
    assert times[-1] < 20
    flags = ("--ttft-ms", "200", "--itl-ms", "50", "--prefill-us-per-token", "2000")
    with Worker(*flags) as worker, SchedulerClient(worker.port) as slow:
        slow.GetModelInfo()
        begun = time.monotonic()
        stream = slow.Generate(generate_request("a", list(range(1, 101)), sampling={"max_new_tokens": 5}))
        next(stream)
        first = time.monotonic() - begun
        list(stream)
        whole = time.monotonic() - begun
    assert 0.4 <= first < 15
    assert whole >= 0.6


def test_pings_every_second_are_cut_off(worker: Worker) -> None:
    options = [("grpc.keepalive_time_ms", 500), ("grpc.http2.max_pings_without_data", 0)]
    with grpc.insecure_channel(f"127.0.0.1:{worker.port}", options=options) as channel:
        call = channel.unary_stream(
            "/sglang.grpc.scheduler.SglangScheduler/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        code, message = refused(call(generate_request("pings", [109]), timeout=15))
    assert code == "UNAVAILABLE"
    assert "ping" in message.lower()


def listens(worker: Worker) -> bool:
    try:
        socket.create_connection(("127.0.0.1", worker.port), timeout=5).close()
    except OSError:
        return False
    return True


def test_sigterm_lets_open_streams_finish() -> None:
    with Worker(*FLAGS) as worker, SchedulerClient(worker.port) as client:
        stream = client.Generate(generate_request("a", [115]))
        next(stream)
        worker.send(signal.SIGTERM)
        wait_until(lambda: not listens(worker), 5, "the end of listening")
        with SchedulerClient(worker.port) as late:
            assert refused(late.Generate(generate_request("b", [1]), timeout=5))[0] == "UNAVAILABLE"
        assert len(chunk_ids(list(stream))) == 4
        wait_until(lambda: not worker.running(), 5, "exit")
        assert worker.stop() == 0


def test_a_subscription_holds_no_one_up() -> None:
    with Worker() as worker, SchedulerClient(worker.port) as client:
        reader = KvReader(client)
        begun = time.monotonic()
        assert worker.stop(signal.SIGTERM) == 0
        assert time.monotonic() - begun < 10
        reader.join(5)
        assert not reader.is_alive()


def test_sigint_cuts_streams() -> None:
    with Worker(*FLAGS) as worker, SchedulerClient(worker.port) as client:
        stream = client.Generate(generate_request("a", [109]))
        wait_until(lambda: client.info()["running"] == 1, 5, "running")
        begun = time.monotonic()
        assert worker.stop(signal.SIGINT) == 0
        assert time.monotonic() - begun < 10
        assert refused(stream)[0] in ("UNAVAILABLE", "CANCELLED")


def test_health_and_start() -> None:
    begun = time.monotonic()
    with Worker("--fail-health", "--start-delay", "0.5") as worker, SchedulerClient(worker.port) as client:
        assert time.monotonic() - begun >= 0.5
        assert not client.HealthCheck().healthy
        worker.send(signal.SIGUSR1)
        wait_until(lambda: client.HealthCheck().healthy, 5, "health")


def test_a_taken_port_is_an_error(worker: Worker) -> None:
    command = [sys.executable, "-m", "wsgi_router.simulator", "--bind", f"127.0.0.1:{worker.port}"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert run.returncode == 2


# Cache


class KvReader(threading.Thread):
    """Reads batches in the background."""

    def __init__(self, client: SchedulerClient, start_sequence: int = 0) -> None:
        super().__init__(daemon=True)
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=start_sequence)
        self.call = client.SubscribeKvEvents(request, timeout=60)
        self.call.initial_metadata()
        self.batches: list[common_pb2.KvEventBatch] = []
        self.start()

    def run(self) -> None:
        try:
            for batch in self.call:
                self.batches.append(batch)
        except grpc.RpcError:
            return

    def events(self, kind: str, batches: Sequence[common_pb2.KvEventBatch] | None = None) -> list[Any]:
        """Those in `batches`, by default in all that have come so far."""
        batches = self.batches if batches is None else batches
        return [getattr(e, kind) for b in batches for e in b.events if e.WhichOneof("data") == kind]


def test_prompts_that_begin_alike_are_computed_once_though_they_come_at_once() -> None:
    flags = ("--block-size", "4", "--prefill-us-per-token", "20000")
    with Worker(*flags) as worker, SchedulerClient(worker.port) as client:
        asked = [generate_request(name, list(range(1, 19)), sampling={"max_new_tokens": 1}) for name in "abc"]
        streams = [client.Generate(request) for request in asked]
        cached = [list(stream)[-1].complete.cached_tokens for stream in streams]
        assert sorted(cached) == [0, 16, 16]
        info = client.info()
        assert (info["prompt_tokens"], info["cached_tokens"]) == (54, 32)


def test_prefixes_are_cached_told_and_flushed() -> None:
    with Worker("--block-size", "4") as worker, SchedulerClient(worker.port) as client:
        events = KvReader(client)
        prompt = list(range(1, 19))
        one = {"max_new_tokens": 1}
        assert client.generate("a", prompt, sampling=one)[-1].complete.cached_tokens == 0
        assert client.generate("b", prompt, sampling=one)[-1].complete.cached_tokens == 16
        assert client.generate("c", [*prompt[:9], 99], sampling=one)[-1].complete.cached_tokens == 8
        assert client.generate("d", prompt[:8], sampling=one)[-1].complete.cached_tokens == 4
        wait_until(lambda: events.events("stored"), 5, "stored events")
        stored = events.events("stored")[0]
        assert [t for block in stored.blocks for t in block.token_ids] == prompt[:16]
        assert {block.block_size for block in stored.blocks} == {4}
        assert not stored.HasField("parent_block_hash")
        assert client.GetLoads().loads[0].cache_hit_rate == pytest.approx(28 / 54)
        client.generate("e", [*prompt, 50, 51], sampling=one)
        wait_until(lambda: len(events.events("stored")) == 2, 5, "one more block")
        grown = events.events("stored")[1]
        assert grown.parent_block_hash == stored.blocks[-1].block_hash
        assert [list(block.token_ids) for block in grown.blocks] == [[17, 18, 50, 51]]
        assert client.FlushCache().success
        wait_until(lambda: events.events("cleared"), 5, "cleared event")
        assert client.generate("f", prompt, sampling=one)[-1].complete.cached_tokens == 0
        numbers = [batch.sequence_number for batch in events.batches if batch.events]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(batch.HasField("load") for batch in events.batches)
        wait_until(lambda: any(batch.load.load_only for batch in events.batches), 5, "a load record")
        replay = KvReader(client, start_sequence=2)
        wait_until(lambda: replay.batches, 5, "replay")
        assert replay.batches[0].sequence_number == 2
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=2)
        assert next(client.SubscribeKvEvents(request)).sequence_number == 2


def test_a_full_cache_evicts_and_holds_back() -> None:
    flags = (*FLAGS, "--block-size", "4", "--kv-tokens", "64")
    with Worker(*flags) as worker, SchedulerClient(worker.port) as client:
        events = KvReader(client)
        for number in range(4):
            prompt = list(range(200 + 40 * number, 230 + 40 * number))
            client.generate(f"r{number}", prompt, sampling={"max_new_tokens": 2})
        wait_until(lambda: events.events("removed"), 5, "removed events")
        batches = list(events.batches)
        stored = [b.block_hash for e in events.events("stored", batches) for b in e.blocks]
        removed = [h for e in events.events("removed", batches) for h in e.block_hashes]
        assert set(removed) <= set(stored)
        assert len(stored) - len(removed) <= 16
        held = client.Generate(generate_request("held", [105, *range(300, 339)]))
        next(held)
        waits = client.Generate(
            generate_request("waits", list(range(400, 430)), sampling={"max_new_tokens": 2})
        )
        wait_until(lambda: client.info()["waiting"] == 1, 5, "waiting for room")
        assert client.GetLoads().loads[0].num_waiting_uncached_tokens == 30
        assert client.GetLoads().loads[0].num_used_tokens >= 43
        held.cancel()
        assert len(chunk_ids(list(waits))) == 2
        assert refused(client.Generate(generate_request("big", list(range(64)))))[0] == "INVALID_ARGUMENT"


def test_no_prefix_cache() -> None:
    with Worker("--no-prefix-cache") as worker, SchedulerClient(worker.port) as client:
        for _ in range(2):
            (event,) = client.generate("a", list(range(1, 60)), stream=False)
            assert event.complete.cached_tokens == 0


# Prefill and decode


def scored_ids(messages: Any) -> list[int]:
    """Tokens of the prompt that log probabilities came of, with the last message."""
    return list(messages[-1].complete.input_logprobs.token_ids)


def test_prefill_and_decode_meet() -> None:
    port = free_port()
    prefill_flags = ("--role", "prefill", "--bootstrap-port", str(port), "--bootstrap-timeout", "2")
    decode_flags = ("--role", "decode", "--bootstrap-timeout", "3")
    with (
        Worker(*prefill_flags) as prefill,
        Worker(*decode_flags) as decode,
        SchedulerClient(prefill.port) as first,
        SchedulerClient(decode.port) as second,
    ):
        meeting: dict[str, Any] = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port}

        def ask(client: SchedulerClient, room: int, ids: list[int]) -> Any:
            params = pb.DisaggregatedParams(**meeting, bootstrap_room=room)
            return client.generate(
                f"r{room}",
                ids,
                sampling={"max_new_tokens": 5},
                disaggregated_params=params,
                return_logprob=True,
                logprob_start_len=0,
            )

        with ThreadPoolExecutor(2) as pool:
            for room in (7, 8):
                halves = [pool.submit(ask, client, room, [1, 2]) for client in (first, second)]
                head, tail = (half.result() for half in halves)
                assert len(chunk_ids(head)) == 1
                assert len(chunk_ids(tail)) == 5
                assert chunk_ids(tail)[:1] == chunk_ids(head)
                assert [scored_ids(head), scored_ids(tail)] == [[1, 2], []]
            differing = [pool.submit(ask, c, 9, ids) for c, ids in ((first, [1, 2]), (second, [1]))]
            for half in differing:
                with pytest.raises(grpc.RpcError, match="prompts differ"):
                    half.result()
        with pytest.raises(grpc.RpcError, match="no decode worker"):
            ask(first, 10, [1])
        with pytest.raises(grpc.RpcError, match="was used before"):
            ask(first, 7, [1, 2])
        with pytest.raises(grpc.RpcError, match="no prefill request"):
            ask(second, 11, [1])
        assert refused(first.Generate(generate_request("a", [1])))[0] == "INVALID_ARGUMENT"
        assert (
            first.GetLoads(pb.GetLoadsRequest(include=["disagg"])).loads[0].disaggregation.mode == "prefill"
        )
