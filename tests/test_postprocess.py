"""Streamed and whole answers: order, pings, ends, and that the end is told once."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.bench import Bench, chunk, complete, nothing_is_left
from tests.support.flow import Client
from tests.support.processes import QWEN3, wait_until
from tests.support.sse import content, events
from tests.support.transport import Answer
from wsgi_router import native, runtime
from wsgi_router.dispatch import Generation
from wsgi_router.errors import (
    ClientGone,
    DrainingError,
    InternalError,
    RouterError,
    UpstreamError,
    WorkerAbortError,
    WorkerProtocolError,
)
from wsgi_router.postprocess import PING, StreamResponse, aggregate, stream_response
from wsgi_router.workers.transport import RpcFailure

UNAVAILABLE = RpcFailure("UNAVAILABLE", "connection reset")
TEXT = "Hello there, wörld"


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


@pytest.fixture(scope="module")
def tokenizer() -> native.Tokenizer:
    return native.Tokenizer(str(QWEN3))


class Ends(list[tuple[dict[str, Any], str]]):
    """What `on_end` was told."""

    def __call__(self, stats: dict[str, Any], outcome: str) -> None:
        self.append((stats, outcome))

    @property
    def outcomes(self) -> list[str]:
        return [outcome for _, outcome in self]


def new_stream(
    tokenizer: native.Tokenizer, *, streaming: bool = True, choices: int = 1, **options: Any
) -> native.Stream:
    base = {
        "id": "chatcmpl-1",
        "created": 1,
        "model": "m",
        "include_usage": False,
        "continuous_usage": False,
        "stop": [],
        "no_stop_trim": False,
        "skip_special_tokens": True,
        "prompt_tokens": 3,
    }
    return native.Stream(
        tokenizer, json.dumps({**base, "streaming": streaming, "choices": choices, **options}).encode()
    )


def messages(tokenizer: native.Tokenizer, text: str = TEXT) -> list[bytes]:
    """A worker's messages for `text`: chunks of one token, and Complete."""
    ids = tokenizer.encode(text)
    return [chunk(token, n + 1) for n, token in enumerate(ids)] + [complete(ids[-1], len(ids))]


def parse(pieces: list[bytes]) -> list[Any]:
    return list(events(b"".join(pieces).decode().split("\n")))


class Streamed:
    """A stream response over a bench, and what its end was told."""

    def __init__(self, tokenizer: native.Tokenizer, *answers: Answer, **settings: Any) -> None:
        choices = settings.pop("choices", 1)
        stop = settings.pop("stop", [])
        client = settings.pop("client", None)
        self.bench = Bench(*answers, **settings)
        self.ends = Ends()
        self.native = new_stream(tokenizer, choices=choices, stop=stop)
        generation = self.bench.open(choices, client)
        self.response = stream_response(generation, self.native, self.bench.settings, self.ends)

    def streams(self) -> list[Any]:
        return self.bench.transport.streams

    def rest(self, *items: bytes | RpcFailure | None, choice: int = 0) -> list[Any]:
        """What comes out once something was sent and then `items` come from the worker."""
        pieces = [next(self.response)]
        for item in items:
            self.streams()[choice].put(item)
        return parse([*pieces, *self.response])


def test_a_whole_stream(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (*messages(tokenizer), None))
    found = parse(list(streamed.response))
    assert content(found) == TEXT
    assert found[-1] == "[DONE]"
    assert streamed.ends.outcomes == ["complete"]
    assert streamed.ends[0][0]["completion_tokens"] == len(tokenizer.encode(TEXT))
    streamed.response.close()
    assert streamed.ends.outcomes == ["complete"]
    assert streamed.bench.transport.aborted == []
    assert streamed.bench.transport.streams[0].closes == 0


def test_several_choices(tokenizer: native.Tokenizer) -> None:
    texts = ["one", "two and more", "three"]
    streamed = Streamed(tokenizer, *[(*messages(tokenizer, text), None) for text in texts], choices=3)
    found = parse(list(streamed.response))
    assert [content(found, n) for n in range(3)] == texts
    assert found.count("[DONE]") == 1


