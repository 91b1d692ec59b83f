"""The transport on grpcio, on greenlets and on threads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.flow import body, error_of, ids_of, seconds
from tests.support.hung_worker import HungWorkers
from tests.support.modes import MODES, run
from tests.support.processes import Worker as WorkerProcess
from tests.support.processes import free_port, wait_until
from wsgi_router import runtime
from wsgi_router.grpc_client import GrpcTransport
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.transport import RpcFailure
from wsgi_router.workers.worker import Worker

both = pytest.mark.parametrize("mode", MODES)
REQUEST_ID = b"\x0a\x02id"


def transport_to(port: int) -> tuple[GrpcTransport, Worker]:
    url = f"grpc://127.0.0.1:{port}"
    return GrpcTransport(Settings(workers=(url,), abort_timeout=0.5)), Worker(url)


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess("--ttft-ms", "0", "--itl-ms", "5") as process:
        yield process


@pytest.fixture(scope="module")
def hung() -> Iterator[HungWorkers]:
    with HungWorkers(1) as process:
        yield process


def code_of(error: BaseException) -> str:
    assert isinstance(error, RpcFailure), error
    return error.code


def calls_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    info = pb.GetModelInfoResponse.FromString(transport.unary(worker, "GetModelInfo", b"", 5))
    assert info.is_generation
    stream = transport.open_stream(worker, REQUEST_ID + body([5, 6], 20))
    gc.collect()  # nothing but the transport holds the channel
    assert len(ids_of(list(stream))) >= 19
    stream.close()
    stream.close()
    assert code_of(error_of(lambda: transport.unary(worker, "NoSuchThing", b"", 5))) == "UNIMPLEMENTED"
    assert code_of(error_of(lambda: transport.unary(worker, "Abort", b"\xff", 5))) != "OK"
    bad = transport.open_stream(worker, REQUEST_ID)  # no prompt
    assert code_of(error_of(lambda: list(bad))) == "INVALID_ARGUMENT"
    assert "connections=1 aborts=0" in repr(transport)
    transport.close()


def cancel_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    stream = transport.open_stream(worker, REQUEST_ID + body([5, 6], 2000))
    messages = iter(stream)
    next(messages)
    assert repr(stream) == "<GrpcStream open>"
    threading.Timer(0.1, stream.close).start()
    assert code_of(error_of(lambda: list(messages))) == "CANCELLED"
    assert repr(stream) == "<GrpcStream ended>"
    transport.forget(worker)
    transport.forget(worker)
    assert transport.unary(worker, "GetModelInfo", b"", 5)  # over a new connection
    open_still = transport.open_stream(worker, REQUEST_ID + body([5, 6], 2000))
    transport.close()
    assert code_of(error_of(lambda: list(open_still))) == "CANCELLED"


def unreachable_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    assert code_of(error_of(lambda: transport.unary(worker, "GetModelInfo", b"", 5))) == "UNAVAILABLE"
    stream = transport.open_stream(worker, REQUEST_ID + body([5], 2))
    assert seconds(lambda: error_of(lambda: list(stream))) < 20
    transport.abort(worker, "id")
    wait_until(lambda: "aborts=0" in repr(transport))


def hung_scenario(port: int) -> None:
    """Deadlines hold, calls are bounded in number, large messages pass."""
    transport, worker = transport_to(port)
    large = bytes(20 * 2**20)
    assert transport.unary(worker, "GetLoads", large, 30) == large
    assert code_of(error_of(lambda: transport.unary(worker, "FlushCache", b"", 0.2))) == "DEADLINE_EXCEEDED"
    for _ in range(200):
        transport.abort(worker, "id")
    assert "aborts=64" in repr(transport)
    wait_until(lambda: "aborts=0" in repr(transport), 10)
    codes: list[str] = []
    for _ in range(40):
        runtime.spawn(
            lambda: codes.append(code_of(error_of(lambda: transport.unary(worker, "FlushCache", b"", 1))))
        )
    wait_until(lambda: len(codes) == 40, 20)
    assert set(codes) <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    assert codes.count("DEADLINE_EXCEEDED") >= 18
    assert transport.unary(worker, "GetLoads", b"x", 5) == b"x"
    transport.close()


def embeds_scenario(port: int) -> None:
    """Work that waits for its worker keeps no question about it waiting."""
    transport, worker = transport_to(port)
    codes: list[str] = []
    for _ in range(100):
        runtime.spawn(
            lambda: codes.append(code_of(error_of(lambda: transport.unary(worker, "Embed", b"", 5))))
        )
    time.sleep(0.5)
    assert seconds(lambda: transport.unary(worker, "GetLoads", b"x", 5)) < 3
    assert not codes
    transport.close()


@both
def test_calls(mode: str, worker: WorkerProcess) -> None:
    run(mode, calls_scenario, worker.port)


@both
def test_cancelling(mode: str, worker: WorkerProcess) -> None:
    run(mode, cancel_scenario, worker.port)


@both
def test_nobody_listens(mode: str) -> None:
    run(mode, unreachable_scenario, free_port())


@both
def test_a_worker_that_hangs(mode: str, hung: HungWorkers) -> None:
    run(mode, hung_scenario, hung.ports[0])


@both
def test_embeddings_that_hang(mode: str, hung: HungWorkers) -> None:
    run(mode, embeds_scenario, hung.ports[0])
