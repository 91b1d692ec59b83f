"""Prefill and decode on simulators of their own: the two meet in a room, or their requests fail."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import script
from tests.live.conftest import EOS, MODEL
from tests.live.script import TEXT
from tests.live.test_chat import ask, post, stream
from tests.live.test_faults import URL, error_of, raw
from tests.support import sse
from tests.support.processes import QWEN3, Router, Worker, free_port, wait_until

# What goes wrong at the prefill worker alone: there these rules come first.
PREFILL: dict[str, dict[str, Any]] = {
    "prefill-refuses": {"error": {"status": "INVALID_ARGUMENT", "message": "no such thing"}},
    "prefill-is-busy": {"error": {"status": "RESOURCE_EXHAUSTED", "message": "too busy"}},
    "prefill-breaks": {"error": {"status": "INTERNAL", "message": "broke"}},
    "prefill-aborts": {"abort": {"after_tokens": 0}},
    "prefill-hangs": {"hang": {"after_tokens": 0}},
}
ANSWERS = {
    **script.ANSWERS,
    **{word: {"text": TEXT} for word in PREFILL},
    "two-seconds": {"random": 40, "itl_ms": 50, "free": True},
}
TRANSPORTS = ("native", "grpcio")


class Halves:
    """Starts simulators of either role."""

    def __init__(self, folder: Path) -> None:
        common = ("--tokenizer", str(QWEN3), "--model-name", MODEL, "--context-length", "4096", "--eos", EOS)
        first = script.write(folder / "prefill.json", {**PREFILL, **ANSWERS, **PREFILL})
        second = script.write(folder / "decode.json", ANSWERS)
        self.flags = {
            "prefill": (*common, "--role", "prefill", "--script", str(first)),
            "decode": (*common, "--role", "decode", "--script", str(second)),
        }

    def prefill(self) -> tuple[Worker, str]:
        """A worker, and how the settings name it."""
        port = free_port()
        worker = Worker(*self.flags["prefill"], "--bootstrap-port", str(port)).start()
        return worker, f"{worker.url} {port}"

    def decode(self, port: int = 0) -> Worker:
        return Worker(*self.flags["decode"], port=port).start()


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Halves:
    return Halves(tmp_path_factory.mktemp("pairs"))


class Pairs:
    """Workers of either half and a router in front of them."""

    def __init__(
        self, halves: Halves, transport: str, stack: ExitStack, prefills: int = 1, **settings: Any
    ) -> None:
        self._halves = halves
        with ThreadPoolExecutor() as pool:
            begun = [pool.submit(halves.prefill) for _ in range(prefills)]
            self.decode = pool.submit(halves.decode).result()
            made = [one.result() for one in begun]
        self.prefills = [worker for worker, _ in made]
        self.names = [name for _, name in made]
        stack.callback(self.stop)
        self.router = stack.enter_context(
            Router(
                prefill_workers=",".join(self.names),
                decode_workers=self.decode.url,
                transport=transport,
                **settings,
            )
        )
        wait_until(lambda: self.router.metric("wsgi_router_worker_up") == prefills + 1, 30, "all workers up")

    def restart_decode(self) -> None:
        self.decode = self._halves.decode(self.decode.port)

    def stop(self) -> None:
        for worker in (*self.prefills, self.decode):
            worker.stop()

    @property
    def workers(self) -> list[Worker]:
        return [worker for worker in (*self.prefills, self.decode) if worker.running()]

    def idle(self) -> bool:
        infos = [worker.server_info() for worker in self.workers]
        return all(info["running"] == 0 and not info["live_request_ids"] for info in infos)

    def assert_idle(self) -> None:
        wait_until(self.idle, 5, "no request is left in a worker")
        wait_until(lambda: self.router.metric("wsgi_router_requests_in_flight") == 0, 5, "nothing in flight")
        wait_until(
            lambda: self.router.metric("wsgi_router_worker_requests_in_flight") == 0, 7, "no lease held"
        )

    def rooms(self, worker: Worker, count: int) -> list[tuple[str, dict[str, Any]]]:
        """Ids and meetings of a worker's last requests, in order."""
        last = list(worker.server_info()["last_requests"])[-count:]
        return [(one["request_id"], dict(one["request"]["disaggregated_params"])) for one in last]