def test_what_is_ready_goes_out_at_once_and_together(tokenizer: native.Tokenizer) -> None:
    first, *rest = messages(tokenizer)
    streamed = Streamed(tokenizer, (first,))
    pieces = iter(streamed.response)
    assert b"Hello" in next(pieces)
    for message in (*rest, None):
        streamed.streams()[0].put(message)
    wait_until(lambda: len(streamed.response._answer.generation._queue.ready) == len(rest) + 1)
    assert next(pieces).endswith(b"data: [DONE]\n\n")
    assert list(pieces) == []


def test_a_stop_word_cancels_the_worker(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, tuple(messages(tokenizer, "one STOP two three four"))[:-1], stop=["STOP"])
    found = parse(list(streamed.response))
    assert content(found) == "one "
    assert found[-1] == "[DONE]"
    assert streamed.ends.outcomes == ["complete"]
    assert streamed.bench.transport.streams[0].closes == 1
    assert len(streamed.bench.transport.aborted) == 1


def test_pings_while_idle(tokenizer: native.Tokenizer) -> None:
    first, *rest = messages(tokenizer)
    streamed = Streamed(tokenizer, (first,), ping_interval=0.1)
    pieces = iter(streamed.response)
    assert PING not in next(pieces)
    assert [next(pieces), next(pieces)] == [PING, PING]
    for message in (*rest, None):
        streamed.streams()[0].put(message)
    found = parse([piece for piece in pieces if piece != PING])
    assert found[-1] == "[DONE]"


def test_a_failure_before_the_first_byte_is_raised(tokenizer: native.Tokenizer) -> None:
    with pytest.raises(WorkerProtocolError):
        Streamed(tokenizer, (b"\xff\xff\xff", None))
    with pytest.raises(UpstreamError):
        Streamed(tokenizer, (UNAVAILABLE,), workers=1)


