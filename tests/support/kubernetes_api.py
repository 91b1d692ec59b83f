"""A server that speaks the two calls of Kubernetes' API that the router makes: list pods, and watch them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

NAMESPACE = "models"
TOKEN = "a-service-account's"
_LIST = f"/api/v1/namespaces/{NAMESPACE}/pods"


def pod(
    name: str, address: str, ready: bool = True, role: str = "", bootstrap: str = "", **annotations: str
) -> dict[str, Any]:
    """As the API has it, with the labels app=sglang and `role`, if it has one.

    `annotations` are those with the prefix wsgi-router/; `bootstrap` is SGLang's.
    """
    noted = {f"wsgi-router/{key}": value for key, value in annotations.items()}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": "sglang", **({"role": role} if role else {})},
            "annotations": noted | ({"sglang.ai/bootstrap-port": bootstrap} if bootstrap else {}),
        },
        "spec": {"containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class KubernetesApi:
    """`put` and `delete` change pods. `lists` and `watches` tell of calls; another `status` fails them."""

    def __init__(self) -> None:
        self.status = 200
        self.lists = 0
        self.watches: list[str] = []
        self._pods: dict[str, dict[str, Any]] = {}
        self._events: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
        self._version = 100
        self._oldest = 100
        self._cuts = 0
        self._changed = threading.Condition()
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port

    def put(self, pod: dict[str, Any]) -> None:
        with self._changed:
            before = self._pods.get(pod["metadata"]["name"])
            self._record("MODIFIED" if before else "ADDED", pod, before)
            self._pods[pod["metadata"]["name"]] = pod

    def delete(self, name: str) -> None:
        with self._changed:
            self._record("DELETED", self._pods.pop(name))

    def bookmark(self) -> None:
        """Tells watchers how far they have come."""
        with self._changed:
            self._record("BOOKMARK", {"metadata": {}})

    def cut(self) -> None:
        """Ends the watches that are open."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def forget(self) -> None:
        """What has happened so far cannot be watched any more; ends the watches."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
        self.cut()

    def _record(self, kind: str, thing: dict[str, Any], before: dict[str, Any] | None = None) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        event = {"type": kind, "object": json.loads(json.dumps(thing))}
        self._events.append((self._version, event, before or thing))
        self._changed.notify_all()

    def kubeconfig(self, folder: Path, user: dict[str, Any] | None = None) -> Path:
        """A file for KUBECONFIG."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": user or {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self.cut()
        self._server.server_close()

    def listed(self, selector: str) -> dict[str, Any]:
        with self._changed:
            self.lists += 1
            items = [one for one in self._pods.values() if _matches(one, selector)]
            metadata = {"resourceVersion": str(self._version)}
            return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}

    def watch(self, selector: str, version: str, seconds: float, write: Any) -> None:
        with self._changed:
            self.watches.append(version)
            cuts, seen = self._cuts, int(version)
            if seen < self._oldest:
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                write({"type": "ERROR", "object": status})
                return
            while self._cuts == cuts:
                for number, event, before in self._events:
                    if number > seen and (seen_event := _seen(event, before, selector)):
                        write(seen_event)
                    seen = max(seen, number)
                if not self._changed.wait(seconds):
                    return


def _seen(event: dict[str, Any], before: dict[str, Any], selector: str) -> dict[str, Any] | None:
    """An event as those see it who watch a selector: a pod whose labels change may come or go."""
    if event["type"] == "BOOKMARK":
        return event
    was, is_now = _matches(before, selector), _matches(event["object"], selector)
    if event["type"] == "MODIFIED" and was != is_now:
        return {**event, "type": "ADDED" if is_now else "DELETED"}
    return event if is_now else None


def _matches(pod: dict[str, Any], selector: str) -> bool:
    labels = pod["metadata"].get("labels", {})
    return all(
        labels.get(key) == value for key, _, value in (one.partition("=") for one in selector.split(","))
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: KubernetesApi

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._whole(401, {"kind": "Status", "code": 401})
        elif url.path != _LIST or self.api.status != 200:
            status = self.api.status if self.api.status != 200 else 404
            self._whole(status, {"kind": "Status", "code": status})
        elif query.get("watch", "").lower() != "true":
            self._whole(200, self.api.listed(query["labelSelector"]))
        else:
            self._begin(200, ("Transfer-Encoding", "chunked"))
            seconds = float(query["timeoutSeconds"])
            self.api.watch(query["labelSelector"], query["resourceVersion"], seconds, self._event)
            self.wfile.write(b"0\r\n\r\n")

    def _begin(self, status: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), *headers):
            self.send_header(name, value)
        self.end_headers()

    def _whole(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self._begin(status, ("Content-Length", str(len(data))))
        self.wfile.write(data)

    def _event(self, event: dict[str, Any]) -> None:
        """In two pieces, as a network may have it."""
        data = json.dumps(event).encode() + b"\n"
        for piece in (data[:40], data[40:]):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()

    def log_message(self, *_: Any) -> None: ...
