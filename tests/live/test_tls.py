"""TLS through the whole router: to its workers, and to its clients by gunicorn's own."""

from __future__ import annotations

import signal
import ssl
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


@pytest.mark.parametrize("way", ["lent", "grpcio"])
def test_encrypted_workers_answer_with_the_same_bytes(
    worker: Worker, flags: tuple[str, ...], authority: Authority, server: Pair, way: str
) -> None:
    client = authority.issue("router@example.org").settings()
    with (
        Worker(*flags, *server.flags(authority.file)) as encrypted,
        Router(worker.url, **WAYS[way]) as open_one,
        Router(encrypted.url, worker_ca_file=str(authority.file), **client, **WAYS[way]) as router,
    ):
        assert encrypted.url.startswith("grpcs://")
        router.wait_serving()
        open_one.wait_serving()
        for word in ("say-text", "speak-fast"):
            answer = answered(router, word)
            assert answer == answered(open_one, word)
            assert answer[0] == 200
            assert answer[2].endswith("data: [DONE]\n\n")
        assert answer[2].count("data: ") > 250
        assert "Traceback" not in router.output()


def test_certificates_are_read_anew_on_a_reload(flags: tuple[str, ...], tmp_path: Path) -> None:
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(before.file.read_bytes())
    router = Router(worker_ca_file=str(trusted), health_interval="0.2")
    with Worker(*flags, *before.issue("127.0.0.1").flags()) as worker:
        router.environment["WSGI_ROUTER_WORKERS"] = worker.url
        router.start()
        try:
            router.wait_serving()
        except BaseException:
            router.stop()
            raise
    with router_running(router), Worker(*flags, *after.issue("127.0.0.1").flags(), port=worker.port):
        words = f"{worker.url} is down: UNAVAILABLE: connect to 127.0.0.1:{worker.port} failed: "
        wait_until(lambda: words in router.output(), 20, "a worker that is down")
        assert router.status("/readiness") == 503
        trusted.write_bytes(before.file.read_bytes() + after.file.read_bytes())
        router.send(signal.SIGHUP)
        wait_until(lambda: router.status("/readiness") == 200, 30, "readiness 200")
        assert answered(router, "say-text")[0] == 200


def router_running(router: Router) -> Any:
    """Stops a router that was started."""

    class Running:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: Any) -> None:
            router.__exit__(*error)

    return Running()


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
    worker: Worker, authority: Authority, server: Pair
) -> None:
    with SecureRouter(worker, server, authority) as router, Router(worker.url) as open_one:
        router.wait_serving()
        open_one.wait_serving()
        for word in ("say-text", "speak-fast"):
            answer = answered(router, word, router.client)
            assert answer == answered(open_one, word)
            assert answer[2].endswith("data: [DONE]\n\n")
        assert "Traceback" not in router.output()
        router.client.close()
