"""Writes the texts that our parsers and the oracles read: every kind of answer in every model's format.

`python texts.py FILE`. A format is what writes calls as its model's chat template does; a kind of answer is
what is made of that. So each kind stands in each format, and what only one format has stands in extras.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Call = tuple[str, dict[str, Any]]
Writer = Callable[[list[Call]], str]
Turn = Callable[..., str]
"""Writes prose (str) and blocks of calls (list) one after the other."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Searches the documents.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    "limit": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "score": {"type": ["number", "null"]},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "where": {"type": "object"},
                },
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
    },
]


def to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: object) -> str:
    """A parameter's value as templates write it: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else to_json(value)


def named(call: Call, key: str = "arguments") -> str:
    return f'{{"name": "{call[0]}", "{key}": {to_json(call[1])}}}'


def json_list(calls: list[Call]) -> str:
    return f"[{', '.join(named(call, 'parameters') for call in calls)}]"


def mistral(calls: list[Call]) -> str:
    return f"[TOOL_CALLS] [{', '.join(named(call) for call in calls)}]"


def qwen(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{named(call)}\n</tool_call>" for call in calls)


def qwen_coder(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        values = "".join(
            f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in call[1].items()
        )
        return f"<tool_call>\n<function={call[0]}>\n{values}</function>\n</tool_call>"

    return "\n".join(one(call) for call in calls)


def pythonic(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"

    return f"[{', '.join(one(call) for call in calls)}]"


def llama(calls: list[Call]) -> str:
    return "<|python_tag|>" + "; ".join(named(call, "parameters") for call in calls)


def deepseek_v3(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        return (
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call[0]}\n```json\n{to_json(call[1])}\n```"
            "<｜tool▁call▁end｜>"
        )

    body = "\n".join(one(call) for call in calls)
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def deepseek_v31(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        return f"<｜tool▁call▁begin｜>{call[0]}<｜tool▁sep｜>{to_json(call[1])}<｜tool▁call▁end｜>"

    return f"<｜tool▁calls▁begin｜>{''.join(one(call) for call in calls)}<｜tool▁calls▁end｜>"


def deepseek_v32(calls: list[Call]) -> str:
    def value(key: str, value: object) -> str:
        text = "true" if isinstance(value, str) else "false"
        return f'<｜DSML｜parameter name="{key}" string="{text}">{plain(value)}</｜DSML｜parameter>\n'

    def one(call: Call) -> str:
        values = "".join(value(*pair) for pair in call[1].items())
        return f'<｜DSML｜invoke name="{call[0]}">\n{values}</｜DSML｜invoke>\n'

    return f"<｜DSML｜function_calls>\n{''.join(one(call) for call in calls)}</｜DSML｜function_calls>"


def glm(before: str) -> Writer:
    def one(call: Call) -> str:
        values = "".join(
            f"<arg_key>{key}</arg_key>{before}<arg_value>{plain(value)}</arg_value>{before}"
            for key, value in call[1].items()
        )
        return f"<tool_call>{call[0]}{before}{values}</tool_call>"

    return lambda calls: before.join(one(call) for call in calls)


def kimi_k2(calls: list[Call]) -> str:
    body = "".join(
        f"<|tool_call_begin|>functions.{call[0]}:{index}<|tool_call_argument_begin|>{to_json(call[1])}"
        "<|tool_call_end|>"
        for index, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def minimax_m2(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        values = "".join(
            f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in call[1].items()
        )
        return f'<invoke name="{call[0]}">\n{values}</invoke>\n'

    return f"<minimax:tool_call>\n{''.join(one(call) for call in calls)}</minimax:tool_call>"


def step3(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        values = "".join(
            f'<steptml:parameter name="{key}">{plain(value)}</steptml:parameter>\n'
            for key, value in call[1].items()
        )
        return (
            f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{call[0]}">\n{values}'
            "</steptml:invoke><｜tool_call_end｜>\n"
        )

    return f"<｜tool_calls_begin｜>\n{''.join(one(call) for call in calls)}<｜tool_calls_end｜>"


def cohere(calls: list[Call]) -> str:
    body = ",\n".join(
        f'    {{"tool_call_id": "{index}", "tool_name": "{call[0]}", "parameters": {to_json(call[1])}}}'
        for index, call in enumerate(calls)
    )
    return f"<|START_ACTION|>[\n{body}\n]<|END_ACTION|>"


NEXT = "<|start|>assistant"
"""What stands before each message of gpt-oss's; before the first one the prompt has it."""


def harmony(calls: list[Call]) -> str:
    return NEXT.join(
        f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{to_json(call[1])}<|call|>"
        for call in calls
    )


