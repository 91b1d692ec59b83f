"""TLS and mTLS to workers, over both transports, on greenlets and on threads."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import modes
from tests.support.certificates import Authority, self_signed
from tests.support.events import Events
from tests.support.flow import error_of
from tests.support.modes import TRANSPORT_MODES, run
from tests.support.processes import wait_until
from tests.support.tls_workers import Workers, tls_sockets
from wsgi_router import runtime
from wsgi_router.api.services import TRANSPORTS
from wsgi_router.native import live_handles
from wsgi_router.settings import Settings
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import Patience, RpcFailure
from wsgi_router.workers.worker import Worker

LARGE = 8 * 2**20
SOON = 10.0

Setup = dict[str, Any]
"""Ports of workers and files of certificates, by name."""


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder: Path = tmp_path_factory.mktemp("tls")
    ours, others = Authority(folder, "ca"), Authority(folder, "other-ca")
    own = self_signed(folder, "worker.example")
    good = ours.issue("127.0.0.1", "localhost", "worker.example")
    workers = Workers()
    ports = {
        "good": workers.add(good),
        "below": workers.add(ours.below()),
        "named": workers.add(ours.issue("worker.example")),
        "expired": workers.add(ours.expired("127.0.0.1")),
        "early": workers.add(ours.early("127.0.0.1")),
        "foreign": workers.add(others.issue("127.0.0.1")),
        "own": workers.add(own),
        "mutual": workers.add(good, ours.file),
        "plain": workers.add(),
    }
    no_http2 = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    no_http2.load_cert_chain(good.certificate, good.key)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(good.certificate, good.key)
    old.load_verify_locations(ours.file)
    old.set_alpn_protocols(["h2"])
    old.verify_mode = ssl.CERT_REQUIRED
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with workers, tls_sockets(no_http2) as ports["no http2"], tls_sockets(old) as ports["old mutual"]:
        client, stranger = ours.issue("router@example.org"), others.issue("router@example.org")
        yield {
            "ports": ports,
            "ca": str(ours.file),
            "own": str(own.certificate),
            "client": client.settings(),
            "stranger": stranger.settings(),
        }


def transport_of(settings: Settings) -> Any:
    return TRANSPORTS[os.environ[modes.TRANSPORT]](settings)


class Called:
    """A transport to one of the workers, with settings."""

    def __init__(self, port: int, scheme: str = "grpcs", host: str = "127.0.0.1", **settings: Any) -> None:
        url = f"{scheme}://{host}:{port}"
        self.worker = Worker(url)
        self.transport = transport_of(Settings(workers=(url,), **settings))

    def __enter__(self) -> Called:
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()

    def ask(self, method: str, request: bytes = b"") -> bytes:
        answer: bytes = self.transport.unary(self.worker, method, request, SOON)
        return answer

    def who(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("GetServerInfo"))
        return found

    def stream(self, count: int) -> list[bytes]:
        request = b"%d" % count
        if not self.transport.feeds:
            return list(self.transport.open_stream(self.worker, request))
        events = Events()
        call = self.transport.feed(self.worker, request, None, 0, Patience(SOON, SOON), events)
        assert events.end() is None
        call.close()
        return events.items

    def failure(self) -> str:
        """Why the worker cannot be called; it is known at once."""
        began = time.monotonic()
        error = error_of(lambda: self.ask("GetLoads"))
        assert time.monotonic() - began < SOON / 2
        assert isinstance(error, RpcFailure), error
        assert error.code == "UNAVAILABLE"
        return error.details


def calls_scenario(setup: Setup) -> None:
    ports, trusting = setup["ports"], {"worker_ca_file": setup["ca"]}
    large = bytes(LARGE)
    with Called(ports["good"], **trusting) as called:
        assert called.ask("GetLoads", b"hello") == b"hello"
        assert called.ask("GetLoads", large) == large
        assert called.stream(500) == [b"%d" % number for number in range(500)]
        assert called.who() == {"client": [], "authority": f"127.0.0.1:{ports['good']}"}
        called.transport.forget(called.worker)
        assert called.ask("GetLoads", b"again") == b"again"
    with Called(ports["good"], host="localhost", **trusting) as called:
        assert called.ask("GetLoads", b"hello") == b"hello"
    with Called(ports["below"], **trusting) as called:
        assert called.ask("GetLoads", b"hello") == b"hello"
    with Called(ports["named"], worker_tls_server_name="worker.example", **trusting) as called:
        assert called.who()["authority"] == "worker.example"
    with Called(ports["mutual"], **trusting, **setup["client"]) as called:
        assert called.who()["client"] == ["router@example.org"]
    # Asked for nothing, it shows nothing.
    with Called(ports["good"], **trusting, **setup["client"]) as called:
        assert called.who()["client"] == []
    own = {"worker_ca_file": setup["own"], "worker_tls_server_name": "worker.example"}
    with Called(ports["own"], **own) as called:
        assert called.ask("GetLoads", b"hello") == b"hello"
    # Plain workers do not care.
    with Called(ports["plain"], scheme="grpc", **trusting, **setup["client"]) as called:
        assert called.ask("GetLoads", b"hello") == b"hello"
    assert live_handles()["nets"] == 0


REFUSALS: dict[str, tuple[str, str, str]] = {
    "foreign": (
        "ca",
        "the worker's certificate is signed by an unknown authority",
        "unable to get local issuer certificate",
    ),
    "good": (
        "system",
        "the worker's certificate is signed by an unknown authority",
        "unable to get local issuer certificate",
    ),
    "named": ("ca", "the worker's certificate is not for 127.0.0.1, but for worker.example", "Hostname"),
    "own": ("own", "the worker's certificate is not for 127.0.0.1, but for worker.example", "Hostname"),
    "expired": ("ca", "the worker's certificate has expired, on ", "certificate has expired"),
    "early": ("ca", "the worker's certificate is not valid yet, but from ", "certificate is not yet valid"),
    "mutual": ("ca", "the worker wants a client certificate: ", ""),
    "plain": ("ca", "the worker does not speak TLS (InvalidContentType)", "WRONG_VERSION_NUMBER"),
    "no http2": ("ca", "the worker does not offer HTTP/2 (ALPN h2)", "ALPN"),
    "old mutual": ("ca", "the worker wants a client certificate: the worker ended TLS: HandshakeFailure", ""),
}
"""By worker: whom we trust, and what is said by the native transport and by grpcio."""


def refusals_scenario(setup: Setup) -> None:
    native = os.environ[modes.TRANSPORT] == "native"
    authorities = {"ca": setup["ca"], "own": setup["own"], "system": ""}
    for name, (trusted, ours, grpcs) in REFUSALS.items():
        port = setup["ports"][name]
        with Called(port, worker_ca_file=authorities[trusted]) as called:
            said = called.failure()
            assert (f"connect to 127.0.0.1:{port} failed: {ours}" if native else grpcs) in said, (name, said)
    with Called(setup["ports"]["good"], scheme="grpc") as called:
        said = called.failure()
        assert not native or "its URL begins with grpcs://" in said
    with Called(setup["ports"]["mutual"], worker_ca_file=setup["ca"], **setup["stranger"]) as called:
        said = called.failure()
        assert not native or "failed: the worker may not accept our certificate: " in said
    with Called(setup["ports"]["old mutual"], worker_ca_file=setup["ca"], **setup["stranger"]) as called:
        said = called.failure()
        assert not native or said.endswith("may not accept our certificate: the worker ended TLS: UnknownCA")
    _look_after_them(setup)


def _look_after_them(setup: Setup) -> None:
    """Each worker for itself: those that can be called are up, the others are not asked."""
    ports = setup["ports"]
    names = ("good", "expired", "plain", "mutual")
    settings = Settings(
        workers=tuple(f"grpcs://127.0.0.1:{ports[name]}" for name in names),
        worker_ca_file=setup["ca"],
        health_interval=0.2,
        **setup["client"],
    )
    transport = transport_of(settings)
    pool = WorkerPool(settings, transport)
    pool.start()

    def available() -> list[bool]:
        return [worker.available() for worker in pool.workers]

    wait_until(lambda: available() == [True, False, False, True])
    time.sleep(0.5)  # each is asked again meanwhile
    assert available() == [True, False, False, True]
    pool.close()
    transport.close()


def restart_scenario(setup: Setup, port: int, orders: str) -> None:
    """The worker goes away and comes back with another certificate; `orders` is a file that says when."""
    file = Path(orders)
    with Called(port, worker_ca_file=setup["ca"]) as called:
        assert called.ask("GetLoads", b"first") == b"first"
        file.write_text("stop")
        wait_until(lambda: file.read_text() == "stopped")
        called.failure()
        file.write_text("start")
        wait_until(lambda: file.read_text() == "started")
        wait_until(lambda: _answers(called), 10)
        assert called.stream(3) == [b"0", b"1", b"2"]


def _answers(called: Called) -> bool:
    try:
        return called.ask("GetLoads", b"again") == b"again"
    except RpcFailure:
        return False


def silent_scenario(port: int) -> None:
    """Nobody waits for a handshake that hangs, longer than for any connection."""
    codes: list[str] = []

    def one(transport: str) -> None:
        settings = Settings(workers=(f"grpcs://127.0.0.1:{port}",))
        made = TRANSPORTS[transport](settings)
        error = error_of(lambda: made.unary(Worker(settings.workers[0]), "GetLoads", b"", 30))
        codes.append(getattr(error, "code", repr(error)))
        made.close()

    for transport in ("native", "grpcio"):
        runtime.spawn(one, transport)
    wait_until(lambda: len(codes) == 2, 20)
    assert codes == ["UNAVAILABLE", "UNAVAILABLE"]


all_ways = pytest.mark.parametrize("mode", TRANSPORT_MODES)


@all_ways
def test_calls(mode: str, setup: Setup) -> None:
    run(mode, calls_scenario, setup)


@all_ways
def test_what_cannot_be_trusted_is_told_apart(mode: str, setup: Setup) -> None:
    run(mode, refusals_scenario, setup)


@pytest.mark.parametrize("mode", ["gevent, native", "gevent, grpcio"])
def test_a_worker_comes_back(mode: str, setup: Setup, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    orders = tmp_path / "orders"
    orders.write_text("")
    first, second = Workers(), Workers()
    port = first.add(authority.issue("127.0.0.1"))

    def obey() -> None:
        with first:
            wait_until(lambda: orders.read_text() == "stop", 60)
        orders.write_text("stopped")
        wait_until(lambda: orders.read_text() == "start", 60)
        second.add(authority.issue("127.0.0.1", "localhost"), address=f"127.0.0.1:{port}")
        with second:
            orders.write_text("started")
            wait_until(lambda: orders.read_text() == "end", 60)

    thread = threading.Thread(target=obey)
    thread.start()
    try:
        run(mode, restart_scenario, {**setup, "ca": str(authority.file)}, port, str(orders))
    finally:
        orders.write_text("end")
        thread.join()


def test_a_handshake_that_hangs_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        run("threads", silent_scenario, silent.getsockname()[1])
