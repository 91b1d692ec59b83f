"""Requests of all routes but chat: what is accepted, what is refused, and which field a refusal names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_schema import JSON_VALUES, MISSING, TYPE, UNSUPPORTED, VALUE
from wsgi_router.errors import InvalidRequestError
from wsgi_router.schema import completions, embeddings, generate, tokenize
from wsgi_router.schema.fields import Fields

Parse = Callable[[bytes], Any]
COMPLETION: Parse = completions.parse_completion
GENERATE: Parse = generate.parse_generate
EMBED: Parse = embeddings.parse_embedding
TOKENIZE: Parse = tokenize.parse_tokenize
DETOKENIZE: Parse = tokenize.parse_detokenize

LEAST: dict[Parse, dict[str, Any]] = {
    COMPLETION: {"model": "m", "prompt": "x"},
    GENERATE: {"text": "x"},
    EMBED: {"model": "m", "input": "x"},
    TOKENIZE: {"prompt": "x"},
    DETOKENIZE: {"tokens": [1]},
}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
USER = {"role": "user", "content": "hi"}


def body(parse: Parse, fields: dict[str, Any]) -> bytes:
    values = {**LEAST[parse], **fields}
    return json.dumps({name: value for name, value in values.items() if value is not ...}).encode()


def refusal(parse: Parse, fields: dict[str, Any]) -> InvalidRequestError | None:
    try:
        parse(body(parse, fields))
    except InvalidRequestError as error:
        return error
    return None


ACCEPTED: list[tuple[Parse, dict[str, Any]]] = [
    *((parse, {}) for parse in LEAST),
    (COMPLETION, {"prompt": ["a", "b"], "n": 16}),
    (COMPLETION, {"prompt": [1, 2, 2**32 - 1]}),
    (COMPLETION, {"prompt": [[1], [2, 3]]}),
    (COMPLETION, {"prompt": ["x"] * 128}),
    (COMPLETION, {"echo": True, "logprobs": 0, "suffix": None, "best_of": None}),
    (COMPLETION, {"logprobs": 5, "suffix": "", "best_of": 1}),
    (COMPLETION, {"n": 3, "best_of": 3, "user": "u", "seed": 1, "logit_bias": {"5": 1}}),
    (COMPLETION, {"stream": True, "stream_options": {"include_usage": True}, "stop": ["a"]}),
    (COMPLETION, {"regex": "a+", "ebnf": None, "min_tokens": 1, "max_tokens": 1, "rid": "r"}),
    (COMPLETION, {"response_format": {"type": "text"}, "json_schema": None}),
    (GENERATE, {"text": ["a", "b"], "rid": ["r", "s"]}),
    (GENERATE, {"rid": ["r"]}),
    (GENERATE, {"sampling_params": {"max_new_tokens": 0}, "return_logprob": True}),
    (COMPLETION, {"max_tokens": 0, "echo": True, "logprobs": 1}),
    (GENERATE, {"text": ..., "input_ids": [1, 2]}),
    (GENERATE, {"text": None, "input_ids": [[1], [2]], "rid": "r"}),
    (GENERATE, {"sampling_params": None, "stream": True, "log_metrics": True}),
    (GENERATE, {"sampling_params": {"max_new_tokens": 5, "min_new_tokens": 5, "n": 2}}),
    (GENERATE, {"sampling_params": {"stop": "x", "stop_token_ids": [1], "sampling_seed": 3}}),
    (GENERATE, {"sampling_params": {"json_schema": "{}", "regex": None, "custom_params": {"a": 1}}}),
    (GENERATE, {"sampling_params": {"json_schema": "$$ANY$$"}}),
    (GENERATE, {"sampling_params": {"structural_tag": '{"format": {}}'}, "model": "m"}),
    (GENERATE, {"sampling_params": {"spaces_between_special_tokens": True, "stream_interval": 2}}),
    (GENERATE, {"return_logprob": True, "top_logprobs_num": 20, "logprob_start_len": 0}),
    (GENERATE, {"return_logprob": True, "logprob_start_len": -1, "return_text_in_logprobs": True}),
    (GENERATE, {"image_data": None, "lora_path": None, "return_hidden_states": False}),
    (EMBED, {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 1, "user": "u"}),
    (EMBED, {"input": [1, 2], "encoding_format": "float", "dimensions": None}),
    (EMBED, {"input": [[1], [2]], "encoding_format": None}),
    (TOKENIZE, {"prompt": ["a", ""], "add_special_tokens": False, "model": None}),
    (TOKENIZE, {"prompt": ..., "messages": [USER], "add_generation_prompt": False}),
    (TOKENIZE, {"prompt": None, "messages": [USER], "chat_template_kwargs": {"a": 1}}),
    (TOKENIZE, {"return_token_strs": False}),
    (DETOKENIZE, {"tokens": []}),
    (DETOKENIZE, {"tokens": [[1], [2, 3]], "skip_special_tokens": False, "model": "m"}),
]


@pytest.mark.parametrize(("parse", "fields"), ACCEPTED)
def test_accepted(parse: Parse, fields: dict[str, Any]) -> None:
    assert parse(body(parse, fields)).unknown == []


REFUSED: list[tuple[Parse, dict[str, Any], str, str]] = [
    (COMPLETION, {"model": ...}, "model", MISSING),
    (COMPLETION, {"prompt": ...}, "prompt", MISSING),
    (COMPLETION, {"prompt": None}, "prompt", MISSING),
    (COMPLETION, {"prompt": 3}, "prompt", TYPE),
    (COMPLETION, {"prompt": {"text": "x"}}, "prompt", TYPE),
    (COMPLETION, {"prompt": []}, "prompt", VALUE),
    (COMPLETION, {"prompt": ["a", 1]}, "prompt[1]", TYPE),
    (COMPLETION, {"prompt": ["a", [1]]}, "prompt[1]", TYPE),
    (COMPLETION, {"prompt": [1, "a"]}, "prompt[1]", TYPE),
    (COMPLETION, {"prompt": [1, True]}, "prompt[1]", TYPE),
    (COMPLETION, {"prompt": [1.5]}, "prompt[0]", TYPE),
    (COMPLETION, {"prompt": [1, -1]}, "prompt[1]", VALUE),
    (COMPLETION, {"prompt": [2**32]}, "prompt[0]", VALUE),
    (COMPLETION, {"prompt": [[1], []]}, "prompt[1]", VALUE),
    (COMPLETION, {"prompt": [[1], [2, "a"]]}, "prompt[1][1]", TYPE),
    (COMPLETION, {"prompt": ["x"] * 129}, "prompt", VALUE),
    (COMPLETION, {"prompt": ["x"] * 43, "n": 3}, "n", VALUE),
    (COMPLETION, {"n": 17}, "n", VALUE),
    (COMPLETION, {"n": 2, "best_of": 3}, "best_of", UNSUPPORTED),
    (COMPLETION, {"best_of": 2}, "best_of", UNSUPPORTED),
    (COMPLETION, {"best_of": "x"}, "best_of", TYPE),
    (COMPLETION, {"best_of": True}, "best_of", TYPE),
    (COMPLETION, {"suffix": "x"}, "suffix", UNSUPPORTED),
    (COMPLETION, {"echo": "yes"}, "echo", TYPE),
    (COMPLETION, {"logprobs": 6}, "logprobs", VALUE),
    (COMPLETION, {"logprobs": -1}, "logprobs", VALUE),
    (COMPLETION, {"logprobs": True}, "logprobs", TYPE),
    (COMPLETION, {"max_tokens": -1}, "max_tokens", VALUE),
    (COMPLETION, {"max_tokens": 3, "min_tokens": 4}, "min_tokens", VALUE),
    (COMPLETION, {"temperature": 2.1}, "temperature", VALUE),
    (COMPLETION, {"stop": ["x"] * 17}, "stop", VALUE),
    (COMPLETION, {"stop": "x" * 4097}, "stop", VALUE),
    (GENERATE, {"sampling_params": {"stop": ["é" * 4096, "é" * 4097]}}, "sampling_params.stop[1]", VALUE),
    (COMPLETION, {"stream_options": {}}, "stream_options", VALUE),
    (COMPLETION, {"regex": "a", "ebnf": "b"}, "ebnf", VALUE),
    (COMPLETION, {"response_format": {"type": "yaml"}}, "response_format.type", VALUE),
    (COMPLETION, {"response_format": "json"}, "response_format", TYPE),
    (COMPLETION, {"response_format": {"type": "json_object"}, "regex": "a"}, "response_format", VALUE),
    (COMPLETION, {"structural_tag": {"structures": []}}, "structural_tag.structures", MISSING),
    (COMPLETION, {"json_schema": "{}", "structural_tag": TAG}, "structural_tag", VALUE),
    (COMPLETION, {"user": 3}, "user", TYPE),
    (GENERATE, {"text": ...}, "text", MISSING),
    (GENERATE, {"text": None, "input_ids": None}, "text", MISSING),
    (GENERATE, {"text": ..., "input_embeds": [[0.5]]}, "input_embeds", UNSUPPORTED),
    (GENERATE, {"input_ids": [1]}, "input_ids", VALUE),
    (GENERATE, {"text": [1, 2]}, "text", TYPE),
    (GENERATE, {"text": ..., "input_ids": "x"}, "input_ids", TYPE),
    (GENERATE, {"text": ..., "input_ids": [[1], "x"]}, "input_ids[1]", TYPE),
    (GENERATE, {"text": ["x"] * 129}, "text", VALUE),
    (GENERATE, {"text": ["x"] * 9, "sampling_params": {"n": 16}}, "sampling_params.n", VALUE),
    (GENERATE, {"sampling_params": [{}]}, "sampling_params", TYPE),
    (GENERATE, {"sampling_params": "x"}, "sampling_params", TYPE),
    (GENERATE, {"sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens", VALUE),
    (GENERATE, {"sampling_params": {"max_new_tokens": "x"}}, "sampling_params.max_new_tokens", TYPE),
    (
        GENERATE,
        {"sampling_params": {"max_new_tokens": 1, "min_new_tokens": 2}},
        "sampling_params.min_new_tokens",
        VALUE,
    ),
    (GENERATE, {"sampling_params": {"top_p": 0}}, "sampling_params.top_p", VALUE),
    (GENERATE, {"sampling_params": {"top_k": 0}}, "sampling_params.top_k", VALUE),
    (GENERATE, {"sampling_params": {"stop": ["x", ""]}}, "sampling_params.stop[1]", VALUE),
    (GENERATE, {"sampling_params": {"stop": [3]}}, "sampling_params.stop[0]", TYPE),
    (GENERATE, {"sampling_params": {"stop_token_ids": [-1]}}, "sampling_params.stop_token_ids[0]", VALUE),
    (GENERATE, {"sampling_params": {"logit_bias": {"5": 101}}}, "sampling_params.logit_bias.5", VALUE),
    (
        GENERATE,
        {"sampling_params": {"regex": "a", "json_schema": "{}"}},
        "sampling_params.json_schema",
        VALUE,
    ),
    (GENERATE, {"sampling_params": {"stop_regex": "a"}}, "sampling_params.stop_regex", UNSUPPORTED),
    (GENERATE, {"sampling_params": {"n": 17}}, "sampling_params.n", VALUE),
    (GENERATE, {"sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema", VALUE),
    (GENERATE, {"sampling_params": {"structural_tag": "{}{}"}}, "sampling_params.structural_tag", VALUE),
    (COMPLETION, {"json_schema": "[01]"}, "json_schema", VALUE),
    (COMPLETION, {"structural_tag": "[" * 2000}, "structural_tag", VALUE),
    (COMPLETION, {"structural_tag": "$$ANY$$"}, "structural_tag", VALUE),
    (GENERATE, {"model": 3}, "model", TYPE),
    (GENERATE, {"sampling_params": {"sampling_seed": 2**63}}, "sampling_params.sampling_seed", VALUE),
    (GENERATE, {"stream": 1}, "stream", TYPE),
    (GENERATE, {"return_logprob": [True]}, "return_logprob", TYPE),
    (GENERATE, {"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num", VALUE),
    (GENERATE, {"top_logprobs_num": 1}, "top_logprobs_num", VALUE),
    (GENERATE, {"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len", VALUE),
    (GENERATE, {"rid": ["a", "b"]}, "rid", VALUE),
    (GENERATE, {"rid": 3}, "rid", TYPE),
    (GENERATE, {"rid": "r" * 1025}, "rid", VALUE),
    (GENERATE, {"text": ["a", "b"], "rid": ["r", "r" * 1025]}, "rid[1]", VALUE),
    (GENERATE, {"lora_path": 3}, "lora_path", TYPE),
    (GENERATE, {"lora_path": ["x", "y"]}, "lora_path", VALUE),
    (GENERATE, {"lora_id": "x"}, "lora_id", UNSUPPORTED),
    (COMPLETION, {"lora_path": [1]}, "lora_path[0]", TYPE),
    (COMPLETION, {"prompt": ["a", "b"], "lora_path": []}, "lora_path", VALUE),
    (EMBED, {"lora_path": "x"}, "lora_path", UNSUPPORTED),
    (EMBED, {"input": ...}, "input", MISSING),
    (EMBED, {"input": None}, "input", TYPE),
    (EMBED, {"input": ""}, "input", VALUE),
    (EMBED, {"input": ["a", ""]}, "input[1]", VALUE),
    (EMBED, {"input": []}, "input", VALUE),
    (EMBED, {"input": ["x"] * 2049}, "input", VALUE),
    (EMBED, {"input": [{"text": "x"}]}, "input[0]", TYPE),
    (EMBED, {"dimensions": 0}, "dimensions", VALUE),
    (EMBED, {"dimensions": 1.5}, "dimensions", TYPE),
    (EMBED, {"encoding_format": "hex"}, "encoding_format", VALUE),
    (EMBED, {"truncate_prompt_tokens": 3}, "truncate_prompt_tokens", UNSUPPORTED),
    (TOKENIZE, {"prompt": ...}, "prompt", MISSING),
    (TOKENIZE, {"prompt": [1]}, "prompt", TYPE),
    (TOKENIZE, {"prompt": ["a", 1]}, "prompt[1]", TYPE),
    (TOKENIZE, {"messages": [USER]}, "messages", VALUE),
    (TOKENIZE, {"prompt": ..., "messages": []}, "messages", VALUE),
    (TOKENIZE, {"prompt": ..., "messages": [{"role": "x"}]}, "messages[0].role", VALUE),
    (TOKENIZE, {"add_special_tokens": 1}, "add_special_tokens", TYPE),
    (TOKENIZE, {"return_token_strs": True}, "return_token_strs", UNSUPPORTED),
    (DETOKENIZE, {"tokens": ...}, "tokens", MISSING),
    (DETOKENIZE, {"tokens": "x"}, "tokens", TYPE),
    (DETOKENIZE, {"tokens": ["x"]}, "tokens", TYPE),
    (DETOKENIZE, {"tokens": [[1], [-1]]}, "tokens[1][0]", VALUE),
]


@pytest.mark.parametrize(("parse", "fields", "param", "code"), REFUSED)
def test_refused(parse: Parse, fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(body(parse, fields))
    assert (caught.value.param, caught.value.code, caught.value.status) == (param, code, 400)


FIELDS: dict[Parse, Fields[Any]] = {
    COMPLETION: completions.FIELDS,
    GENERATE: generate.FIELDS,
    EMBED: embeddings.FIELDS,
    TOKENIZE: tokenize.TOKENIZE,
    DETOKENIZE: tokenize.DETOKENIZE,
}


@pytest.mark.parametrize(
    ("parse", "name"), [(parse, name) for parse, fields in FIELDS.items() for name in fields.not_supported]
)
def test_what_is_not_built_is_refused_by_name(parse: Parse, name: str) -> None:
    error = refusal(parse, {name: {"some": "thing"}})
    assert error is not None
    assert (error.param, error.code) == (name, UNSUPPORTED)
    for neutral in (None, *FIELDS[parse].not_supported[name]):
        assert refusal(parse, {name: neutral}) is None


def test_the_kinds_of_fields_do_not_overlap() -> None:
    for fields in (*FIELDS.values(), generate.SAMPLING_FIELDS):
        assert not fields.honoured & fields.inert
        assert not fields.inert & fields.not_supported.keys()


@pytest.mark.parametrize("parse", LEAST)
def test_unknown_fields_and_the_parsers_own_are_named(parse: Parse) -> None:
    assert parse(body(parse, {"odd": 1, "unknown": ["x"]})).unknown == ["odd", "unknown"]


def test_unknown_sampling_parameters_are_named() -> None:
    request = GENERATE(body(GENERATE, {"sampling_params": {"max_tokens": 3, "odd": 1}}))
    assert request.unknown == ["sampling_params.max_tokens", "sampling_params.odd"]
    assert request.sampling.max_tokens is None


ALL_FIELDS = [(parse, name) for parse, fields in FIELDS.items() for name in sorted(fields.known)]


@given(st.sampled_from(ALL_FIELDS), JSON_VALUES)
def test_any_value_of_any_field_is_accepted_or_refused_by_name(field: tuple[Parse, str], value: Any) -> None:
    parse, name = field
    error = refusal(parse, {name: value})
    excluded = {"input_ids", "messages"} | ({"text"} if name in ("text", "input_embeds") else set())
    assert error is None or (error.param or "").startswith((name, *excluded))


@given(st.sampled_from(sorted(generate.SAMPLING_FIELDS.known)), JSON_VALUES)
def test_any_sampling_parameter_is_accepted_or_refused_by_name(name: str, value: Any) -> None:
    error = refusal(GENERATE, {"sampling_params": {name: value}})
    assert error is None or (error.param or "").startswith(f"sampling_params.{name}")


@given(st.sampled_from(list(LEAST)), st.binary(max_size=100))
def test_any_bytes_are_refused(parse: Parse, data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse(data)
