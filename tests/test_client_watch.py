"""The client's leaving, noticed by greenlets and by threads."""

from __future__ import annotations

import gc
import time

import pytest

from tests.support.flow import Client, tcp_pair
from tests.support.modes import MODES, run
from tests.support.processes import wait_until
from wsgi_router.client_watch import ClientWatch, cut
from wsgi_router.runtime import wakeup

both = pytest.mark.parametrize("mode", MODES)


def client_scenario(mode: str) -> None:
    client = Client()
    flag = wakeup()
    client.watch.subscribe(flag)
    assert not client.watch.check()
    client.leave()
    if mode == "gevent":
        assert flag.wait(5)
        assert client.watch.poll_seconds is None
    else:
        assert client.watch.poll_seconds is not None

        def polled() -> bool:
            client.watch.poll(time.monotonic())
            return client.watch.gone

        wait_until(polled)
        assert flag.wait(0)
    assert client.watch.gone
    client.watch.close()
    client.watch.close()
    assert client.ours.fileno() >= 0  # the server's own socket is left alone
    assert client.ours.recv(1) == b""


def pipelined_scenario(mode: str) -> None:
    """Bytes of a next request are no EOF; the EOF behind them is one."""
    client = Client()
    flag = wakeup()
    client.watch.subscribe(flag)
    client.theirs.sendall(b"GET / HTTP/1.1\r\n")
    if mode == "gevent":
        assert flag.wait(5)  # from now on it has to be asked
    time.sleep(0.1)
    assert client.watch.poll_seconds is not None
    assert not client.watch.check()
    busy = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - busy < 0.1  # the hub does not spin
    client.leave()
    wait_until(client.watch.check, 5)
    assert client.ours.recv(100) == b"GET / HTTP/1.1\r\n"


def subscribed_late_scenario() -> None:
    client = Client()
    client.leave()
    wait_until(client.watch.check, 5)
    flag = wakeup()
    client.watch.subscribe(flag)
    assert flag.wait(0)


@both
def test_client_leaves(mode: str) -> None:
    run(mode, client_scenario, mode)


@both
def test_pipelined_bytes(mode: str) -> None:
    run(mode, pipelined_scenario, mode)


@both
def test_subscribing_after_the_client_has_left(mode: str) -> None:
    run(mode, subscribed_late_scenario)


def test_a_watch_without_a_lent_socket() -> None:
    watch = ClientWatch({})
    assert not watch.check()
    watch.close()
    assert repr(watch) == "<ClientWatch unwatched>"


def test_a_dropped_watch_leaves_the_socket_open() -> None:
    ours, theirs = tcp_pair()
    watch = ClientWatch({"gunicorn.socket": ours})
    assert repr(watch) == "<ClientWatch watched>"
    del watch
    gc.collect()
    theirs.sendall(b"x")
    assert ours.recv(1) == b"x"
    ours.close()
    theirs.close()


def test_a_connection_that_is_cut_twice_or_is_closed() -> None:
    client = Client()
    connection = client.watch.connection
    assert connection is client.ours
    for _ in range(2):
        cut(connection)
    assert client.watch.check()
    client.watch.close()
    assert client.watch.connection is None
    client.ours.close()
    cut(connection)
    client.theirs.close()
