"""A tokenizer for each model, from the settings or from workers that a test writes."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.app import App, ask, complete, error_of
from tests.support.processes import wait_until
from tests.support.transport import FakeTransport
from wsgi_router import tokenizer_store, tokenizers
from wsgi_router.app import create_app, services
from wsgi_router.pb import common_pb2
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.settings import Settings
from wsgi_router.tokenizer_cache import Files
from wsgi_router.tokenizer_store import Record, Store
from wsgi_router.worker_api.tokenizer_zip import zip_chunks, zip_tokenizer
from wsgi_router.workers import board

FIRST, SECOND, THIRD = (f"grpc://127.0.0.1:{port}" for port in (1, 2, 3))


def folder_with(path: Path, mark: str) -> Path:
    """The tiny tokenizer, whose template begins with `mark`."""
    tiny.write(path)
    config = {"eos_token": "<|im_end|>", "chat_template": mark + tiny.TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def pieces(folder: Path) -> list[bytes]:
    return [chunk.SerializeToString() for chunk in zip_chunks(zip_tokenizer(folder), 5000)]


def chunk(data: bytes, sha256: str = "") -> bytes:
    return common_pb2.GetTokenizerChunk(data=data, sha256=sha256).SerializeToString()


class Models(App):
    """An application without a tokenizer of its own; `serve` makes a worker answer."""

    def __init__(self, *urls: str, **settings: Any) -> None:
        super().__init__(Path(), up=False, workers=urls, **{"tokenizer_path": "", **settings})

    def serve(self, url: str, model: str, tokenizer: Any = ()) -> None:
        self.transport.streamed[url] = tokenizer
        self.transport.infos[url] = pb.GetModelInfoResponse(
            served_model_name=model, max_context_length=100, is_generation=True
        )

    def prompt(self, model: str, text: str = "hi") -> str:
        """The prompt of a conversation, by /v1/tokenize and /v1/detokenize."""
        messages = [{"role": "user", "content": text}]
        asked = self.post({"model": model, "messages": messages}, "/v1/tokenize").get_json()
        body = {"model": model, "tokens": asked["tokens"], "skip_special_tokens": False}
        prompt: str = self.post(body, "/v1/detokenize").get_json()["text"]
        return prompt

    def wait_ready(self, *models: str) -> None:
        for model in models:
            wait_until(lambda model=model: self.has(model), 10, f"a tokenizer of {model}")  # type: ignore[misc]

    def has(self, model: str) -> bool:
        return self.post({"model": model, "prompt": ""}, "/v1/tokenize").status_code == 200


@pytest.fixture
def make() -> Iterator[Callable[..., Models]]:
    made: list[Models] = []

    def new(*urls: str, **settings: Any) -> Models:
        made.append(Models(*urls, **settings))
        return made[-1]

    yield new
    for app in made:
        app.services.close()


def test_each_model_has_the_tokenizer_of_its_worker(make: Callable[..., Models], tmp_path: Path) -> None:
    app = make(FIRST, SECOND)
    error_of(app.client.get("/readiness"), 503)
    app.serve(FIRST, "a", pieces(folder_with(tmp_path / "a", "A")))
    app.wait_ready("a")
    assert app.client.get("/readiness").status_code == 200
    app.serve(SECOND, "b", pieces(folder_with(tmp_path / "b", "B")))
    app.wait_ready("b")
    assert app.prompt("a").startswith("A<|im_start|>user\nhi")
    assert app.prompt("b").startswith("B<|im_start|>user\nhi")
    app.transport.answers = [(complete("from b"), None)]
    answer = app.post(ask(model="b")).get_json()
    assert answer["choices"][0]["message"]["content"] == "from b"
    assert bytes(app.transport.streams[0].request.tokenized.input_ids[:1]) == b"B"
    assert app.transport.streams[0].worker.url == SECOND


def test_a_model_without_workers_is_dropped_and_comes_back(
    make: Callable[..., Models], tmp_path: Path
) -> None:
    app = make(FIRST)
    app.serve(FIRST, "a", pieces(folder_with(tmp_path / "a", "A")))
    app.wait_ready("a")
    pool = app.services.pool
    pool.membership.remove(FIRST)
    pool.follow()
    wait_until(lambda: repr(app.services.tokenizers) == "<Tokenizers of [] default=False>", 10)
    pool.membership.add(FIRST)
    pool.follow()
    app.wait_ready("a")
    assert app.prompt("a").startswith("A")
    assert app.transport.asked.count("GetTokenizer") == 1


def test_what_models_use_stays_and_what_none_uses_goes(make: Callable[..., Models], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    app = make(FIRST, SECOND, THIRD, tokenizer_cache=str(cache), tokenizer_cache_mib=0)

    def kept() -> set[str]:
        """The beginnings of the templates that are kept."""
        configs = [json.loads(path.read_text()) for path in cache.glob("*/tokenizer_config.json")]
        return {config["chat_template"][0] for config in configs}

    for url, model in ((FIRST, "a"), (SECOND, "b")):
        app.serve(url, model, pieces(folder_with(tmp_path / model, model.upper())))
        app.wait_ready(model)
    assert kept() == {"A", "B"}  # beyond the bound, and both in use
    app.services.pool.membership.remove(FIRST)
    app.services.pool.follow()
    wait_until(lambda: repr(app.services.tokenizers) == "<Tokenizers of ['b'] default=False>", 10)
    app.serve(THIRD, "c", pieces(folder_with(tmp_path / "c", "C")))
    app.wait_ready("c")
    assert kept() == {"B", "C"}
    app.services.close()
    tokenizer_store.prune(str(cache), 0)
    assert kept() == set()


def test_a_tokenizer_that_is_not_there_yet(
    make: Callable[..., Models], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """503 with Retry-After, said once in the log; the other model is served."""
    app = make(FIRST, SECOND)
    app.serve(FIRST, "a", [chunk(b"no zip", "0")])
    wait_until(lambda: app.services.pool.models(), 10)
    for _ in range(2):
        answer = app.post(ask(model="a"))
        error = error_of(answer, 503)
        assert error["code"] == "no_tokenizer"
        assert "`a`" in error["message"]
        assert answer.headers["Retry-After"]
    assert error_of(app.client.get("/readiness"), 503)["code"] == "no_tokenizer"
    app.serve(SECOND, "b", pieces(folder_with(tmp_path / "b", "B")))
    app.wait_ready("b")
    assert app.client.get("/readiness").status_code == 200
    asked = app.transport.asked.count
    before = asked("GetTokenizer")
    wait_until(lambda: asked("GetTokenizer") > before, 10, "another try")
    assert [
        record.getMessage() for record in caplog.records if "hash that it says" in record.getMessage()
    ] == [
        f"the model a has no tokenizer yet: worker {FIRST}: what it has sent does not have the hash that it "
        "says; a path may be given in TOKENIZERS or TOKENIZER_PATH"
    ]
    app.transport.streamed[FIRST] = pieces(folder_with(tmp_path / "a", "A"))
    app.wait_ready("a")


def test_another_worker_of_the_model_is_asked(make: Callable[..., Models], tmp_path: Path) -> None:
    app = make(FIRST, SECOND, health_interval=0.1)
    app.serve(SECOND, "a", pieces(folder_with(tmp_path / "a", "A")))
    app.serve(FIRST, "a")  # no such method
    app.wait_ready("a")
    assert app.prompt("a").startswith("A")


def test_a_tokenizer_that_cannot_be_opened_is_passed_over(
    make: Callable[..., Models], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is one that cannot be kept: the next worker is asked at once. What was kept may go bad, too."""
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "tokenizer.json").write_text("{}")
    app = make(FIRST, SECOND, THIRD, health_interval=0.1, tokenizer_cache=str(tmp_path / "cache"))
    put = Store.put

    def put_or_fail(store: Store, model: str, worker: str, files: Files) -> Record:
        if worker == SECOND:
            raise OSError("no room")
        return put(store, model, worker, files)

    monkeypatch.setattr(Store, "put", put_or_fail)
    a = pieces(folder_with(tmp_path / "a", "A"))
    app.serve(THIRD, "a", a)
    app.serve(SECOND, "a", a)
    app.serve(FIRST, "a", pieces(tmp_path / "bad"))
    app.wait_ready("a")
    assert app.prompt("a").startswith("A")
    store = app.services.tokenizers._its_store()
    kept = store.record("a")
    assert kept is not None
    assert kept.worker == THIRD

    store.keep(store.put("a", FIRST, {"tokenizer.json": b"{}"}))
    del app.services.tokenizers._loaded["a"]
    app.wait_ready("a")
    assert app.prompt("a").startswith("A")
    assert store.record("a") == kept


