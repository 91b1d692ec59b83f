"""GET /openapi.json says what the routes do: all of them, their fields, limits, answers and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from tests import test_schema, test_schema_routes, test_schema_tools
from tests.support import sse
from tests.support.app import CHAT, MODEL, WORKER, App, RpcFailure, ask, chunk, complete, embedder, whole
from tests.support.openapi import described, judge
from tests.test_schema_routes import COMPLETION, DETOKENIZE, EMBED, GENERATE, LEAST, TOKENIZE
from wsgi_router import errors
from wsgi_router.api.describe import description_of
from wsgi_router.app import create_app
from wsgi_router.pb import common_pb2
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.schema import chat, output
from wsgi_router.schema.description import REQUESTS
from wsgi_router.settings import Settings
from wsgi_router.workers.worker import worker_id

NAMES = {
    COMPLETION: "CompletionRequest",
    GENERATE: "GenerateRequest",
    EMBED: "EmbeddingRequest",
    TOKENIZE: "TokenizeRequest",
    DETOKENIZE: "DetokenizeRequest",
}
TYPE = test_schema.TYPE


# The document


def test_it_is_openapi() -> None:
    document = described()
    assert document["openapi"] == "3.1.0"
    OPENAPI_31_VALIDATOR.validate(document)
    for schema in document["components"]["schemas"].values():
        judge("Error").check_schema(schema)
    operations = list(schemathesis.openapi.from_dict(document).get_all_operations())
    assert len(operations) == sum(map(len, document["paths"].values()))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_reference_leads_somewhere_and_no_schema_is_left_over() -> None:
    document = described()
    schemas = document["components"]["schemas"]
    named = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    named |= set(re.findall(r"data: (\w+)`", json.dumps(document)))
    assert named == schemas.keys()


def test_every_route_is_in_it_and_no_other() -> None:
    routes = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in create_app(Settings()).url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    paths = described()["paths"]
    assert {(path, method) for path, operations in paths.items() for method in operations} == routes
    assert len(routes) > 15
    names = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert len(set(names)) == len(names)


def test_a_route_without_a_description_is_an_error() -> None:
    def view() -> None: ...

    with pytest.raises(LookupError, match="view"):
        description_of(view)


@pytest.mark.parametrize("name", REQUESTS)
def test_every_field_of_a_request_is_in_it(name: str) -> None:
    fields, parts = REQUESTS[name]
    known = set(fields.known) | {part.encode_name for part in parts}
    properties = described()["components"]["schemas"][name]["properties"]
    if name == "TokenizeTextRequest":  # those are a request of their own
        known.remove("messages")
    assert properties.keys() == known


def test_a_chat_request_has_the_fields_that_its_parsers_share() -> None:
    properties = described()["components"]["schemas"]["ChatRequest"]["properties"]
    assert properties.keys() == chat.FIELDS.known | output.TAKEN


def test_every_body_is_described() -> None:
    bodies = {
        path: operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for path, operations in described()["paths"].items()
        for operation in operations.values()
        if "requestBody" in operation
    }
    assert bodies == {
        CHAT: "ChatRequest",
        "/v1/completions": "CompletionRequest",
        "/generate": "GenerateRequest",
        "/v1/embeddings": "EmbeddingRequest",
        "/v1/tokenize": "TokenizeRequest",
        "/v1/detokenize": "DetokenizeRequest",
        "/workers": "NewWorker",
        "/workers/{name}": "WorkerChange",
    }


def test_keys_are_told_where_they_are_needed() -> None:
    def needing(document: dict[str, Any], key: str) -> set[str]:
        return {
            path
            for path, operations in document["paths"].items()
            for operation in operations.values()
            if operation.get("security") == [{key: []}] and "401" in operation["responses"]
        }

    guarded = {path for path in described()["paths"] if path.startswith(("/v1", "/generate"))}
    assert needing(described(), "apiKey") == set()
    assert needing(described(("k",)), "apiKey") == guarded
    assert needing(described(), "adminKey") == {"/flush_cache", "/workers", "/workers/{name}"}


def test_statuses_of_workers_are_told() -> None:
    told = set(described()["paths"][CHAT]["post"]["responses"])
    assert {str(row.status) for row in errors.GRPC_STATUS.values()} < told
    assert {"200", "404", "408", "413", "502"} < told


# The route


def test_it_is_open_and_made_once(make: Callable[..., App]) -> None:
    app = make(api_keys=("k",), up=False)
    first, second = (app.client.get("/openapi.json") for _ in range(2))
    assert (first.status_code, first.content_type) == (200, "application/json")
    assert first.data == second.data
    assert first.get_json() == {**described(("k",)), "servers": [{"url": "/"}]}


def test_it_says_where_the_router_is_mounted(app: App) -> None:
    mounted = Client(DispatcherMiddleware(app.flask.wsgi_app, {"/llm": app.flask.wsgi_app}))
    assert mounted.get("/llm/openapi.json").get_json()["servers"] == [{"url": "/llm"}]


# Requests: what is accepted is described; what a type refuses is not.


def least(fields: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(test_schema.body(**fields))
    return body


TOOL_ROWS = [
    *(fields for fields, _, _ in test_schema_tools.CHOICES),
    *(fields for fields, _, _ in test_schema_tools.FORMATS),
]


@pytest.mark.parametrize("fields", [*test_schema.ACCEPTED, *TOOL_ROWS])
def test_accepted_chats_are_described(fields: dict[str, Any]) -> None:
    judge("ChatRequest").validate(least(fields))


@pytest.mark.parametrize(("parse", "fields"), test_schema_routes.ACCEPTED)
def test_accepted_requests_are_described(parse: Any, fields: dict[str, Any]) -> None:
    judge(NAMES[parse]).validate(json.loads(test_schema_routes.body(parse, fields)))


CHAT_TYPES = [
    fields
    for fields, _, code in (
        *test_schema.REFUSED,
        *test_schema_tools.REFUSED_TOOLS,
        *test_schema_tools.REFUSED_FORMATS,
        *test_schema_tools.REFUSED_OUTPUT,
    )
    if code == TYPE and not isinstance(fields.get("structural_tag"), str)  # no schema looks into a text
]


@pytest.mark.parametrize("fields", CHAT_TYPES)
def test_chats_of_a_wrong_type_are_not_described(fields: dict[str, Any]) -> None:
    assert not judge("ChatRequest").is_valid(least(fields))


@pytest.mark.parametrize(
    ("parse", "fields"),
    [(parse, fields) for parse, fields, _, code in test_schema_routes.REFUSED if code == TYPE],
)
def test_requests_of_a_wrong_type_are_not_described(parse: Any, fields: dict[str, Any]) -> None:
    assert not judge(NAMES[parse]).is_valid(json.loads(test_schema_routes.body(parse, fields)))


@pytest.mark.parametrize(
    ("field", "outside"),
    [
        ("temperature", [-0.1, 2.1]),
        ("top_p", [0, 1.1]),
        ("top_k", [0, -2, 2**31]),
        ("min_p", [-0.1, 1.1]),
        ("repetition_penalty", [0, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("presence_penalty", [-2.1, 2.1]),
        ("n", [0, 129]),
        ("max_tokens", [0, 2**31]),
        ("max_completion_tokens", [0, 2**31]),
        ("min_tokens", [-1, 2**31]),
        ("seed", [-(2**63) - 1, 2**63]),
        ("stop", ["", [""], ["x"] * 17]),
        ("stop_token_ids", [[-1], [2**32]]),
        ("logit_bias", [{"5": 101}, {"5": -101}, {"x": 1}, {str(number): 1 for number in range(1025)}]),
        ("top_logprobs", [-1, 21]),
        ("messages", [[], [test_schema.USER] * 10_001]),
        ("tools", [[test_schema_tools.tool(f"f{number}") for number in range(129)]]),
        ("functions", [[{"name": "a b"}], [{"name": "x" * 65}]]),
        ("reasoning_effort", ["extreme"]),
        ("lora_path", [["x"], 3]),
    ],
)
def test_limits_are_told(field: str, outside: list[Any]) -> None:
    for value in outside:
        body = least({field: value})
        assert not judge("ChatRequest").is_valid(body), value
        error = test_schema.refusal(json.dumps(body).encode())
        assert error is not None
        assert (error.param or "").startswith(field)


CHAT_FIELDS = sorted(chat.FIELDS.known | output.TAKEN)


@given(st.sampled_from(CHAT_FIELDS), test_schema_tools.JSON_VALUES)
def test_whatever_a_chat_may_hold_is_described(name: str, value: Any) -> None:
    if test_schema.refusal(test_schema.body(**{name: value})) is None:
        assert judge("ChatRequest").is_valid(least({name: value}))


@given(st.sampled_from(test_schema_routes.ALL_FIELDS), test_schema.JSON_VALUES)
def test_whatever_a_request_may_hold_is_described(field: tuple[Any, str], value: Any) -> None:
    parse, name = field
    if test_schema_routes.refusal(parse, {name: value}) is None:
        assert judge(NAMES[parse]).is_valid({**LEAST[parse], name: value})


# Answers

TOOLS = [test_schema_tools.F]
CALL = '[{"name": "f", "parameters": {"city": "Bern"}}]'
LEGACY = {"functions": [{"name": "f"}], "function_call": {"name": "f"}}
LOGPROBS = pb.OutputLogProbs(
    token_logprobs=[-0.5, -1.0],
    token_ids=[97, 98],
    top_logprobs=[pb.TopLogProbs(values=[-0.5, -2.0], token_ids=[97, 99])] * 2,
)


def with_logprobs() -> tuple[bytes, None]:
    ended = pb.GenerateResponse.FromString(complete("ab", "length"))
    ended.complete.output_logprobs.CopyFrom(LOGPROBS)
    return ended.SerializeToString(), None


CASES: list[tuple[str, dict[str, Any], Any]] = [
    (CHAT, ask(), whole("hi")),
    (CHAT, ask(logprobs=True, top_logprobs=2), with_logprobs()),
    (CHAT, ask(tools=TOOLS, tool_choice="required"), whole(CALL)),
    (CHAT, ask(**LEGACY), whole("{}")),
    (CHAT, ask(stop="i", stream_options=...), whole("hi")),
    ("/v1/completions", {"model": MODEL, "prompt": "x"}, whole("hi")),
    ("/v1/completions", {"model": MODEL, "prompt": "x", "logprobs": 2}, with_logprobs()),
    ("/generate", {"text": "x"}, whole("hi")),
    ("/generate", {"text": ["x"]}, whole("hi")),
    ("/generate", {"text": "x", "return_logprob": True, "top_logprobs_num": 2}, with_logprobs()),
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("path", "body", "given"), CASES)
def test_generated_answers_are_as_described(
    make: Callable[..., App], path: str, body: dict[str, Any], given: Any, streaming: bool
) -> None:
    answer = make(given).post({**body, "stream": streaming}, path)
    assert answer.status_code == 200, answer.text
    content = described()["paths"][path]["post"]["responses"]["200"]["content"]
    if streaming:
        name = re.findall(r"data: (\w+)`", content["text/event-stream"]["schema"]["description"])[0]
        events = list(sse.events(answer.text.splitlines()))
        assert events.pop() == "[DONE]"
        assert events
        for event in events:
            judge(name).validate(event)
    else:
        check(content["application/json"]["schema"], answer.get_json())


def check(schema: dict[str, Any], value: Any) -> None:
    """Validates, and sees that every key of what came is told."""
    judge("Error").evolve(schema={**schema, "components": described()["components"]}).validate(value)
    (name,) = {reference.rpartition("/")[2] for reference in references(schema)}
    told = described()["components"]["schemas"][name]["properties"]
    for one in value if isinstance(value, list) else [value]:
        assert one.keys() <= told.keys()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("post", "/v1/embeddings", {"model": MODEL, "input": ["x", "y"]}, 200),
        ("post", "/v1/embeddings", {"model": MODEL, "input": "x", "encoding_format": "base64"}, 200),
        ("post", "/v1/tokenize", {"prompt": "x"}, 200),
        ("post", "/v1/tokenize", {"prompt": ["x", "y"]}, 200),
        ("post", "/v1/detokenize", {"tokens": [97]}, 200),
        ("post", "/v1/detokenize", {"tokens": [[97], []]}, 200),
        ("post", "/v1/detokenize", {"tokens": [[97], 97]}, 400),
        ("get", "/v1/models", None, 200),
        ("get", f"/v1/models/{MODEL}", None, 200),
        ("get", "/v1/models/other", None, 404),
        ("get", "/health", None, 200),
        ("get", "/readiness", None, 200),
        ("get", "/get_model_info", None, 200),
        ("get", "/get_loads", None, 200),
        ("get", "/get_loads?include=x", None, 400),
        ("post", "/flush_cache", None, 200),
        ("get", "/workers", None, 200),
        ("post", "/workers", {"url": "grpc://127.0.0.1:9"}, 200),
        ("post", "/workers", {"url": WORKER}, 409),
        ("post", "/workers", {"url": "x"}, 400),
        ("get", f"/workers/{worker_id(WORKER)}", None, 200),
        ("get", "/workers/other", None, 404),
        ("put", f"/workers/{worker_id(WORKER)}", {"draining": True}, 200),
        ("delete", f"/workers/{worker_id(WORKER)}", None, 200),
    ],
)
def test_other_answers_are_as_described(
    make: Callable[..., App], method: str, path: str, body: Any, status: int
) -> None:
    app = make(admin_key="root")
    embedder(app)
    app.transport.unary_answers |= {
        "GetLoads": pb.GetLoadsResponse(),
        "FlushCache": common_pb2.FlushCacheResponse(success=True),
    }
    answer = app.client.open(path, method=method.upper(), json=body, headers={"Authorization": "Bearer root"})
    assert answer.status_code == status, answer.text
    route = re.sub(r"^/v1/models/.*", "/v1/models/{model}", path.partition("?")[0])
    route = re.sub(r"^/workers/.*", "/workers/{name}", route)
    response = described()["paths"][route][method]["responses"][str(status)]
    check(response["content"]["application/json"]["schema"], answer.get_json())


def test_a_workers_start_options_are_open_keys(make: Callable[..., App]) -> None:
    """A worker that tells no state of its scheduler, or nothing at all, is no error either."""
    for info in (pb.GetServerInfoResponse(), pb.GetServerInfoResponse(sglang_version="0.5")):
        app = make()
        app.transport.unary_answers = {"GetServerInfo": info}
        answer = app.client.get("/get_server_info")
        assert answer.status_code == 200, answer.text
        judge("ServerInfo").validate(answer.get_json())


@pytest.mark.parametrize("code", errors.GRPC_STATUS)
def test_failures_of_workers_are_as_described(make: Callable[..., App], code: str) -> None:
    answer = make(RpcFailure(code, "x"), RpcFailure(code, "x")).chat()
    responses = described()["paths"][CHAT]["post"]["responses"]
    assert str(answer.status_code) in responses
    assert answer.get_json()["error"]["code"] in responses[str(answer.status_code)]["description"]
    judge("Error").validate(answer.get_json())


def test_events_are_as_described(make: Callable[..., App]) -> None:
    given = (chunk("h"), chunk("i", 1), complete("hi"), None)
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = make(given).chat(stream=True, stream_options=options)
    events = list(sse.events(answer.text.splitlines()))
    for event in events[:-1]:
        judge("ChatCompletionChunk").validate(event)
