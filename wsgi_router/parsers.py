"""What is known of the models' formats on this side of the core: names, which models use them, their markers.

The core reads the answers; its parsers have the names of these tables. Here stand the markers that a
constraint on the worker needs, and the switches by which chat templates turn thinking on and off.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

AUTO: Final = "auto"
NONE: Final = "none"

Layout = Literal["alone", "section", "list", "harmony"]


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """How a model writes calls. `{name}` stands for the function, `{index}` for the number of the call.

    The whole of one call is `open + begin + arguments + end + close`. Of several calls, by `layout`:
    alone: each is written whole. section: `open` and `close` stand once, around all.
    list: so too, and the calls are parted by `separator`. harmony: messages of a channel.
    """

    layout: Layout
    open: str
    begin: str
    end: str
    close: str = ""
    separator: str = ""
    trigger: str = ""
    """What nothing but calls begins with, if it is less than `open`."""
    call_trigger: str = ""
    """section: what only a further call begins with."""
    arguments: Literal["json", "qwen_xml"] = "json"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls of tools are written in a model's answer."""

    name: str
    aliases: tuple[str, ...] = ()
    """Names that SGLang and its gateway use for it."""
    models: tuple[str, ...] = ()
    """Parts of the names of models that use it, in lower case, with `-` for `_`."""
    markers: CallMarkers | None = None
    forced: bool = False
    """Forced calls keep the model's own markers; else they are a bare JSON array, or one's arguments."""
    kimi_ids: bool = False
    """Ids of calls are `functions.NAME:IDX`, not `call_` with hex."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How reasoning is written in a model's answer."""

    name: str
    aliases: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    parser: str = ""
    """The core's parser, where its name is not this one's."""
    start: str = "<think>"
    """Written by the model, or by the template at the prompt's end."""
    end: str = "</think>"
    switch: str = ""
    """The template argument that turns thinking on or off, if there is one."""
    on: bool = True
    """Whether the model thinks when the switch is not given."""


_XML_CALLS: Final = CallMarkers(
    "alone",
    "<tool_call>",
    "\n<function={name}>\n",
    "\n</function>\n",
    close="</tool_call>",
    arguments="qwen_xml",
)