def test_a_differing_worker_is_named_and_the_first_tokenizer_stays(
    make: Callable[..., Models], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = folder_with(tmp_path / "a", "A")
    app = make(FIRST, SECOND, THIRD)
    app.serve(FIRST, "a", pieces(first))
    app.wait_ready("a")
    (first / "config.json").write_text('{"quantization_config": {}}')  # which changes no token
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in first.iterdir():
            archive.write(path, path.name)  # with its date, as SGLang's own servicer does it
    digest = hashlib.sha256(data.getvalue()).hexdigest()
    app.serve(THIRD, "a", [chunk(data.getvalue(), digest)])
    app.serve(SECOND, "a", pieces(folder_with(tmp_path / "b", "B")))
    wait_until(lambda: "another tokenizer" in caplog.text, 10, "word of it")
    wait_until(lambda: app.transport.asked.count("GetTokenizer") == 3, 10, "all were compared")
    found = [record.getMessage() for record in caplog.records if "another tokenizer" in record.getMessage()]
    assert found == [
        f"worker {SECOND} has another tokenizer than worker {FIRST}, whose one is used for a: "
        "tokenizer_config.json differ"
    ]
    assert app.prompt("a").startswith("A")


def test_tokenizers_of_the_settings(make: Callable[..., Models], tmp_path: Path) -> None:
    """By name, and the default for all others: then no worker is asked. A name needs no worker up."""
    a, b = folder_with(tmp_path / "a", "A"), folder_with(tmp_path / "b", "B")
    template = tmp_path / "own.jinja"
    template.write_text("C" + tiny.TEMPLATE)
    settings = {"tokenizers": (("org/a", str(a)),), "tokenizer_path": str(b), "chat_template": str(template)}
    app = make(FIRST, SECOND, **settings)
    assert app.has("org/a")
    app.serve(FIRST, "org/a")
    app.serve(SECOND, "org/b")
    app.wait_ready("org/a", "org/b")
    assert app.prompt("org/a").startswith("A")
    assert app.prompt("org/b").startswith("C")
    assert "GetTokenizer" not in app.transport.asked

    app = make(FIRST, SECOND, tokenizers=(("org/a", str(a)),))
    app.serve(FIRST, "org/a")
    app.serve(SECOND, "org/b", pieces(b))
    app.wait_ready("org/a", "org/b")
    assert app.prompt("org/b").startswith("B")
    assert app.transport.asked.count("GetTokenizer") == 1


def test_a_template_of_the_settings_holds_for_what_workers_give(
    make: Callable[..., Models], tmp_path: Path
) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("C" + tiny.TEMPLATE)
    app = make(FIRST, chat_template=str(template))
    app.serve(FIRST, "a", pieces(folder_with(tmp_path / "a", "A")))
    app.wait_ready("a")
    assert app.prompt("a").startswith("C")


def test_processes_of_a_server_fetch_it_once(
    make: Callable[..., Models], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes first asks the worker; the others load what was kept, even if they come meanwhile."""
    monkeypatch.setattr(board.shared, "made", board.Board(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    board.current().use_row(0)
    a = pieces(folder_with(tmp_path / "a", "A"))
    cache = tmp_path / "cache"
    first = make(FIRST, tokenizer_cache=str(cache))
    first.serve(FIRST, "a", a)
    first.wait_ready("a")
    second = make(FIRST, tokenizer_cache=str(cache))
    second.serve(FIRST, "a", pieces(folder_with(tmp_path / "b", "B")))
    second.wait_ready("a")
    assert second.prompt("a").startswith("A")
    assert len(list(cache.iterdir())) == 1


def test_a_process_takes_no_requests_before_it_has_the_tokenizers_it_can_have(tmp_path: Path) -> None:
    go = threading.Event()
    a = pieces(folder_with(tmp_path / "a", "A"))

    def slowly() -> list[bytes]:
        go.wait(10)
        return a

    app = Models.__new__(Models)  # it is started below
    app.transport = FakeTransport()
    app.serve(FIRST, "a", slowly)
    app.flask = create_app(Settings(workers=(FIRST,), health_interval=0.1), lambda _settings: app.transport)
    app.services = services(app.flask)
    started = threading.Thread(target=app.services.start)
    started.start()
    wait_until(lambda: "GetTokenizer" in app.transport.asked, 10)
    started.join(0.3)
    assert started.is_alive()
    go.set()
    started.join(10)
    assert not started.is_alive()
    app.client = app.flask.test_client()
    assert app.client.get("/readiness").status_code == 200
    app.services.close()


def test_a_new_process_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Models]
) -> None:
    monkeypatch.setattr(tokenizers, "FIRST_SECONDS", 0.2)
    app = make(FIRST)
    app.services.tokenizers.wait(0.2)
    app.serve(FIRST, "a", [])
    wait_until(lambda: app.services.pool.models(), 10)
    app.services.tokenizers.wait(0.2)
    assert repr(app.services.tokenizers) == "<Tokenizers of [] default=False>"
