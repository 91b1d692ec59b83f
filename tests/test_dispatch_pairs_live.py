"""Pairs of real workers over real gRPC, on greenlets and on threads: nothing is left, whatever ends it."""

from __future__ import annotations

import gc
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.flow import Client, Flow, collect, ids_of, read_at_random
from tests.support.modes import TRANSPORT_MODES, run
from tests.support.processes import Worker, free_port, wait_until
from tests.test_dispatch_live import ANSWERS, BURST, FIVE, HANG, SLOW
from wsgi_router import runtime
from wsgi_router.errors import ClientGone, RouterError, UpstreamError

REFUSED, HUNG = [1100, 77], [1101, 77]
AT_PREFILL: list[tuple[list[int], dict[str, Any]]] = [
    (REFUSED, {"error": {"status": "INVALID_ARGUMENT", "message": "not by me"}}),
    (HUNG, {"hang": {"after_tokens": 0}}),
]
KINDS = [FIVE, FIVE, SLOW, BURST, HANG, REFUSED, HUNG]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, int]]:
    """Ports: of a prefill worker, where it is met, and of a decode worker."""
    folder: Path = tmp_path_factory.mktemp("pairs")
    for name, answers in (("prefill", AT_PREFILL + ANSWERS), ("decode", ANSWERS)):
        rules = [{"match": {"input_ids": ids}, "answer": answer} for ids, answer in answers]
        (folder / f"{name}.json").write_text(json.dumps(rules))
    met = free_port()
    with (
        Worker(
            "--role", "prefill", "--bootstrap-port", str(met), "--script", str(folder / "prefill.json")
        ) as one,
        Worker("--role", "decode", "--script", str(folder / "decode.json")) as other,
    ):
        yield one.port, met, other.port


def ends_scenario(prefill: int, met: int, decode: int, count: int) -> None:
    """Requests that end in every way, at random moments, many at once; and every room is used once."""
    flow = Flow(
        up=2,
        prefill_workers=(f"grpc://127.0.0.1:{prefill} {met}",),
        decode_workers=(f"grpc://127.0.0.1:{decode}",),
        queue_size=3,
        close_timeout=0.5,
    )
    assert ids_of(collect(flow.open(FIVE))[0]) == [11, 12, 13, 14, 15]
    chance = random.Random(7)
    running: list[int] = []
    strange: list[BaseException] = []

    def request(kind: list[int], choices: int, pause: float, close: bool) -> None:
        client = Client()
        try:
            if kind in (HUNG, HANG, SLOW) or chance.random() < 0.3:
                threading.Timer(pause, client.leave).start()
            generation = flow.open(kind, choices=choices, client=client.watch)
            read_at_random(generation, chance, choices, pause)
            if close:
                generation.close()
        except (UpstreamError, ClientGone) as error:
            if isinstance(error, UpstreamError) and error.message != "not by me":
                strange.append(error)
        except RouterError as error:
            strange.append(error)
        finally:
            client.ours.close()
            client.theirs.close()
            running.pop()

    for _ in range(count):
        wait_until(lambda: len(running) < 30, 90)
        running.append(1)
        arguments = (
            chance.choice(KINDS),
            chance.choice([1, 1, 3]),
            chance.random() * 0.3,
            chance.random() < 0.8,
        )
        threading.Thread(target=request, args=arguments).start()
    wait_until(lambda: not running, 90)
    gc.collect()
    wait_until(lambda: flow.in_flight() == 0, 10, repr(flow.pool))
    flow.assert_idle(15)  # less than a half waits for the other
    assert "waiters=0" in repr(runtime.drain)
    assert not strange, strange
    for place in range(2):
        info = flow.info(place)
        assert not list(info["live_request_ids"])


@pytest.mark.parametrize("mode", TRANSPORT_MODES)
def test_requests_that_end_in_every_way(pair: tuple[int, int, int], mode: str) -> None:
    run(mode, ends_scenario, *pair, 60, seconds=240)
