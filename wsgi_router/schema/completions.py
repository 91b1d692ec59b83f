"""POST /v1/completions: OpenAI's fields and SGLang's extensions."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from wsgi_router.schema.decode import bad, check_depth, decode_object, missing, only, unsupported
from wsgi_router.schema.fields import Fields
from wsgi_router.schema.formats import FormatFields, parse_format
from wsgi_router.schema.prompts import (
    PROMPTS,
    Prompt,
    check_batch,
    prompt_paths,
    read_adapters,
    read_prompts,
)
from wsgi_router.schema.sampling import (
    CONSTRAINTS,
    Streamed,
    TokenCountOrNone,
    check_sampling,
    check_stream,
)

MAX_LOGPROBS: Final = 5


class CompletionRequest(Streamed, kw_only=True):
    """A checked completion request. A null is the same as an absent field."""

    model: str
    prompt: Annotated[Any, Meta(extra_json_schema=PROMPTS)]
    max_tokens: TokenCountOrNone | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    lora_path: str | list[str | None] | None = None

    # Filled by parse_completion.
    prompts: list[Prompt] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=list)
    adapters: list[str] = msgspec.field(default_factory=list)
    unknown: list[str] = msgspec.field(default_factory=list)


class Inert(msgspec.Struct):
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_retention: str | None = None


NOT_SUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "suffix": ("",),
    "stop_regex": ([],),
    "session_params": (),
    "custom_logit_processor": (),
    "return_hidden_states": (False,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "prompt_embeds": (),
}
_FORMATS: Final[dict[str, Any]] = {
    field.name: field.type
    for field in msgspec.structs.fields(FormatFields)
    if field.name in ("response_format", "structural_tag")
}
FIELDS: Final = Fields(
    CompletionRequest,
    Inert,
    NOT_SUPPORTED,
    filled=("prompts", "paths", "adapters", "unknown", "structural_tag"),
    special={"best_of": int | None, **_FORMATS},
)


def parse_completion(body: bytes, max_choices: int = 16, max_batch: int = 128) -> CompletionRequest:
    """The request in `body`, checked as far as no model is needed. Raises InvalidRequestError (400)."""
    value = decode_object(body)
    request = FIELDS.convert(value)
    if "custom_params" in value:
        check_depth("custom_params", value["custom_params"])
    if request.prompt is None:
        raise missing("prompt")
    request.prompts, listed = read_prompts("prompt", request.prompt, max_batch)
    request.paths = prompt_paths("prompt", request.prompts, listed)
    request.adapters = read_adapters(request.lora_path, len(request.prompts))
    FIELDS.check(value)
    _take_format(request, value)
    check_sampling(request, max_choices)
    check_stream(request)
    _check_best_of(value.get("best_of"), request.choices)
    check_batch("n", request.prompts, request.choices, max_batch)
    request.unknown = FIELDS.unknown(value)
    return request


def _take_format(request: CompletionRequest, value: dict[str, Any]) -> None:
    """SGLang's addition: what chat has for its answers, as a constraint of the text."""
    form = parse_format(only(value, _FORMATS))
    if form.kind == "text":
        return
    for name in CONSTRAINTS:
        if getattr(request, name) is not None:
            raise bad(form.field, f"'{form.field}' cannot be had together with '{name}'.")
    setattr(request, form.kind, msgspec.json.encode(form.value).decode())


def _check_best_of(best_of: object, choices: int) -> None:
    if best_of is None:
        return
    if not isinstance(best_of, int) or isinstance(best_of, bool):
        raise bad("best_of", "'best_of' must be an integer.", "invalid_type")
    if best_of != choices:
        raise unsupported("best_of", "'best_of' is not supported, but for the value of 'n'.")
