"""Thousands of requests of all kinds against two processes of gunicorn: no internal error, no hang, no leak.

SOAK_REQUESTS says how many (`make soak`: 20,000). They are the same each time, unless SOAK_SEED is a number
or "random"; a failure says which seed it was, and what was sent.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.live import script
from tests.soak import client
from tests.soak.requests import ADMIN_KEY, EMBEDDING, GENERATING, REQUESTS, Sent
from tests.support.openapi import described
from tests.support.processes import QWEN3, Router, Worker, wait_until
from tests.support.watch import Watch

REQUESTS_IN_ALL = int(os.environ.get("SOAK_REQUESTS", "2000"))
TOGETHER = 8
WARM = 240
_SEED = os.environ.get("SOAK_SEED", "")
SEED = random.randrange(2**32) if _SEED == "random" else int(_SEED) if _SEED else None
PROCESSES = 2

EOS = "151645"
FLAGS = ("--tokenizer", str(QWEN3), "--eos", EOS, "--context-length", "4096", "--answer-tokens", "16")


def property_of(requests: int, *, fixed: bool = False, number: int | None = SEED) -> Callable[[Any], Any]:
    """A decorator for properties of `TOGETHER` requests each, so that so many are sent in all.

    They are made from `number`; the same each time if it is None, or `fixed`.
    """
    derandomize = fixed or number is None
    options = settings(
        max_examples=max(1, requests // TOGETHER),
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # to shrink takes as long again, and the failure says what was sent
    )
    return lambda test: options(test if derandomize else seed(number)(test))


class Bench:
    """A router, and those who ask it."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0
        self._pool = ThreadPoolExecutor(TOGETHER)

    def each(self, one: Callable[[Any], None], items: list[Any]) -> None:
        """All at the same time; the first failure is raised."""
        for done in [self._pool.submit(one, item) for item in items]:
            done.result()

    def send(self, sent: Sent) -> None:
        """One request of our own; its answer is judged."""
        begun = time.monotonic()
        try:
            got = client.ask(self.router.port, sent)
        except TimeoutError:
            raise AssertionError(f"no answer to {sent.wire!r}") from None
        self.slowest = max(self.slowest, time.monotonic() - begun)
        self.seen["left" if got is None else str(got.status)] += 1
        if got is not None:
            try:
                client.check(sent, got)
            except Exception as error:
                error.add_note(f"request: {sent.wire[:4000]!r}\nanswer: {got}")
                raise

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    print(f"SOAK_REQUESTS={REQUESTS_IN_ALL} SOAK_SEED={'' if SEED is None else SEED}")
    path: Path = script.write(tmp_path_factory.mktemp("soak") / "answers.json")
    with (
        Worker(*FLAGS, "--model-name", GENERATING, "--script", str(path)) as worker,
        Worker(*FLAGS, "--model-name", EMBEDDING, "--embedding-dim", "8") as embedder,
        Router(
            worker.url,
            embedder.url,
            processes=PROCESSES,
            tokenizer_path="",  # each model's comes from its worker
            flags=("tests.soak.watched:application",),
            admin_key=ADMIN_KEY,
            log_level="warning",
        ) as router,
    ):
        router.wait_serving()
        wait_until(lambda: router.metric("wsgi_router_worker_up") == 2, 30, "two workers up")
        wait_until(lambda: all(map(_has_tokenizers, [router] * 8)), 30, "tokenizers in both processes")
        bench = Bench(router)
        _warm(bench)
        watch = Watch(router, (worker, embedder))
        before = watch.settled()
        yield bench
        print(f"answers: {dict(bench.seen)}; the slowest took {bench.slowest:.1f} s")
        after = watch.check(before)
        assert before.keys() == after.keys(), "a process has died"
        print(f"{before}\n-> {after}")
        output = router.output()
        assert "Traceback" not in output, output[-4000:]
        bench.close()


def _has_tokenizers(router: Router) -> bool:
    bodies = ({"model": model, "prompt": "x"} for model in (GENERATING, EMBEDDING))
    asked = [httpx.post(router.url + "/v1/tokenize", json=body, timeout=30) for body in bodies]
    return all(answer.status_code == 200 for answer in asked)


def _warm(bench: Bench) -> None:
    """Fills what is filled once: caches, arenas, pools of threads."""

    @property_of(WARM, fixed=True)
    @given(st.lists(REQUESTS, min_size=TOGETHER, max_size=TOGETHER))
    def warm(batch: list[Sent]) -> None:
        bench.each(bench.send, batch)

    warm()


def test_our_own_requests(bench: Bench) -> None:
    @property_of(REQUESTS_IN_ALL * 3 // 4)
    @given(st.lists(REQUESTS, min_size=TOGETHER, max_size=TOGETHER))
    def answered(batch: list[Sent]) -> None:
        bench.each(bench.send, batch)

    before = bench.seen.total()
    answered()
    assert bench.seen.total() - before >= REQUESTS_IN_ALL * 3 // 4 - TOGETHER


def of_our_models(document: dict[str, Any]) -> dict[str, Any]:
    """The description as one would make it who knows the models; others are a 404 and no more."""
    document = copy.deepcopy(document)
    for name, schema in document["components"]["schemas"].items():
        if "model" in schema.get("properties", {}) and name.endswith("Request"):
            model = EMBEDDING if name == "EmbeddingRequest" else GENERATING
            schema["properties"]["model"] = {"enum": [model]}
    return document


def cases() -> st.SearchStrategy[Any]:
    """Cases that the description allows, and cases that it forbids."""
    schema = schemathesis.openapi.from_dict(of_our_models(described()))
    found: Any = schema.get_all_operations()
    operations = [one.ok() for one in found]
    kinds = [
        operation.as_strategy(generation_mode=mode)
        for operation in operations
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or operation.body or operation.query
    ]
    posts = [operation.as_strategy() for operation in operations if operation.body]
    return st.one_of(*kinds, *posts)


def test_requests_made_from_the_description(bench: Bench) -> None:
    def send(case: Any) -> None:
        given_ = case.as_transport_kwargs(base_url=bench.router.url)
        request = httpx.Request(
            given_["method"],
            given_["url"],
            params=given_.get("params"),
            headers=dict(given_.get("headers") or {}),
            **(
                {"content": json.dumps(given_["json"]).encode()}
                if "json" in given_
                else {"content": given_.get("data")}
            ),
        )
        headers = tuple((name, value) for name, value in request.headers.raw if name.lower() != b"host")
        body = request.content
        path = request.url.raw_path.decode("ascii")
        bench.send(Sent(request.method, path, body, headers))

    @property_of(REQUESTS_IN_ALL // 4)
    @given(st.lists(cases(), min_size=TOGETHER, max_size=TOGETHER))
    def answered(batch: list[Any]) -> None:
        bench.each(send, batch)

    before = bench.seen.total()
    answered()
    assert bench.seen.total() - before >= REQUESTS_IN_ALL // 4 - TOGETHER
