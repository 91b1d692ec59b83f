"""The load worker speaks SGLang's protocol: asked through the official stubs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness import assets
from harness.processes import Service, free_port
from smg_grpc_proto.generated import sglang_scheduler_pb2 as pb  # type: ignore[import-untyped]
from smg_grpc_proto.generated import sglang_scheduler_pb2_grpc as pb_grpc

IDS = [11, 22, 33]


@pytest.fixture(scope="module")
def binary() -> Path:
    return assets.build_load()


class Worker:
    """A started load worker, a stub for it, and its counts once it has ended."""

    def __init__(self, folder: Path, binary: Path, *options: str) -> None:
        ids = folder / "ids.txt"
        ids.write_text(" ".join(map(str, IDS)))
        port = free_port()
        command = [str(binary), "worker", "--port", str(port), "--ids-file", str(ids), "--max-seconds", "60"]
        self.service = Service("test-worker", [*command, *options])
        self.service.wait_for_line("worker ready")
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub: Any = pb_grpc.SglangSchedulerStub(self.channel)

    def counts(self) -> dict[str, int]:
        self.channel.close()
        self.service.stop()
        counts: dict[str, int] = json.loads(self.service.last_line())
        return counts


@pytest.fixture
def start(tmp_path: Path, binary: Path) -> Iterator[Any]:
    workers: list[Worker] = []

    def start(*options: str) -> Worker:
        workers.append(Worker(tmp_path, binary, *options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.service.stop()


def request(request_id: str, tokens: int, *, stream: bool = True, n: int = 1) -> Any:
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=[1, 2]),
        sampling_params=pb.SamplingParams(max_new_tokens=tokens, n=n),
        stream=stream,
    )


def test_stream_has_cumulative_counts_and_a_complete_that_repeats(start: Any) -> None:
    messages = list(start("--burst").stub.Generate(request("a", 5)))
    chunks = [message.chunk for message in messages[:-1]]
    assert [list(chunk.token_ids) for chunk in chunks] == [[11], [22], [33], [11], [22]]
    assert [chunk.completion_tokens for chunk in chunks] == [1, 2, 3, 4, 5]
    assert {
        (message.request_id, chunk.prompt_tokens) for message, chunk in zip(messages, chunks, strict=False)
    } == {("a", 2)}
    complete = messages[-1].complete
    assert (list(complete.output_ids), complete.finish_reason, complete.completion_tokens) == (
        [22],
        "length",
        5,
    )


def test_whole_answer_and_the_worker_s_own_limit(start: Any) -> None:
    worker = start("--burst", "--tokens", "4")
    (message,) = worker.stub.Generate(request("a", 9, stream=False))
    assert list(message.complete.output_ids) == [11, 22, 33, 11]
    assert (message.complete.finish_reason, message.complete.prompt_tokens) == ("stop", 2)


def test_pacing(start: Any) -> None:
    worker = start("--itl-ms", "50", "--ttft-ms", "100")
    began = time.monotonic()
    times = [time.monotonic() - began for _ in worker.stub.Generate(request("a", 3))]
    # Lower bounds only: a busy machine may be late, the worker must never be early.
    assert times[0] >= 0.1
    assert times[2] >= 0.2
    assert times[3] >= times[2]


def test_abort_by_prefix_cancel_and_refusals_are_counted(start: Any) -> None:
    worker = start("--itl-ms", "20")
    call = worker.stub.Generate(request("abc-1", 100_000))
    next(call)
    assert worker.stub.Abort(pb.AbortRequest(request_id="abc")).success
    assert list(call)[-1].complete.finish_reason == "abort"
    assert not worker.stub.Abort(pb.AbortRequest(request_id="abc")).success
    call = worker.stub.Generate(request("gone", 100_000))
    next(call)
    call.cancel()
    for bad in (request("n", 1, n=2), pb.GenerateRequest(request_id="empty")):
        with pytest.raises(grpc.RpcError) as refused:
            list(worker.stub.Generate(bad))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as refused:
        worker.stub.FlushCache(pb.common__pb2.FlushCacheRequest())
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    deadline = time.monotonic() + 5
    while worker.stub.GetLoads(pb.GetLoadsRequest()).aggregate.total_reqs and time.monotonic() < deadline:
        time.sleep(0.02)
    counts = worker.counts()
    assert {name: counts[name] for name in ("aborted", "gone", "refused", "running", "started")} == {
        "aborted": 1,
        "gone": 1,
        "refused": 3,
        "running": 0,
        "started": 2,
    }


def test_a_reader_that_stops_holds_the_worker_back(start: Any) -> None:
    worker = start("--burst")
    call = worker.stub.Generate(request("slow", 1_000_000))
    next(call)
    time.sleep(1.0)
    call.cancel()
    assert worker.counts()["tokens"] < 1_000_000


def test_infos(start: Any) -> None:
    stub = start(
        "--model", "m", "--tokenizer-path", "/t", "--context-length", "99", "--vocab-size", "77"
    ).stub
    info = stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.served_model_name, info.tokenizer_path) == ("m", "/t")
    assert (info.max_context_length, info.vocab_size, info.is_generation) == (99, 77, True)
    assert stub.HealthCheck(pb.HealthCheckRequest()).healthy
    server = stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (server.server_type, server.server_args["context_length"]) == ("grpc", 99)
