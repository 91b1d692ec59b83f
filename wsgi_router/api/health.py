"""GET /health, /liveness: the process answers. /readiness: it can serve. /health_generate: a worker does."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response, request

from wsgi_router.api.answers import json_response
from wsgi_router.api.describe import WORKER, describe
from wsgi_router.api.services import Services, current
from wsgi_router.calls import Call
from wsgi_router.client_watch import ClientWatch
from wsgi_router.errors import DrainingError, NoTokenizerError, NoWorkerError
from wsgi_router.observability import request_id
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.runtime import drain
from wsgi_router.schema.answers import Status
from wsgi_router.workers.transport import GenerateJob

blueprint = Blueprint("health", __name__)


@blueprint.get("/health")
@blueprint.get("/liveness")
@describe(Status, "Whether the process answers")
def alive() -> Response:
    return json_response({"status": "ok"})


@blueprint.get("/readiness")
@describe(Status, "Whether requests can be served", errors=(NoWorkerError, DrainingError, NoTokenizerError))
def readiness() -> Response:
    services = current()
    if drain.begun:
        raise DrainingError
    if not services.pool.usable():
        raise NoWorkerError
    services.tokenizers.check_ready()
    return json_response({"status": "ready"})


@blueprint.get("/health_generate")
@describe(Status, "One token, or one vector, through a worker", errors=WORKER)
def health_generate() -> Response:
    """One token, or one vector, through a worker, within HEALTH_TIMEOUT."""
    services = current()
    card = services.pool.default_model()
    if card.is_generation:
        _generate_token(services, card.name)
    else:
        message = pb.EmbedRequest(request_id=request_id(None), tokenized=_PROMPT)
        call = Call("Embed", services.settings.health_timeout, card.name)
        services.calls.ask(call, message.SerializeToString())
    return json_response({"status": "ok"})


_PROMPT: Final = pb.TokenizedInput(input_ids=[0])


def _generate_token(services: Services, model: str) -> None:
    sampling = pb.SamplingParams(
        temperature=0, top_p=1, top_k=-1, repetition_penalty=1, n=1, max_new_tokens=1, ignore_eos=True
    )
    message = pb.GenerateRequest(tokenized=_PROMPT, sampling_params=sampling, logprob_start_len=-1)
    job = GenerateJob(model, message.SerializeToString())
    client = ClientWatch(request.environ)
    generation = services.dispatcher.open(job, client, services.settings.health_timeout)
    generation.finish(0, cancel=False)
    generation.close()
