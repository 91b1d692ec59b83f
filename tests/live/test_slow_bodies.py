"""Bodies that trickle, under the servers that lend their socket, with and without TLS."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.processes import Router, wait_until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def trickled(connection: socket.socket, framing: bytes, piece: bytes) -> bytes:
    """All that is answered while one piece after the other is sent."""
    connection.settimeout(0.1)
    connection.sendall(HEAD + framing + b"\r\n\r\n")
    deadline = time.monotonic() + 30
    answer = b""
    while time.monotonic() < deadline:
        try:
            connection.sendall(piece)
            data = connection.recv(4096)
        except TimeoutError:
            continue
        except OSError:
            return answer
        if not data:
            return answer
        answer += data
    raise AssertionError("the connection was kept")


@pytest.mark.parametrize("worker_class", ["gevent", "gthread"])
@pytest.mark.parametrize("framing", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_a_body_that_trickles_is_cut_off(worker_class: str, framing: str) -> None:
    with Router(flags=("-k", worker_class), body_timeout="1") as router:
        with socket.create_connection(("127.0.0.1", router.port)) as connection:
            answer = trickled(connection, framing.encode(), b"1\r\nx\r\n")
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b'"code": "request_timeout"' in answer
        assert router.status("/health") == 200


def test_over_tls_the_connection_ends(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    flags = ("--keyfile", str(key), "--certfile", str(certificate))
    router = Router(flags=flags, body_timeout="1")
    router.wait_ready = lambda: None  # type: ignore[method-assign]
    context = ssl._create_unverified_context()

    def connect() -> ssl.SSLSocket | None:
        try:
            return context.wrap_socket(socket.create_connection(("127.0.0.1", router.port)))
        except OSError:
            return None

    with router:
        wait_until(lambda: connect() is not None, 30, "TLS")
        connection = connect()
        assert connection is not None
        with connection:
            answer = trickled(connection, b"Content-Length: 100000", b"x")
        # What TLS takes for a broken connection cannot be answered; nothing goes out in the clear.
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")
        assert "Traceback" not in router.output()
