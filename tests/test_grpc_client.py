"""The transport on grpcio, on greenlets and on threads."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from tests.support.clients import (
    REQUEST_ID,
    calls_at_once,
    cancel_what_hangs,
    cancel_what_waits,
    code_of,
    large_messages_deadlines_and_aborts,
    settings_and_worker,
)
from tests.support.flow import body, error_of, ids_of, seconds
from tests.support.hung_worker import HungWorkers
from tests.support.modes import MODES, run
from tests.support.processes import Worker as WorkerProcess
from tests.support.processes import free_port, wait_until
from wsgi_router.grpc_client import GrpcTransport
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.worker import Worker

both = pytest.mark.parametrize("mode", MODES)


def transport_to(port: int) -> tuple[GrpcTransport, Worker]:
    settings, worker = settings_and_worker(port)
    return GrpcTransport(settings), worker


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
    large_messages_deadlines_and_aborts(transport, worker)
    codes = calls_at_once(transport, worker, 40, "FlushCache", 1)
    wait_until(lambda: len(codes) == 40, 20)
    assert set(codes) <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    assert codes.count("DEADLINE_EXCEEDED") >= 18
    assert transport.unary(worker, "GetLoads", b"x", 5) == b"x"
    transport.close()


def waiting_scenario(port: int, method: str) -> None:
    """Neither work that waits for its worker, nor workers that hang, keep questions to others waiting."""
    transport, worker = transport_to(port)
    codes = calls_at_once(transport, worker, 100, method, 5)
    time.sleep(0.5)
    assert seconds(lambda: transport.unary(worker, "GetLoads", b"x", 5)) < 3
    assert not codes
    transport.close()


@both
def test_calls(mode: str, paced: WorkerProcess) -> None:
    run(mode, calls_scenario, paced.port)


@both
def test_cancelling(mode: str, paced: WorkerProcess) -> None:
    run(mode, cancel_scenario, paced.port)


@both
def test_nobody_listens(mode: str) -> None:
    run(mode, unreachable_scenario, free_port())


def given_up_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    cancel_what_hangs(transport, worker)
    cancel_what_waits(transport, worker)
    transport.close()


@both
def test_calls_that_nobody_waits_for(mode: str, hung: HungWorkers) -> None:
    run(mode, given_up_scenario, hung.ports[0])


@both
def test_a_worker_that_hangs(mode: str, hung: HungWorkers) -> None:
    run(mode, hung_scenario, hung.ports[0])


@both
@pytest.mark.parametrize("method", ["Embed", "FlushCache"])
def test_many_calls_that_hang(mode: str, hung: HungWorkers, method: str) -> None:
    run(mode, waiting_scenario, hung.ports[0], method)
