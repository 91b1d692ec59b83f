"""All that a chat request says of its answer's shape: tools, constraints, logprobs, reasoning."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from wsgi_router.schema.decode import bad, convert
from wsgi_router.schema.formats import TEXT, AnswerFormat, FormatFields, parse_format
from wsgi_router.schema.tools import NO_TOOLS, ToolFields, ToolSet, parse_tools

MAX_TOP_LOGPROBS: Final = 20


class Output(msgspec.Struct, frozen=True, kw_only=True):
    tools: ToolSet = NO_TOOLS
    format: AnswerFormat = TEXT
    """Already without effect where a call is forced."""
    logprobs: bool = False
    top_logprobs: int = 0
    separate_reasoning: bool = True
    """Reasoning in a field of its own, else as it stands in the text."""
    stream_reasoning: bool = True
    """Reasoning as it comes, else whole, before the content's first delta."""


class _Fields(msgspec.Struct):
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None


PLAIN: Final = Output()


PARTS: Final = (_Fields, ToolFields, FormatFields)
TAKEN: Final = frozenset(name for part in PARTS for name in part.__struct_encode_fields__)
"""The fields that are read here, and nowhere else."""


def take_output(value: dict[str, Any]) -> Output:
    """Takes these fields out of a request body. Raises InvalidRequestError."""
    if TAKEN.isdisjoint(value):
        return PLAIN
    return parse_output({name: value.pop(name) for name in list(value) if name in TAKEN})


def parse_output(value: dict[str, Any]) -> Output:
    """What a request body asks of its answer. Raises InvalidRequestError."""
    fields = convert({name: value[name] for name in _Fields.__struct_fields__ if name in value}, _Fields)
    _check_logprobs(fields)
    tools = parse_tools(value)
    form = parse_format(value)
    if tools.forced and form.kind != "text":
        if form.field != "response_format":
            raise bad(form.field, f"'{form.field}' cannot be had together with a forced tool call.")
        form = TEXT
    return Output(
        tools=tools,
        format=form,
        logprobs=bool(fields.logprobs),
        top_logprobs=fields.top_logprobs or 0,
        separate_reasoning=fields.separate_reasoning is not False,
        stream_reasoning=fields.stream_reasoning is not False,
    )


def _check_logprobs(fields: _Fields) -> None:
    top = fields.top_logprobs
    if top and not fields.logprobs:
        raise bad("top_logprobs", "'top_logprobs' needs 'logprobs'.")