TOOL_FORMATS: Final = (
    ToolFormat("json", (), ("deepseek-r1-distill",)),
    ToolFormat(
        "mistral",
        ("mistral_v11",),
        ("mistral", "mixtral", "magistral", "devstral", "ministral", "codestral"),
        CallMarkers(
            "list",
            "[TOOL_CALLS] [",
            '{"name": "{name}", "arguments": ',
            "}",
            close="]",
            separator=", ",
            trigger="[TOOL_CALLS]",
        ),
        forced=True,
    ),
    ToolFormat(
        "qwen",
        ("qwen25", "hermes"),
        ("qwen", "hermes", "hermes-2", "hermes-3", "hermes-4", "qwq"),
        CallMarkers(
            "alone", "<tool_call>", '\n{"name": "{name}", "arguments": ', "}\n", close="</tool_call>"
        ),
    ),
    ToolFormat(
        "qwen_coder",
        ("qwen3_coder", "qwen_xml"),
        ("qwen3-coder", "qwen3.5", "qwen3.6", "qwen3.8", "step-3.5", "step3.5"),
        _XML_CALLS,
    ),
    ToolFormat("nemotron", (), ("nemotron-nano", "nemotron-3", "nemotron-super", "nano-v3"), _XML_CALLS),
    ToolFormat("pythonic", ("llama4",), ("llama-4", "llama4")),
    ToolFormat(
        "llama",
        ("llama3",),
        ("llama-3", "llama3"),
        CallMarkers("alone", "<|python_tag|>", '{"name": "{name}", "parameters": ', "}"),
    ),
    ToolFormat(
        "deepseek_v3",
        ("deepseek", "deepseekv3"),
        ("deepseek-v3", "deepseek-r1"),
        CallMarkers(
            "section",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
            "\n```<｜tool▁call▁end｜>",
            close="<｜tool▁calls▁end｜>",
            call_trigger="<｜tool▁call▁begin｜>",
        ),
    ),
    ToolFormat(
        "deepseek_v31",
        ("deepseek31", "deepseekv31"),
        ("deepseek-v3.1", "deepseek-v3.2-exp"),
        CallMarkers(
            "section",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            close="<｜tool▁calls▁end｜>",
            call_trigger="<｜tool▁call▁begin｜>",
        ),
    ),
    ToolFormat(
        "deepseek_v32",
        ("deepseek32", "deepseekv32", "deepseek_v4", "deepseekv4"),
        ("deepseek-v3.2", "deepseek-v4"),
    ),
    ToolFormat("glm45", ("glm", "glm45_moe"), ("glm-4.5", "glm-4.6", "glm4-moe")),
    ToolFormat("glm47", ("glm47_moe",), ("glm-4.7", "glm-5")),
    ToolFormat(
        "kimi_k2",
        ("kimik2",),
        ("kimi-k2",),
        CallMarkers(
            "section",
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            close="<|tool_calls_section_end|>",
            call_trigger="<|tool_call_begin|>",
        ),
        forced=True,
        kimi_ids=True,
    ),
    ToolFormat("minimax_m2", ("minimax-m2", "minimax"), ("minimax",)),
    ToolFormat("step3", (), ("step3", "step-3")),
    ToolFormat(
        "cohere",
        ("cohere_cmd", "cohere_command4"),
        ("command-r", "command-a", "c4ai-command"),
        CallMarkers(
            "list",
            "<|START_ACTION|>[",
            '{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": ',
            "}",
            close="]<|END_ACTION|>",
            separator=", ",
            trigger="<|START_ACTION|>",
        ),
    ),
    ToolFormat(
        "gpt-oss",
        ("gpt_oss", "harmony"),
        ("gpt-oss",),
        CallMarkers(
            "harmony",
            "<|channel|>commentary",
            " to=functions.{name} <|constrain|>json<|message|>",
            # The model's end is <|call|>, a stop token: a grammar that is complete lets it through.
            "",
        ),
        forced=True,
    ),
    ToolFormat("passthrough"),
)

REASONING_FORMATS: Final = (
    # Sisters of models that think, which do not.
    ReasoningFormat(NONE, models=("-instruct", "qwen3-coder")),
    ReasoningFormat("base"),
    ReasoningFormat("deepseek_r1", ("deepseek-r1",), ("deepseek-r1", "qwq")),
    ReasoningFormat(
        "deepseek_v3",
        ("deepseek-v3", "deepseek_v31"),
        ("deepseek-v3.1", "deepseek-v3.2", "deepseek-v4"),
        parser="base",
        switch="thinking",
        on=False,
    ),
    ReasoningFormat("qwen3", (), ("qwen3", "smollm3"), switch="enable_thinking"),
    ReasoningFormat("qwen3_thinking", ("qwen3-thinking",), ("qwen3-thinking", "thinking-2507")),
    ReasoningFormat("kimi", (), ("kimi-vl", "kimi-dev"), start="◁think▷", end="◁/think▷"),
    ReasoningFormat("kimi_k2", ("kimi_thinking",), ("kimi-k2-thinking",)),
    ReasoningFormat("kimi_k25", (), ("kimi-k2.5",), parser="base", switch="thinking"),
    ReasoningFormat(
        "glm45",
        ("glm47",),
        ("glm-4.5", "glm-4.6", "glm-4.7", "glm-5", "glm4-moe"),
        switch="enable_thinking",
    ),
    ReasoningFormat("step3", (), ("step3", "step-3")),
    ReasoningFormat("minimax", ("minimax_m2", "minimax-m2"), ("minimax",)),
    ReasoningFormat(
        "cohere",
        ("cohere_cmd", "cohere_command4"),
        ("command-a-reasoning",),
        start="<|START_THINKING|>",
        end="<|END_THINKING|>",
        switch="reasoning",
    ),
    ReasoningFormat(
        "mistral",
        ("magistral",),
        ("magistral", *(f"ministral-3-{size}-reasoning" for size in ("3b", "8b", "14b"))),
        start="[THINK]",
        end="[/THINK]",
    ),
    ReasoningFormat(
        "nemotron",
        ("nano_v3", "nemotron_3"),
        ("nemotron-nano", "nemotron-super", "nemotron-3", "nano-v3"),
        switch="enable_thinking",
    ),
    ReasoningFormat(
        "gpt-oss",
        ("gpt_oss", "harmony"),
        ("gpt-oss",),
        start="<|channel|>analysis<|message|>",
        end="<|end|>",
    ),
)


