"""TLS through the whole router: to its workers, and to its clients by gunicorn's own."""

from __future__ import annotations

import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import script
from tests.live.test_chat import ask
from tests.live.test_transports import WAYS, plain
from tests.support.certificates import Authority, Pair
from tests.support.processes import QWEN3, Router, Worker, wait_until

URL = "/v1/chat/completions"
LONG: dict[str, Any] = {"speak-fast": {"random": 300, "itl_ms": 1, "free": True}}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.issue("127.0.0.1")


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path: Path = script.write(
        tmp_path_factory.mktemp("script") / "answers.json", {**LONG, "say-text": script.ANSWERS["say-text"]}
    )
    named = ("--tokenizer", str(QWEN3), "--model-name", "qwen3-sim", "--eos", "151645")
    return (*named, "--script", str(path))


@pytest.fixture(scope="module")
def worker(flags: tuple[str, ...]) -> Iterator[Worker]:
    with Worker(*flags) as worker:
        yield worker


def answered(router: Router, word: str, client: httpx.Client | None = None) -> tuple[int, str, str]:
    body = ask(word, stream=True, stream_options={"include_usage": True})
    post = httpx.post if client is None else client.post
    return plain(post(router.url + URL, json=body, timeout=30))


@pytest.fixture(scope="module")
def in_the_clear(worker: Worker) -> dict[str, Any]:
    """What is answered where nothing is encrypted."""
    with Router(worker.url) as router:
        router.wait_serving()
        return {word: answered(router, word) for word in ("say-text", "speak-fast")}


def assert_the_same(router: Router, in_the_clear: dict[str, Any], client: httpx.Client | None = None) -> None:
    for word, expected in in_the_clear.items():
        status, _, text = answer = answered(router, word, client)
        assert answer == expected
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
    assert text.count("data: ") > 250
    assert "Traceback" not in router.output()


@pytest.mark.parametrize("way", ["lent", "grpcio"])
def test_encrypted_workers_answer_with_the_same_bytes(
    in_the_clear: dict[str, Any], flags: tuple[str, ...], authority: Authority, server: Pair, way: str
) -> None:
    trusting = {"worker_ca_file": str(authority.file), **authority.issue("router@example.org").settings()}
    with (
        Worker(*flags, *server.flags(authority.file)) as worker,
        Router(worker.url, **trusting, **WAYS[way]) as router,
    ):
        assert worker.url.startswith("grpcs://")
        router.wait_serving()
        assert_the_same(router, in_the_clear)


def test_certificates_are_read_anew_on_a_reload(flags: tuple[str, ...], tmp_path: Path) -> None:
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(before.file.read_bytes())
    with (
        Worker(*flags, *before.issue("127.0.0.1").flags()) as worker,
        Router(worker.url, worker_ca_file=str(trusted), health_interval="0.2") as router,
    ):
        router.wait_serving()
        worker.stop()
        with Worker(*flags, *after.issue("127.0.0.1").flags(), port=worker.port):
            wait_until(lambda: router.status("/readiness") == 503, 20, "readiness 503")
            time.sleep(1)  # it is asked several times meanwhile
            assert router.status("/readiness") == 503
            trusted.write_bytes(before.file.read_bytes() + after.file.read_bytes())
            (old,) = router.processes()
            router.send(signal.SIGHUP)
            wait_until(lambda: old not in router.processes(), 30, "the old process's end")
            wait_until(lambda: router.status("/readiness") == 200, 30, "readiness 200")
            assert answered(router, "say-text")[0] == 200


def test_a_certificate_without_its_key_stops_the_start(server: Pair) -> None:
    router = Router("grpcs://127.0.0.1:1", worker_cert_file=str(server.certificate))
    router.wait_ready = lambda: None  # type: ignore[method-assign]
    with router:
        wait_until(lambda: not router.running(), 30, "an end")
        assert router.child is not None
        assert router.child.returncode != 0
        words = "wsgi-router: WORKER_KEY_FILE: must be set too, as WORKER_CERT_FILE is\n"
        assert router.output().count(words) == 1
        assert "Traceback" not in router.output()


class SecureRouter(Router):
    """gunicorn with TLS of its own; clients trust `authority`."""

    def __init__(self, worker: Worker, server: Pair, authority: Authority) -> None:
        flags = ("--certfile", str(server.certificate), "--keyfile", str(server.key))
        super().__init__(worker.url, flags=flags)
        self.client = httpx.Client(verify=ssl.create_default_context(cafile=str(authority.file)))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def status(self, path: str) -> int:
        try:
            return self.client.get(self.url + path, timeout=5).status_code
        except httpx.TransportError:
            return 0


def test_clients_are_served_over_gunicorns_own_tls(
    worker: Worker, in_the_clear: dict[str, Any], authority: Authority, server: Pair
) -> None:
    with SecureRouter(worker, server, authority) as router:
        router.wait_serving()
        assert_the_same(router, in_the_clear, router.client)
        router.client.close()