@contextmanager
def pairs_of(halves: Halves, transport: str, **options: Any) -> Iterator[Pairs]:
    with ExitStack() as stack:
        yield Pairs(halves, transport, stack, **options)


@pytest.fixture(scope="module", params=TRANSPORTS)
def pairs(request: pytest.FixtureRequest, halves: Halves) -> Iterator[Pairs]:
    with pairs_of(halves, request.param, admin_key="root") as made:
        yield made


def test_answers_of_every_kind(pairs: Pairs) -> None:
    router, prefill, decode = pairs.router, pairs.prefills[0], pairs.decode
    assert sse.content(stream(router, ask("say-text"))) == TEXT
    assert post(router, ask("say-text"))["choices"][0]["message"]["content"] == TEXT
    choices = post(router, ask("in-chunks", n=3))["choices"]
    assert [choice["message"]["content"] for choice in choices] == [TEXT] * 3
    body = {"model": MODEL, "prompt": ["say-text", "in-chunks"], "max_tokens": 50}
    answer = httpx.post(router.url + "/v1/completions", json=body, timeout=30).json()
    assert [choice["text"] for choice in answer["choices"]] == [TEXT] * 2
    answer = httpx.post(router.url + "/generate", json={"text": ["say-text", "say-text"]}, timeout=30).json()
    assert [one["text"] for one in answer] == [TEXT] * 2
    pairs.assert_idle()
    asked = sorted(pairs.rooms(prefill, 9), key=str)
    assert asked == sorted(pairs.rooms(decode, 9), key=str)
    assert len({int(place["bootstrap_room"]) for _, place in asked}) == 9
    assert {place["bootstrap_host"] for _, place in asked} == {"127.0.0.1"}
    for worker in (prefill, decode):
        info = worker.server_info()
        assert (info["cancelled"], info["aborted"], info["failed"]) == (0, 0, 0)


def test_log_probabilities_of_the_answer_alone(pairs: Pairs) -> None:
    logprobs = post(pairs.router, ask("say-text", logprobs=True))["choices"][0]["logprobs"]
    assert "".join(entry["token"] for entry in logprobs["content"])
    pairs.assert_idle()


COMPLETION = {"model": MODEL, "echo": True, "logprobs": 2, "max_tokens": 3}
NATIVE: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
SCORED: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("/v1/completions", {**COMPLETION, "prompt": "say-text and more"}),
    "several": ("/v1/completions", {**COMPLETION, "prompt": ["say-text", "in-chunks é"], "n": 2}),
    "no-answer": ("/v1/completions", {**COMPLETION, "prompt": "say-text foo", "max_tokens": 0}),
    "native": ("/generate", {**NATIVE, "text": "say-text foo", "sampling_params": {"n": 2}}),
    "native-batch": ("/generate", {**NATIVE, "text": ["say-text", "in-chunks"], "logprob_start_len": 1}),
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", SCORED)
def test_log_probabilities_of_the_prompt_are_as_one_workers(
    pairs: Pairs, router: Router, kind: str, streaming: bool
) -> None:
    """`router` has regular workers that compute the same."""
    path, body = SCORED[kind]
    body = {**body, "stream": streaming}
    found, expected = (scored_answer(one.url + path, body) for one in (pairs.router, router))
    assert found == expected
    assert all(prompt for _, prompt, _ in found)
    pairs.assert_idle()


