"""POST /v1/tokenize and /v1/detokenize."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from wsgi_router.schema import chat
from wsgi_router.schema.decode import bad, decode_object, missing
from wsgi_router.schema.fields import Fields
from wsgi_router.schema.prompts import (
    MAX_INPUTS,
    TEXTS,
    TOKEN_ID,
    Prompt,
    or_null,
    prompt_paths,
    read_prompts,
)

_SEQUENCE: Final = {"type": "array", "items": TOKEN_ID}
SEQUENCES: Final[dict[str, Any]] = {"anyOf": [_SEQUENCE, {"type": "array", "items": _SEQUENCE}]}


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A checked request: `texts`, or a conversation. A null is the same as an absent field."""

    model: str | None = None
    prompt: Annotated[Any, Meta(extra_json_schema=or_null(TEXTS))] = None
    add_special_tokens: bool | None = None

    # Filled by parse_tokenize.
    texts: list[str] = msgspec.field(default_factory=list)
    batch: bool = False
    chat: chat.ChatRequest | None = None
    unknown: list[str] = msgspec.field(default_factory=list)


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: Annotated[Any, Meta(extra_json_schema=SEQUENCES)]
    skip_special_tokens: bool | None = None

    # Filled by parse_detokenize.
    sequences: list[list[int]] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=list)
    batch: bool = False
    unknown: list[str] = msgspec.field(default_factory=list)


class Inert(msgspec.Struct):
    user: str | None = None


NOT_SUPPORTED: Final[dict[str, tuple[Any, ...]]] = {"return_token_strs": (False,)}
TOKENIZE: Final = Fields(
    TokenizeRequest,
    Inert,
    NOT_SUPPORTED,
    filled=("texts", "batch", "chat", "unknown"),
    special={"messages": None},
)
DETOKENIZE: Final = Fields(DetokenizeRequest, Inert, {}, filled=("sequences", "paths", "batch", "unknown"))


def parse_tokenize(body: bytes) -> TokenizeRequest:
    """The request in `body`, checked as far as no model is needed. Raises InvalidRequestError (400).

    With messages all fields of a chat request that shape its prompt are understood.
    """
    value = decode_object(body)
    request = TOKENIZE.convert(value)
    TOKENIZE.check(value)
    if value.get("messages") is not None:
        if request.prompt is not None:
            raise bad("messages", "'messages' excludes 'prompt'.")
        rest = {name: item for name, item in value.items() if name not in _OWN}
        request.chat = chat.parse_chat_object({**rest, "model": request.model or ""})
        request.unknown = request.chat.unknown
        return request
    if request.prompt is None:
        raise missing("prompt")
    prompts, request.batch = read_prompts("prompt", request.prompt, MAX_INPUTS)
    request.texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(request.texts) < len(prompts):
        raise bad("prompt", "'prompt' must be a string or a list of strings.", "invalid_type")
    request.unknown = TOKENIZE.unknown(value)
    return request


_OWN: Final = frozenset({"prompt", "add_special_tokens", "return_token_strs"})


def parse_detokenize(body: bytes) -> DetokenizeRequest:
    """The request in `body`. Raises InvalidRequestError (400)."""
    value = decode_object(body)
    request = DETOKENIZE.convert(value)
    DETOKENIZE.check(value)
    sequences, request.batch = ([[]], False) if request.tokens == [] else _sequences(request.tokens)
    request.sequences = sequences
    request.paths = prompt_paths("tokens", list[Prompt](sequences), request.batch)
    request.unknown = DETOKENIZE.unknown(value)
    return request


def _sequences(tokens: object) -> tuple[list[list[int]], bool]:
    sequences, batch = read_prompts("tokens", tokens, MAX_INPUTS, empty=True)
    ids = [sequence for sequence in sequences if isinstance(sequence, list)]
    if len(ids) < len(sequences):
        raise bad("tokens", "'tokens' must be token ids or a list of them.", "invalid_type")
    return ids, batch