class _Row(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def models(self) -> tuple[str, ...]: ...


Row = TypeVar("Row", bound=_Row)


class Formats(Generic[Row]):
    """A table of formats, by name and by model."""

    def __init__(self, rows: Sequence[Row], unknown_model: str) -> None:
        self._rows = {word: row for row in rows for word in (row.name, *row.aliases)}
        self._models = sorted(
            ((part, row) for row in rows for part in row.models),
            key=lambda pair: (-len(pair[0]), pair[0]),
        )
        self._unknown_model = unknown_model
        self._of_model = functools.lru_cache(maxsize=64)(self._find)
        self.names: Final = tuple(dict.fromkeys((AUTO, NONE, *(row.name for row in rows))))

    def canonical(self, word: str) -> str:
        """The setting's value for what an operator wrote; ValueError if there is no such format."""
        word = word.strip().lower()
        if word in (AUTO, NONE):
            return word
        if row := self._rows.get(word):
            return row.name
        raise ValueError(f"must be one of {', '.join(self.names)}, not {word!r}")

    def choose(self, setting: str, models: Iterable[str]) -> Row | None:
        """The format for a canonical `setting`; under auto that of the first of the `models` that is known.

        `models` are names or paths. None when nothing is to be read.
        """
        name = self._of_model(tuple(models)) if setting == AUTO else setting
        return None if name == NONE else self._rows[name]

    def _find(self, models: tuple[str, ...]) -> str:
        for model in models:
            # A name's longest known part counts: qwen3-coder before qwen.
            text = model.lower().replace("_", "-")
            for part, row in self._models:
                if part in text:
                    return row.name
        return self._unknown_model


TOOLS: Final = Formats(TOOL_FORMATS, "json")
REASONING: Final = Formats(REASONING_FORMATS, NONE)


def tool_setting(value: object) -> str:
    """Cast of the setting TOOL_CALL_PARSER, and of a format in TOOL_CALL_PARSERS."""
    return TOOLS.canonical(_word(value))


def reasoning_setting(value: object) -> str:
    """Cast of the setting REASONING_PARSER, and of a format in REASONING_PARSERS."""
    return REASONING.canonical(_word(value))


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def thinks(form: ReasoningFormat | None, template_arguments: Mapping[str, Any]) -> bool:
    """Whether a model of this format thinks when its chat template gets these arguments."""
    if form is None:
        return False
    if not form.switch:
        return True
    given = template_arguments.get(form.switch)
    return form.on if given is None else bool(given)


def starts_inside(form: ReasoningFormat | None, prompt: str) -> bool | None:
    """Whether the answer begins inside the reasoning: the prompt's end says so, or None if it tells nothing.

    True after a start marker of the template's; False after a closed, empty block of reasoning.
    """
    if form is None:
        return False
    tail = prompt[-64:].rstrip()
    if tail.endswith(form.start):
        return True
    return False if tail.endswith(form.end) else None


def left_open(form: ReasoningFormat | None, text: str) -> bool:
    """Whether an answer that begins with `text` is still inside the reasoning."""
    return form is not None and text.rfind(form.start) > text.rfind(form.end)
