"""POST /v1/tokenize and /v1/detokenize: the model's tokenizer, without a worker."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from flask import Blueprint, Response, g, request

from wsgi_router import native, preprocess, schema
from wsgi_router.api.answers import json_response
from wsgi_router.api.body import read_body
from wsgi_router.api.describe import BODY, MODEL, TOKENS, describe
from wsgi_router.api.generation import warn
from wsgi_router.api.services import Services, current
from wsgi_router.errors import BodyTooLargeError, InvalidRequestError
from wsgi_router.schema.answers import Detokenized, Tokenized
from wsgi_router.workers.worker import ModelCard

blueprint = Blueprint("tokenize", __name__)

MAX_TEXT: Final = 16 << 20
"""Characters of a request: tokenising takes memory many times the size of the text."""


@blueprint.post("/v1/tokenize")
@describe(Tokenized, "Token ids of texts", request="TokenizeRequest", errors=(*BODY, *MODEL, *TOKENS))
def tokenize() -> Response:
    services = current()
    asked = schema.parse_tokenize(read_body(request.environ, services.settings))
    g.record.unknown_fields(asked.unknown)
    card = _card(services, asked.model)
    tokenizer = services.tokenizer_of(card)
    if asked.chat is not None:
        ids = _chat_ids(asked, card, tokenizer, services.settings.prepare_inline_bytes)
    else:
        ids = _text_ids(asked, tokenizer, services.settings.prepare_inline_bytes)
    response = json_response(
        {
            "tokens": ids if asked.batch else ids[0],
            "count": [len(one) for one in ids] if asked.batch else len(ids[0]),
            "max_model_len": card.context_length or tokenizer.info["model_max_length"],
        }
    )
    warn(response, tuple(asked.unknown))
    return response


def _text_ids(asked: schema.TokenizeRequest, tokenizer: native.Tokenizer, inline: int) -> list[list[int]]:
    if sum(map(len, asked.texts)) > MAX_TEXT:
        raise BodyTooLargeError(f"More than {MAX_TEXT} characters to tokenise.", param="prompt")
    special = asked.add_special_tokens is not False
    share = inline // len(asked.texts)
    return [native.encode(tokenizer, text, special, share) for text in asked.texts]


def _chat_ids(
    asked: schema.TokenizeRequest, card: ModelCard, tokenizer: native.Tokenizer, inline: int
) -> list[list[int]]:
    assert asked.chat is not None
    job = {**preprocess.chat_job(asked.chat, card), "context_length": None, "max_tokens": None}
    encoded = msgspec.json.encode(job)
    if len(encoded) > MAX_TEXT:
        raise BodyTooLargeError(f"More than {MAX_TEXT} characters to tokenise.", param="messages")
    prepared = native.prepare(tokenizer, encoded, inline)
    if asked.add_special_tokens:  # besides those that the template has written
        return [native.encode(tokenizer, prepared.prompt, True, inline)]
    return [prepared.token_ids()]


@blueprint.post("/v1/detokenize")
@describe(Detokenized, "Text of token ids", request="DetokenizeRequest", errors=(*BODY, *MODEL, *TOKENS))
def detokenize() -> Response:
    services = current()
    asked = schema.parse_detokenize(read_body(request.environ, services.settings))
    g.record.unknown_fields(asked.unknown)
    tokenizer = services.tokenizer_of(_card(services, asked.model))
    _check_ids(asked, tokenizer.info["vocab_size"])
    skip = asked.skip_special_tokens is not False
    texts = [native.decode(tokenizer, ids, skip) for ids in asked.sequences]
    text: Any = texts if asked.batch else texts[0]
    # SGLang's name of the result, and vLLM's.
    response = json_response({"text": text, "prompt": text})
    warn(response, tuple(asked.unknown))
    return response


def _check_ids(asked: schema.DetokenizeRequest, vocab_size: int) -> None:
    for ids, path in zip(asked.sequences, asked.paths, strict=True):
        if ids and max(ids) >= vocab_size:
            index = next(index for index, token in enumerate(ids) if token >= vocab_size)
            raise InvalidRequestError(
                f"Token id {ids[index]} is not in the vocabulary of {vocab_size}.", param=f"{path}[{index}]"
            )


def _card(services: Services, model: str | None) -> ModelCard:
    """The model's card; one without more than its name where no worker has answered and none is needed."""
    if model is None:
        cards = services.pool.models()
        return cards[0] if cards else ModelCard("")
    if not services.pool.models() and model in services.tokenizers.named:
        return ModelCard(model)
    card, _ = services.pool.split_model(model)  # an adapter changes no token
    g.record.model = card.name
    return card
