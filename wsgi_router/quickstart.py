"""``python -m wsgi_router.quickstart``: a small real model and the router in front of it, to try things out.

Starts the local worker and gunicorn as child processes, waits until the router is ready, prints a line to
paste, and ends both when it is interrupted or when one of them ends.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from wsgi_router.cli import gunicorn_command

ROOT = Path(__file__).parent.parent
MODEL_NAME = "smollm2-135m-instruct"
READY_SECONDS = 120.0
STOP_SECONDS = 10.0
# A closed terminal hangs up; the children, in sessions of their own, would not notice.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asks for the end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until interrupted; returns the exit code."""
    options = _options(arguments)
    if _taken(options.host, options.port):
        print(f"port {options.port} is in use; try: make run PORT={options.port + 1}", file=sys.stderr)
        return 1
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    children: list[subprocess.Popen[bytes]] = []
    try:
        return _serve(options, children)
    except Interrupted:
        print("\n== stopping", flush=True)
        return 0
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _stop(children)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m wsgi_router.quickstart", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="where the router listens")
    parser.add_argument("--port", type=_port, default=8080)
    parser.add_argument("--model-dir", type=Path, default=ROOT / ".cache" / "smollm2")
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"{number} is no port")
    return number


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


def _taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def _serve(options: argparse.Namespace, children: list[subprocess.Popen[bytes]]) -> int:
    worker_port = _free_port()
    print("== starting the model", flush=True)
    worker = [sys.executable, "-m", "wsgi_router.local_worker", "--bind", f"127.0.0.1:{worker_port}"]
    children.append(_start([*worker, "--model", str(options.model_dir), "--served-model-name", MODEL_NAME]))
    print("== starting the router", flush=True)
    environment = {
        "WSGI_ROUTER_WORKERS": f"grpc://127.0.0.1:{worker_port}",
        "WSGI_ROUTER_TOKENIZER_PATH": str(options.model_dir / "tokenizer"),
        "WSGI_ROUTER_BIND": f"{options.host}:{options.port}",
    }
    gunicorn = [*gunicorn_command(), "-c", str(ROOT / "gunicorn.conf.py")]
    children.append(_start(gunicorn, environment))
    base = f"http://{options.host}:{options.port}"
    if not _wait_until_ready(f"{base}/readiness", children):
        print("the router did not become ready; see above for the reason", file=sys.stderr)
        return 1
    print(_invitation(base), flush=True)
    while all(child.poll() is None for child in children):
        time.sleep(0.5)
    print("a process ended by itself; see above for the reason", file=sys.stderr)
    return 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(command: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    # A session of their own: Ctrl-C reaches this process alone, which then ends them in order.
    return subprocess.Popen(command, env={**os.environ, **(environment or {})}, start_new_session=True)


def _wait_until_ready(url: str, children: list[subprocess.Popen[bytes]]) -> bool:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and all(child.poll() is None for child in children):
        try:
            with urllib.request.urlopen(url, timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def _invitation(base: str) -> str:
    message = {"role": "user", "content": "Say hello in five words."}
    body = json.dumps({"model": MODEL_NAME, "stream": True, "temperature": 0, "messages": [message]})
    return f"""
== ready. Paste this into another terminal (Ctrl-C here ends it all):

curl -N {base}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'
"""


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    """Ends the children, the router first; whoever does not end in time is killed, its workers too."""
    for child in reversed(children):
        if child.poll() is not None:
            continue
        child.send_signal(signal.SIGINT)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


if __name__ == "__main__":
    sys.exit(main())
