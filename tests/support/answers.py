"""A worker's messages for a list of ids, cut and closed in every way that servicers do it, and what the core
makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wsgi_router import native
from wsgi_router.pb import sglang_scheduler_pb2 as pb

from . import sse

#: What the closing message carries: the last chunk's ids again, only ids that no chunk had, or all.
CLOSINGS = ("repeat", "rest", "all")


def chunk(ids: Sequence[int], count: int, **fields: Any) -> bytes:
    """New ids; `count` completion tokens so far."""
    part = pb.GenerateStreamChunk(token_ids=ids, completion_tokens=count, prompt_tokens=7, **fields)
    return pb.GenerateResponse(chunk=part).SerializeToString()


def complete(ids: Sequence[int], count: int, reason: str = "length", **fields: Any) -> bytes:
    part = pb.GenerateComplete(
        output_ids=ids, completion_tokens=count, prompt_tokens=7, finish_reason=reason, **fields
    )
    return pb.GenerateResponse(complete=part).SerializeToString()


def messages(
    ids: Sequence[int], cuts: Iterable[int], closing: str, reason: str = "length", **fields: Any
) -> list[bytes]:
    """`ids` cut into chunks of the sizes `cuts` (what is left is one more), and the closing message."""
    pieces: list[Sequence[int]] = []
    at = 0
    for size in cuts:
        if at < len(ids):
            pieces.append(ids[at : at + size])
            at += size
    if at < len(ids) or not pieces:
        pieces.append(ids[at:])
    last = pieces[-1]
    if closing == "rest":
        pieces.pop()
    carried = {"repeat": last, "rest": last, "all": ids}[closing]
    made, count = [], 0
    for piece in pieces:
        count += len(piece)
        made.append(chunk(piece, count))
    return [*made, complete(carried, len(ids), reason, **fields)]


@dataclass
class Answer:
    """What a client reads."""

    text: str
    finish: str
    matched: Any
    usage: dict[str, Any]
    flags: list[int] = field(default_factory=list, compare=False)


def options(*, streaming: bool, **fields: Any) -> bytes:
    given = {"id": "chatcmpl-1", "created": 1, "model": "m", "include_usage": streaming, **fields}
    return json.dumps({**given, "streaming": streaming}).encode()


def streamed(tokenizer: native.Tokenizer, fed: Iterable[bytes], **fields: Any) -> Answer:
    """Feeds a stream of one choice, whose text is what its deltas add up to. No delta may be empty."""
    stream = native.Stream(tokenizer, options(streaming=True, **fields))
    flags, out = [], []
    for message in fed:
        flags.append(stream.feed(0, message))
        out.append(stream.take())
        if flags[-1] & native.ALL_DONE:
            break
    events = list(sse.events(b"".join(out).decode().split("\n")))
    assert events[-1] == "[DONE]"
    first, *inner, finish, usage = [event for event in events if isinstance(event, dict)]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(event["choices"][0]["delta"].keys() == {"content"} for event in inner)
    assert all(event["choices"][0]["delta"]["content"] for event in inner)
    last = finish["choices"][0]
    assert last["delta"] == {}
    return Answer(sse.content(events), last["finish_reason"], last.get("matched_stop"), usage["usage"], flags)


def aggregated(tokenizer: native.Tokenizer, fed: Iterable[bytes], **fields: Any) -> Answer:
    """The same, not streamed."""
    stream = native.Stream(tokenizer, options(streaming=False, **fields))
    flags = []
    for message in fed:
        flags.append(stream.feed(0, message))
        if flags[-1] & native.ALL_DONE:
            break
    whole = json.loads(stream.result())
    choice = whole["choices"][0]
    return Answer(
        choice["message"]["content"],
        choice["finish_reason"],
        choice.get("matched_stop"),
        whole["usage"],
        flags,
    )
