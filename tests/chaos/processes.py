"""What is done to processes: gunicorn's are reloaded and killed, workers started again; what they hold."""

from __future__ import annotations

import signal
import time

import psutil

from tests.support.processes import Router, Worker, wait_until


def stop(process: psutil.Process) -> set[int]:
    """Has it stand still; returns the ports of the clients that it has, whom no other process can answer."""
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 30, "the process to stand still")
    return {one.raddr.port for one in process.net_connections("tcp") if one.raddr}


def kill(process: psutil.Process) -> set[int]:
    """Kills it; returns the ports of its clients."""
    ports = stop(process)  # first, so that it takes no more of them
    process.kill()
    return ports


def reload(server: Router) -> None:
    """Returns once there are as many new processes as there should be; older ones may drain."""
    old = {process.pid for process in server.processes()}
    server.send(signal.SIGHUP)
    wanted = int(server.environment["WEB_CONCURRENCY"])

    def replaced() -> bool:
        return len({process.pid for process in server.processes()} - old) >= wanted

    wait_until(replaced, 120, "new processes")


def start_again(worker: Worker) -> None:
    """Kills a worker that was given a port of its own, and starts it anew there."""
    worker.kill()
    worker.log.truncate(0)
    worker.log.seek(0)  # its output says that it is ready
    worker.start()


def resident(server: Router) -> int:
    """Bytes of memory that its processes have."""
    return sum(one.memory_info().rss for one in server.processes())


def wait_held_back(worker: Worker, pause: float, seconds: float) -> int:
    """The tokens of its last requests that a worker has given out, once it gives no more for a `pause`."""
    seen = [-1]

    def still() -> bool:
        seen.append(sum(int(one["completion_tokens"]) for one in worker.server_info()["last_requests"]))
        time.sleep(pause)
        return seen[-1] == seen[-2] > 0

    wait_until(still, seconds, "the worker to be held back")
    return seen[-1]
