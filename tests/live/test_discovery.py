"""Workers by a name's addresses and by Kubernetes' pods, beside one of the settings; two processes follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.live.conftest import MODEL
from tests.live.test_chat import ask
from tests.live.test_processes import ADMIN, URL
from tests.support.dns import DnsServer
from tests.support.kubernetes_api import NAMESPACE, KubernetesApi, pod
from tests.support.processes import Router, Worker, wait_until


@pytest.fixture
def dns() -> Iterator[DnsServer]:
    with DnsServer() as server:
        yield server


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    with KubernetesApi() as server:
        yield server


class Operator:
    """Asks on a new connection each time, so that the processes take turns."""

    def __init__(self, router: Router) -> None:
        headers = {"Authorization": f"Bearer {ADMIN}", "Connection": "close"}
        self.http = httpx.Client(base_url=router.url, headers=headers, timeout=30)

    def workers(self) -> dict[str, str]:
        """Ids by URL, in order."""
        return {one["url"]: one["id"] for one in self.http.get("/workers").json()["workers"]}

    def wait_for(self, *urls: str) -> None:
        """Until the two processes show this list, and no other."""
        wait_until(lambda: {tuple(self.workers()) for _ in range(8)} == {urls}, 30, f"{urls}")


def leader_of(router: Router, api: KubernetesApi) -> psutil.Process:
    """The process that watches pods."""
    found = [
        process
        for process in router.processes()
        if any(one.raddr and one.raddr.port == api.port for one in process.net_connections())
    ]
    assert len(found) == 1
    return found[0]


def test_workers_that_come_and_go_by_themselves(
    folder: Path,
    dns: DnsServer,
    api: KubernetesApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # gevent's second resolver may be given a server of ours.
    monkeypatch.setenv("GEVENT_RESOLVER", "ares")
    monkeypatch.setenv("GEVENTARES_SERVERS", "127.0.0.1")
    monkeypatch.setenv("GEVENTARES_UDP_PORT", str(dns.port))
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
    flags = ("--model-name", MODEL, "--vocab-size", "258", "--answer-tokens", "5")
    with (
        Worker(*flags) as static,
        Worker(*flags, host="127.0.0.2") as first,
        Worker(*flags, host="127.0.0.3", port=first.port) as second,
        Worker(*flags, host="127.0.0.4") as in_pod,
    ):
        dns.addresses = ("127.0.0.2",)
        router = Router(
            static.url,
            tokenizer=folder,
            processes=2,
            admin_key=ADMIN,
            policy="round_robin",
            workers_dns=f"grpc://workers.test:{first.port}",
            discovery_interval="0.3",
            kubernetes_selector="app=sglang",
            kubernetes_namespace=NAMESPACE,
        )
        with router:
            operator = Operator(router)
            operator.wait_for(static.url, first.url)
            api.put(pod("a", "127.0.0.4", port=str(in_pod.port)))
            operator.wait_for(static.url, first.url, in_pod.url)
            dns.addresses = ("127.0.0.3", "127.0.0.2")
            workers = (static, first, second, in_pod)
            operator.wait_for(*(worker.url for worker in workers))
            wait_until(lambda: router.metric("wsgi_router_worker_up") == len(workers), 20, "all up")
            for _ in range(16):
                assert operator.http.post(URL, json=ask("hi")).status_code == 200
            assert all(worker.server_info()["generate_calls"] > 0 for worker in workers)

            dns.addresses = None
            api.delete("a")
            operator.wait_for(static.url, first.url, second.url)
            leader = leader_of(router, api)
            leader.kill()
            wait_until(lambda: len(router.processes()) == 2 and leader not in router.processes(), 30)
            dns.addresses = ("127.0.0.3",)
            api.put(pod("b", "127.0.0.4", port=str(in_pod.port)))
            operator.wait_for(static.url, second.url, in_pod.url)

            assert operator.http.delete(f"/workers/{operator.workers()[second.url]}").status_code == 200
            operator.wait_for(static.url, in_pod.url)
            dns.addresses = ("127.0.0.2", "127.0.0.3")  # it was removed, and is there still
            operator.wait_for(static.url, first.url, in_pod.url)
            assert "Traceback" not in router.output()
