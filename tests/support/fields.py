"""The fields of every POST route: what each refuses, and good requests to put it in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tests import test_schema, test_schema_tools
from tests.support.app import CHAT, MODEL, WORKER, ask
from tests.test_schema import UNSUPPORTED, VALUE
from wsgi_router.workers.worker import worker_id

COMPLETIONS, GENERATE, EMBEDDINGS = "/v1/completions", "/generate", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"
WORKERS = "/workers"
ONE_WORKER = f"/workers/{worker_id(WORKER)}"
OPERATORS = (WORKERS, ONE_WORKER)
"""Routes that need ADMIN_KEY."""


@dataclass(frozen=True)
class Row:
    """A field: values of wrong types, and what is refused besides, with the code."""

    wrong: tuple[Any, ...]
    outside: tuple[Any, ...] = ()
    code: str = VALUE
    needed: bool = False
    """Null and absent are refused, too."""


def text(*outside: Any, needed: bool = False) -> Row:
    return Row((3, 1.5, True, [], {}), outside, needed=needed)


def whole_number(*outside: Any) -> Row:
    return Row(("1", 1.5, True, [], {}), outside)


def number(*outside: Any) -> Row:
    return Row(("1", True, [], {}), (*outside, 10**400))


def items(*outside: Any, needed: bool = False) -> Row:
    return Row(("x", 3, True, {}), outside, needed=needed)


def mapping(*outside: Any, needed: bool = False) -> Row:
    return Row(("x", 3, True, []), outside, needed=needed)


FLAG = Row((0, 1, "true", [], {}))
NOT_SUPPORTED = Row((), (3, "x", {"a": 1}, [{"a": 1}]), code=UNSUPPORTED)
TEXT_OR_ITEMS: tuple[Any, ...] = (3, True, {})
PROMPTS: tuple[Any, ...] = (3, True, {}, 1.5)
MOST = 2**31 - 1

SAMPLING = {
    "n": whole_number(0, -1, 17, 129, 10**30),
    "max_tokens": whole_number(0, -1, MOST + 1, 10**30),
    "min_tokens": whole_number(-1, MOST + 1),
    "temperature": number(-0.1, 2.1),
    "top_p": number(0, -0.1, 1.1),
    "top_k": whole_number(0, -2, MOST + 1),
    "min_p": number(-0.1, 1.1),
    "frequency_penalty": number(-2.1, 2.1),
    "presence_penalty": number(-2.1, 2.1),
    "repetition_penalty": number(0, -1, 2.1),
    "logit_bias": mapping({"x": 1}, {"-1": 1}, {str(2**32): 1}, {str(token): 1 for token in range(1025)}),
    "seed": whole_number(2**63, -(2**63) - 1),
    "stop": Row(TEXT_OR_ITEMS, ("", ["x"] * 17)),
    "stop[]": text(""),
    "stop_token_ids": items(),
    "stop_token_ids[]": whole_number(-1, 2**32),
    "ignore_eos": FLAG,
    "no_stop_trim": FLAG,
    "skip_special_tokens": FLAG,
    "custom_params": mapping(test_schema_tools.nested(100)),
}
GRAMMARS = {name: text("") for name in ("regex", "ebnf", "json_schema", "structural_tag")}
STREAMED = {
    "stream": FLAG,
    "stream_options": mapping(),
    "stream_options.include_usage": FLAG,
    "stream_options.continuous_usage_stats": FLAG,
    "stream_options.include_obfuscation": FLAG,
    "rid": text(),
    "prompt_cache_key": text(),
}
INERT = {
    "user": text(),
    "metadata": mapping(),
    "store": FLAG,
    "service_tier": text(),
    "safety_identifier": text(),
    "prompt_cache_retention": text(),
}
NAME = text("", "a b", "x" * 65, "é", "f\n", needed=True)
KIND = text("odd")
SCHEMA = mapping()


def function(path: str) -> dict[str, Row]:
    return {
        f"{path}.name": NAME,
        f"{path}.description": text(),
        f"{path}.parameters": mapping(test_schema_tools.nested(100)),
        f"{path}.strict": FLAG,
    }


def allowed(path: str) -> dict[str, Row]:
    return {
        f"{path}.mode": text("none", ""),
        f"{path}.tools": items([]),
        f"{path}.tools[]": mapping(),
        f"{path}.tools[].type": Row((3, True, [], {}), ("custom",), UNSUPPORTED),
        f"{path}.tools[].function": mapping(),
        f"{path}.tools[].function.name": text("other", needed=True),
        f"{path}.tools[].name": text("other"),
    }


def tag(path: str) -> dict[str, Row]:
    return {
        f"{path}.format": mapping(),
        f"{path}.format.type": text(needed=True),
        f"{path}.structures": items(),
        f"{path}.structures[]": mapping(),
        f"{path}.structures[].begin": text(needed=True),
        f"{path}.structures[].end": text(needed=True),
        f"{path}.structures[].schema": SCHEMA,
        f"{path}.triggers": items([]),
        f"{path}.triggers[]": text(),
    }


MESSAGES = {
    "messages": items([], [test_schema.USER] * 10_001, needed=True),
    "messages[]": mapping(),
    "messages[].role": Row((3, True, [], {}), ("robot", ""), needed=True),
    "messages[].content": Row(TEXT_OR_ITEMS, ([],)),
    "messages[].content[]": mapping(),
    "messages[].content[].type": text("odd", needed=True),
    "messages[].content[].text": text(),
    "messages[].content[].refusal": text(),
    "messages[].name": text(),
    "messages[].tool_calls": items(),
    "messages[].tool_calls[]": mapping(),
    "messages[].tool_calls[].id": text(),
    "messages[].tool_calls[].type": Row((3, True, [], {}), ("custom",), UNSUPPORTED),
    "messages[].tool_calls[].function": mapping(),
    "messages[].tool_calls[].function.name": text("", needed=True),
    "messages[].tool_calls[].function.arguments": Row((3, True, [])),
    "messages[].tool_call_id": text(),
    "messages[].function_call": mapping(),
    "messages[].function_call.name": text(needed=True),
    "messages[].function_call.arguments": Row((3, True, [])),
    "messages[].reasoning_content": text(),
    "messages[].reasoning": text(),
    "messages[].refusal": text(),
    "messages[].audio": NOT_SUPPORTED,
}
PROMPT_SHAPING = {
    "add_generation_prompt": FLAG,
    "continue_final_message": FLAG,
    "chat_template_kwargs": mapping(test_schema_tools.nested(100)),
    "documents": items([test_schema_tools.nested(100)]),
    "documents[]": mapping(),
    "reasoning_effort": Row((3, True, [], {}), ("extreme", "")),
}
FORMATS = {
    "response_format": mapping(test_schema_tools.nested(100)),
    "response_format.type": text("xml", needed=True),
    "response_format.json_schema": mapping(),
    "response_format.json_schema.name": NAME,
    "response_format.json_schema.description": text(),
    "response_format.json_schema.schema": SCHEMA,
    "response_format.json_schema.strict": FLAG,
    **tag("response_format"),
    "structural_tag": Row((3, True, [], "3", '"x"', "[]"), (test_schema_tools.nested(100),)),
    "structural_tag.type": text("json_object"),
    **tag("structural_tag"),
}
OUTPUT = {
    **FORMATS,
    "logprobs": FLAG,
    "top_logprobs": whole_number(-1, 21),
    "separate_reasoning": FLAG,
    "stream_reasoning": FLAG,
    "tools": items([test_schema_tools.tool(f"f{count}") for count in range(129)]),
    "tools[]": mapping(),
    "tools[].type": Row((3, True, [], {}), ("custom", "web_search"), UNSUPPORTED),
    "tools[].function": mapping(),
    **function("tools[].function"),
    "tool_choice": Row((3, True, []), ("any",)),
    "tool_choice.type": Row((3, True, [], {}), ("custom",), UNSUPPORTED),
    "tool_choice.function": mapping(),
    "tool_choice.function.name": text("other", needed=True),
    "tool_choice.name": text("other"),
    "tool_choice.allowed_tools": mapping(),
    **allowed("tool_choice.allowed_tools"),
    **allowed("tool_choice"),
    "functions": items([{"name": f"f{count}"} for count in range(129)]),
    "functions[]": mapping(),
    **function("functions[]"),
    "function_call": Row((3, True, []), ("required",)),
    "function_call.name": text("other", needed=True),
    "parallel_tool_calls": FLAG,
    "regex": text(""),
    "ebnf": text(""),
}
_GENERATE_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
SAMPLING_PARAMS = {
    f"sampling_params.{re.sub('^[a-z_]+', lambda match: _GENERATE_NAMES.get(match[0], match[0]), name)}": row
    for name, row in {
        **SAMPLING,
        **GRAMMARS,
        "max_tokens": whole_number(-1, MOST + 1),
        "stream_interval": whole_number(),
    }.items()
}

ADAPTERS = {"lora_path": Row(TEXT_OR_ITEMS, ([], ["a", "b"])), "lora_path[]": text()}

TABLE: dict[str, dict[str, Row]] = {
    CHAT: {
        **SAMPLING,
        **STREAMED,
        **MESSAGES,
        **PROMPT_SHAPING,
        **OUTPUT,
        **INERT,
        "prompt_cache_options": mapping(),
        "model": text(needed=True),
        "lora_path": text(),
        "max_completion_tokens": whole_number(0, -1, MOST + 1),
    },
    COMPLETIONS: {
        **SAMPLING,
        **STREAMED,
        **INERT,
        "regex": text(""),
        "ebnf": text(""),
        "json_schema": text(""),
        **FORMATS,
        **ADAPTERS,
        "model": text(needed=True),
        "prompt": Row(PROMPTS, ([], ["x"] * 129), needed=True),
        "max_tokens": whole_number(-1, MOST + 1),
        "echo": FLAG,
        "logprobs": whole_number(-1, 6),
        "best_of": whole_number(),
    },
    GENERATE: {
        **SAMPLING_PARAMS,
        **ADAPTERS,
        "text": Row(PROMPTS, ([], ["x"] * 129)),
        "input_ids": Row(("x", 3, True, {}), ([], [[]], [[1]] * 129)),
        "sampling_params": Row(("x", 3, True, [], [{}])),
        "stream": FLAG,
        "return_logprob": FLAG,
        "logprob_start_len": whole_number(-2, MOST + 1),
        "top_logprobs_num": whole_number(-1, 21),
        "return_text_in_logprobs": FLAG,
        "rid": Row(TEXT_OR_ITEMS, (["a", "b"], [])),
        "rid[]": text(),
        "model": text(),
        "log_metrics": FLAG,
        "priority": whole_number(),
        "user": text(),
        "extra_key": Row(TEXT_OR_ITEMS),
        "extra_key[]": text(),
    },
    EMBEDDINGS: {
        "model": text(needed=True),
        "input": Row(PROMPTS, ("", [], ["x"] * 2049)),
        "encoding_format": Row((3, True, [], {}), ("hex", "")),
        "dimensions": whole_number(0, -1, MOST + 1),
        "rid": text(),
        "user": text(),
        "priority": whole_number(),
    },
    TOKENIZE: {
        "model": text(),
        "prompt": Row((3, True, {}, [3]), ([], ["x"] * 2049), needed=True),
        "add_special_tokens": FLAG,
        "user": text(),
    },
    DETOKENIZE: {
        "model": text(),
        "tokens": Row((3, True, {}, "x", ["x"]), ([[1]] * 2049,)),
        "skip_special_tokens": FLAG,
        "user": text(),
    },
    WORKERS: {
        "url": text("", "x", "http://x:1", "grpc://x", "grpc://:1", "x:0", "x:70000", "x:1\n", needed=True),
        # A port is refused, too, of a worker that is no prefill worker.
        **{name: text("", "Prefill", "other") for name in ("role", "worker_type")},
        "bootstrap_port": whole_number(-1, 0, 65536, 8998),
    },
    ONE_WORKER: {"draining": Row(FLAG.wrong, needed=True)},
}

F = test_schema_tools.F
FORMAT = {"type": "any_text"}
STRUCTURES = {"structures": [{"begin": "<a>", "end": "</a>", "schema": {}}], "triggers": ["<a>"]}
ENTRY = {"type": "function", "function": {"name": "f"}}


def said(**message: Any) -> dict[str, Any]:
    return ask(messages=[{"role": "assistant", "content": "x", **message}])


def chosen(**choice: Any) -> dict[str, Any]:
    return ask(tools=[F], tool_choice=choice)


FORMED: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
    {"response_format": {"type": "structural_tag", "format": FORMAT}},
    {"response_format": {"type": "structural_tag", **STRUCTURES}},
    {"structural_tag": {"type": "structural_tag", "format": FORMAT}},
    {"structural_tag": STRUCTURES},
]
BASES: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        ask(
            messages=[{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            stream=True,
            stream_options={"include_usage": True},
            stop=["x"],
            stop_token_ids=[1],
            documents=[{"text": "x"}],
        ),
        said(tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]),
        said(function_call={"name": "f", "arguments": "{}"}),
        chosen(type="function", function={"name": "f"}),
        chosen(type="function", name="f"),
        chosen(type="allowed_tools", allowed_tools={"mode": "auto", "tools": [ENTRY]}),
        chosen(type="allowed_tools", mode="auto", tools=[ENTRY]),
        chosen(type="allowed_tools", mode="auto", tools=[{"name": "f"}]),
        chosen(type="allowed_tools", allowed_tools={"mode": "auto", "tools": [{"name": "f"}]}),
        ask(functions=[{"name": "f"}], function_call={"name": "f"}),
        *(ask(**form) for form in FORMED),
    ],
    COMPLETIONS: [
        {"model": MODEL, "prompt": "x", "stop": ["x"], "stop_token_ids": [1]},
        {"model": MODEL, "prompt": "x", "stream": True, "stream_options": {}},
        *({"model": MODEL, "prompt": "x", **form} for form in FORMED),
        {"model": MODEL, "prompt": ["x"], "lora_path": [None]},
    ],
    GENERATE: [
        {"text": "x", "sampling_params": {"stop": ["x"], "stop_token_ids": [1]}},
        {"text": ["x"], "rid": ["r"], "extra_key": ["k"], "lora_path": [None]},
        {"text": "x", "return_logprob": True},
        {"input_ids": [1]},
    ],
    EMBEDDINGS: [{"model": MODEL, "input": "x"}],
    TOKENIZE: [{"prompt": "x"}],
    DETOKENIZE: [{"tokens": [97]}],
    WORKERS: [{"url": "grpc://127.0.0.1:9"}],
    ONE_WORKER: [{"draining": True}],
}

NAMED = {"ChatRequest": CHAT, "CompletionRequest": COMPLETIONS, "EmbeddingRequest": EMBEDDINGS} | {
    "GenerateRequest": GENERATE,
    "SamplingParams": GENERATE,
    "TokenizeTextRequest": TOKENIZE,
    "DetokenizeRequest": DETOKENIZE,
    "NewWorker": WORKERS,
    "WorkerChange": ONE_WORKER,
}
