"""POST /v1/embeddings, by the workers' unary Embed call."""

from __future__ import annotations

import base64
import functools
import math
import sys
from array import array
from typing import Any

import msgspec
from flask import Blueprint, Response, g, request

from wsgi_router import native, observability, runtime, schema
from wsgi_router.api.answers import json_response
from wsgi_router.api.body import read_body
from wsgi_router.api.describe import GENERATION, describe
from wsgi_router.api.fanout import read
from wsgi_router.api.generation import arrive, entered, warn
from wsgi_router.api.services import Services, current
from wsgi_router.calls import Call
from wsgi_router.client_watch import ClientWatch
from wsgi_router.errors import InvalidRequestError, WorkerProtocolError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.schema.answers import EmbeddingList
from wsgi_router.workers.worker import ModelCard

blueprint = Blueprint("embeddings", __name__)


@blueprint.post("/v1/embeddings")
@describe(EmbeddingList, "Embeddings", request="EmbeddingRequest", errors=GENERATION)
def embeddings() -> Response:
    services = current()
    record: observability.RequestRecord = g.record
    asked = schema.parse_embedding(read_body(request.environ, services.settings))
    record.label(asked.rid)
    record.unknown_fields(asked.unknown)
    card = services.pool.resolve_model(asked.model)
    record.model = card.name
    flow = arrive(services, request.environ, card.name, asked.user)
    ids = _token_ids(asked, card, services)
    shorter = None if asked.dimensions is None else _shorter_dimensions(services, card)
    client, until = ClientWatch(request.environ), services.deadline(record)
    with entered(services, flow, client, until):
        hints = services.routing.hints(request.environ, asked.user)
        call = Call("Embed", services.settings.first_token_timeout, card.name, hints, until)
        answers = services.calls.ask_for_each(call, [_request(one) for one in ids], client)
    data, tokens = [], 0
    for index, answer in enumerate(answers):
        vector, count = _vector(answer)
        tokens += count or len(ids[index])
        if asked.dimensions is not None:
            vector = _cut(vector, asked.dimensions, shorter)
        data.append({"object": "embedding", "index": index, "embedding": _encode(vector, asked)})
    record.stats = {"prompt_tokens": tokens, "completion_tokens": 0, "finish_reasons": []}
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    response = json_response({"object": "list", "data": data, "model": card.name, "usage": usage})
    warn(response, tuple(asked.unknown))
    return response


def _token_ids(asked: schema.EmbeddingRequest, card: ModelCard, services: Services) -> list[list[int]]:
    """Each input's ids. Raises InvalidRequestError, ContextLengthError."""
    inline = services.settings.prepare_inline_bytes // len(asked.inputs)
    context = card.context_length or None
    tokenizer = services.tokenizer_of(card)
    found = []
    for text, path in zip(asked.inputs, asked.paths, strict=True):
        runtime.breathe()
        kind = "prompt" if isinstance(text, str) else "input_ids"
        job = msgspec.json.encode({kind: text, "context_length": context, "embed": True})
        found.append(native.prepare(tokenizer, job, inline, path).token_ids())
    return found


def _request(ids: list[int]) -> bytes:
    tokenized = pb.TokenizedInput(input_ids=ids)
    name = observability.request_id(None)
    return pb.EmbedRequest(request_id=name, tokenized=tokenized).SerializeToString()


def _vector(answer: bytes) -> tuple[array[float], int]:
    """The vector of an EmbedResponse and the worker's count of tokens. Raises WorkerProtocolError."""
    message = read(pb.EmbedResponse, answer)
    vector = array("f", message.embedding)
    if not vector or not all(map(math.isfinite, vector)):
        raise WorkerProtocolError("The worker's embedding is empty or no vector of numbers.")
    return vector, message.prompt_tokens


def _encode(vector: array[float], asked: schema.EmbeddingRequest) -> list[float] | str:
    if asked.encoding_format != "base64":
        return vector.tolist()
    if sys.byteorder == "big":
        vector.byteswap()
    return base64.b64encode(vector).decode("ascii")


def _cut(vector: array[float], dimensions: int, shorter: tuple[int, ...] | None) -> array[float]:
    """The first `dimensions` values, of length 1 again. `shorter`: see `_shorter_dimensions`."""
    if dimensions == len(vector):
        return vector
    if shorter is None or dimensions > len(vector) or (shorter and dimensions not in shorter):
        raise InvalidRequestError(
            f"This model has embeddings of {len(vector)} dimensions and not of {dimensions}.",
            param="dimensions",
        )
    cut = vector[:dimensions]
    length = math.sqrt(math.fsum(value * value for value in cut))
    return array("f", [value / length for value in cut]) if length else cut


def _shorter_dimensions(services: Services, card: ModelCard) -> tuple[int, ...] | None:
    """To which lengths the model's embeddings may be cut: None, any (empty), or those.

    Models that are trained for it say so in their configuration; over this wire only what the worker was
    started with can be seen (`--json-model-override-args`).
    """
    answer = services.calls.ask(Call("GetServerInfo", services.settings.health_timeout, card.name), b"")
    given = read(pb.GetServerInfoResponse, answer).server_args.fields["json_model_override_args"]
    return _matryoshka(given.string_value)


@functools.lru_cache(maxsize=64)
def _matryoshka(text: str) -> tuple[int, ...] | None:
    try:
        values: Any = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError:
        return None
    if not isinstance(values, dict):
        return None
    sizes = values.get("matryoshka_dimensions")
    if isinstance(sizes, list):
        return tuple(size for size in sizes if isinstance(size, int))
    return () if values.get("is_matryoshka") is True else None
