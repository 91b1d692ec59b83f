"""How the answer to a chat request is constrained and read: what the worker and the native Stream are told.

Options of the native Stream that carry it:

| Option | Value |
|---|---|
| `tool_format` | name of the parser of tool calls, null: none, the text is content |
| `tools` | list of {"name", "parameters"}: the functions that may be called, no others |
| `parallel` | false: at most one call comes out of each choice |
| `read_as` | "parser": by `tool_format` · "calls_array": the whole answer is a JSON array of |
| | {"name", "parameters"} · "named_arguments": it is the arguments of the only function in `tools` |
| `id_style` | "call": `call_` and 24 hex digits · "kimi": `functions.NAME:IDX` |
| `calls_before` | calls in the conversation so far; where the IDX of a choice begins |
| `legacy_function_call` | true: `function_call` in place of `tool_calls`, and as the finish reason |
| `reasoning_format` | name of the reasoning parser, null: none |
| `starts_inside` | true: the answer begins inside the reasoning · false: it does not, whatever the format · |
| | null: as the format has it, since the prompt has no mark |
| `separate_reasoning` | false: reasoning stays in the content, its tags too; gpt-oss's marks do not |
| `stream_reasoning` | false: reasoning comes whole, in one delta |
| `logprobs` | how many alternatives each entry has, null: no entries |

Where a model thinks before it answers, the worker's grammar must wait for the end of the thoughts: the
request then says `require_reasoning`, on which the rendered prompt has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from wsgi_router import constraints, parsers
from wsgi_router.constraints import Constraint
from wsgi_router.schema.output import Output
from wsgi_router.settings import Settings
from wsgi_router.workers.worker import ModelCard

_REQUIRE_REASONING: Final = b"\x90\x01\x01"
"""`require_reasoning = true` of a GenerateRequest: field 18 on the wire."""


class Plan(msgspec.Struct, frozen=True):
    """What follows from a request and its model for the constraint and for reading the answer."""

    output: Output
    constraint: Constraint
    tool_format: parsers.ToolFormat | None
    """None where no calls can come out."""
    reasoning_format: parsers.ReasoningFormat | None
    thinks: bool
    """Whether the model thinks, by its template's arguments; the prompt has the last word."""
    continued: str | None
    """The answer's beginning, which the client wrote; None where the model begins."""
    calls_before: int

    def job(self) -> dict[str, Any]:
        """Keys of the job for the core that shape no prompt; those of `sampling` are in `sampling()`."""
        if self.output.logprobs:
            return {"return_logprob": True, "top_logprobs_num": self.output.top_logprobs}
        return {}

    def body(self, prompt: str) -> bytes:
        """Bytes to put behind a GenerateRequest whose rendered prompt is `prompt`."""
        waits = self.thinks and not self.constraint.covers_reasoning and self._inside(prompt) is not False
        return _REQUIRE_REASONING if waits else b""

    def _inside(self, prompt: str) -> bool | None:
        if self.continued is not None:
            return parsers.left_open(self.reasoning_format, self.continued)
        return parsers.starts_inside(self.reasoning_format, prompt)

    def sampling(self) -> dict[str, str]:
        return {self.constraint.field: self.constraint.value} if self.constraint.field else {}

    def options(self, prompt: str) -> dict[str, Any]:
        """Options of the native Stream for the rendered `prompt`."""
        logprobs = self.output.top_logprobs if self.output.logprobs else None
        return {**self._tool_options(), **self._reasoning_options(prompt), "logprobs": logprobs}

    def _tool_options(self) -> dict[str, Any]:
        tools = self.output.tools
        form = self.tool_format
        return {
            "tool_format": form.name if form else None,
            "tools": [{"name": tool.name, "parameters": tool.parameters} for tool in tools.functions],
            "parallel": tools.parallel and tools.mode != "named",
            "read_as": self.constraint.read_as,
            "id_style": "kimi" if form and form.kimi_ids else "call",
            "calls_before": self.calls_before,
            "legacy_function_call": tools.legacy,
        }

    def _reasoning_options(self, prompt: str) -> dict[str, Any]:
        form = self.reasoning_format
        return {
            "reasoning_format": (form.parser or form.name) if form else None,
            "starts_inside": self._inside(prompt),
            "separate_reasoning": self.output.separate_reasoning,
            "stream_reasoning": self.output.stream_reasoning,
        }


def plan(
    output: Output,
    messages: Sequence[Mapping[str, Any]],
    template_arguments: Mapping[str, Any],
    card: ModelCard,
    settings: Settings,
    *,
    continued: bool = False,
) -> Plan:
    """The plan for a request. Raises InvalidRequestError if what it asks cannot be had together.

    `messages`: as templates get them. `template_arguments`: what the chat template is given besides.
    `continued`: the last message is the answer's beginning.
    """
    models = known_as(card)
    form = parsers.TOOLS.choose(settings.tool_format(card.name), models)
    reasoning = parsers.REASONING.choose(settings.reasoning_format(card.name), models)
    before = count_calls(messages)
    return Plan(
        output=output,
        constraint=constraints.build(output.tools, output.format, form, before),
        tool_format=form if output.tools.functions else None,
        reasoning_format=reasoning,
        thinks=parsers.thinks(reasoning, template_arguments),
        continued=text_of(messages[-1]) if continued else None,
        calls_before=before,
    )


def known_as(card: ModelCard) -> tuple[str, ...]:
    """A model's names, the one that tells most about it first: a served name may be anything."""
    return tuple(
        name
        for name in (card.model_path, card.name, card.tokenizer_path, card.model_type, *card.architectures)
        if name
    )


def count_calls(messages: Iterable[Mapping[str, Any]]) -> int:
    """Tool calls in a conversation."""
    return sum(len(message.get("tool_calls") or ()) for message in messages)


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, its parts one after the other."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)
