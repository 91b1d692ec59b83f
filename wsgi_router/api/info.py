"""GET /get_model_info, /get_server_info, /get_loads: what the workers say of themselves."""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Blueprint, Response, request

from wsgi_router.api.answers import error_response, json_response
from wsgi_router.api.describe import QUERY, WORKER, Query, describe
from wsgi_router.api.fanout import plain, plain_struct, read, results
from wsgi_router.api.services import current
from wsgi_router.calls import Call
from wsgi_router.errors import InvalidRequestError, NoWorkerError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.schema.answers import ModelInfo, ServerInfo, WorkerResults

blueprint = Blueprint("info", __name__)


@blueprint.get("/get_model_info")
@describe(ModelInfo, "The model", errors=(NoWorkerError,))
def model_info() -> Response:
    card = current().pool.default_model()
    return json_response(
        {
            "model_path": card.model_path,
            "tokenizer_path": card.tokenizer_path,
            "is_generation": card.is_generation,
            "preferred_sampling_params": card.preferred_sampling_params or None,
            "weight_version": card.weight_version,
            "has_image_understanding": card.supports_vision,
            "model_type": card.model_type,
            "architectures": list(card.architectures),
            "served_model_name": card.name,
            "max_context_length": card.context_length or None,
            "vocab_size": card.vocab_size or None,
            "eos_token_ids": list(card.eos_token_ids),
        }
    )


_SECRET: Final = re.compile(r"(^|_)(api_key|admin_key|password|secret|hf_token|auth_token)s?$")
"""Start options of workers that are nobody's business."""
_PARTS: Final = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})


@blueprint.get("/get_server_info")
@describe(ServerInfo, "Start options and scheduler state of one worker", errors=WORKER)
def server_info() -> Response:
    """One worker's start options and scheduler state, in SGLang's flat form."""
    services = current()
    model = services.pool.default_model().name
    answer = services.calls.ask(Call("GetServerInfo", services.settings.health_timeout, model), b"")
    info = read(pb.GetServerInfoResponse, answer)
    options = plain_struct(info.server_args)
    shown: dict[str, Any] = {name: value for name, value in options.items() if not _SECRET.search(name)}
    shown |= plain_struct(info.scheduler_info)
    for name in ("server_args", "scheduler_info"):
        info.ClearField(name)
    return json_response({**shown, **plain(info), "version": info.sglang_version})


@blueprint.get("/get_loads")
@describe(
    WorkerResults,
    "Queues and cache use of every worker",
    errors=(*QUERY, NoWorkerError),
    query=(
        Query(
            "include", {"type": "string"}, f"Parts, with commas between them: {', '.join(sorted(_PARTS))}."
        ),
        Query("dp_rank", {"type": "integer", "minimum": 0, "maximum": 10**9 - 1}, "One rank alone."),
    ),
)
def loads() -> Response:
    """Queues and cache use of every worker. Query: `include`, parts with commas; `dp_rank`."""
    services = current()
    message = _loads_request().SerializeToString()
    answers = services.calls.ask_all("GetLoads", message, services.settings.health_timeout)
    body = {"workers": results(answers, lambda answer: plain(read(pb.GetLoadsResponse, answer)))}
    if any("loads" in one for one in body["workers"]):
        return json_response(body)
    return error_response(NoWorkerError("No worker has told its load."), body)


def _loads_request() -> pb.GetLoadsRequest:
    message = pb.GetLoadsRequest()
    include = [part for part in request.args.get("include", "").split(",") if part]
    if not _PARTS.issuperset(include):
        raise InvalidRequestError(f"'include' takes {', '.join(sorted(_PARTS))}.", param="include")
    message.include.extend(include)
    rank = request.args.get("dp_rank")
    if rank is not None:
        if not (rank.isascii() and rank.isdecimal() and len(rank) < 10):
            raise InvalidRequestError("'dp_rank' must be a whole number.", param="dp_rank")
        message.dp_rank = int(rank)
    return message
