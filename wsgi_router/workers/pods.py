"""Workers in Kubernetes: the ready pods that a label selector matches. Needs the extra `kubernetes`.

The pods are listed once and then watched; each watch begins where the last one ended. When that is too long
ago for Kubernetes (410 Gone), they are listed anew.

A pod that several selectors match belongs to the first of them, by its labels: what the other watches have
heard of it so far tells nothing for sure.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from wsgi_router import label_selectors, runtime
from wsgi_router.setting_casts import integer, worker_url
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.workers.origins import Origin
from wsgi_router.workers.roles import Part, Role

_LOG = logging.getLogger(__name__)

PORT: Final = "wsgi-router/port"
SCHEME: Final = "wsgi-router/scheme"
"""Annotations of a pod: where its worker listens, and whether by grpc (the default) or grpcs."""
BOOTSTRAP_PORT: Final = "sglang.ai/bootstrap-port"
"""Where its prefill worker is met; SGLang's own router goes by it, too."""
_WATCH_SECONDS: Final = 60
_CONNECT_SECONDS: Final = 5
_GRACE_SECONDS: Final = 10
_GONE: Final = 410
_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def check(settings: Settings) -> None:
    """Raises SettingsError if pods are wanted, and Kubernetes' client is not there."""
    selectors = settings.kubernetes_selectors()
    if selectors and importlib.util.find_spec("kubernetes") is None:
        name = next(iter(selectors))
        raise SettingsError(f"{name} needs the package kubernetes: wsgi-router[kubernetes]")


class GoneError(Exception):
    """Kubernetes has forgotten what has happened since then."""


class WatchError(Exception):
    """Kubernetes has ended a watch with an error."""


def worker_of(pod: Mapping[str, Any], port: int, part: Part) -> tuple[str, Part] | None:
    """The worker in a pod, as Kubernetes' API describes it; None if it is not ready.

    `port` and `part`: what holds where the pod says nothing else. Raises ValueError for what it says.
    """
    status, metadata = pod.get("status") or {}, pod["metadata"]
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    address = status.get("podIP")
    if metadata.get("deletionTimestamp") or conditions.get("Ready") != "True" or not address:
        return None
    told = metadata.get("annotations") or {}
    host = f"[{address}]" if ":" in address else address
    url = worker_url(f"{told.get(SCHEME, 'grpc')}://{host}:{told.get(PORT, port)}")
    if part.role is Role.PREFILL and BOOTSTRAP_PORT in told:
        part = part._replace(bootstrap_port=_bootstrap_port(told[BOOTSTRAP_PORT]))
    return url, part


def _bootstrap_port(value: object) -> int:
    try:
        return integer(1, 65535)(value)
    except ValueError as error:
        raise ValueError(f"{BOOTSTRAP_PORT} {error}") from None


class Pods:
    """See `discovery.Source`. It goes by KUBECONFIG, or else, in a pod, by that one's service account.

    Raises SettingsError, as `check` does.
    """

    def __init__(self, origin: Origin, settings: Settings) -> None:
        check(settings)
        self.name = origin.name
        self.pause = settings.discovery_interval
        self._part = origin.part
        self._selector = origin.selector
        self._first = tuple(map(label_selectors.parse, origin.first))
        self._faults: dict[str, str] = {}  # of pods that are passed over
        self._namespace = settings.kubernetes_namespace or _own_namespace()
        self._port = settings.kubernetes_port
        self._api: Any = None

    def turn(self, tell: Callable[[Mapping[str, Part]], bool]) -> None:
        if self._api is None:
            # It takes a second, and 50 MiB: of the leading process alone.
            kubernetes = runtime.call_in_pool(importlib.import_module, "kubernetes")
            self._api = _connect(kubernetes)
        try:
            pods, version = self._list()
            while tell(self._workers(pods)):
                version = self._watch(pods, version, tell)
        except GoneError:
            _LOG.debug("%s: listed anew", self.name)
        except Exception:
            self._api = None  # the credentials may have changed
            raise

    def expects(self, error: Exception) -> bool:
        package = type(error).__module__.partition(".")[0]
        return package in ("kubernetes", "urllib3") or isinstance(error, (OSError, WatchError))

    def _list(self) -> tuple[dict[str, Any], str]:
        answer = self._call(_request_timeout=(_CONNECT_SECONDS, _GRACE_SECONDS))
        listed = json.loads(answer.data)
        return {_key(pod): pod for pod in listed["items"]}, listed["metadata"]["resourceVersion"]

    def _watch(self, pods: dict[str, Any], version: str, tell: Callable[[Mapping[str, Part]], bool]) -> str:
        """Keeps `pods` up to date until the watch ends; returns where the next one begins. GoneError."""
        answer = self._call(
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_SECONDS,
            _request_timeout=(_CONNECT_SECONDS, _WATCH_SECONDS + _GRACE_SECONDS),
        )
        try:
            for event in _events(answer.stream(decode_content=False)):
                version = _take(event, pods) or version
                if not tell(self._workers(pods)):
                    break
            return version
        finally:
            answer.close()
            answer.release_conn()

    def _call(self, **options: Any) -> Any:
        return self._api.list_namespaced_pod(
            self._namespace, label_selector=self._selector, _preload_content=False, **options
        )

    def _workers(self, pods: Mapping[str, Any]) -> dict[str, Part]:
        """By their URLs, sorted."""
        found: dict[str, Part] = {}
        faults: dict[str, str] = {}
        for key, pod in pods.items():
            try:
                worker = None if self._is_another(pod) else worker_of(pod, self._port, self._part)
                if worker is not None:
                    found.setdefault(*worker)
            except ValueError as error:
                faults[key] = str(error)
                if self._faults.get(key) != faults[key]:  # it is looked at again and again
                    _LOG.error("pod %s is passed over: %s", key, error)
        self._faults = faults
        return dict(sorted(found.items()))

    def _is_another(self, pod: Mapping[str, Any]) -> bool:
        labels = pod["metadata"].get("labels") or {}
        return any(label_selectors.matches(selector, labels) for selector in self._first)


def _key(pod: Mapping[str, Any]) -> str:
    key: str = pod["metadata"]["name"]
    return key


def _take(event: Mapping[str, Any], pods: dict[str, Any]) -> str | None:
    """Takes an event in; its version. Raises GoneError, WatchError."""
    kind, thing = event["type"], event["object"]
    if kind == "ERROR":
        if thing.get("code") == _GONE:
            raise GoneError
        raise WatchError(f"{thing.get('reason')}: {thing.get('message')}")
    if kind == "DELETED":
        pods.pop(_key(thing), None)
    elif kind != "BOOKMARK":
        pods[_key(thing)] = thing
    version: str | None = thing["metadata"].get("resourceVersion")
    return version


def _events(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """JSON objects, one a line, that come in pieces."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text("utf-8").strip() or "default"
    except OSError:
        return "default"


def _connect(kubernetes: Any) -> Any:
    """Not in the pool: KUBECONFIG may name a program to run, which gevent does in its main thread alone."""
    configuration = kubernetes.client.Configuration()
    within = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
    load = kubernetes.config.load_incluster_config if within else kubernetes.config.load_kube_config
    load(client_configuration=configuration)
    return kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))
