"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from wsgi_router.schema.decode import bad, decode_object
from wsgi_router.schema.fields import Fields
from wsgi_router.schema.prompts import MAX_INPUTS, PROMPTS, Prompt, prompt_paths, read_prompts
from wsgi_router.schema.sampling import MAX_INT32


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """A checked request. A null is the same as an absent field."""

    model: str
    input: Annotated[Any, Meta(extra_json_schema=PROMPTS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MAX_INT32)] | None = None
    rid: str | None = None
    user: str | None = None

    # Filled by parse_embedding.
    inputs: list[Prompt] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=list)
    unknown: list[str] = msgspec.field(default_factory=list)


class Inert(msgspec.Struct):
    priority: int | None = None


NOT_SUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "truncate_prompt_tokens": (),
    "lora_path": (),
    "task": (),
    "messages": (),
}
FIELDS: Final = Fields(EmbeddingRequest, Inert, NOT_SUPPORTED, filled=("inputs", "paths", "unknown"))


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """The request in `body`, checked as far as no model is needed. Raises InvalidRequestError (400)."""
    value = decode_object(body)
    request = FIELDS.convert(value)
    FIELDS.check(value)
    request.inputs, listed = read_prompts("input", request.input, MAX_INPUTS)
    request.paths = prompt_paths("input", request.inputs, listed)
    for text, path in zip(request.inputs, request.paths, strict=True):
        if text == "":
            raise bad(path, f"'{path}' must not be empty.")
    request.unknown = FIELDS.unknown(value)
    return request
