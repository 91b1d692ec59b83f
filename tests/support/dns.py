"""A DNS server for names whose IPv4 addresses a test changes."""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType
from typing import Self

_A, _SERVFAIL = 1, 2


class DnsServer:
    """Answers names with `addresses`, or with a failure if that is None; those in `others` with theirs."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: tuple[str, ...] | None = addresses
        self.others: dict[str, tuple[str, ...]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, client = self._socket.recvfrom(4096)
            except OSError:
                return
            self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        number = query[:2]
        end = query.index(b"\0", 12) + 5
        question = query[12:end]
        kind = struct.unpack(">H", question[-4:-2])[0]
        told = self.others.get(_name(question), self.addresses)
        if told is None:
            return number + struct.pack(">HHHHH", 0x8180 | _SERVFAIL, 1, 0, 0, 0) + question
        addresses = told if kind == _A else ()
        head = number + struct.pack(">HHHHH", 0x8180, 1, len(addresses), 0, 0)
        records = (
            b"\xc0\x0c" + struct.pack(">HHIH", _A, 1, 0, 4) + socket.inet_aton(address)
            for address in addresses
        )
        return head + question + b"".join(records)


def _name(question: bytes) -> str:
    labels, place = [], 0
    while size := question[place]:
        labels.append(question[place + 1 : place + 1 + size].decode())
        place += 1 + size
    return ".".join(labels)
