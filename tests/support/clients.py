"""What the tests of both transports share."""

from __future__ import annotations

import time
from typing import Any

from wsgi_router import runtime
from wsgi_router.settings import Settings
from wsgi_router.workers.slots import Slots
from wsgi_router.workers.transport import Cancel, RpcFailure
from wsgi_router.workers.worker import Worker

from .flow import error_of
from .processes import wait_until

REQUEST_ID = b"\x0a\x02id"
"""A GenerateRequest's first field."""


def settings_and_worker(port: int) -> tuple[Settings, Worker]:
    url = f"grpc://127.0.0.1:{port}"
    return Settings(workers=(url,), abort_timeout=0.5), Worker(url)


def code_of(error: BaseException | None) -> str:
    assert isinstance(error, RpcFailure), error
    return error.code


def large_messages_deadlines_and_aborts(transport: Any, worker: Worker) -> None:
    """Large messages pass, deadlines hold, aborts are bounded in number; of a worker that hangs."""
    large = bytes(20 * 2**20)
    assert transport.unary(worker, "GetLoads", large, 30) == large
    assert code_of(error_of(lambda: transport.unary(worker, "FlushCache", b"", 0.2))) == "DEADLINE_EXCEEDED"
    most = 0
    for _ in range(200):
        transport.abort(worker, "id")
        most = max(most, int(repr(transport).partition("aborts=")[2].rstrip(">")))
    assert most == 64
    wait_until(lambda: "aborts=0" in repr(transport), 10)


def calls_at_once(
    transport: Any, worker: Worker, count: int, method: str, timeout: float, cancel: Cancel | None = None
) -> list[str]:
    """Begins unary calls; their codes come into the list as they end."""
    codes: list[str] = []

    def call() -> None:
        codes.append(code_of(error_of(lambda: transport.unary(worker, method, b"", timeout, cancel))))

    for _ in range(count):
        runtime.spawn(call)
    return codes


def cancel_what_waits(transport: Any, worker: Worker) -> None:
    """Calls that wait for the end of others are ended from elsewhere; one that is not gets its turn."""
    transport._embed_slots = Slots(2)
    hang, cancel = Cancel(), Cancel()
    held = calls_at_once(transport, worker, 2, "Embed", 60, hang)
    codes = calls_at_once(transport, worker, 5, "Embed", 60, cancel)
    others = calls_at_once(transport, worker, 1, "Embed", 60, last := Cancel())
    wait_until(lambda: "waiting=6" in repr(transport._embed_slots), 10)
    cancel()
    wait_until(lambda: codes == ["CANCELLED"] * 5, 10)
    assert (held, others) == ([], [])
    hang()
    wait_until(lambda: held == ["CANCELLED"] * 2 and "free=1 waiting=0" in repr(transport._embed_slots), 10)
    last()
    wait_until(lambda: others == ["CANCELLED"], 10)
    assert "free=2" in repr(transport._embed_slots)


def cancel_what_hangs(transport: Any, worker: Worker) -> None:
    """Calls are ended from elsewhere, those under way and those that begin later; others are not."""
    cancel = Cancel()
    codes = calls_at_once(transport, worker, 20, "Embed", 60, cancel)
    others = calls_at_once(transport, worker, 5, "Embed", 3)
    time.sleep(0.3)  # all are under way
    assert (codes, others) == ([], [])
    cancel()
    cancel()
    wait_until(lambda: len(codes) == 20, 10)
    assert code_of(error_of(lambda: transport.unary(worker, "Embed", b"", 60, cancel))) == "CANCELLED"
    assert others == []
    assert set(codes) == {"CANCELLED"}
    assert transport.unary(worker, "GetLoads", b"x", 5) == b"x"
    wait_until(lambda: others == ["DEADLINE_EXCEEDED"] * 5, 20)
