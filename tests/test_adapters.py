"""Which worker has an adapter: what is asked, when, and what a request gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.bench import ABORT, Bench, chunk, nothing_is_left
from tests.support.flow import body, collect
from tests.support.processes import wait_until
from wsgi_router import adapters as module
from wsgi_router.adapters import Adapters
from wsgi_router.choices import ENDED
from wsgi_router.errors import InvalidRequestError, ModelNotFoundError, NoWorkerError, UpstreamError
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.workers.breaker import Event, State
from wsgi_router.workers.transport import GenerateJob, RpcFailure
from wsgi_router.workers.worker import Worker

W0, W1 = "grpc://w0:1", "grpc://w1:1"
UNAVAILABLE = RpcFailure("UNAVAILABLE", "connection reset")


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with nothing_is_left(monkeypatch):
        yield


def loaded(**ids: str) -> pb.ListLoadedLoRAAdaptersResponse:
    """A worker's list; each name's id there."""
    entries = [
        pb.LoadedLoRAAdapter(lora_name=name, lora_id=one, lora_path=f"/adapters/{name}")
        for name, one in ids.items()
    ]
    return pb.ListLoadedLoRAAdaptersResponse(loaded_adapters=entries)


class Listing(Bench):
    """Workers whose lists are in `lists`, by URL; `asked_of` has who was asked."""

    def __init__(self, *answers: Any, lists: dict[str, Any], **settings: Any) -> None:
        super().__init__(*answers, **settings)
        self.lists = lists
        self.asked_of: list[str] = []
        self.hold = threading.Event()
        self.hold.set()

        def answer(request: bytes, url: str) -> Any:
            self.asked_of.append(url)
            found = self.lists[url]
            if found is ...:
                self.hold.wait(30)
                return loaded()
            return found

        self.transport.unary_answers = {"ListLoadedLoRAAdapters": answer}
        self.adapters = Adapters(self.pool, self.transport, self.settings)

    def open_with(self, adapter: str, choices: int = 1) -> Any:
        return self.dispatcher.open(GenerateJob("m", body([1], 9), choices, adapter=adapter))

    def lora_ids(self) -> list[tuple[str, str]]:
        return [(stream.worker.url, stream.request.lora_id) for stream in self.transport.streams]


def test_requests_go_to_the_workers_that_have_it_with_their_own_ids() -> None:
    bench = Listing(*[(chunk(1), None)] * 6, lists={W0: loaded(sql="0a"), W1: loaded(sql="1b", chat="1c")})
    assert bench.adapters.find("m", "sql")
    assert bench.adapters.find("m", "chat")
    wait_until(lambda: all(worker.adapters for worker in bench.pool.workers))
    for adapter in ("sql", "sql", "chat", "chat", "chat", ""):
        generation = bench.open_with(adapter)
        assert collect(generation) == {0: [chunk(1), ENDED]}
        generation.close()
    assert sorted(bench.lora_ids()[:2]) == [(W0, "0a"), (W1, "1b")]
    assert bench.lora_ids()[2:5] == [(W1, "1c")] * 3
    assert bench.lora_ids()[5][1] == ""
    assert list(bench.transport.streams[0].request.tokenized.input_ids) == [1]


def test_a_retry_carries_the_other_workers_id() -> None:
    bench = Listing((UNAVAILABLE,), (chunk(1), None), lists={W0: loaded(sql="0a"), W1: loaded(sql="1b")})
    bench.adapters.find("m", "sql")
    wait_until(lambda: all(worker.adapters for worker in bench.pool.workers))
    generation = bench.open_with("sql")
    assert sorted(bench.lora_ids()) == [(W0, "0a"), (W1, "1b")]
    assert collect(generation) == {0: [chunk(1), ENDED]}
    generation.close()


def test_there_is_no_retry_on_a_worker_without_it() -> None:
    bench = Listing((ABORT, None), lists={W0: loaded(), W1: loaded(sql="1b")})
    bench.adapters.find("m", "sql")
    with pytest.raises(UpstreamError):
        bench.open_with("sql")
    assert bench.lora_ids() == [(W1, "1b")]


def test_all_choices_have_it() -> None:
    bench = Listing(*[(chunk(1), None)] * 3, lists={W0: loaded(), W1: loaded(sql="1b")})
    bench.adapters.find("m", "sql")
    generation = bench.open_with("sql", choices=3)
    collect(generation, 3)
    assert bench.lora_ids() == [(W1, "1b")] * 3
    generation.close()


def test_no_request_is_sent_for_an_adapter_that_nobody_is_known_to_have() -> None:
    bench = Listing(lists={W0: loaded(), W1: loaded()})
    with pytest.raises(NoWorkerError):
        bench.open_with("sql")
    assert bench.transport.streams == []


def test_lists_are_kept_and_asked_for_anew_when_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS", 1000.0)
    bench = Listing(lists={W0: loaded(sql="0a"), W1: RpcFailure("UNIMPLEMENTED", "no such method")})
    assert bench.asked_of == []
    for _ in range(3):
        assert bench.adapters.find("m", "sql")
    assert not bench.adapters.find("m", "chat")
    assert sorted(bench.asked_of) == [W0, W1]  # so soon nothing can have changed
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    bench.lists[W0] = loaded(sql="0a", chat="0b")
    assert bench.adapters.find("m", "chat")
    assert sorted(bench.asked_of) == [W0, W0, W1, W1]


def test_an_old_list_is_asked_for_again_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Listing(lists={W0: loaded(sql="0a"), W1: loaded()})
    assert bench.adapters.find("m", "sql")
    wait_until(lambda: all(worker.adapters_at > 0 for worker in bench.pool.workers))
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    bench.lists = {W0: ..., W1: ...}
    bench.hold.clear()
    start = time.monotonic()
    for _ in range(3):
        assert bench.adapters.find("m", "sql")
    assert time.monotonic() - start < 10
    wait_until(lambda: len(bench.asked_of) == 4)  # one call to each, not one for each request
    bench.hold.set()
    wait_until(lambda: not bench.pool.workers[0].adapters)


def test_a_slow_worker_does_not_delay_what_another_one_has() -> None:
    bench = Listing(lists={W0: ..., W1: loaded(sql="1b")})
    bench.hold.clear()
    start = time.monotonic()
    assert bench.adapters.find("m", "sql")
    assert time.monotonic() - start < 20
    bench.hold.set()


@pytest.mark.parametrize(
    ("failure", "state"),
    [("UNAVAILABLE", State.SUSPECT), ("DEADLINE_EXCEEDED", State.SUSPECT), ("INTERNAL", State.UP)],
)
def test_what_cannot_be_told_is_no_fault_of_the_client(failure: str, state: State) -> None:
    bench = Listing(lists={W0: loaded(), W1: RpcFailure(failure, "so")})
    seen: list[State] = []
    bench.transport.on_unary = lambda: seen.append(bench.pool.workers[1].state)
    with pytest.raises(UpstreamError) as caught:
        bench.adapters.resolve("m", ["sql"])
    assert caught.value.status >= 500
    if state is State.SUSPECT:
        wait_until(lambda: state in seen)  # and it is asked whether it is there
    assert bench.transport.streams == []


@pytest.mark.parametrize("code", ["UNIMPLEMENTED", "FAILED_PRECONDITION", "INVALID_ARGUMENT"])
def test_a_worker_without_adapters(code: str) -> None:
    bench = Listing(lists={W0: RpcFailure(code, "LoRA is not enabled"), W1: loaded()})
    with pytest.raises(InvalidRequestError) as caught:
        bench.adapters.resolve("m", ["sql"])
    assert (caught.value.status, caught.value.param) == (400, "lora_path")
    assert "'sql'" in caught.value.message


def test_a_list_that_cannot_be_read() -> None:
    bench = Listing(lists={W0: loaded(), W1: loaded()})
    bench.transport.unary = lambda *_: b"\xff\xff"  # type: ignore[method-assign]
    with pytest.raises(UpstreamError) as caught:
        bench.adapters.resolve("m", ["sql"])
    assert caught.value.status == 502


def test_after_a_failure_the_worker_is_asked_again() -> None:
    gone = RpcFailure("INVALID_ARGUMENT", "no adapter has the id 0a")
    bench = Listing((gone,), (chunk(1), None), lists={W0: loaded(sql="0a")}, workers=1)
    assert bench.adapters.find("m", "sql")
    with pytest.raises(UpstreamError):
        bench.open_with("sql")
    bench.lists[W0] = loaded(sql="0b")
    assert bench.adapters.find("m", "sql")
    generation = bench.open_with("sql")
    assert bench.lora_ids() == [(W0, "0a"), (W0, "0b")]
    collect(generation)
    generation.close()


def test_a_worker_that_was_down_is_asked_again() -> None:
    bench = Listing(lists={W0: loaded(sql="0a")}, workers=1, health_interval=0.05)
    assert bench.adapters.find("m", "sql")
    info = bench.transport.infos[W0]
    bench.transport.infos[W0] = UNAVAILABLE
    worker = bench.pool.workers[0]
    wait_until(lambda: worker.state is State.DOWN)
    with pytest.raises(NoWorkerError):
        bench.adapters.find("m", "sql")
    bench.transport.infos[W0] = info
    wait_until(lambda: worker.state is State.UP)
    bench.lists[W0] = loaded()
    assert not bench.adapters.find("m", "sql")


def test_what_a_worker_had_is_forgotten_before_it_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Listing(lists={W0: loaded(sql="0a")}, workers=1, health_interval=100)
    assert bench.adapters.find("m", "sql")
    worker = bench.pool.workers[0]
    seen: list[tuple[Event, bool]] = []
    note = Worker.note

    def watched(self: Worker, event: Event) -> bool:
        changed = note(self, event)
        seen.append((event, bool(self.adapters)))
        return changed

    monkeypatch.setattr(Worker, "note", watched)
    bench.pool.report(worker, Event.CALL_UNREACHABLE)
    wait_until(worker.available)
    assert seen[:2] == [(Event.CALL_UNREACHABLE, True), (Event.PROBE_OK, False)]


def test_the_model_may_name_the_adapter() -> None:
    bench = Listing(lists={W0: loaded(**{"sql": "0a", "a:b": "0b"}), W1: loaded()})
    resolve = bench.adapters.resolve
    card, names = resolve("m:sql", [""])
    assert (card.name, names) == ("m", ("sql",))
    assert resolve("m:a:b", [""])[1] == ("a:b",)
    assert resolve("m:sql", ["", "sql"])[1] == ("sql", "sql")
    assert resolve("m", ["", "sql"])[1] == ("", "sql")
    assert resolve(None, ["sql"])[0].name == "m"
    for model in ("m:", "m:chat", ":sql", "n:sql", "msql", ":" * 100_000):
        with pytest.raises(ModelNotFoundError):
            resolve(model, [""])
    with pytest.raises(InvalidRequestError, match="another one") as caught:
        resolve("m:sql", ["chat"])
    assert caught.value.param == "lora_path"


def test_a_model_whose_own_name_has_a_colon_wins() -> None:
    bench = Listing(lists={W0: loaded(), W1: loaded()}, model="m:sql")
    assert bench.adapters.resolve("m:sql", [""])[1] == ("",)
    assert bench.asked_of == []


def test_all_are_listed() -> None:
    bench = Listing(lists={W0: loaded(sql="0a"), W1: loaded(sql="1b", chat="1c")})
    found = bench.adapters.listed("m")
    assert [(name, adapter.path) for name, adapter in found.items()] == [
        ("chat", "/adapters/chat"),
        ("sql", "/adapters/sql"),
    ]
    assert bench.adapters.listed("nothing") == {}


def test_a_slow_worker_delays_a_listing_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTING_SECONDS", 0.1)
    bench = Listing(lists={W0: ..., W1: loaded(sql="1b")})
    bench.hold.clear()
    assert bench.adapters.find("m", "sql")
    start = time.monotonic()
    assert list(bench.adapters.listed("m")) == ["sql"]
    assert time.monotonic() - start < 20
    bench.hold.set()
