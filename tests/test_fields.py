"""Every field of every route that takes a body: a wrong type, a value outside its limits, what excludes it.

Each is a 400 that names the field by its JSON path, and no worker hears of it. The table has a row for every
field of the types that read requests, or the first test fails.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect
from werkzeug.test import TestResponse

from tests import test_schema, test_schema_routes, test_schema_tools
from tests.support.app import CHAT, CONTEXT, MODEL, App, ask, embedder, error_of, whole
from tests.support.fields import (
    BASES,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    GENERATE,
    NAMED,
    NOT_SUPPORTED,
    ONE_WORKER,
    TABLE,
    TOKENIZE,
    F,
)
from tests.test_schema import MISSING, TYPE, UNSUPPORTED, VALUE
from wsgi_router.schema.description import REQUESTS
from wsgi_router.schema.fields import Fields

ADMIN = "operator"

# Complete by construction


def below(kind: inspect.Type, path: str) -> Iterator[str]:
    """Paths of what a value of this type holds."""
    if isinstance(kind, inspect.Metadata):
        yield from below(kind.type, path)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from below(one, path)
    elif isinstance(kind, inspect.ListType):
        yield f"{path}[]"
        yield from below(kind.item_type, f"{path}[]")
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield f"{path}.{field.encode_name}"
            yield from below(field.type, f"{path}.{field.encode_name}")


def paths_of(fields: Fields[Any], parts: Any, prefix: str) -> set[str]:
    types = {field.encode_name: field.type for field in (*fields.types().values(), *parts)}
    types |= {name: kind for name, kind in fields.special.items() if kind is not None}
    found = {prefix + name for name in types}
    for name, kind in types.items():
        found.update(below(inspect.type_info(kind), prefix + name))
    return found


def test_the_table_has_every_field_of_every_request() -> None:
    fields: dict[str, set[str]] = {path: set() for path in TABLE}
    for name, (own, parts) in REQUESTS.items():
        prefix = "sampling_params." if name == "SamplingParams" else ""
        fields[NAMED[name]] |= paths_of(own, parts, prefix)
    for path, rows in TABLE.items():
        assert rows.keys() == fields[path]


# The requests


def places(value: Any, path: str) -> tuple[Any, Any]:
    """The holder of `path` in `value` and its last step. Raises LookupError if there is none."""
    steps: list[Any] = [0 if step == "[]" else step for step in re.findall(r"\[\]|[^.\[\]]+", path)]
    for step in steps[:-1]:
        value = value[step]
    if not isinstance(value, list if steps[-1] == 0 else dict):
        raise LookupError(path)
    return value, steps[-1]


def base_for(route: str, path: str) -> dict[str, Any]:
    """A good request in which the field can be put; one that has it already, if there is one."""
    having: list[dict[str, Any]] = []
    for base in BASES[route]:
        try:
            holder, step = places(base, path)
            having.insert(0 if step == 0 or step in holder else len(having), base)
        except (LookupError, TypeError):
            continue
    if not having:
        assert "." in path or "[" in path, path
        raise AssertionError(f"no base of {route} has a place for {path}")
    return copy.deepcopy(having[0])


def changed(route: str, path: str, value: Any) -> dict[str, Any]:
    """A good request but for one field; `...` takes it away."""
    body = base_for(route, path)
    holder, step = places(body, path)
    if value is ...:
        del holder[step]
    else:
        holder[step] = value
    if path == "input_ids":
        body.pop("text", None)
    return body


def cases() -> Iterator[Any]:
    for route, rows in TABLE.items():
        for path, row in rows.items():
            values = [(value, TYPE) for value in row.wrong] + [(value, row.code) for value in row.outside]
            values += [(None, TYPE), (..., MISSING)] if row.needed else []
            for value, code in values:
                yield pytest.param(route, path, value, code, id=f"{route}-{path}-{str(value)[:20]}")
    for kind, (fields, _) in REQUESTS.items():
        route, names = NAMED[kind], fields.not_supported
        prefix = "sampling_params." if "spaces_between_special_tokens" in names else ""
        for name in names:
            for value in NOT_SUPPORTED.outside:
                yield pytest.param(
                    route, prefix + name, value, UNSUPPORTED, id=f"{route}-{prefix}{name}-{str(value)[:20]}"
                )


@pytest.fixture(scope="module")
def refusing(folder: Path) -> App:
    """An application whose worker would answer, if it were asked."""
    app = App(folder, admin_key=ADMIN)
    embedder(app)
    return app


def send(app: App, route: str, body: Any) -> TestResponse:
    return app.post(
        body,
        route,
        method="PUT" if route == ONE_WORKER else "POST",
        headers={"Authorization": f"Bearer {ADMIN}"},
    )


def refused(app: App, route: str, body: Any) -> dict[str, Any]:
    """The error that a request meets, of which no worker hears."""
    answer = send(app, route, body)
    error = error_of(answer, 400)
    assert error["type"] == "invalid_request_error"
    assert not app.transport.streams
    assert not app.transport.asked
    return error


@pytest.mark.parametrize(("route", "path", "value", "code"), list(cases()))
def test_refused(refusing: App, route: str, path: str, value: Any, code: str) -> None:
    error = refused(refusing, route, changed(route, path, value))
    wanted = path.replace("[]", "[0]")
    within = isinstance(value, (list, dict)) and value and (error["param"] or "").startswith(wanted)
    assert error["param"] == wanted or within, error
    assert error["code"] == code or (value is None and error["code"] == MISSING), error


@pytest.mark.parametrize(
    ("route", "body"), [(route, body) for route, bodies in BASES.items() for body in bodies]
)
def test_the_good_requests_are_good(folder: Path, route: str, body: dict[str, Any]) -> None:
    app = App(folder, whole("{}"), tool_call_parser="hermes", admin_key=ADMIN)
    embedder(app)
    answer = send(app, route, body)
    assert answer.status_code == 200, answer.text


# The parsers' own tables, through the whole application

CHAT_ROWS = (
    *test_schema.REFUSED,
    *test_schema_tools.REFUSED_TOOLS,
    *test_schema_tools.REFUSED_FORMATS,
    *test_schema_tools.REFUSED_OUTPUT,
)


@pytest.mark.parametrize(("fields", "param", "code"), CHAT_ROWS)
def test_refused_chats(refusing: App, fields: dict[str, Any], param: str, code: str) -> None:
    error = refused(refusing, CHAT, test_schema.body(**fields))
    assert (error["param"], error["code"]) == (param, code)


ROUTES = {
    test_schema_routes.COMPLETION: COMPLETIONS,
    test_schema_routes.GENERATE: GENERATE,
    test_schema_routes.EMBED: EMBEDDINGS,
    test_schema_routes.TOKENIZE: TOKENIZE,
    test_schema_routes.DETOKENIZE: DETOKENIZE,
}


@pytest.mark.parametrize(("parse", "fields", "param", "code"), test_schema_routes.REFUSED)
def test_refused_requests(refusing: App, parse: Any, fields: dict[str, Any], param: str, code: str) -> None:
    error = refused(refusing, ROUTES[parse], test_schema_routes.body(parse, fields))
    assert (error["param"], error["code"]) == (param, code)


# What only the model knows

TOO_LONG = "context_length_exceeded"


@pytest.mark.parametrize(
    ("route", "body", "param", "code"),
    [
        (CHAT, ask(max_tokens=CONTEXT), "messages", TOO_LONG),
        (CHAT, ask(max_completion_tokens=CONTEXT), "messages", TOO_LONG),
        (CHAT, ask(messages=[{"role": "user", "content": "x" * CONTEXT}]), "messages", TOO_LONG),
        (COMPLETIONS, {"model": MODEL, "prompt": "x" * CONTEXT}, "prompt", TOO_LONG),
        (COMPLETIONS, {"model": MODEL, "prompt": "x", "max_tokens": CONTEXT}, "prompt", TOO_LONG),
        (COMPLETIONS, {"model": MODEL, "prompt": ["x", "x" * CONTEXT]}, "prompt[1]", TOO_LONG),
        (COMPLETIONS, {"model": MODEL, "prompt": [1, 258]}, "prompt[1]", VALUE),
        (GENERATE, {"text": "x" * CONTEXT}, "text", TOO_LONG),
        (GENERATE, {"input_ids": [[1], [1, 258]]}, "input_ids[1][1]", VALUE),
        (
            GENERATE,
            {"text": "x", "sampling_params": {"max_new_tokens": CONTEXT}},
            "text",
            TOO_LONG,
        ),
        (CHAT, ask(min_tokens=CONTEXT), "min_tokens", VALUE),
        (COMPLETIONS, {"model": MODEL, "prompt": "x", "min_tokens": CONTEXT}, "min_tokens", VALUE),
        (
            GENERATE,
            {"text": "x", "sampling_params": {"min_new_tokens": CONTEXT}},
            "sampling_params.min_new_tokens",
            VALUE,
        ),
        (EMBEDDINGS, {"model": MODEL, "input": ["x", "x" * (CONTEXT + 1)]}, "input[1]", TOO_LONG),
        (EMBEDDINGS, {"model": MODEL, "input": [258]}, "input[0]", VALUE),
        (DETOKENIZE, {"tokens": [1, 258]}, "tokens[1]", VALUE),
        (
            CHAT,
            ask(tools=[F], regex="a+"),
            "regex",
            VALUE,
        ),
    ],
)
def test_refused_by_the_model(refusing: App, route: str, body: Any, param: str, code: str) -> None:
    error = refused(refusing, route, body)
    assert (error["param"], error["code"]) == (param, code)


def test_nothing_above_is_refused_by_accident(refusing: App) -> None:
    """A worker is asked, and seen to be asked, where a request is good."""
    assert refusing.post({"model": MODEL, "input": "x"}, EMBEDDINGS).status_code == 200
    assert refusing.transport.asked == ["Embed"]
    refusing.transport.asked.clear()