def scored_answer(url: str, body: dict[str, Any]) -> list[tuple[str, list[Any], list[Any]]]:
    """Of each choice: its text, and what is told of the prompt's tokens and of its own."""
    with httpx.stream("POST", url, json=body, timeout=30) as answer:
        assert answer.status_code == 200, answer.read()
        if body["stream"]:
            pieces: list[Any] = list(sse.events(answer.iter_lines()))
            assert pieces.pop() == "[DONE]"
        else:
            whole = json.loads(answer.read())
            pieces = whole if isinstance(whole, list) else [whole]
    if "choices" not in pieces[0]:  # each event says all that is known
        assert all(piece["meta_info"]["input_token_logprobs"] for piece in pieces)
        last = {piece.get("index", 0): piece for piece in pieces}
        return [scores_of(last[index]) for index in sorted(last)]
    found: dict[int, tuple[str, list[Any], list[Any]]] = {}
    for choice in (choice for piece in pieces for choice in piece["choices"]):
        text, told, _ = found.setdefault(choice["index"], ("", [], []))
        more, entries, _ = scores_of(choice)
        found[choice["index"]] = (text + more, told + entries, [])
    return [one for _, one in sorted(found.items())]


def scores_of(choice: dict[str, Any]) -> tuple[str, list[Any], list[Any]]:
    if "meta_info" in choice:
        info = choice["meta_info"]
        prompt = [info["input_token_logprobs"], info["input_top_logprobs"]]
        return choice["text"], prompt, [info["output_token_logprobs"], info["output_top_logprobs"]]
    told = choice["logprobs"] or {}
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return choice["text"], list(zip(*(told.get(name, []) for name in names), strict=True)), []


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("word", ["prefill-refuses", "prefill-breaks", "prefill-aborts", "refuse-input"])
def test_a_refusal_of_either_is_a_status_where_the_answer_waits(
    pairs: Pairs, word: str, streaming: bool
) -> None:
    body = {**COMPLETION, "prompt": word, "stream": streaming}
    answer = httpx.post(pairs.router.url + "/v1/completions", json=body, timeout=30)
    assert answer.status_code == (500 if word in ("prefill-breaks", "prefill-aborts") else 400)
    pairs.assert_idle()


def test_a_stop_word_ends_both(pairs: Pairs) -> None:
    for streaming in (False, True):
        body = ask("say-stop", stop=["STOP"])
        text = (
            sse.content(stream(pairs.router, body))
            if streaming
            else post(pairs.router, body)["choices"][0]["message"]["content"]
        )
        assert text == "one two "
    pairs.assert_idle()