def said(text: str) -> str:
    return f"<|channel|>final<|message|>{text}<|return|>"


WRITERS: dict[str, Writer] = {
    "passthrough": qwen,
    "json": json_list,
    "mistral": mistral,
    "qwen": qwen,
    "qwen_coder": qwen_coder,
    "nemotron": qwen_coder,
    "pythonic": pythonic,
    "llama": llama,
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "deepseek_v32": deepseek_v32,
    "glm45": glm("\n"),
    "glm47": glm(""),
    "kimi_k2": kimi_k2,
    "minimax_m2": minimax_m2,
    "step3": step3,
    "cohere": cohere,
    "gpt-oss": harmony,
}

BEGINS = {
    "passthrough": "<tool_call>",
    "json": "[",
    "mistral": "[TOOL_CALLS]",
    "qwen": "<tool_call>",
    "qwen_coder": "<tool_call>",
    "nemotron": "<tool_call>",
    "pythonic": "[",
    "llama": "<|python_tag|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜>",
    "deepseek_v32": "<｜DSML｜function_calls>",
    "glm45": "<tool_call>",
    "glm47": "<tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "minimax_m2": "<minimax:tool_call>",
    "step3": "<｜tool_calls_begin｜>",
    "cohere": "<|START_ACTION|>",
    "gpt-oss": "<|channel|>",
}
"""What begins a block of calls."""

SEARCH: Call = ("search", {"query": "cats", "limit": 3})
WEATHER: Call = ("get_weather", {"city": "Wien", "unit": "C"})
PING: Call = ("ping", {})


def search(**arguments: object) -> Call:
    return ("search", arguments)


def turn_of(name: str) -> Turn:
    write = WRITERS[name]

    def turn(*parts: str | list[Call]) -> str:
        return "".join(part if isinstance(part, str) else write(part) for part in parts)

    def messages(*parts: str | list[Call]) -> str:
        return NEXT.join(
            harmony(part) if isinstance(part, list) else f"<|channel|>commentary<|message|>{part}<|end|>"
            for part in parts
        )

    return messages if name == "gpt-oss" else turn


def tool_kinds(write: Writer, turn: Turn, begin: str) -> Iterator[tuple[str, str]]:
    one = write([SEARCH])
    at = one.index("cats")
    yield "one call", one
    yield "two calls", write([SEARCH, WEATHER])
    yield "three calls, one without arguments", write([PING, SEARCH, WEATHER])
    yield "the same call twice", write([SEARCH, SEARCH])
    yield "prose before", turn("Let me look.", [SEARCH])
    yield "prose before, newlines between", turn("Let me look.\n\n", [SEARCH])
    yield "prose behind", turn([SEARCH], " That was it.")
    yield "prose between two blocks", turn("Look. ", [SEARCH], " And then ", [WEATHER], " Done.")
    yield "two blocks in a row", turn([SEARCH], "\n", [WEATHER])
    yield "blanks around", turn("\n\n ", [SEARCH], " \n")
    yield "braces and quotes", write([search(query='a } "b" {"c": [1]} ] \'d\' )')])
    yield "not ASCII", write([search(query="日本語 größer 🦀 \u2028 \u00a0x")])
    yield "escapes", write([search(query='line\nbreak\ttab \\ C:\\dir "q" é')])
    yield (
        "a program",
        write([search(query="def f(x):\n    return {'a': [x]}\n\nif a < b and c > d:\n    f(1)\n")]),
    )
    yield "blanks at the string's ends", write([search(query="  two blanks ")])
    yield "an empty string", write([search(query="")])
    yield "a number in a string", write([search(query="42")])
    yield "an empty object", write([search(where={})])
    yield "nested", write([search(where={"a": {"b": [1, {"c": None}]}}, tags=["x", "y, z"])])
    yield "numbers, booleans, null", write([search(limit=-7, exact=True, score=None)])
    yield "fractions", write([search(score=1.5, exact=False, limit=12345678901234567890)])
    yield "no arguments", write([PING])
    yield "an unknown tool", write([("other", {"a": 1})])
    yield "an unknown tool beside a known one", write([("other", {"a": 1}), SEARCH])
    yield "cut in the name", one[: one.index("search") + 3]
    yield "cut behind the name", one[: one.index("search") + 6]
    yield "cut in a string", one[: at + 2]
    yield "cut at the end", one[:-1] if one[-1] in "]}" else one[: one.rindex("<")]
    yield "cut in a second call", write([SEARCH, ("get_weather", {"city": "Wien"})]).split("Wien")[0]
    yield "JSON that is no call", 'See {"answer": 42} and [1, 2, {"a": []}] and {"name": "Anna", "age": 3}.'
    yield "JSON alone that is no call", '{"answer": 42, "name": "Anna"}'
    yield "prose alone", "No tool is needed: a < b, [1] and (c)."
    yield "the marker alone", begin
    yield "the marker twice", f"{begin}{begin}"
    yield "the marker and prose", f"{begin} is how a call begins."
    yield "the marker before a block", f"{begin}{one}"
    yield "half a marker in prose", f"About {begin[: len(begin) // 2]} and more."
    yield "the markers in a string", write([search(query=f"say {begin} twice")])