def test_a_failure_midway_is_an_event(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    found = streamed.rest(UNAVAILABLE)
    assert found[-2]["error"]["code"] == "worker_unavailable"
    assert found[-1] == "[DONE]"
    assert content(found) == "Hello"
    assert streamed.ends.outcomes == ["failed"]


@pytest.mark.parametrize("last", [UNAVAILABLE, b"\xff\xff\xff", complete(1, 1, "abort"), None])
def test_what_came_before_a_failure_is_not_lost(
    tokenizer: native.Tokenizer, last: bytes | RpcFailure | None
) -> None:
    """Also where both come in one batch, before the first byte is sent."""
    streamed = Streamed(tokenizer, (messages(tokenizer)[0], last))
    found = parse(list(streamed.response))
    assert content(found) == "Hello"
    assert "error" in found[-2]
    assert found[-1] == "[DONE]"
    assert streamed.ends.outcomes == ["failed"]


def test_an_abort_midway_is_an_event(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    found = streamed.rest(complete(1, 1, "abort"), None)
    assert found[-2]["error"]["code"] == WorkerAbortError.code
    assert streamed.ends.outcomes == ["failed"]


def test_garbage_midway_is_an_event(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    found = streamed.rest(b"\xff\xff\xff")
    assert found[-2]["error"]["code"] == WorkerProtocolError.code
    assert found[-1] == "[DONE]"
    assert streamed.bench.transport.streams[0].closes == 1


def test_an_end_without_complete_is_an_event(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    found = streamed.rest(None)
    assert found[-2]["error"]["code"] == WorkerProtocolError.code
    assert streamed.ends.outcomes == ["failed"]


def test_one_failed_choice_ends_all(tokenizer: native.Tokenizer) -> None:
    head = messages(tokenizer)[0]
    streamed = Streamed(tokenizer, (head,), (head,), (head,), choices=3)
    found = streamed.rest(UNAVAILABLE, choice=1)
    assert found[-2]["error"]["code"] == "worker_unavailable"
    assert found[-1] == "[DONE]"
    assert [stream.closes for stream in streamed.streams()] == [1, 0, 1]
    assert streamed.ends.outcomes == ["failed"]


def test_silence_midway_is_an_event(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],), token_timeout=0.2)
    found = parse(list(streamed.response))
    assert found[-2]["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("started", [False, True])
def test_close_cancels(tokenizer: native.Tokenizer, started: bool) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    if started:
        next(iter(streamed.response))
    streamed.response.close()
    streamed.response.close()
    assert streamed.ends.outcomes == ["cancelled"]
    assert streamed.streams()[0].closes == 1
    assert len(streamed.bench.transport.aborted) == 1
    assert list(streamed.response) == []


def test_close_from_elsewhere_while_waiting(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    pieces = iter(streamed.response)
    next(pieces)
    runtime.call_later(0.1, streamed.response.close)
    start = time.monotonic()
    assert list(pieces) == []
    assert time.monotonic() - start < 5
    wait_until(lambda: streamed.ends.outcomes == ["cancelled"])


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_dropped_response_is_cancelled(tokenizer: native.Tokenizer, started: bool, closed: bool) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    if started:
        next(streamed.response)
    if closed:
        streamed.response._answer.generation.close()
    del streamed.response
    gc.collect()
    wait_until(lambda: streamed.ends.outcomes == ["cancelled"], 5)
    assert streamed.bench.in_flight() == [0, 0]


def test_the_client_leaves(tokenizer: native.Tokenizer) -> None:
    client = Client()
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],), client=client.watch)
    pieces = iter(streamed.response)
    next(pieces)
    client.leave()
    assert list(pieces) == []
    assert streamed.ends.outcomes == ["cancelled"]
    assert streamed.streams()[0].closes == 1


class OurLoan:
    """The socket of a client."""

    def __init__(self, client: Client) -> None:
        self.descriptor = client.ours.fileno()

    def send(self, data: bytes) -> None:
        raise AssertionError("the socket has taken all")

    def count(self, written: int) -> None:
        self.written = written


@pytest.mark.parametrize(("unsent", "outcome"), [(0, "complete"), (1, "cancelled")])
def test_a_client_that_has_all_may_leave_before_the_core_tells(
    tokenizer: native.Tokenizer, unsent: int, outcome: str
) -> None:
    """What the core writes is with the client at once, and with us a moment later."""
    first, *others = messages(tokenizer)
    client, ends, stream = Client(), Ends(), new_stream(tokenizer)
    bench = Bench((first,))
    response = stream_response(bench.open(client=client.watch), stream, bench.settings, ends)
    response._answer.loan = loan = OurLoan(client)
    head = next(response)
    for message in others[: len(others) - unsent]:
        stream.feed(0, message)
    client.leave()
    assert b"".join(response) == b""
    assert ends.outcomes == [outcome]
    assert len(head) > 0
    assert loan.written > 0


@pytest.mark.parametrize("busy", [False, True])
def test_the_drain_ends_a_stream(tokenizer: native.Tokenizer, busy: bool) -> None:
    streamed = Streamed(tokenizer, tuple(messages(tokenizer)[:2]))
    found: list[bytes] = []
    start = time.monotonic()
    runtime.drain.begin(0.3)
    for piece in streamed.response:
        found.append(piece)
        if busy:
            streamed.streams()[0].put(chunk(tokenizer.encode("x")[0], len(found) + 2))
            time.sleep(0.01)
    assert 0.3 <= time.monotonic() - start < 30
    assert parse(found)[-2]["error"]["code"] == DrainingError.code
    assert parse(found)[-1] == "[DONE]"
    assert streamed.ends.outcomes == ["drained"]


def test_connections_closed_at_the_end_are_no_fault_of_the_worker(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    pieces = iter(streamed.response)
    found = [next(pieces)]
    runtime.drain.begin(0.0)
    streamed.streams()[0].put(RpcFailure("CANCELLED", "Channel closed!"))
    wait_until(lambda: len(streamed.response._answer.generation._queue.ready) > 0)
    found += pieces
    assert parse(found)[-2]["error"]["code"] == DrainingError.code
    assert streamed.ends.outcomes == ["drained"]


def test_a_fault_of_ours_is_an_event(
    tokenizer: native.Tokenizer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))

    def broken(_generation: Generation) -> list[Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(Generation, "take", broken)
    streamed.streams()[0].put(messages(tokenizer)[1])
    found = parse(list(streamed.response))
    assert found[-2]["error"]["code"] == InternalError.code
    assert streamed.ends.outcomes == ["failed"]
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


def test_a_failing_on_end_harms_nobody(tokenizer: native.Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench((*messages(tokenizer), None))

    def on_end(stats: dict[str, Any], outcome: str) -> None:
        raise ValueError(outcome)

    response = stream_response(bench.open(), new_stream(tokenizer), bench.settings, on_end)
    assert parse(list(response))[-1] == "[DONE]"
    assert "ValueError: complete" in caplog.text
    caplog.clear()


def test_repr_tells_the_state(tokenizer: native.Tokenizer) -> None:
    streamed = Streamed(tokenizer, (messages(tokenizer)[0],))
    assert repr(streamed.response).startswith("<StreamResponse open <Generation open")
    streamed.response.close()
    assert repr(streamed.response).startswith("<StreamResponse ended <Generation closed")
    assert isinstance(streamed.response, StreamResponse)


def whole(tokenizer: native.Tokenizer, bench: Bench, ends: Ends, **options: Any) -> dict[str, Any]:
    choices = options.pop("choices", 1)
    stream = new_stream(tokenizer, streaming=False, choices=choices, **options)
    answer: dict[str, Any] = json.loads(aggregate(bench.open(choices), stream, ends))
    return answer


def test_a_whole_answer(tokenizer: native.Tokenizer) -> None:
    ends = Ends()
    answer = whole(tokenizer, Bench((*messages(tokenizer), None)), ends)
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["usage"]["completion_tokens"] == len(tokenizer.encode(TEXT))
    assert ends.outcomes == ["complete"]


def test_whole_choices(tokenizer: native.Tokenizer) -> None:
    bench = Bench(*[(*messages(tokenizer, text), None) for text in ("one", "two")])
    answer = whole(tokenizer, bench, Ends(), choices=2)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (UNAVAILABLE, UpstreamError),
        (None, WorkerProtocolError),
        (b"\xff\xff", WorkerProtocolError),
        (complete(1, 1, "abort"), WorkerAbortError),
    ],
)
def test_a_whole_answer_that_fails_raises(
    tokenizer: native.Tokenizer, last: bytes | RpcFailure | None, kind: type[RouterError]
) -> None:
    ends = Ends()
    with pytest.raises(kind):
        whole(tokenizer, Bench((messages(tokenizer)[0], last)), ends)
    assert ends.outcomes == ["failed"]


def test_the_client_leaves_a_whole_answer(tokenizer: native.Tokenizer) -> None:
    ends, client, bench = Ends(), Client(), Bench((messages(tokenizer)[0],))
    generation = bench.open(client=client.watch)
    runtime.call_later(0.1, client.leave)
    with pytest.raises(ClientGone):
        aggregate(generation, new_stream(tokenizer, streaming=False), ends)
    assert ends.outcomes == ["cancelled"]
    assert len(bench.transport.aborted) == 1


def test_the_drain_ends_a_whole_answer(tokenizer: native.Tokenizer) -> None:
    ends = Ends()
    generation = Bench((messages(tokenizer)[0],)).open()
    runtime.drain.begin(0.2)
    with pytest.raises(DrainingError):
        aggregate(generation, new_stream(tokenizer, streaming=False), ends)
    assert ends.outcomes == ["drained"]
