"""Many clients over bare sockets, in a thread of their own: each asks again and again, and all is noted.

A client reads its answer to the end and says what became of it; nothing is left out, so that the counts add
up. Clients that misbehave are in tests/chaos/clients.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from tests.support.processes import wait_until

PATIENCE: Final = 120.0
"""Seconds for the next bytes of an answer; only a hang takes so long."""
_LINE: Final = 1 << 20

DONE: Final = "done"
"""The whole answer, with as many tokens as were asked for."""
EVENT: Final = "error event"
"""It had begun, and ended with an error event and [DONE]."""
STATUS: Final = "error status"
CUT: Final = "cut"
"""The connection ended before the answer did."""
HUNG: Final = "hung"
WRONG: Final = "wrong"
"""What no client should ever see."""
UNREACHED: Final = "not connected"


@dataclass(frozen=True)
class Outcome:
    """What became of a request, and the client's own port, by which its process can be told."""

    kind: str
    port: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Ask:
    """A chat request for so many tokens."""

    text: str = "hello"
    tokens: int = 20
    stream: bool = True
    model: str = "qwen3-sim"

    def wire(self, keep_alive: bool = False) -> bytes:
        options = {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}
        messages = [{"role": "user", "content": self.text}]
        body = json.dumps(
            {"model": self.model, "messages": messages, "max_tokens": self.tokens, **options}
        ).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        end = "" if keep_alive else "Connection: close\r\n"
        return f"{head}{end}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection:
    """A client's connection to the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.port: int = writer.get_extra_info("sockname")[1]
        self.usable = True

    @classmethod
    async def open(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=_LINE))

    async def ask(
        self, ask: Ask, keep_alive: bool = False, begun: Callable[[], None] | None = None
    ) -> Outcome:
        """`begun` is called at the answer's first byte."""
        self.usable = False
        try:
            self.writer.write(ask.wire(keep_alive))
            async with asyncio.timeout(PATIENCE):
                status, headers = await self._head()
            if begun is not None:
                begun()
            body = await self._body(headers)
            self.usable = headers.get("connection") != "close"
        except TimeoutError:
            return Outcome(HUNG, self.port)
        except (ConnectionError, EOFError) as error:  # also of an answer that ends too early
            return Outcome(CUT, self.port, repr(error)[:200])
        kind, detail = judge(ask, status, headers, body)
        return Outcome(kind, self.port, detail)

    async def _head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in head[1:] if line)
        return int(head[0].split()[1]), {name.lower(): value for name, _, value in pairs}

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            async with asyncio.timeout(PATIENCE):
                return await self.reader.readexactly(int(headers["content-length"]))
        parts: list[bytes] = []
        while True:
            async with asyncio.timeout(PATIENCE):
                size = int((await self.reader.readuntil(b"\r\n")), 16)
                part = await self.reader.readexactly(size + 2)
            if not size:
                return b"".join(parts)
            parts.append(part[:-2])

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


def judge(ask: Ask, status: int, headers: dict[str, str], body: bytes) -> tuple[str, str]:
    """The kind of a whole answer, and what can be said of it."""
    try:
        return _judged(ask, status, headers, body)
    except (ValueError, LookupError, TypeError) as error:
        return WRONG, f"{status} {error!r} {body[-500:]!r}"


def _judged(ask: Ask, status: int, headers: dict[str, str], body: bytes) -> tuple[str, str]:
    if status != 200:
        error = json.loads(body)["error"]
        if status in (429, 503) and int(headers["retry-after"]) < 1:
            return WRONG, "no time to retry after"
        kind = WRONG if error["code"] == "internal_error" else STATUS
        return kind, f"{status} {error['code']}: {error['message'][:200]}"
    if not ask.stream:
        answer = json.loads(body)
        return _whole(ask, answer["usage"], answer["choices"][0]["finish_reason"])
    events = body.decode().split("\n\n")
    if events.pop() != "" or events.pop() != "data: [DONE]":
        return WRONG, f"no end: {body[-300:]!r}"
    data = [json.loads(event.removeprefix("data: ")) for event in events if not event.startswith(":")]
    if "error" in data[-1]:
        return EVENT, f"{data[-1]['error']['code']}: {data[-1]['error']['message'][:200]}"
    finish = [chunk["choices"][0]["finish_reason"] for chunk in data[:-1]]
    if finish.count(None) != len(finish) - 1:
        return WRONG, f"ends {finish}"
    return _whole(ask, data[-1]["usage"], finish[-1])


