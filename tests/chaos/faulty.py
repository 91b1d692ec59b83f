"""A worker that breaks: a simulator behind a proxy that knows HTTP/2's frames, and spoils them when told to.

What the worker sends goes through as it is until a fault is set; from then on each connection that has a DATA
frame of an answer to pass on has the fault happen in that frame's place, once. What the router sends goes
through untouched.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

HEAD: Final = 9
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_MESSAGE: Final = 5
"""Bytes of a gRPC message's prefix: a flag, and the length."""
_TRICKLE_SECONDS: Final = 0.001


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def data(stream: int, payload: bytes) -> bytes:
    return frame(DATA, 0, stream, payload)


@dataclass(frozen=True)
class Frame:
    """One that the worker has sent, an answer's first or a later one."""

    stream: int
    payload: bytes

    @property
    def wire(self) -> bytes:
        return data(self.stream, self.payload)


@dataclass(frozen=True)
class Fault:
    """What goes out in a frame's place, and what becomes of the connection then."""

    name: str
    spoil: Callable[[Frame], bytes] = field(default=lambda frame: frame.wire)
    then: str = "goes on"  # or: "reset", "closed", "silent"


def _half(frame: Frame) -> bytes:
    return frame.wire[: HEAD + max(1, len(frame.payload) // 2)]


def _garbled(frame: Frame) -> bytes:
    """A message of the right length that is no protobuf: an endless varint."""
    return data(frame.stream, frame.payload[:_MESSAGE] + b"\xff" * (len(frame.payload) - _MESSAGE))


def _goaway(last: int, code: int) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code))


FAULTS: Final = (
    Fault("reset in a frame", _half, "reset"),
    Fault("closed in a frame", _half, "closed"),
    Fault("reset", lambda _: b"", "reset"),
    Fault("silence in a frame", _half, "silent"),
    Fault("no protobuf", _garbled),
    Fault("a message of 4 GB", lambda at: data(at.stream, b"\0\xff\xff\xff\xff" + b"x" * 1000)),
    Fault("a message said to be compressed", lambda at: data(at.stream, b"\1" + at.payload[1:])),
    Fault(
        "a message cut short", lambda at: data(at.stream, at.payload[:-1]) + frame(DATA, 1, at.stream, b"")
    ),
    Fault("no HTTP/2", lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    Fault("zeros", lambda _: bytes(4096)),
    Fault("a huge frame", lambda at: b"\xff\xff\xff" + data(at.stream, bytes(70_000))[3:]),
    Fault("DATA of no stream", lambda at: data(0, at.payload)),
    Fault("DATA of a stream that never was", lambda at: data(at.stream + 2000, at.payload)),
    Fault("headers that cannot be read", lambda at: frame(HEADERS, 4, at.stream, b"\xff" * 40)),
    Fault("trailers in the middle", lambda at: frame(HEADERS, 5, at.stream, b"\x88")),
    Fault("a stream reset", lambda at: frame(RST_STREAM, 0, at.stream, struct.pack(">I", 2))),
    Fault("a refused stream", lambda at: frame(RST_STREAM, 0, at.stream, struct.pack(">I", 7))),
    Fault("settings of a wrong size", lambda _: frame(SETTINGS, 0, 0, b"12345")),
    Fault("a window beyond all bounds", lambda _: frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2),
    Fault("a window of nothing", lambda _: frame(WINDOW_UPDATE, 0, 0, bytes(4))),
    Fault("a thousand pings", lambda at: frame(PING, 0, 0, bytes(8)) * 1000 + at.wire),
    Fault("GOAWAY that lets calls end", lambda at: _goaway(2**31 - 1, 0) + at.wire),
    Fault("GOAWAY that ends all calls", lambda at: _goaway(0, 11) + at.wire),
)


class FaultyWorker:
    """A proxy in front of the worker at `behind`; connections have a thread with an event loop."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.port = 0
        self.happened = 0
        """How many connections have had the fault."""
        self.connections = 0
        """How many are open."""
        self._fault: Fault | None = None
        self._slow = False
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set(self, fault: Fault | None, *, slow: bool = False) -> None:
        """From now on this happens; None ends it. `slow`: bytes trickle."""
        self.happened = 0
        self._slow = slow
        self._fault = fault

    def refuse(self) -> None:
        """Nobody listens any more, and all connections are reset."""
        self._do(self._close())

    def listen(self) -> None:
        """Serves again, at the same port."""
        self._do(self._listen())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._open):
            _reset(writer)
        while self._open:
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.connections += 1
        back: asyncio.StreamWriter | None = None
        with contextlib.suppress(ConnectionError, EOFError):
            from_worker, back = await asyncio.open_connection("127.0.0.1", self.behind)
            self._open.add(back)
            requests = asyncio.create_task(_copy(reader, back))
            try:
                await self._pass_frames(from_worker, writer)
            finally:
                requests.cancel()
        for each in (writer, back):
            if each is not None:
                each.close()
                self._open.discard(each)
        self.connections -= 1

    async def _pass_frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun: set[int] = set()
        spoilt: Fault | None = None
        while True:
            head = await reader.readexactly(HEAD)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            kind, stream = head[3], int.from_bytes(head[5:])
            whole = head + payload
            if kind == DATA and len(payload) > _MESSAGE:
                # An answer's first frame passes, so that faults come in the middle of answers too.
                fault = self._fault if stream in begun or stream % 4 == 1 else None
                begun.add(stream)
                if fault is not None and spoilt is not fault:
                    spoilt = fault
                    self.happened += 1
                    writer.write(fault.spoil(Frame(stream, payload)))
                    await writer.drain()
                    if fault.then == "reset":
                        _reset(writer)
                    if fault.then == "silent":
                        while not writer.is_closing() and self._fault is fault:
                            await asyncio.sleep(0.02)
                    if fault.then != "goes on":
                        return
                    continue
            await self._pass(whole, writer)

    async def _pass(self, whole: bytes, writer: asyncio.StreamWriter) -> None:
        if not self._slow:
            writer.write(whole)
        else:
            for at in range(0, len(whole), 3):
                writer.write(whole[at : at + 3])
                await asyncio.sleep(_TRICKLE_SECONDS)
        await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST in place of FIN."""
    found: socket.socket | None = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
