"""The native transport, on greenlets and on threads. Lent sockets: live/test_transports.py."""

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
from tests.support.events import Events
from tests.support.flow import body, error_of, ids_of, seconds
from tests.support.hung_worker import HungWorkers
from tests.support.modes import MODES, run
from tests.support.processes import Worker as WorkerProcess
from tests.support.processes import free_port, wait_until
from wsgi_router import native_client
from wsgi_router.native import live_handles
from wsgi_router.native_client import NativeTransport
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.transport import Patience, RpcFailure
from wsgi_router.workers.worker import Worker

both = pytest.mark.parametrize("mode", MODES)
LONG = Patience(60, 60)


def transport_to(port: int) -> tuple[NativeTransport, Worker]:
    settings, worker = settings_and_worker(port)
    return NativeTransport(settings), worker


def calls_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    assert transport.heard(worker) == 0
    info = pb.GetModelInfoResponse.FromString(transport.unary(worker, "GetModelInfo", b"", 5))
    assert info.is_generation
    assert abs(time.monotonic() - transport.heard(worker)) < 20
    events = Events()
    call = transport.feed(worker, REQUEST_ID + body([5, 6], 20), None, 0, LONG, events)
    assert events.end() is None
    assert len(ids_of(events.items)) >= 19
    call.close()
    call.close()
    assert code_of(error_of(lambda: transport.unary(worker, "NoSuchThing", b"", 5))) == "UNIMPLEMENTED"
    assert code_of(error_of(lambda: transport.unary(worker, "Abort", b"\xff", 5))) != "OK"
    bad = Events()
    call = transport.feed(worker, REQUEST_ID, None, 0, LONG, bad)  # no prompt
    assert code_of(bad.end()) == "INVALID_ARGUMENT"
    transport.close()
    del call
    assert live_handles()["nets"] == 0
    assert live_handles()["calls"] == 0


def cancel_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    events = Events()
    call = transport.feed(worker, REQUEST_ID + body([5, 6], 2000), None, 0, LONG, events)
    events.wait_for(1)
    call.close()
    assert transport.unary(worker, "GetModelInfo", b"", 5)  # told after what was being told at the close
    count = len(events.items)
    time.sleep(0.2)  # events would come meanwhile
    assert len(events.items) == count
    assert not events.ends

    dropped = Events()
    call = transport.feed(worker, REQUEST_ID + body([5, 6], 2000), None, 0, LONG, dropped)
    dropped.wait_for(1)
    transport.forget(worker)
    transport.forget(worker)
    assert code_of(dropped.end()) == "UNAVAILABLE"
    assert transport.unary(worker, "GetModelInfo", b"", 5)  # over a new connection
    open_still = Events()
    call = transport.feed(worker, REQUEST_ID + body([5, 6], 2000), None, 0, LONG, open_still)
    transport.close()
    assert code_of(open_still.end()) == "CANCELLED"
    call.close()


def silence_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    events = Events()
    _call = transport.feed(worker, b"", None, 0, Patience(0.2, 60), events)  # to be kept
    failure = events.end()
    assert code_of(failure) == "DEADLINE_EXCEEDED"
    assert events.silent
    transport.close()


def unreachable_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    error = error_of(lambda: transport.unary(worker, "GetModelInfo", b"", 5))
    assert code_of(error) == "UNAVAILABLE"
    assert str(port) in str(error)
    events = Events()
    _call = transport.feed(worker, REQUEST_ID + body([5], 2), None, 0, LONG, events)
    assert code_of(events.end()) == "UNAVAILABLE"
    transport.abort(worker, "id")
    wait_until(lambda: "aborts=0" in repr(transport))
    transport.close()


def hung_scenario(port: int) -> None:
    """Deadlines hold, aborts are bounded in number, large messages pass."""
    transport, worker = transport_to(port)
    large_messages_deadlines_and_aborts(transport, worker)
    codes = calls_at_once(transport, worker, 200, "Embed", 1)
    time.sleep(0.2)  # all are under way
    assert seconds(lambda: transport.unary(worker, "GetLoads", b"x", 5)) < 3
    wait_until(lambda: len(codes) == 200, 20)
    assert set(codes) == {"DEADLINE_EXCEEDED"}
    transport.close()


def many_threads_scenario(port: int) -> None:
    """Calls that are begun and cancelled from everywhere at once leave nothing."""
    transport, worker = transport_to(port)
    ended: list[int] = []

    def one(number: int) -> None:
        events = Events()
        request_id = b"\x0a\x03%03d" % number
        call = transport.feed(worker, request_id + body([5, number], 50), None, 0, LONG, events)
        if number % 2:
            events.wait_for(number % 7 + 1)
        else:
            assert events.end(60) is None
        call.close()
        ended.append(number)

    for number in range(200):
        threading.Thread(target=one, args=(number,)).start()
    wait_until(lambda: len(ended) == 200, 60)
    wait_until(lambda: live_handles()["calls"] == 0, 5)
    transport.close()


def garbage_scenario(port: int) -> None:
    transport, worker = transport_to(port)
    for _ in range(5):
        call = transport.feed(worker, REQUEST_ID + body([5, 6], 2000), None, 0, LONG, Events())
        holder = [call]
        holder.append(holder)
        del call, holder
    gc.collect()
    assert live_handles()["calls"] == 0
    transport.close()


@both
def test_a_call_in_a_cycle_is_freed_with_it(mode: str, paced: WorkerProcess) -> None:
    run(mode, garbage_scenario, paced.port)


@both
def test_calls(mode: str, paced: WorkerProcess) -> None:
    run(mode, calls_scenario, paced.port)


@both
def test_cancelling(mode: str, paced: WorkerProcess) -> None:
    run(mode, cancel_scenario, paced.port)


@both
def test_silence(mode: str, hung: HungWorkers) -> None:
    run(mode, silence_scenario, hung.ports[0])


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
def test_many_at_once(mode: str, paced: WorkerProcess) -> None:
    run(mode, many_threads_scenario, paced.port)


def test_messages_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Call:
        closes = 0

        def close(self) -> None:
            self.closes += 1

    monkeypatch.setattr(native_client, "_MOST_WAITING", 3)
    call, stream = Call(), native_client._Messages()
    stream.begin(call)  # type: ignore[arg-type]
    for number in range(6):
        stream.message(b"%d" % number)
    messages = iter(stream)
    assert [next(messages) for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(RpcFailure, match="RESOURCE_EXHAUSTED"):
        next(messages)
    assert call.closes == 1
