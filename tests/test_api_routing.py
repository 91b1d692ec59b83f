"""What a request says of its worker: which headers and fields count, and which of them wins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.app import CHAT, CONTEXT, MODEL, App, ask, embedder, error_of, whole
from tests.support.processes import wait_until
from wsgi_router import settings
from wsgi_router.api.routing import Routing
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.workers.breaker import Event, State
from wsgi_router.workers.hints import NO_HINTS, Hints
from wsgi_router.workers.policies import POLICIES
from wsgi_router.workers.transport import RpcFailure
from wsgi_router.workers.worker import Worker, worker_id

URLS = tuple(f"grpc://10.0.0.{number}:30000" for number in range(6))
KEY, SESSION, TARGET = "X-SMG-Routing-Key", "X-Session-Id", "X-SMG-Target-Worker"
COMPLETIONS, GENERATE, EMBEDDINGS = "/v1/completions", "/generate", "/v1/embeddings"


def hints(environ: dict[str, str], *fields: str | None, **values: Any) -> Hints:
    return Routing(Settings(**{"policy": "sticky", **values})).hints(environ, *fields)


ALL = {"HTTP_X_SMG_ROUTING_KEY": "h", "HTTP_X_SESSION_ID": "s", "HTTP_X_SMG_TARGET_WORKER": "w"}


@pytest.mark.parametrize(
    ("environ", "fields", "key"),
    [
        (ALL, ("p", "u"), "h"),
        ({"HTTP_X_SESSION_ID": "s"}, ("p", "u"), "s"),
        ({"HTTP_X_SMG_ROUTING_KEY": "", "HTTP_X_SESSION_ID": " "}, ("p", "u"), "p"),
        ({}, (None, "u"), "u"),
        ({}, ("", "u"), "u"),
        ({}, (None, None), ""),
        ({"HTTP_X_REQUEST_ID": "r", "HTTP_AUTHORIZATION": "a"}, (), ""),
    ],
)
def test_the_first_key_that_is_there_counts(environ: dict[str, str], fields: tuple[str], key: str) -> None:
    assert hints(environ, *fields) == Hints(key=key)


def test_the_operator_says_which_headers_have_keys() -> None:
    given = {**ALL, "HTTP_X_USER": "x"}
    assert hints(given, routing_key_headers=("x-user", "x-session-id")) == Hints(key="x")
    assert hints(given, "p", routing_key_headers=()) == Hints(key="p")


def test_names_of_headers_are_checked() -> None:
    loaded = settings.load({"WSGI_ROUTER_ROUTING_KEY_HEADERS": "X-User-Id, X-Session-Id"})
    assert loaded.routing_key_headers == ("x-user-id", "x-session-id")
    for wrong in ("x_user", "a b", "ä", "x:y"):
        with pytest.raises(settings.SettingsError, match="no name of a header"):
            settings.load({"WSGI_ROUTER_ROUTING_KEY_HEADERS": wrong})


def test_a_key_is_the_same_in_a_header_and_in_a_body() -> None:
    header = "Grüße".encode().decode("latin-1")  # as WSGI has it
    assert hints({"HTTP_X_SESSION_ID": header}) == hints({}, "Grüße")
    assert hints({"HTTP_X_SESSION_ID": "\xff"}).key == "\\xff"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_key_is_read_for_policies_that_go_by_it(policy: str) -> None:
    expected = Hints(key="h") if policy in ("consistent_hashing", "sticky", "manual") else NO_HINTS
    assert hints(ALL, "p", policy=policy) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_a_named_worker_counts_where_the_operator_allows_it(policy: str) -> None:
    found = hints(ALL, policy=policy, target_worker_header=True)
    assert found.target == "w"
    assert hints({}, policy=policy, target_worker_header=True) == NO_HINTS


# Through the application, with six workers


class Router(App):
    """Six workers that are up; each request gets a short answer."""

    def __init__(self, folder: Path, answers: int = 60, **values: Any) -> None:
        super().__init__(folder, *[whole("a")] * answers, up=False, workers=URLS, **values)
        info = pb.GetModelInfoResponse(
            served_model_name=MODEL, max_context_length=CONTEXT, is_generation=True
        )
        self.transport.infos = dict.fromkeys(URLS, info)
        wait_until(lambda: all(worker.available() for worker in self.workers))

    @property
    def workers(self) -> tuple[Worker, ...]:
        return self.services.pool.workers

    def went(self, body: dict[str, Any], path: str = CHAT, **headers: str) -> str:
        """The URL of the worker that a request went to; `headers` as KEY=… and so on."""
        sent = {
            {"key": KEY, "session": SESSION, "target": TARGET}[name]: text for name, text in headers.items()
        }
        before = len(self.transport.streams)
        answer = self.post(body, path, headers=sent)
        assert answer.status_code == 200, answer.text
        (stream,) = self.transport.streams[before:]
        return stream.worker.url


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Router]]:
    made: list[Router] = []

    def one(**values: Any) -> Router:
        made.append(Router(folder, **values))
        return made[-1]

    yield one
    for router in made:
        router.services.close()


BODIES = {
    CHAT: ask(),
    COMPLETIONS: {"model": MODEL, "prompt": "hi"},
    GENERATE: {"text": "hi"},
}


@pytest.mark.parametrize("policy", ["consistent_hashing", "sticky"])
@pytest.mark.parametrize("path", BODIES)
def test_every_source_of_a_key_counts_the_same(start: Callable[..., Router], policy: str, path: str) -> None:
    router, body = start(policy=policy), BODIES[path]
    own = {key: router.went(body, path, key=key) for key in ("a", "b", "c", "d", "e")}
    assert len(set(own.values())) > 1
    for key, url in own.items():
        other = next(one for one in own if own[one] != url)
        assert router.went(body, path, key=key, session=other) == url
        assert router.went(body, path, session=key) == url
        assert router.went({**body, "user": key}, path) == url
        assert router.went({**body, "user": other}, path, session=key) == url
        if path != GENERATE:
            assert router.went({**body, "user": other, "prompt_cache_key": key}, path) == url
            assert router.went({**body, "prompt_cache_key": other}, path, key=key) == url


def test_embeddings_go_by_the_key_too(start: Callable[..., Router]) -> None:
    router = start(policy="consistent_hashing")
    went: list[str] = []

    def embed(request: bytes, url: str) -> pb.EmbedResponse:
        went.append(url)
        return pb.EmbedResponse(embedding=[1.0], embedding_dim=1, prompt_tokens=1)

    embedder(router)
    router.transport.unary_answers["Embed"] = embed
    for key in ("a", "b", "c"):
        expected = router.went(ask(), key=key)
        went.clear()
        body = {"model": MODEL, "input": ["one", "two", "three"]}
        assert router.post(body, EMBEDDINGS, headers={KEY: key}).status_code == 200
        assert router.post({**body, "user": key}, EMBEDDINGS).status_code == 200
        assert went == [expected] * 6


def test_choices_follow_the_key(start: Callable[..., Router]) -> None:
    router = start(policy="consistent_hashing", max_choices=8)
    expected = router.went(ask(), key="a")
    router.transport.streams.clear()
    assert router.post(ask(n=5), headers={KEY: "a"}).status_code == 200
    assert [stream.worker.url for stream in router.transport.streams] == [expected] * 5


def test_a_failed_worker_gives_its_key_to_the_next_one(start: Callable[..., Router]) -> None:
    router = start(policy="consistent_hashing")
    own = router.went(ask(), key="a")
    router.transport.answers.insert(0, (RpcFailure("UNAVAILABLE", "gone"),))
    before = len(router.transport.streams)
    assert router.post(ask(), headers={KEY: "a"}).status_code == 200
    first, second = (stream.worker.url for stream in router.transport.streams[before:])
    assert first == own != second
    wait_until(lambda: all(worker.available() for worker in router.workers))
    assert router.went(ask(), key="a") == own


def test_prompts_with_one_beginning_go_to_one_worker(start: Callable[..., Router]) -> None:
    router = start(policy="prefix_hash", prefix_token_count=16)

    def went(text: str, path: str = COMPLETIONS) -> str:
        field = "prompt" if path == COMPLETIONS else "text"
        return router.went({**BODIES[path], field: text}, path)

    beginnings = [f"beginning number {number}" for number in "abcdef"]
    same = [one[:15] for one in beginnings]
    assert len(set(same)) == 1
    assert len({went(one[:15] + " " + rest) for one in beginnings for rest in ("x", "y z")}) == 1
    apart = {went(f"{number} is how this one begins") for number in range(12)}
    assert len(apart) > 2
    assert went("0 is how this one begins", GENERATE) == went("0 is how this one begins and ends")


def test_each_prompt_of_a_batch_goes_by_its_own_beginning(start: Callable[..., Router]) -> None:
    router = start(policy="prefix_hash", prefix_hash_load_factor=6.0)
    prompts = [f"prompt {number}" for number in range(8)]
    alone = [router.went({"model": MODEL, "prompt": prompt}, COMPLETIONS) for prompt in prompts]
    router.transport.streams.clear()
    assert router.post({"model": MODEL, "prompt": prompts}, COMPLETIONS).status_code == 200
    assert [stream.worker.url for stream in router.transport.streams] == alone


# The worker that a client names


@pytest.mark.parametrize("policy", ["least_load", "consistent_hashing", "prefix_hash"])
def test_a_named_worker_is_asked(start: Callable[..., Router], policy: str) -> None:
    router = start(policy=policy, target_worker_header=True, max_choices=8)
    for place, url in enumerate(URLS):
        for name in (url, url.removeprefix("grpc://"), str(place), worker_id(url)):
            assert router.went(ask(), target=name, key="a") == url
    router.transport.streams.clear()
    assert router.post(ask(n=5), headers={TARGET: URLS[3]}).status_code == 200
    assert [stream.worker.url for stream in router.transport.streams] == [URLS[3]] * 5


def test_a_named_worker_means_nothing_by_default(start: Callable[..., Router]) -> None:
    router = start(policy="consistent_hashing")
    own = router.went(ask(), key="a")
    other = next(url for url in URLS if url != own)
    assert router.went(ask(), key="a", target=other) == own
    assert router.went(ask(), key="a", target="nobody") == own


@pytest.mark.parametrize("name", ["nobody", "grpc://10.0.0.0:1", "6", "-1", "x" * 100_000, " 0 0 "])
@pytest.mark.parametrize("path", [*BODIES, EMBEDDINGS])
def test_a_worker_that_is_not_there_is_a_400(start: Callable[..., Router], path: str, name: str) -> None:
    router = start(target_worker_header=True)
    body = BODIES.get(path, {"model": MODEL, "input": "x"})
    error = error_of(router.post(body, path, headers={TARGET: name}), 400)
    assert error["code"] == "worker_not_found"
    assert name.strip()[:20] in error["message"]
    assert len(error["message"]) < 1000
    assert not router.transport.streams


def test_a_named_worker_that_is_down_is_a_503(start: Callable[..., Router]) -> None:
    router = start(target_worker_header=True)
    well, worker = router.transport.infos[URLS[2]], router.workers[2]
    router.transport.infos[URLS[2]] = RpcFailure("UNAVAILABLE", "gone")
    router.services.pool.report(worker, Event.CALL_UNREACHABLE)
    wait_until(lambda: worker.state is State.DOWN)
    answer = router.post(ask(), headers={TARGET: "2"})
    error = error_of(answer, 503)
    assert error["code"] == "no_worker_available"
    assert "'2'" in error["message"]
    assert answer.headers["Retry-After"]
    assert not router.transport.streams
    router.transport.infos[URLS[2]] = well
    wait_until(worker.available)
    router.transport.infos[URLS[2]] = RpcFailure("DEADLINE_EXCEEDED")
    worker.note(Event.CALL_SILENT)  # it may well be alive
    assert router.went(ask(), target="2") == URLS[2]


def test_a_named_worker_that_fails_is_not_replaced(start: Callable[..., Router]) -> None:
    router = start(target_worker_header=True)
    router.transport.answers.insert(0, (RpcFailure("UNAVAILABLE", "gone"),))
    error = error_of(router.post(ask(), headers={TARGET: "1"}), 503)
    assert error["code"] == "worker_unavailable"
    assert [stream.worker.url for stream in router.transport.streams] == [URLS[1]]


def test_a_named_worker_of_another_model_is_a_400(start: Callable[..., Router]) -> None:
    router = start(target_worker_header=True)
    router.transport.infos[URLS[4]] = pb.GetModelInfoResponse(served_model_name="other")
    router.services.pool.report(router.workers[4], Event.CALL_SILENT)
    wait_until(lambda: router.workers[4].card is not None and router.workers[4].card.name == "other")
    error = error_of(router.post(ask(), headers={TARGET: "4"}), 400)
    assert MODEL in error["message"]
    assert router.went(ask(model="other"), target="4") == URLS[4]


def test_a_stream_sticks_as_well(start: Callable[..., Router]) -> None:
    router = start(policy="sticky")
    own = router.went(ask(), key="a")
    answer = router.post(ask(stream=True), headers={KEY: "a"})
    assert (
        json.loads(answer.text.split("\n\n")[0].removeprefix("data: "))["object"] == "chat.completion.chunk"
    )
    assert router.transport.streams[-1].worker.url == own
