"""POST /generate: SGLang's own request."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from wsgi_router.schema.decode import bad, check_depth, decode_object
from wsgi_router.schema.fields import Fields
from wsgi_router.schema.prompts import (
    IDS,
    TEXTS,
    Prompt,
    check_batch,
    or_null,
    prompt_paths,
    read_adapters,
    read_prompts,
)
from wsgi_router.schema.sampling import MAX_INT32, Int64, Sampling, TokenCountOrNone, check_sampling

MAX_TOP_LOGPROBS: Final = 20
Rid = Annotated[str, Meta(max_length=1024)]
"""Each event of an answer repeats it."""
SAMPLING_PARAMS: Final = "SamplingParams"
"""Name of their schema; they are read apart from the request."""
_NO_PROMPT: Final = "Either text, input_ids or input_embeds should be provided."


class GenerateSampling(
    Sampling,
    kw_only=True,
    rename={"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"},
):
    """`sampling_params`, whose names are SGLang's."""

    # Named again, since a new name concerns a class's own fields alone.
    max_tokens: TokenCountOrNone | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    seed: Int64 | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """A checked request. A null is the same as an absent field."""

    model: str | None = None
    text: Annotated[Any, Meta(extra_json_schema=or_null(TEXTS))] = None
    input_ids: Annotated[Any, Meta(extra_json_schema=or_null(IDS))] = None
    sampling_params: Annotated[
        Any,
        Meta(
            extra_json_schema={
                "anyOf": [{"$ref": f"#/components/schemas/{SAMPLING_PARAMS}"}, {"type": "null"}]
            }
        ),
    ] = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None = None
    top_logprobs_num: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_text_in_logprobs: bool | None = None
    rid: Rid | list[Rid] | None = None
    lora_path: str | list[str | None] | None = None
    user: str | None = None

    # Filled by parse_generate.
    sampling: GenerateSampling = msgspec.field(default_factory=GenerateSampling)
    prompts: list[Prompt] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=list)
    adapters: list[str] = msgspec.field(default_factory=list)
    batch: bool = False
    unknown: list[str] = msgspec.field(default_factory=list)

    @property
    def label(self) -> str | None:
        """The client's one id of the request."""
        return self.rid if isinstance(self.rid, str) else None

    @property
    def names(self) -> list[str]:
        """The client's ids of the prompts, if it gave each one."""
        return self.rid if isinstance(self.rid, list) else []


class Inert(msgspec.Struct):
    log_metrics: bool | None = None
    priority: int | None = None
    extra_key: str | list[str] | None = None


class InertSampling(msgspec.Struct):
    stream_interval: int | None = None


_FILLED: Final = ("sampling", "prompts", "paths", "adapters", "batch", "unknown")
NOT_SUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "input_embeds": (),
    "image_data": ([],),
    "video_data": ([],),
    "audio_data": ([],),
    "modalities": ([],),
    "token_ids_logprob": ([],),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "lora_id": (),
    "session_params": (),
    "custom_logit_processor": (),
    "data_parallel_rank": (),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "background": (False,),
}
NOT_SUPPORTED_SAMPLING: Final[dict[str, tuple[Any, ...]]] = {
    "stop_regex": ([], ""),
    "spaces_between_special_tokens": (True,),
}
FIELDS: Final = Fields(GenerateRequest, Inert, NOT_SUPPORTED, filled=_FILLED)
SAMPLING_FIELDS: Final = Fields(
    GenerateSampling, InertSampling, NOT_SUPPORTED_SAMPLING, at="sampling_params."
)


def parse_generate(body: bytes, max_choices: int = 16, max_batch: int = 128) -> GenerateRequest:
    """The request in `body`, checked as far as no model is needed. Raises InvalidRequestError (400)."""
    value = decode_object(body)
    request = FIELDS.convert(value)
    FIELDS.check(value)
    _read_prompts(request, max_batch)
    request.adapters = read_adapters(request.lora_path, len(request.prompts))
    given = request.sampling_params
    if given is not None:
        _read_sampling(request, given, max_choices)
    _check_logprobs(request)
    if isinstance(request.rid, list) and len(request.rid) != len(request.prompts):
        raise bad("rid", f"'rid' must be a string or a list of {len(request.prompts)}, one for each prompt.")
    check_batch("sampling_params.n", request.prompts, request.sampling.choices, max_batch)
    request.unknown = FIELDS.unknown(value)
    if given is not None:
        request.unknown += SAMPLING_FIELDS.unknown(given)
    return request


def _read_prompts(request: GenerateRequest, max_batch: int) -> None:
    if request.text is None and request.input_ids is None:
        raise bad("text", _NO_PROMPT, "missing_required_parameter")
    if request.text is not None and request.input_ids is not None:
        raise bad("input_ids", "'input_ids' excludes 'text'.")
    path, value = ("text", request.text) if request.text is not None else ("input_ids", request.input_ids)
    request.prompts, request.batch = read_prompts(path, value, max_batch)
    if isinstance(request.prompts[0], str) != (path == "text"):
        kind = "a string or a list of strings" if path == "text" else "token ids or a list of them"
        raise bad(path, f"'{path}' must be {kind}.", "invalid_type")
    request.paths = prompt_paths(path, request.prompts, request.batch)


def _read_sampling(request: GenerateRequest, given: object, max_choices: int) -> None:
    if not isinstance(given, dict):
        raise bad("sampling_params", "'sampling_params' must be one object for all prompts.", "invalid_type")
    request.sampling = SAMPLING_FIELDS.convert(given)
    if "custom_params" in given:
        check_depth("sampling_params.custom_params", given["custom_params"])
    SAMPLING_FIELDS.check(given)
    check_sampling(request.sampling, max_choices, "sampling_params.")


def _check_logprobs(request: GenerateRequest) -> None:
    if request.top_logprobs_num and not request.return_logprob:
        raise bad("top_logprobs_num", "'top_logprobs_num' needs 'return_logprob'.")
