"""Workers in Kubernetes: the official client against a server of ours that lists and watches pods."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes_api import NAMESPACE, TOKEN, KubernetesApi, pod
from tests.support.modes import MODES, run
from tests.support.processes import wait_until
from wsgi_router import cli
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.workers import pods
from wsgi_router.workers.origins import origins
from wsgi_router.workers.pods import Pods, worker_of
from wsgi_router.workers.roles import REGULAR, Part, Role

_EXEC = "client.authentication.k8s.io/v1"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with KubernetesApi() as server:
        # The client reads the variable as it is imported.
        from kubernetes.config import kube_config

        path = str(server.kubeconfig(tmp_path))
        monkeypatch.setenv("KUBECONFIG", path)
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", path)
        yield server


def sources(**settings: Any) -> list[Pods]:
    given = Settings(**{"kubernetes_namespace": NAMESPACE, **settings})
    return [Pods(origin, given) for origin in origins(given)]


class Following:
    """`turn` after `turn` in a thread."""

    def __init__(self, source: Pods | None = None) -> None:
        self.source = source or sources(kubernetes_selector="app=sglang")[0]
        self.told: list[dict[str, Part]] = []
        self.errors: list[Exception] = []
        self.turns = 0
        self._end = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._end:
            self.turns += 1
            try:
                self.source.turn(self._tell)
            except Exception as error:
                self.errors.append(error)
                threading.Event().wait(0.05)

    def _tell(self, workers: Mapping[str, Part]) -> bool:
        if not self.told or self.told[-1] != workers:
            self.told.append(dict(workers))
        return not self._end

    def wait(self, *urls: str) -> None:
        wait_until(lambda: self.told and [*self.told[-1]] == [*urls], 60, f"{urls}; told {self.told}")

    def end(self) -> None:
        self._end = True


@pytest.fixture
def following(api: KubernetesApi) -> Iterator[Following]:
    made = Following()
    yield made
    made.end()
    api.cut()


def test_ready_pods_are_workers(api: KubernetesApi, following: Following) -> None:
    following.wait()
    api.put(pod("a", "10.0.0.1"))
    following.wait("grpc://10.0.0.1:30000")
    api.put(pod("b", "10.0.0.2", ready=False, port="40000", scheme="grpcs"))
    api.put(pod("b", "10.0.0.2", port="40000", scheme="grpcs"))
    following.wait("grpc://10.0.0.1:30000", "grpcs://10.0.0.2:40000")
    other = pod("c", "10.0.0.3")
    other["metadata"]["labels"] = {"app": "other"}
    api.put(other)
    leaving = pod("a", "10.0.0.1")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.put(leaving)
    following.wait("grpcs://10.0.0.2:40000")
    api.delete("a")
    api.delete("b")
    following.wait()
    assert api.lists == 1
    assert not following.errors
    assert not any("10.0.0.3" in url for urls in following.told for url in urls)
    assert {part for told in following.told for part in told.values()} == {REGULAR}


HALVES = {
    "kubernetes_prefill_selector": "app=sglang,role=prefill",
    "kubernetes_decode_selector": "app=sglang,role=decode",
}


@pytest.fixture
def parts(api: KubernetesApi) -> Iterator[list[Following]]:
    """Of prefill, decode and regular pods; the last selector matches them all."""
    made = [Following(source) for source in sources(**HALVES, kubernetes_selector="app=sglang")]
    yield made
    for one in made:
        one.end()
    api.cut()


def test_pods_are_what_the_first_selector_says(api: KubernetesApi, parts: list[Following]) -> None:
    """None is a regular worker for a moment, whichever watch hears of it first."""
    api.put(pod("p", "10.0.0.1", role="prefill", bootstrap="9001"))
    api.put(pod("d", "10.0.0.2", role="decode"))
    prefill, decode, regular = parts
    prefill.wait("grpc://10.0.0.1:30000")
    decode.wait("grpc://10.0.0.2:30000")
    api.put(pod("r", "10.0.0.3"))
    regular.wait("grpc://10.0.0.3:30000")
    api.put(pod("q", "10.0.0.4", role="prefill", ready=False))
    api.put(pod("q", "10.0.0.4", role="prefill"))
    prefill.wait("grpc://10.0.0.1:30000", "grpc://10.0.0.4:30000")
    for name, address, role in (("p", "10.0.0.1", "prefill"), ("d", "10.0.0.2", "decode")):
        api.put(pod(name, address, role=role, ready=False))
        api.delete(name)
    api.delete("r")
    api.put(pod("q", "10.0.0.4"))  # its label is gone
    regular.wait("grpc://10.0.0.4:30000")
    prefill.wait()
    decode.wait()
    both = {
        "grpc://10.0.0.1:30000": Part(Role.PREFILL, 9001),
        "grpc://10.0.0.4:30000": Part(Role.PREFILL),
    }
    assert both in prefill.told
    assert {"grpc://10.0.0.2:30000": Part(Role.DECODE)} in decode.told
    third, fourth = {"grpc://10.0.0.3:30000": REGULAR}, {"grpc://10.0.0.4:30000": REGULAR}
    assert [told for told in regular.told if told] == [third, fourth]
    assert not any(one.errors for one in parts)


def test_a_pod_that_cannot_be_used_is_named_once(
    api: KubernetesApi, following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(pod("bad", "10.0.0.1", port="x"))
    api.put(pod("a", "10.0.0.2"))
    following.wait("grpc://10.0.0.2:30000")
    assert caplog.text.count("pod bad is passed over") == 1
    api.put(pod("bad", "10.0.0.1"))
    following.wait("grpc://10.0.0.1:30000", "grpc://10.0.0.2:30000")


def test_a_watch_goes_on_where_the_last_one_ended(api: KubernetesApi, following: Following) -> None:
    api.put(pod("a", "10.0.0.1"))
    following.wait("grpc://10.0.0.1:30000")
    api.bookmark()  # 102
    api.put(pod("b", "10.0.0.2"))
    following.wait("grpc://10.0.0.1:30000", "grpc://10.0.0.2:30000")
    api.cut()
    wait_until(lambda: api.watches[-1] == "103", 10, f"another watch: {api.watches}")
    api.delete("a")
    following.wait("grpc://10.0.0.2:30000")
    assert api.lists == 1


def test_what_is_too_old_to_be_watched_is_listed_anew(api: KubernetesApi, following: Following) -> None:
    api.put(pod("a", "10.0.0.1"))
    following.wait("grpc://10.0.0.1:30000")
    api._pods["b"] = pod("b", "10.0.0.2")  # an event that nobody will hear of
    api.forget()
    following.wait("grpc://10.0.0.1:30000", "grpc://10.0.0.2:30000")
    assert api.lists == 2
    assert not following.errors


def test_kubernetes_fails_and_comes_back(api: KubernetesApi, following: Following) -> None:
    api.put(pod("a", "10.0.0.1"))
    following.wait("grpc://10.0.0.1:30000")
    api.status = 503
    api.cut()
    wait_until(lambda: len(following.errors) > 1, 10)
    assert all(map(following.source.expects, following.errors))
    assert following.told[-1] == {"grpc://10.0.0.1:30000": REGULAR}
    api.put(pod("b", "10.0.0.2"))
    api.status = 200
    following.wait("grpc://10.0.0.1:30000", "grpc://10.0.0.2:30000")


def program_scenario(folder: str) -> None:
    with KubernetesApi() as api:
        status = json.dumps({"token": TOKEN})
        credential = f'{{"apiVersion": "{_EXEC}", "kind": "ExecCredential", "status": {status}}}'
        user = {"exec": {"apiVersion": _EXEC, "command": "echo", "args": [credential]}}
        os.environ["KUBECONFIG"] = str(api.kubeconfig(Path(folder), user))
        api.put(pod("a", "10.0.0.1"))
        following = Following()
        following.wait("grpc://10.0.0.1:30000")
        assert not following.errors
        following.end()
        api.cut()


@pytest.mark.parametrize("mode", MODES)
def test_a_program_gives_the_credentials(mode: str, tmp_path: Path) -> None:
    run(mode, program_scenario, str(tmp_path))


@pytest.mark.parametrize("name", ["SELECTOR", "PREFILL_SELECTOR", "DECODE_SELECTOR"])
def test_without_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One line, and no start."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"wsgi-router\[kubernetes\]"):
        sources(**{f"kubernetes_{name.lower()}": "a=b"})
    monkeypatch.setenv(f"WSGI_ROUTER_KUBERNETES_{name}", "a=b")
    assert cli.main(["check"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"KUBERNETES_{name} needs" in error
    pods.check(Settings())


@pytest.mark.parametrize(
    ("change", "url"),
    [
        ({}, "grpc://10.0.0.1:7"),
        (
            {"status": {"podIP": "fd00::1", "conditions": [{"type": "Ready", "status": "True"}]}},
            "grpc://[fd00::1]:7",
        ),
        ({"status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "Unknown"}]}}, None),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, None),
        ({"status": {"podIP": "10.0.0.1"}}, None),
        ({"status": {}}, None),
        ({"metadata": {"name": "a"}}, "grpc://10.0.0.1:7"),
    ],
)
def test_the_worker_of_a_pod(change: dict[str, Any], url: str | None) -> None:
    assert worker_of({**pod("a", "10.0.0.1"), **change}, 7, REGULAR) == (url and (url, REGULAR))


@pytest.mark.parametrize(
    ("role", "told", "port"),
    [(Role.PREFILL, "9001", 9001), (Role.PREFILL, "", 8998), (Role.DECODE, "9001", 8998)],
)
def test_where_a_prefill_pod_is_met(role: Role, told: str, port: int) -> None:
    found = worker_of(pod("a", "10.0.0.1", bootstrap=told), 7, Part(role))
    assert found == ("grpc://10.0.0.1:7", Part(role, port))


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"port": "x"}, "is no HOST:PORT"),
        ({"scheme": "http"}, "must begin with grpc://"),
        ({"bootstrap": "x"}, "sglang.ai/bootstrap-port must be a whole number"),
        ({"bootstrap": "65536"}, "sglang.ai/bootstrap-port must be between 1 and 65535"),
    ],
)
def test_a_pod_says_what_cannot_be(annotations: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        worker_of(pod("a", "10.0.0.1", **annotations), 7, Part(Role.PREFILL))