@pytest.mark.parametrize(
    ("word", "status", "message"),
    [
        ("prefill-refuses", 400, "no such thing"),
        ("prefill-is-busy", 429, "too busy"),
        ("prefill-breaks", 500, "broke"),
        ("prefill-aborts", 500, ""),
        ("refuse-input", 400, "no such thing"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_refusal_of_either_is_a_status(
    pairs: Pairs, word: str, status: int, message: str, streaming: bool
) -> None:
    answer = httpx.post(pairs.router.url + URL, json=ask(word, stream=streaming), timeout=30)
    assert (answer.status_code if status < 500 else answer.status_code // 100 * 100) == status
    assert message in error_of(answer)["message"]
    pairs.assert_idle()


@pytest.mark.parametrize("word", ["prefill-hangs", "hang-midway", "wait-first"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_client_that_leaves_ends_both(pairs: Pairs, word: str, streaming: bool) -> None:
    pairs.assert_idle()
    connection = raw(pairs.router, json.dumps(ask(word, stream=streaming)).encode())
    wait_until(lambda: pairs.decode.server_info()["running"] == 1, 5, "a running request")
    if streaming and word == "hang-midway":
        assert connection.recv(100)
    time.sleep(0.2)
    connection.close()
    pairs.assert_idle()


def test_what_the_router_says_of_both(pairs: Pairs) -> None:
    url, key = pairs.router.url, {"Authorization": "Bearer root"}
    prefill, decode = pairs.prefills[0], pairs.decode
    listed = httpx.get(url + "/workers", headers=key).json()["workers"]
    shown = {one["url"]: (one["role"], one["bootstrap_port"] is None, one["load"]) for one in listed}
    assert shown == {prefill.url: ("prefill", False, 0), decode.url: ("decode", True, 0)}
    loads = httpx.get(url + "/get_loads?include=disagg").json()["workers"]
    assert [one["loads"][0]["disaggregation"]["mode"] for one in loads] == ["prefill", "decode"]
    flushed = httpx.post(url + "/flush_cache", headers=key).json()["workers"]
    assert [one["success"] for one in flushed] == [True, True]
    assert [model["id"] for model in httpx.get(url + "/v1/models").json()["data"]] == [MODEL]
    for path in ("/readiness", "/get_server_info", "/get_model_info", "/health_generate"):
        assert httpx.get(url + path).status_code == 200, path


def test_halves_join_and_leave_while_running(halves: Halves, tmp_path: Path) -> None:
    key = {"Authorization": "Bearer root"}
    with ExitStack() as stack:
        prefill, name = halves.prefill()
        stack.callback(prefill.stop)
        decode = halves.decode()
        stack.callback(decode.stop)
        kept = str(tmp_path / "workers.json")
        router = stack.enter_context(Router(processes=2, admin_key="root", workers_file=kept))
        port = int(name.split()[1])
        added = {"url": prefill.url, "role": "prefill", "bootstrap_port": port}
        shown = httpx.post(router.url + "/workers", json=added, headers=key).json()
        assert (shown["role"], shown["bootstrap_port"]) == ("prefill", port)
        wait_until(lambda: router.metric("wsgi_router_worker_up") == 1, 15, "one is up")
        assert router.status("/readiness") == 503
        assert httpx.post(router.url + URL, json=ask("say-text")).status_code == 503
        added = {"url": decode.url, "role": "decode"}
        place = httpx.post(router.url + "/workers", json=added, headers=key).json()["id"]
        router.wait_serving()
        for _ in range(6):
            assert post(router, ask("say-text"))["choices"][0]["message"]["content"] == TEXT
        router.send(signal.SIGHUP)
        for _ in range(6):
            assert post(router, ask("say-text"))["choices"][0]["message"]["content"] == TEXT
        httpx.delete(f"{router.url}/workers/{place}", headers=key)
        wait_until(
            lambda: {router.status("/readiness") for _ in range(8)} == {503}, 10, "half a pair is none"
        )


def test_a_decode_worker_that_dies_and_comes_back(pairs: Pairs) -> None:
    body = ask("go-slowly", stream=True)
    with httpx.stream("POST", pairs.router.url + URL, json=body, timeout=30) as answer:
        events = sse.events(answer.iter_lines())
        seen = [next(events), next(events)]
        pairs.decode.kill()
        seen += list(events)
    assert seen[-1] == "[DONE]"
    assert "error" in seen[-2]
    pairs.assert_idle()
    assert httpx.post(pairs.router.url + URL, json=ask("say-text"), timeout=30).status_code == 503
    pairs.restart_decode()
    pairs.router.wait_serving()
    assert text_of(pairs.router) == TEXT
    pairs.assert_idle()


def text_of(router: Router) -> str:
    text: str = post(router, ask("say-text"))["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_prefill_workers_that_freeze_and_die(halves: Halves, transport: str) -> None:
    waits = {"first_token_timeout": "3", "health_timeout": "1", "health_interval": "0.5"}
    with pairs_of(halves, transport, prefills=2, prefill_policy="round_robin", **waits) as pairs:
        frozen, other = pairs.prefills
        freezes_while_asked(pairs, frozen)
        owner = dies_while_its_answer_comes(pairs)
        other = frozen if owner is other else other
        assert [text_of(pairs.router) for _ in range(4)] == [TEXT] * 4
        pairs.assert_idle()
        dies_while_asked(pairs, other)


def test_a_prefill_worker_that_is_found_down(halves: Halves) -> None:
    """Its requests go to the other one, long before FIRST_TOKEN_TIMEOUT; over both transports."""
    waits: dict[str, Any] = {"first_token_timeout": "100", "health_timeout": "1", "health_interval": "0.2"}
    waits["prefill_policy"] = "round_robin"
    with pairs_of(halves, "native", prefills=2, **waits) as pairs, ThreadPoolExecutor() as pool:
        urls: dict[str, Any] = {"prefill_workers": ",".join(pairs.names), "decode_workers": pairs.decode.url}
        with Router(transport="grpcio", **urls, **waits) as other:
            wait_until(lambda: other.metric("wsgi_router_worker_up") == 3, 30, "all workers up")
            frozen = pairs.prefills[0]
            frozen.send(signal.SIGSTOP)
            try:
                texts = list(pool.map(text_of, [pairs.router, other] * 4))
            finally:
                frozen.send(signal.SIGCONT)
            assert texts == [TEXT] * 8
            for router in (pairs.router, other):
                assert router.settled_metric("wsgi_router_retries_total") >= 1
                wait_until(lambda r=router: r.metric("wsgi_router_worker_up") == 3, 15, "up")  # type: ignore[misc]
            pairs.assert_idle()


def freezes_while_asked(pairs: Pairs, frozen: Worker) -> None:
    """Requests in turn: one waits for it in vain, but not for ever."""
    frozen.send(signal.SIGSTOP)
    try:
        body = ask("say-text", stream=True)
        statuses = [httpx.post(pairs.router.url + URL, json=body, timeout=30).status_code for _ in range(3)]
        assert sorted(statuses) == [200, 200, 504]
        wait_until(lambda: pairs.decode.server_info()["running"] == 0, 5, "decode has nothing left")
    finally:
        frozen.send(signal.SIGCONT)
    wait_until(lambda: pairs.router.metric("wsgi_router_worker_up") == 3, 15, "all up again")
    pairs.assert_idle()


def dies_while_its_answer_comes(pairs: Pairs) -> Worker:
    """The decode worker goes on: the answer does not need the other one any more."""
    before = [one.server_info()["generate_calls"] for one in pairs.prefills]
    body = ask("two-seconds", stream=True)
    with httpx.stream("POST", pairs.router.url + URL, json=body, timeout=30) as answer:
        events = sse.events(answer.iter_lines())
        seen: list[Any] = [next(events)]
        after = [one.server_info()["generate_calls"] for one in pairs.prefills]
        owner = pairs.prefills[0 if after[0] > before[0] else 1]
        owner.kill()
        seen += list(events)
    assert seen[-1] == "[DONE]"
    assert seen[-2]["choices"][0]["finish_reason"] == "stop"
    return owner


def dies_while_asked(pairs: Pairs, last: Worker) -> None:
    """Before anything came, and nobody else is there: a status; an error event if another prompt's came."""
    statuses: list[int] = []

    def wait_in_vain() -> None:
        body = ask("prefill-hangs", stream=True)
        statuses.append(httpx.post(pairs.router.url + URL, json=body, timeout=30).status_code)

    waiting = threading.Thread(target=wait_in_vain)
    waiting.start()
    scored = {**COMPLETION, "prompt": ["two-seconds", "prefill-hangs"], "max_tokens": 40, "stream": True}
    with httpx.stream("POST", pairs.router.url + "/v1/completions", json=scored, timeout=30) as answer:
        events = sse.events(answer.iter_lines())
        seen: list[Any] = [next(events)]
        wait_until(lambda: pairs.decode.server_info()["running"] == 3, 10, "running requests")
        last.kill()
        seen += list(events)
    assert seen[-1] == "[DONE]"
    assert seen[-2]["error"]["type"] == "server_error"
    assert {choice["index"] for event in seen[:-2] for choice in event["choices"]} == {0}
    waiting.join(20)
    assert statuses == [503]
    pairs.assert_idle()
    wait_until(lambda: pairs.router.status("/readiness") == 503, 10, "readiness 503")
