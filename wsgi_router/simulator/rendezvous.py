"""Where a prefill and a decode simulator meet: a room number over one TCP connection a request.

The decode side sends ``ROOM PROMPT_TOKENS\\n`` and waits; the prefill side answers ``ok\\n`` once that room's
prompt is computed, or ``error WHY\\n``. It stands in for the transfer of the KV cache: both workers must have
been given the same host, port and room, and the same prompt, or both requests fail. So do they in a room that
was used before.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import grpc

from wsgi_router.worker_api.engine import Disaggregated, EngineError

NOTICE_SECONDS = 1.0
"""SGLang's decode workers find that a prefill worker has died by missed heartbeats, not at once."""


def lost(message: str) -> EngineError:
    """The two did not meet: INTERNAL, as a failed transfer is in SGLang."""
    return EngineError(grpc.StatusCode.INTERNAL, message)


@dataclass(slots=True)
class Room:
    """One request's meeting: prefill puts its prompt length in, decode's connection its verdict."""

    prompt_tokens: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    collected: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class PrefillRooms:
    """The prefill side: listens, and keeps a room for each request."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._rooms: dict[int, Room] = {}
        self._used: set[int] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Listen; the port, which 0 leaves to the system."""
        self._server = await asyncio.start_server(self._meet, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def hand_over(self, room_id: int, prompt_tokens: int) -> None:
        """Offer a computed prompt; returns once the decode side has it. EngineError if it does not come."""
        if room_id in self._used:
            raise lost(f"bootstrap room {room_id} was used before")
        self._used.add(room_id)
        room = self._rooms.setdefault(room_id, Room())
        try:
            room.prompt_tokens.set_result(prompt_tokens)
            problem = await asyncio.wait_for(room.collected, self._timeout)
        except TimeoutError:
            raise lost(f"no decode worker came to bootstrap room {room_id}") from None
        finally:
            self._rooms.pop(room_id, None)
        if problem:
            raise lost(problem)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ValueError, ConnectionError):
            room_id, tokens = map(int, (await reader.readline()).split())
            room = self._rooms.setdefault(room_id, Room())
            problem = await self._verdict(room_id, room, tokens)
            writer.write(f"error {problem}\n".encode() if problem else b"ok\n")
            await writer.drain()

    async def _verdict(self, room_id: int, room: Room, tokens: int) -> str:
        try:
            computed = await asyncio.wait_for(asyncio.shield(room.prompt_tokens), self._timeout)
        except TimeoutError:
            self._rooms.pop(room_id, None)
            return f"no prefill request has bootstrap room {room_id}"
        problem = "" if computed == tokens else f"prompts differ: {computed} and {tokens} tokens"
        if not room.collected.done():
            room.collected.set_result(problem)
        return problem


async def collect(meeting: Disaggregated, prompt_tokens: int, timeout: float) -> None:
    """The decode side: fetch the prompt's cache from the prefill worker. EngineError if it is not there."""
    where = f"{meeting.host}:{meeting.port} room {meeting.room}"
    answer = ""
    try:
        async with asyncio.timeout(timeout):
            host = meeting.host.strip("[]")  # an IPv6 address comes as in a URL
            reader, writer = await asyncio.open_connection(host, meeting.port)
            with contextlib.closing(writer):
                writer.write(f"{meeting.room} {prompt_tokens}\n".encode())
                with contextlib.suppress(ConnectionError):
                    answer = (await reader.readline()).decode().strip()
                if not answer:
                    await asyncio.sleep(NOTICE_SECONDS)
    except (OSError, TimeoutError) as error:
        raise lost(f"no prefill worker at {where}: {error or 'timed out'}") from None
    if answer != "ok":
        raise lost(f"prefill at {where} failed: {answer.removeprefix('error ') or 'connection closed'}")