def _whole(ask: Ask, usage: dict[str, Any], finish: str) -> tuple[str, str]:
    if usage["completion_tokens"] != ask.tokens or finish != "length":
        return WRONG, f"{usage['completion_tokens']} of {ask.tokens} tokens, {finish}"
    return DONE, ""


class Load:
    """`clients` clients that ask again and again, each with `ask(its own random numbers)`, or `once`.

    Every fourth keeps its connection for all its requests, as SDKs do, and opens another when told to.
    """

    def __init__(
        self,
        port: int,
        clients: int,
        ask: Callable[[random.Random], Ask],
        seed: int = 0,
        pause: float = 0.0,
        once: bool = False,
    ) -> None:
        self.port = port
        self.clients = clients
        self.outcomes: list[Outcome] = []
        self.begun = 0
        """Answers whose first byte has come."""
        self._ask = ask
        self._seed = seed
        self._pause = pause
        self._once = once
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def stop(self) -> list[Outcome]:
        """Lets the clients end what they have begun."""
        self._stopping.set()
        self._thread.join()
        return self.outcomes

    def wait_for(self, answers: int, seconds: float = PATIENCE) -> None:
        """Returns once so many more answers have come to their end."""
        wanted = len(self.outcomes) + answers
        wait_until(lambda: len(self.outcomes) >= wanted, seconds, f"{answers} answers")

    def wait_begun(self, answers: int, seconds: float = PATIENCE) -> None:
        """Returns once so many more answers have begun."""
        wanted = self.begun + answers
        wait_until(lambda: self.begun >= wanted, seconds, f"{answers} answers that have begun")

    async def _run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self.clients)))

    async def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        kept: Connection | None = None
        await asyncio.sleep(self._pause * rng.random())
        while not self._stopping.is_set():
            try:
                connection = kept or await Connection.open(self.port)
            except OSError as error:
                self.outcomes.append(Outcome(UNREACHED, 0, repr(error)))
                await asyncio.sleep(0.1)
                continue
            keep = number % 4 == 0
            self.outcomes.append(await connection.ask(self._ask(rng), keep, self._note_begun))
            kept = connection if keep and connection.usable else None
            if kept is None:
                await connection.close()
            if self._once:
                break
            await asyncio.sleep(self._pause * rng.random())
        if kept is not None:
            await kept.close()

    def _note_begun(self) -> None:
        self.begun += 1


def counted(outcomes: Iterable[Outcome]) -> Counter[str]:
    return Counter(outcome.kind for outcome in outcomes)


def check(
    outcomes: Sequence[Outcome], allowed: Iterable[str] = (), killed: Iterable[int] = ()
) -> Counter[str]:
    """Fails for an outcome other than DONE and those allowed; cut may be who was served by a killed process.

    `killed`: the clients' ports. Returns the counts.
    """
    good, ports = {DONE, *allowed}, set(killed)
    bad = [one for one in outcomes if one.kind not in good and not (one.kind == CUT and one.port in ports)]
    assert not bad, f"{counted(outcomes)}: {Counter((one.kind, one.detail) for one in bad).most_common(5)}"
    assert outcomes, "no request was made"
    return counted(outcomes)


def all_at_once(work: Sequence[Awaitable[Any] | Coroutine[Any, Any, Any]]) -> list[Any]:
    """What each of them returns."""

    async def run() -> list[Any]:
        return list(await asyncio.gather(*work))

    return asyncio.run(run())
