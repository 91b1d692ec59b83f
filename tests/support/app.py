"""The whole application in this process: the real core with a tiny tokenizer, workers that a test writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from wsgi_router.app import create_app, services
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.transport import RpcFailure

from .processes import wait_until
from .tiny import END
from .transport import Answer, FakeTransport

WORKER = "grpc://127.0.0.1:1"
MODEL = "org/tiny"
CONTEXT = 2000
CHAT = "/v1/chat/completions"


def chunk(text: str, so_far: int = 0) -> bytes:
    """New tokens, a byte each; `so_far` came before."""
    ids = list(text.encode())
    part = pb.GenerateStreamChunk(token_ids=ids, prompt_tokens=9, completion_tokens=so_far + len(ids))
    return pb.GenerateResponse(chunk=part).SerializeToString()


def complete(text: str, reason: str = "stop") -> bytes:
    """The last message, with all tokens of the answer, an end token among them."""
    ids = [*text.encode(), *([END] if reason == "stop" else [])]
    part = pb.GenerateComplete(
        output_ids=ids, finish_reason=reason, prompt_tokens=9, completion_tokens=len(ids)
    )
    return pb.GenerateResponse(complete=part).SerializeToString()


def whole(text: str) -> Answer:
    return (complete(text), None)


class App:
    """An application with a worker that gives `answers`, one a stream."""

    def __init__(self, folder: Path, *answers: Answer, up: bool = True, **settings: Any) -> None:
        self.transport = FakeTransport(*answers)
        if up:
            self.transport.infos[WORKER] = pb.GetModelInfoResponse(
                served_model_name=MODEL, max_context_length=CONTEXT, is_generation=True, weight_version="v7"
            )
        configured = {"workers": (WORKER,), "tokenizer_path": str(folder), "health_interval": 0.1, **settings}
        self.flask = create_app(Settings(**configured), lambda _settings: self.transport)
        self.services = services(self.flask)
        self.services.start()
        if up:
            self.wait_usable()
        self.client: FlaskClient = self.flask.test_client()

    def wait_usable(self) -> None:
        wait_until(self.services.pool.usable, 10, "a usable worker")

    def post(self, body: object, path: str = CHAT, **options: Any) -> TestResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.open(path, **{"method": "POST", "data": data, **options})

    def chat(self, **fields: Any) -> TestResponse:
        return self.post(ask(**fields))


def ask(**fields: Any) -> dict[str, Any]:
    """A chat request; fields of value `...` are left out."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    return {name: value for name, value in body.items() if value is not ...}


def embedder(app: App, size: int = 4, **arguments: Any) -> list[pb.EmbedRequest]:
    """Makes the worker answer Embed: each vector begins with the number of ids. Returns what it was asked."""
    asked: list[pb.EmbedRequest] = []

    def embed(request: bytes) -> pb.EmbedResponse:
        message = pb.EmbedRequest.FromString(request)
        asked.append(message)
        count = len(message.tokenized.input_ids)
        vector = [float(count), *[0.5] * (size - 1)]
        return pb.EmbedResponse(embedding=vector, embedding_dim=size, prompt_tokens=count)

    info = pb.GetServerInfoResponse()
    info.server_args.update({"json_model_override_args": json.dumps(arguments)})
    app.transport.unary_answers = {"Embed": embed, "GetServerInfo": info}
    return asked


def error_of(answer: TestResponse, status: int) -> dict[str, Any]:
    """The error of an answer in OpenAI's shape."""
    assert answer.status_code == status, answer.text
    assert answer.content_type == "application/json"
    error: dict[str, Any] = answer.get_json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == (
        "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    )
    assert error["message"]
    return error


__all__ = [
    "CHAT",
    "MODEL",
    "WORKER",
    "App",
    "RpcFailure",
    "ask",
    "chunk",
    "complete",
    "embedder",
    "error_of",
    "whole",
]
