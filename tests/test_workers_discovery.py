"""What discovers workers: names with many addresses, and what becomes of the list of workers."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until
from tests.support.transport import FakeTransport
from wsgi_router.settings import Settings
from wsgi_router.workers import board
from wsgi_router.workers.discovery import Discovery, DnsName
from wsgi_router.workers.origins import Origin
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.roles import REGULAR, Part, Role

NAME = "grpc://workers.test:30000"


class Names:
    """Takes the place of the system's resolver."""

    def __init__(self) -> None:
        self.addresses: list[str] | OSError = []
        self.others: dict[str, list[str]] = {}
        """The addresses of other names."""
        self.asked = 0

    def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        assert host == "workers.test" or host in self.others
        self.asked += 1
        addresses = self.others.get(host, self.addresses)
        if isinstance(addresses, OSError):
            raise addresses
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (address, port, *((0, 0) if ":" in address else ())),
            )
            for address in addresses
        ]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    return made


@pytest.fixture
def make() -> Iterator[Callable[..., tuple[Discovery, WorkerPool]]]:
    made: list[tuple[Discovery, WorkerPool]] = []

    def new(**settings: Any) -> tuple[Discovery, WorkerPool]:
        given = Settings(**{"workers_dns": (NAME,), "discovery_interval": 0.1, **settings})
        pool = WorkerPool(given, FakeTransport())
        made.append((Discovery(given, pool), pool))
        return made[-1]

    yield new
    for discovery, pool in made:
        discovery.close()
        pool.close()


def urls(pool: WorkerPool) -> list[str]:
    return [worker.url for worker in pool.workers]


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (["10.0.0.2", "10.0.0.1", "10.0.0.2"], ["grpc://10.0.0.1:30000", "grpc://10.0.0.2:30000"]),
        (["fd00::1", "10.0.0.1"], ["grpc://10.0.0.1:30000"]),
        (["fd00::2", "fd00::1"], ["grpc://[fd00::1]:30000", "grpc://[fd00::2]:30000"]),
    ],
)
def test_addresses_of_a_name(names: Names, addresses: list[str], found: list[str]) -> None:
    names.addresses = addresses
    told: list[Any] = []
    part = Part(Role.PREFILL, 9001)
    source = DnsName(Origin("any", part, NAME), 1)
    source.turn(lambda given: not told.append(given))  # type: ignore[func-returns-value]
    assert [list(one.items()) for one in told] == [[(url, part) for url in found]]


def test_workers_come_and_go_with_the_addresses(
    names: Names, make: Callable[..., tuple[Discovery, WorkerPool]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    names.addresses = ["10.0.0.1", "10.0.0.2"]
    discovery, pool = make(workers=("grpc://static:1",))
    discovery.start()
    discovery.wait()
    assert urls(pool) == ["grpc://static:1", "grpc://10.0.0.1:30000", "grpc://10.0.0.2:30000"]
    leaving = pool.workers[1]
    lease = leaving.lease()
    names.addresses = ["10.0.0.2", "10.0.0.3"]
    wait_until(lambda: urls(pool)[1:] == ["grpc://10.0.0.2:30000", "grpc://10.0.0.3:30000"])
    assert leaving.draining
    lease.release()

    names.addresses = socket.gaierror(-3, "Temporary failure in name resolution")
    asked = names.asked
    wait_until(lambda: names.asked > asked + 3)
    assert urls(pool)[1:] == ["grpc://10.0.0.2:30000", "grpc://10.0.0.3:30000"]
    assert caplog.text.count("Temporary failure") == 1
    assert "Traceback" not in caplog.text
    names.addresses = ["10.0.0.3"]
    wait_until(lambda: urls(pool)[1:] == ["grpc://10.0.0.3:30000"])
    wait_until(lambda: "can be asked again" in caplog.text)


def test_names_of_halves(names: Names, make: Callable[..., tuple[Discovery, WorkerPool]]) -> None:
    names.addresses = ["10.0.0.1", "10.0.0.3"]
    names.others = {"p.test": ["10.0.0.1", "10.0.0.2"], "d.test": ["10.0.0.2", "10.0.0.4"]}
    discovery, pool = make(
        workers=("grpc://10.0.0.4:30000",),
        prefill_workers_dns=("grpc://p.test:30000 9001",),
        decode_workers_dns=("grpc://d.test:30000",),
    )
    discovery.start()
    discovery.wait()
    parts = {worker.url: worker.part for worker in pool.workers}
    assert parts == {
        "grpc://10.0.0.4:30000": REGULAR,  # the settings' own word comes before what is discovered
        "grpc://10.0.0.1:30000": Part(Role.PREFILL, 9001),
        "grpc://10.0.0.2:30000": Part(Role.PREFILL, 9001),
        "grpc://10.0.0.3:30000": REGULAR,
    }
    names.others["p.test"] = []
    wait_until(
        lambda: [worker.part.role for worker in pool.workers] == ["regular", "decode", *["regular"] * 2]
    )
    assert urls(pool)[1] == "grpc://10.0.0.2:30000"


def test_one_process_looks_and_another_takes_over(
    names: Names,
    make: Callable[..., tuple[Discovery, WorkerPool]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    leads = {"first": True, "second": False}

    def boarded(who: str) -> board.Board:
        made = board.Board(tmp_path)
        made.use_row(0)
        monkeypatch.setattr(made, "leads", lambda: leads[who])
        monkeypatch.setattr(board.shared, "made", made)
        return made

    names.addresses = ["10.0.0.1"]
    boarded("first")
    first, pool = make()
    first.start()
    first.wait()
    assert urls(pool) == ["grpc://10.0.0.1:30000"]
    boarded("second")
    second, other = make()
    second.start()
    second.wait()
    assert urls(other) == ["grpc://10.0.0.1:30000"]
    leads["first"] = False
    names.addresses = ["10.0.0.2"]
    asked = names.asked
    leads["second"] = True
    wait_until(lambda: urls(other) == ["grpc://10.0.0.2:30000"], 10)
    assert names.asked > asked
    assert repr(second) == f"<Discovery of ['{NAME}'] leads=True>"


def test_a_new_process_does_not_wait_for_ever(
    names: Names, make: Callable[..., tuple[Discovery, WorkerPool]]
) -> None:
    names.addresses = socket.gaierror(-2, "Name or service not known")
    discovery, pool = make()
    discovery.start()
    discovery.wait(0.2)
    assert urls(pool) == []
