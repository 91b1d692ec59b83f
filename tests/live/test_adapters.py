"""LoRA adapters with two real workers: one that only one of them has, and one that each has by its own id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.live.conftest import MODEL
from tests.live.script import TEXT
from tests.support.processes import Router, Worker, wait_until
from tests.support.scheduler import SchedulerClient
from wsgi_router.pb import sglang_scheduler_pb2 as pb

Workers = tuple[Worker, Worker]


def load(worker: Worker, name: str, lora_id: str) -> None:
    with SchedulerClient(worker.port) as client:
        request = pb.LoadLoRAAdapterRequest(lora_name=name, lora_id=lora_id, lora_path=f"/adapters/{name}")
        assert client.LoadLoRAAdapter(request).success


def unload(worker: Worker, name: str) -> None:
    with SchedulerClient(worker.port) as client:
        assert client.UnloadLoRAAdapter(pb.UnloadLoRAAdapterRequest(lora_name=name)).success


@pytest.fixture(scope="module")
def workers(simulator_flags: tuple[str, ...]) -> Iterator[Workers]:
    with Worker(*simulator_flags) as first, Worker(*simulator_flags) as second:
        load(first, "sql", "first-sql")
        load(first, "both", "first-both")
        load(second, "both", "second-both")
        yield first, second


@pytest.fixture(scope="module")
def lora_client(workers: Workers) -> Iterator[openai.OpenAI]:
    with Router(*(worker.url for worker in workers), policy="round_robin") as router:
        router.wait_serving()
        with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
            yield client


def ask(client: openai.OpenAI, text: str = "say-text", model: str = MODEL, **extra: Any) -> str | None:
    messages: Any = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=model, messages=messages, extra_body=extra)
    return answer.choices[0].message.content


def serves(client: openai.OpenAI, name: str) -> bool:
    try:
        return ask(client, lora_path=name) == TEXT
    except openai.BadRequestError:
        return False


def seen(worker: Worker) -> list[str]:
    """Adapters' ids of the worker's last requests."""
    with SchedulerClient(worker.port) as client:
        return [request["request"].get("lora_id", "") for request in client.info()["last_requests"]]


def test_a_request_goes_where_its_adapter_is(lora_client: openai.OpenAI, workers: Workers) -> None:
    before = [len(seen(worker)) for worker in workers]
    for _ in range(3):
        assert ask(lora_client, lora_path="sql") == TEXT
        assert ask(lora_client, model=f"{MODEL}:sql") == TEXT
    assert seen(workers[0])[before[0] :] == ["first-sql"] * 6
    assert len(seen(workers[1])) == before[1]


def test_each_worker_gets_its_own_id(lora_client: openai.OpenAI, workers: Workers) -> None:
    for _ in range(4):
        assert ask(lora_client, lora_path="both") == TEXT
    assert "first-both" in seen(workers[0])
    assert "second-both" in seen(workers[1])


def test_an_unknown_adapter_is_a_400(lora_client: openai.OpenAI, workers: Workers) -> None:
    before = [len(seen(worker)) for worker in workers]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(lora_client, lora_path="nobody-has-it")
    assert caught.value.param == "lora_path"
    with pytest.raises(openai.NotFoundError):
        ask(lora_client, model=f"{MODEL}:nobody-has-it")
    assert [len(seen(worker)) for worker in workers] == before


def test_adapters_may_come_and_go(lora_client: openai.OpenAI, workers: Workers) -> None:
    load(workers[1], "late", "second-late")
    wait_until(lambda: serves(lora_client, "late"))  # a list is asked for again at most once a second
    unload(workers[1], "late")
    load(workers[1], "late", "another-id")
    with pytest.raises(openai.BadRequestError):  # the old id; the worker says so
        ask(lora_client, lora_path="late")
    assert ask(lora_client, lora_path="late") == TEXT
    assert seen(workers[1])[-1] == "another-id"
    unload(workers[1], "late")


def test_the_models_list_shows_them(lora_client: openai.OpenAI) -> None:
    assert {f"{MODEL}:sql", f"{MODEL}:both", MODEL} <= {model.id for model in lora_client.models.list()}
