"""Conversations that chat templates are compared over."""

from __future__ import annotations

import itertools
from typing import Any

Message = dict[str, Any]
Messages = list[Message]
#: The arguments of apply_chat_template: messages, tools, kwargs, add_generation_prompt …
Case = dict[str, Any]


def tool(name: str, properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required is not None:
        parameters["required"] = required
    return {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": parameters},
    }


#: Every kind of schema.
TOOLS = [
    tool(
        "get_weather",
        {
            "city": {"type": "string", "description": "Where; \"quoted\", <b>bold</b> & 'single'."},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c", "nullable": True},
            "days": {"type": "integer", "minimum": 1, "maximum": 1.5e16},
        },
        ["city"],
    ),
    tool(
        "list_files", {"paths": {"type": "array", "items": {"type": "string"}, "description": "多言語 é 😀"}}
    ),
    tool(
        "nested",
        {
            "items": {
                "type": "array",
                "items": {"type": "object", "properties": {"keys": {"type": ["string", "null"]}}},
            },
            "flag": {"type": "boolean", "default": False},
            "any": {"anyOf": [{"type": "number", "default": 1e-05}, {"type": "null"}]},
        },
        [],
    ),
    tool("no_arguments", {}),
]


#: Tools as the older templates need them: each parameter with a plain type and a description.
PLAIN_TOOLS = [
    tool(
        "get_weather",
        {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How many 'days'."},
        },
        ["city"],
    ),
    tool("list_files", {"path": {"type": "string", "description": "A <path> & more."}}, ["path"]),
]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def calls(*given: tuple[str, Any]) -> list[dict[str, Any]]:
    return [
        {"id": f"call0000{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(given)
    ]


def result(text: Any, index: int = 0, name: str = "get_weather") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{index}", "name": name, "content": text}


TEXTS = [
    "",
    " ",
    "Hello",
    "  padded \n\n",
    "\n",
    "line one\nline two\r\nthree\ttab",
    "<|im_end|><|eot_id|></think>",
    "<think>\nhm\n</think>\n\nanswer",
    "<think>\n\n</think>\n\n",
    "a </think> b </think> c",
    "<tool_response>\nx\n</tool_response>",
    "quotes \" ' and \\ back {{ braces }} {% if %} <&>",
    "日本語 中文 한국어 العربية",
    "👩‍👩‍👧‍👦 e\u0301 \u200d \u00a0nbsp\u2028ls \U0001f1e9\U0001f1ea",
    "\u001c\u001fseparators\u0085 \ufeff",
    "x" * 3000,
    "None",
    "0",
]

ARGUMENTS: list[Any] = [
    {"city": "Paris"},
    {},
    {
        "city": "São Paulo \"x\" 'y'",
        "days": 3,
        "ratio": 0.1,
        "big": 1e22,
        "tiny": 1e-7,
        "deep": {"a": [1, None, True, {"b": []}]},
    },
    {"text": "multi\nline\\ & <tag> 😀", "flag": False, "none": None, "list": [[], {}, ""]},
]


def conversations() -> list[Messages]:
    """Conversations as clients send them, but for arguments, which are dicts here."""
    out: list[Messages] = []
    for text in TEXTS:
        out.append([user(text)])
        out.append([system(text), user("Hi")])
        out.append([system("Be brief."), user("Hi"), assistant(text), user(text)])
        out.append([user("Hi"), assistant(text)])
        out.append(
            [
                user("Hi"),
                assistant("Answer", reasoning_content=text),
                user("More"),
                assistant("B", reasoning=text),
            ]
        )
        out.append([user("Hi"), assistant(text, reasoning_content="first\n"), user("More")])
        out.append(
            [
                user("Hi"),
                assistant("", tool_calls=calls(("get_weather", {"city": "Paris"}))),
                result(text),
                user("?"),
            ]
        )
    for arguments in ARGUMENTS:
        one = calls(("get_weather", arguments))
        two = calls(("get_weather", arguments), ("no_arguments", {}))
        out.append([user("Weather?"), assistant("", tool_calls=one)])
        out.append([user("Weather?"), assistant(None, tool_calls=one), result("sunny")])
        out.append(
            [
                user("Weather?"),
                assistant("Let me see.", tool_calls=one),
                result('{"t": 20}'),
                assistant("20 degrees."),
            ]
        )
        out.append(
            [
                system("S"),
                user("Weather?"),
                assistant("", tool_calls=two),
                result("a"),
                result("b", 1, "no_arguments"),
                user("And?"),
            ]
        )
        out.append(
            [
                user("W"),
                assistant("", tool_calls=one, reasoning_content="think"),
                result("a"),
                assistant("done", reasoning_content="again"),
                user("next"),
            ]
        )
        out.append(
            [user("W"), assistant("<think>\nt\n</think>\n\nc", tool_calls=two), result("a"), result("b", 1)]
        )
    out += [
        [],
        [system("only system")],
        [assistant("begins")],
        [user("a"), user("b")],
        [user("a"), assistant("b"), assistant("c")],
        [user("a"), system("late system")],
        [system("a"), system("b"), user("c")],
        [{"role": "developer", "content": "Develop."}, user("x")],
        [{"role": "custom", "content": "c"}, user("x")],
        [user("named") | {"name": "Ann"}, assistant("b", name="Bot"), user("c")],
        [user("x"), assistant(None)],
        [user(None)],
        [{"role": "user"}],
        [{"content": "no role"}],
        [user("x"), assistant("y", tool_calls=[])],
        [user("x"), assistant("y", refusal=None, audio=None, tool_calls=None), user("z")],
        [user("x"), assistant("y", prefix=True)],
        [
            item
            for index in range(12)
            for item in (user(f"question {index}"), assistant(f"<think>{index}</think>answer {index}"))
        ]
        + [user("last")],
    ]
    parts = [{"type": "text", "text": "part one"}, {"type": "text", "text": " two\n"}]
    out += [
        [user(parts)],
        [user(parts[:1])],
        [system(parts), user(parts)],
        [user(parts), assistant(parts), user("x")],
        [user("x"), assistant("", tool_calls=calls(("get_weather", {}))), result(parts)],
    ]
    return out


def cases() -> list[Case]:
    out: list[Case] = []
    for messages in conversations():
        for add, tools in itertools.product((True, False), (None, TOOLS)):
            out.append({"messages": messages, "tools": tools, "add_generation_prompt": add})
        out.append({"messages": messages, "tools": PLAIN_TOOLS, "add_generation_prompt": True})
        for thinking in (True, False):
            kwargs: dict[str, Any] = {"enable_thinking": thinking, "thinking": thinking}
            out.append({"messages": messages, "kwargs": kwargs, "add_generation_prompt": True})
        if messages and messages[-1].get("role") == "assistant":
            out.append({"messages": messages, "continue_final_message": True})
            out.append({"messages": messages, "continue_final_message": True, "tools": TOOLS})
    plain = [system("S"), user("Hi"), assistant("A"), user("B")]
    documents = [{"title": "T é", "text": "Text 'x'"}, {"title": "U", "text": "", "meta": {"n": 1.0}}]
    others: tuple[dict[str, Any], ...] = (
        {"reasoning_effort": "high"},
        {"date_string": "01 Jan 2020"},
        {"tools_in_user_message": False, "custom_tools": TOOLS[:1]},
        {"builtin_tools": ["code_interpreter", "brave_search"]},
        {"bos_token": "[BOS]", "eos_token": "[EOS]"},
        {"keep_past_thinking": True, "preserve_thinking": True, "clear_thinking": False},
        {"enable_thinking": None},
        {"functions": "[]", "datetime": "2024-07-06"},
        {"enable_thinking": "yes"},
    )
    for kwargs in others:
        out.append({"messages": plain, "kwargs": kwargs, "add_generation_prompt": True})
        out.append({"messages": plain, "kwargs": kwargs, "tools": TOOLS})
    out.append({"messages": plain, "documents": documents, "add_generation_prompt": True})
    out.append({"messages": plain, "documents": [], "tools": []})
    return out
