"""Several models whose tokenizers come from their workers, which come up after the router."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.live.script import TEXT
from tests.support import tiny
from tests.support.processes import QWEN3, Router, Worker, free_port, wait_until

Models = dict[str, tuple[Path, str]]
"""Each one's tokenizer and end."""


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return {"org/qwen": (QWEN3, "151645"), "org/tiny": (tiny.write(tmp_path / "tiny"), str(tiny.END))}


@pytest.fixture
def flags(models: Models, tmp_path: Path) -> dict[str, tuple[str, ...]]:
    """A simulator's, by the model; it says the same text by its own tokenizer, after its model's name."""
    made: dict[str, tuple[str, ...]] = {}
    for index, (model, (path, end)) in enumerate(models.items()):
        script = tmp_path / f"answers-{index}.json"
        script.write_text(json.dumps([{"answer": {"text": f"{model}: {TEXT}"}}]))
        made[model] = (
            *("--model-name", model, "--tokenizer", str(path), "--eos", end),
            *("--script", str(script), "--context-length", "4096"),
        )
    return made


class Client:
    def __init__(self, router: Router) -> None:
        # Each request on a connection of its own, so that the processes take turns.
        self._http = httpx.Client(base_url=router.url, timeout=30, headers={"Connection": "close"})

    def post(self, path: str, **body: Any) -> Any:
        return self._http.post(path, json=body)

    def text(self, model: str) -> Any:
        answer = self.post("/v1/chat/completions", model=model, messages=[{"role": "user", "content": "hi"}])
        return answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer

    def tokens(self, model: str) -> Any:
        body = {"model": model, "prompt": TEXT, "add_special_tokens": False}
        return self.post("/v1/tokenize", **body).json()["tokens"]

    def prompt(self, model: str) -> str:
        messages = [{"role": "user", "content": "hi"}]
        ids = self.post("/v1/tokenize", model=model, messages=messages).json()["tokens"]
        body = {"model": model, "tokens": ids, "skip_special_tokens": False}
        text: str = self.post("/v1/detokenize", **body).json()["text"]
        return text

    def streamed(self, model: str) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
        return "".join(delta.get("content") or "" for delta in deltas)


def served_by_all(router: Router, models: Models) -> bool:
    """Asked often enough to meet both processes."""
    client = Client(router)
    return all(isinstance(client.text(model), str) for model in models for _ in range(6))


def test_models_come_up_with_their_tokenizers(
    models: Models, flags: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    """Over both transports; and after a reload, which asks anew."""
    ports = [free_port() for _ in models]
    cache = tmp_path / "cache"
    urls = [f"grpc://127.0.0.1:{port}" for port in ports]
    settings: dict[str, Any] = {"tokenizer_path": "", "tokenizer_cache": str(cache)}
    with (
        Router(*urls, processes=2, transport="native", **settings) as native,
        Router(*urls, transport="grpcio", **settings) as grpcio,
        contextlib.ExitStack() as stack,
    ):
        assert native.status("/readiness") == grpcio.status("/readiness") == 503
        assert Client(native).text("org/qwen").status_code == 503
        for model, port in zip(models, ports, strict=True):
            stack.enter_context(Worker(*flags[model], port=port))
        for router in (native, grpcio):
            wait_until(lambda router=router: served_by_all(router, models), 30, "both models")  # type: ignore[misc]
            assert router.status("/readiness") == 200
            check_answers(Client(router), models)
        kept = {path.name for path in cache.iterdir()}
        assert len(kept) == len(models)
        native.send(signal.SIGHUP)
        wait_until(lambda: native.output().count("is that of worker") == 8, 60, "both processes anew")
        assert served_by_all(native, models)
        assert {path.name for path in cache.iterdir()} == kept
        for router in (native, grpcio):
            assert "Traceback" not in router.output()
            assert "ERROR" not in router.output()


def check_answers(client: Client, models: Models) -> None:
    """Each model's are right by its own tokenizer and template."""
    for model, (path, _) in models.items():
        oracle = Tokenizer.from_file(str(path / "tokenizer.json"))
        assert client.text(model) == f"{model}: {TEXT}"
        assert client.streamed(model) == f"{model}: {TEXT}"
        assert client.tokens(model) == oracle.encode(TEXT, add_special_tokens=False).ids
    assert client.prompt("org/qwen").startswith("<|im_start|>user\nhi<|im_end|>")
    assert client.prompt("org/tiny") == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    qwen, small = (len(client.tokens(model)) for model in models)
    assert small == len(TEXT.encode()) > qwen
