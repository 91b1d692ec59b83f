"""Clients that do not behave."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

from tests.chaos.load import Ask
from tests.support.processes import Router


def opened(server: Router, wire: bytes, receive_buffer: int = 0) -> socket.socket:
    """A connection that has sent a request; with a small buffer it holds the sender up soon."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(wire)
    return connection


def leave(server: Router, rng: random.Random, clients: int, ask: Ask) -> None:
    """Clients that go at any moment, with a FIN or a reset: in the request, before or within the answer."""
    wire = ask.wire()
    held = []
    for _ in range(clients):
        sent = rng.choice((len(wire), len(wire), len(wire), rng.randrange(len(wire))))
        held.append(opened(server, wire[:sent]))
    rng.shuffle(held)
    for number, connection in enumerate(held):
        with contextlib.suppress(OSError):  # an answer that is not there yet, or a process that is gone
            if number % 3 == 0:
                connection.settimeout(rng.random() * 0.2)
                connection.recv(rng.randrange(1, 2000))
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