EXTRAS: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "extras.json").read_text(encoding="utf-8")
)
"""What only one format has, and slips that its models make."""

TAGS = {
    "passthrough": ("<think>", "</think>"),
    "base": ("<think>", "</think>"),
    "deepseek_r1": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
    "qwen3_thinking": ("<think>", "</think>"),
    "kimi": ("◁think▷", "◁/think▷"),
    "kimi_k2": ("<think>", "</think>"),
    "glm45": ("<think>", "</think>"),
    "step3": ("<think>", "</think>"),
    "minimax": ("<think>", "</think>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "nemotron": ("<think>", "</think>"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|>"),
}

CALL_OF = {
    "kimi": kimi_k2,
    "kimi_k2": kimi_k2,
    "cohere": cohere,
    "mistral": mistral,
    "step3": step3,
    "minimax": minimax_m2,
    "glm45": glm("\n"),
    "nemotron": qwen_coder,
    "gpt-oss": harmony,
}


def reasoning_kinds(name: str) -> Iterator[tuple[str, str]]:
    begin, end = TAGS[name]
    call = CALL_OF.get(name, qwen)([SEARCH])
    answer: Callable[[str], str] = str
    if name == "gpt-oss":
        call, answer = NEXT + call, lambda text: NEXT + said(text)
    so = answer("so")
    yield "thoughts and an answer", f"{begin}why{end}{so}"
    yield "thoughts without their beginning", f"why{end}{so}"
    yield "no thoughts", "Just an answer."
    yield "thoughts on lines", f"{begin}\nwhy\nand how\n{end}" + answer("\n\nso\n")
    yield "blanks before the thoughts", f"\n {begin}why{end}{so}"
    yield "prose before the thoughts", f"Hm. {begin}why{end}{so}"
    yield "thoughts not ended", f"{begin}why and"
    yield "empty thoughts", f"{begin}\n\n{end}" + answer("\n\nso")
    yield "thoughts alone", f"{begin}why{end}"
    yield "the beginning alone", begin
    yield "the end alone", end
    yield "the beginning twice", f"{begin}{begin}why{end}{so}"
    yield "the end twice", f"{begin}why{end}{so}{end}{answer('on')}"
    yield "two thoughts", f"{begin}a{end}{answer('b')}{begin}c{end}{answer('d')}"
    yield "tags like it", f"{begin}a {begin[:-2]} b {end[:-2]} <b>c</b>{end}{so}"
    yield "cut in the end", f"{begin}why{end[:-2]}"
    yield "cut in the beginning", begin[:-2]
    yield "not ASCII", f"{begin}思考 größer 🦀{end}{answer('答え')}"
    yield "a call behind", f"{begin}why{end}{call}"
    yield "a call in the thoughts", f"{begin}maybe {call} or not{end}{so}"
    yield "a call in thoughts that do not end", f"{begin}why {call}"
    yield "a call on its own line in thoughts that do not end", f"{begin}why\n{call}"
    yield "blanks alone", " \n"
    yield "JSON behind", begin + "why" + end + answer('{"a": [1, 2]}')


def texts() -> Iterator[dict[str, object]]:
    for name, write in WRITERS.items():
        kinds = {**dict(tool_kinds(write, turn_of(name), BEGINS[name])), **EXTRAS.get(name, {})}
        for kind, text in kinds.items():
            yield {"id": f"{name}: {kind}", "kind": "tools", "format": name, "text": text}
    for name in TAGS:
        for kind, text in reasoning_kinds(name):
            row: dict[str, object] = {
                "id": f"{name} thinks: {kind}",
                "kind": "reasoning",
                "format": name,
                "text": text,
            }
            yield row
            yield {**row, "id": f"{name} is thinking: {kind}", "inside": True}


def main() -> None:
    [path] = sys.argv[1:]
    rows = ",\n".join(to_json(text) for text in texts())
    Path(path).write_text(f'{{"tools": {to_json(TOOLS)},\n"texts": [\n{rows}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
