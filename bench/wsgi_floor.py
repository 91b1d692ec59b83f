"""The floor under every WSGI router: a Flask generator that yields bytes which are ready already.

`gunicorn -k gevent wsgi_floor:app`, then POST /paced/v1/chat/completions (a chunk each 20 ms) or
/burst/v1/chat/completions. The stream has the shape of the router's: role, `max_tokens` chunks, finish,
usage, [DONE]; nothing is encoded or decoded for a chunk, so this is what gunicorn, Flask and gevent cost
alone.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import gevent
from flask import Flask, Response, request

ITL_SECONDS = 0.02
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def _event(choices: list[dict[str, Any]], **more: Any) -> bytes:
    chunk = {
        "id": "chatcmpl-000000000000000000000000",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "bench-model",
        "choices": choices,
        **more,
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _delta(delta: dict[str, str], finish_reason: str | None) -> bytes:
    return _event([{"index": 0, "delta": delta, "finish_reason": finish_reason}], usage=None)


ROLE = _delta({"role": "assistant", "content": ""}, None)
TOKEN = _delta({"content": " token"}, None)
FINISH = _delta({}, "length")


def stream(tokens: int, itl: float) -> Iterator[bytes]:
    """The events of an answer of `tokens` tokens, `itl` seconds apart."""
    yield ROLE
    due = time.monotonic()
    for _ in range(tokens):
        if itl:
            due += itl
            gevent.sleep(max(0.0, due - time.monotonic()))
        yield TOKEN
    yield FINISH
    yield _event([], usage={"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1})
    yield b"data: [DONE]\n\n"


app = Flask(__name__)


@app.post("/<pace>/v1/chat/completions")
def chat(pace: str) -> Response:
    tokens = int(request.get_json()["max_tokens"])
    events = stream(tokens, ITL_SECONDS if pace == "paced" else 0.0)
    return Response(events, mimetype="text/event-stream", headers=HEADERS)


@app.get("/readiness")
def readiness() -> str:
    return "ok"
