"""POST /v1/chat/completions: OpenAI's fields and SGLang's extensions; their kinds are told in `fields`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from wsgi_router.schema.decode import bad, check_depth, decode_object, only
from wsgi_router.schema.fields import Fields
from wsgi_router.schema.messages import MAX_MESSAGES, Message, check_count, check_messages, for_template
from wsgi_router.schema.output import PLAIN, Output, take_output
from wsgi_router.schema.sampling import CONSTRAINTS, Streamed, TokenCount, check_sampling, check_stream

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(Streamed, kw_only=True):
    """A checked chat request. A null is the same as an absent field."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str
    max_completion_tokens: TokenCount | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: Effort | None = None
    lora_path: str | None = None

    # Filled by parse_chat.
    raw_messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    unknown: list[str] = msgspec.field(default_factory=list)
    output: Output = PLAIN

    @property
    def adapters(self) -> list[str]:
        """The adapter of the one prompt, "" for none."""
        return [self.lora_path or ""]

    @property
    def max_new_tokens(self) -> int | None:
        """The client's bound on the answer's tokens, None if it set none."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class Inert(msgspec.Struct):
    """Accepted fields that change nothing."""

    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


NOT_SUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "modalities": (["text"], []),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": (),
    "moderation": (),
    "stop_regex": ([],),
    "session_params": (),
    "custom_logit_processor": (),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "input_ids": (),
    "chat_template": (),
}
"""Fields that would change the answer, with the values (null besides) that ask for nothing."""

_FILLED: Final = ("raw_messages", "unknown", "output", *CONSTRAINTS)
FIELDS: Final = Fields(ChatRequest, Inert, NOT_SUPPORTED, filled=_FILLED)

_HANDED_ON: Final = frozenset({"messages", "documents", "chat_template_kwargs", "custom_params"})


def parse_chat(body: bytes, max_choices: int = 16) -> ChatRequest:
    """The request in `body`, checked as far as no model is needed. Raises InvalidRequestError (400)."""
    return parse_chat_object(decode_object(body), max_choices)


def parse_chat_object(value: dict[str, Any], max_choices: int = 16) -> ChatRequest:
    """`parse_chat` of a body that is decoded already."""
    output = take_output(value)
    check_count(value.get("messages"))
    request = FIELDS.convert(value)
    for name, given in only(value, _HANDED_ON).items():
        check_depth(name, given)
    check_messages(request.messages)
    FIELDS.check(value)
    check_sampling(request, max_choices)
    check_stream(request)
    _check_last_message(request)
    request.raw_messages = for_template(value["messages"])
    request.unknown = FIELDS.unknown(value)
    request.output = output
    return request


def _check_last_message(request: ChatRequest) -> None:
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise bad("continue_final_message", "It excludes 'add_generation_prompt'.")
        if request.messages[-1].role != "assistant":
            raise bad("continue_final_message", "The last message must be the assistant's.")
