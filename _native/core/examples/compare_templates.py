"""Compares the core's chat templates with transformers' over many conversations.

    python compare_templates.py BINARY TEMPLATE_OR_FOLDER...

BINARY is the built example `render_templates`. A template is a `.jinja` file (a `.json` of the same stem
may name its special tokens) or a folder with a tokenizer_config.json. Prints n/n for each and the first
differences; exits 1 if there are any. A case that transformers refuses must be refused.
"""

import argparse
import datetime
import difflib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from transformers.utils import chat_template_utils

NOW = 1_720_267_200
Case = dict[str, Any]
Messages = list[dict[str, Any]]


class _Clock(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Clock":
        return cls.fromtimestamp(NOW)


def tool(name: str, properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required is not None:
        parameters["required"] = required
    return {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": parameters},
    }


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
    """Conversations in the form transformers wants them: text content, arguments as dicts."""
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
        for thinking in (True, False):
            kwargs = {"enable_thinking": thinking, "thinking": thinking}
            out.append({"messages": messages, "kwargs": kwargs, "add_generation_prompt": True})
        if messages and messages[-1].get("role") == "assistant":
            out.append({"messages": messages, "continue_final_message": True})
            out.append({"messages": messages, "continue_final_message": True, "tools": TOOLS})
    plain = [system("S"), user("Hi"), assistant("A"), user("B")]
    documents = [{"title": "T é", "text": "Text 'x'"}, {"title": "U", "text": "", "meta": {"n": 1.0}}]
    for kwargs in (
        {"reasoning_effort": "high"},
        {"date_string": "01 Jan 2020"},
        {"tools_in_user_message": False, "custom_tools": TOOLS[:1]},
        {"builtin_tools": ["code_interpreter", "brave_search"]},
        {"bos_token": "[BOS]", "eos_token": "[EOS]"},
        {"keep_past_thinking": True, "preserve_thinking": True, "clear_thinking": False},
        {"enable_thinking": None},
        {"enable_thinking": "yes"},
    ):
        out.append({"messages": plain, "kwargs": kwargs, "add_generation_prompt": True})
        out.append({"messages": plain, "kwargs": kwargs, "tools": TOOLS})
    out.append({"messages": plain, "documents": documents, "add_generation_prompt": True})
    out.append({"messages": plain, "documents": [], "tools": []})
    return out


def load(path: Path) -> tuple[str, str, dict[str, str]]:
    """Name, source and special tokens of a template."""
    if path.is_dir():
        config = json.loads((path / "tokenizer_config.json").read_text())
        named = {key: value for key, value in config.items() if key.endswith("_token") and value}
        tokens = {
            key: value if isinstance(value, str) else value.get("content")
            for key, value in named.items()
            if value is not True
        }
        extra = path / "chat_template.jinja"
        return path.name, extra.read_text() if extra.exists() else config["chat_template"], tokens
    tokens = path.with_suffix(".json")
    return (
        path.stem,
        path.read_text(),
        json.loads(tokens.read_text()) if tokens.exists() else {"bos_token": "<s>", "eos_token": "</s>"},
    )


def served(case: Case, forms: dict[str, Any] | None) -> Case:
    """The case as a server would hand it to transformers: the form of messages the template reads."""
    if forms is None:
        return case
    messages = []
    for message in case["messages"]:
        message = dict(message)
        role = message.get("role")
        content = message.get("content")
        form = forms[
            {"system": "system", "developer": "system", "assistant": "assistant", "tool": "tool"}.get(
                role, "user"
            )
        ]
        if isinstance(content, list) and not form["parts"]:
            message["content"] = " ".join(part["text"] for part in content)
        if isinstance(content, str) and form["parts"] and not form["text"]:
            message["content"] = [{"type": "text", "text": content}]
        if role == "developer" and not forms["developer"]:
            message["role"] = "system"
        if not forms["arguments_as_dict"] and message.get("tool_calls"):
            message["tool_calls"] = [
                call
                | {
                    "function": call["function"]
                    | {"arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)}
                }
                for call in message["tool_calls"]
            ]
        messages.append(message)
    return case | {"messages": messages}


def expected(tokenizer: transformers.PreTrainedTokenizerFast, case: Case) -> str | Exception:
    try:
        text = tokenizer.apply_chat_template(
            case["messages"],
            tools=case.get("tools"),
            documents=case.get("documents"),
            add_generation_prompt=case.get("add_generation_prompt", False),
            continue_final_message=case.get("continue_final_message", False),
            tokenize=False,
            **case.get("kwargs", {}),
        )
    except Exception as error:  # whatever transformers refuses with
        return error
    assert isinstance(text, str)
    return text


def compare(binary: str, path: Path, shown: int) -> tuple[int, int]:
    name, source, tokens = load(path)
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **tokens)
    tokenizer.chat_template = source
    todo = cases()
    lines = [json.dumps(case | {"template": source, "special_tokens": tokens, "now": NOW}) for case in todo]
    done = subprocess.run([binary], input="\n".join(lines), capture_output=True, text=True, check=True)
    right = refused = 0
    forms = None
    for case, line in zip(todo, done.stdout.rstrip("\n").split("\n"), strict=True):
        got = json.loads(line)
        forms = got.get("forms")
        want = expected(tokenizer, served(case, forms))
        same = "error" in got if isinstance(want, Exception) else got.get("text") == want
        right += same
        refused += isinstance(want, Exception)
        if not same and shown > 0:
            shown -= 1
            show(name, case, got, want)
    print(f"{name}: {right}/{len(todo)} equal ({refused} refused by both or by transformers) {short(forms)}")
    return right, len(todo)


def short(forms: dict[str, Any] | None) -> str:
    if forms is None:
        return "not compiled"
    roles = ("system", "user", "assistant", "tool")
    text = " ".join(
        f"{role}={'parts' if forms[role]['parts'] else ''}{'text' if forms[role]['text'] else ''}"
        for role in roles
    )
    return f"{text} arguments={'dict' if forms['arguments_as_dict'] else 'text'}"


def show(name: str, case: Case, got: Case, want: str | Exception) -> None:
    print(f"--- {name}: {json.dumps(case, ensure_ascii=False)[:600]}")
    if isinstance(want, Exception) or "error" in got:
        print("  want:", repr(want)[:300])
        print("  got: ", got.get("error", repr(got.get("text")))[:300])
        return
    for line in itertools.islice(difflib.ndiff(want.splitlines(True), got["text"].splitlines(True)), 4000):
        if line[0] in "-+?":
            print("  ", repr(line[:300]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("binary")
    parser.add_argument("templates", nargs="+", type=Path)
    parser.add_argument("--show", type=int, default=2, help="differences to show for each template")
    options = parser.parse_args()
    chat_template_utils.datetime = _Clock
    pairs = [compare(options.binary, path, options.show) for path in options.templates]
    right, total = (sum(column) for column in zip(*pairs, strict=True))
    print(f"all: {right}/{total}")
    sys.exit(right != total)


if __name__ == "__main__":
    main()
