"""Prefill and decode workers by names and by pods: they meet, come and go, and two processes follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import MODEL
from tests.live.test_chat import ask, stream
from tests.live.test_discovery import Operator
from tests.live.test_processes import ADMIN, URL
from tests.support.dns import DnsServer
from tests.support.kubernetes_api import NAMESPACE, KubernetesApi, pod
from tests.support.processes import Router, Worker, free_port, wait_until

TOKENS = 5


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[DnsServer]:
    with DnsServer() as server:
        server.addresses = None  # that there are none this resolver would keep in mind
        monkeypatch.setenv("GEVENT_RESOLVER", "ares")
        monkeypatch.setenv("GEVENTARES_SERVERS", "127.0.0.1")
        monkeypatch.setenv("GEVENTARES_UDP_PORT", str(server.port))
        yield server


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with KubernetesApi() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


class Watching(Operator):
    def roles(self) -> dict[str, tuple[str, int | None]]:
        """What each worker is, by its URL, and where it is met."""
        listed = self.http.get("/workers").json()["workers"]
        return {one["url"]: (one["role"], one["bootstrap_port"]) for one in listed}

    def wait_for_roles(self, **roles: tuple[str, int | None]) -> None:
        """Until both processes show these workers, and no others, and all are up."""

        def shown() -> bool:
            listed = self.http.get("/workers").json()["workers"]
            return self.roles() == roles and all(one["is_healthy"] for one in listed)

        wait_until(lambda: all(shown() for _ in range(6)), 30, f"{roles}; last {self.roles()}")

    def answers(self, count: int = 6) -> None:
        for _ in range(count):
            answer = self.http.post(URL, json=ask("hi", max_tokens=TOKENS))
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == TOKENS


def met(worker: Worker) -> list[dict[str, Any]]:
    """Where a worker's requests met those of its other half."""
    return [one["request"]["disaggregated_params"] for one in worker.server_info()["last_requests"]]


def test_halves_that_come_and_go_by_themselves(folder: Path, dns: DnsServer, api: KubernetesApi) -> None:
    """Prefill by a name and a pod, decode by a pod; the selector of all pods is left in place."""
    flags = ("--model-name", MODEL, "--vocab-size", "258", "--answer-tokens", str(TOKENS), "--role")
    first_port, second_port = str(free_port()), str(free_port())
    prefill = (*flags, "prefill", "--bootstrap-port")
    with (
        Worker(*prefill, first_port, host="127.0.0.2") as named,
        Worker(*prefill, second_port, host="127.0.0.3") as in_pod,
        Worker(*flags, "decode", host="127.0.0.4") as decode,
        Worker(*flags, "decode", host="127.0.0.5", port=decode.port) as later,
        Router(
            tokenizer=folder,
            processes=2,
            admin_key=ADMIN,
            prefill_policy="round_robin",
            prefill_workers_dns=f"grpc://prefill.test:{named.port} {first_port}",
            decode_workers_dns=f"grpc://decode.test:{decode.port}",
            discovery_interval="0.3",
            kubernetes_selector="app=sglang",
            kubernetes_prefill_selector="app=sglang,role=prefill",
            kubernetes_decode_selector="app=sglang,role=decode",
            kubernetes_namespace=NAMESPACE,
        ) as router,
    ):
        operator = Watching(router)
        first, second = ("prefill", int(first_port)), ("prefill", int(second_port))
        dns.others = {"prefill.test": ("127.0.0.2",)}
        api.put(pod("d", "127.0.0.4", role="decode", port=str(decode.port)))
        operator.wait_for_roles(**{named.url: first, decode.url: ("decode", None)})
        operator.answers()
        assert len(stream(router, ask("hi", max_tokens=TOKENS))) > 1
        api.put(pod("p", "127.0.0.3", role="prefill", bootstrap=second_port, port=str(in_pod.port)))
        operator.wait_for_roles(**{named.url: first, in_pod.url: second, decode.url: ("decode", None)})
        operator.answers()
        for worker, host, port in ((named, "127.0.0.2", first_port), (in_pod, "127.0.0.3", second_port)):
            assert {(one["bootstrap_host"], int(one["bootstrap_port"])) for one in met(worker)} == {
                (host, int(port))
            }

        dns.others |= {"decode.test": ("127.0.0.5",)}
        api.put(pod("d", "127.0.0.4", role="decode", port=str(decode.port), ready=False))
        api.delete("p")
        operator.wait_for_roles(**{named.url: first, later.url: ("decode", None)})
        before = len(met(decode)), len(met(in_pod))
        operator.answers()
        assert (len(met(decode)), len(met(in_pod))) == before
        assert len(met(later)) == 6
        # None of them was asked for a whole answer, as a regular worker is.
        for worker in (named, in_pod, decode, later):
            assert all(met(worker))
            assert worker.server_info()["failed"] == 0
        assert "Traceback" not in router.output()
