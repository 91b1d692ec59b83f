"""gunicorn's configuration, which gunicorn.conf.py takes over. The router's own settings are not here.

GUNICORN_CMD_ARGS, WEB_CONCURRENCY and the command line work as ever, and win over this.
"""

import atexit
import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from wsgi_router import setting_sources, settings

try:
    _settings = settings.load()
    _processes = settings.processes(os.environ)
except settings.SettingsError as error:
    sys.exit(f"wsgi-router: {error}")

wsgi_app = "wsgi_router.wsgi:application"
bind = _settings.bind
proc_name = "wsgi-router"

# One process a core: each runs one hub. WEB_CONCURRENCY is gunicorn's own default for this setting.
_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
workers = _processes or _cores
worker_class = "gevent"
# Streams of one process; a stream takes a connection for its whole life.
worker_connections = 4096
# With `-k gthread` only: there each open stream takes a thread, and with none free no connection is taken.
threads = 64
backlog = 4096

# The heartbeat: a process whose hub does not turn for so long is killed, its streams with it.
timeout = 60
# How long open streams may run on after SIGTERM; systemd's TimeoutStopSec is longer.
graceful_timeout = 300
# Idle connections hold up a drain for so long; a proxy's own idle time should be shorter.
keepalive = 15

# Channels, threads and hubs do not survive a fork. What does is made before it, by on_starting.
preload_app = False
# gevent would note for each greenlet who has started it, for its debugger: half a KiB a connection.
os.environ.setdefault("GEVENT_TRACK_GREENLET_TREE", "0")
# Two masters of one user would overwrite each other's socket.
control_socket_disable = True

_ROW = "wsgi_router_board_row"
_METRICS = "metrics"
_made: list[str] = []
_NEW_OBJECTS = 10_000
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def on_starting(server: Any) -> None:
    """Before the first fork: makes what the processes share."""
    from wsgi_router import native, peers, preloading
    from wsgi_router.workers import board, health, reports

    _end_young_processes_at_once()
    # gunicorn calls `on_exit` only where it came to listen, and heeds no signal before.
    atexit.register(_remove_directories, os.getpid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        _check_sockets(server.cfg)
        _make_metrics_directory()
        shared = board.share(_make_directory("state"))
        health.share(shared)
        peers.share(shared)
        reports.share()
        preloading.import_servers(server.cfg.worker_class)
        if not server.cfg.reload:  # what is imported here is not imported anew
            preloading.import_ours()
        _share(_settings)
        _share_application(server, _settings)
    except (settings.SettingsError, OSError) as error:
        sys.exit(f"wsgi-router: {error}")
    # What the processes have in common is looked through by none of them: that alone would copy its pages.
    gc.collect()
    native.settle_heap()
    gc.freeze()


def _check_sockets(cfg: Any) -> None:
    """Raises SettingsError where gunicorn would end with a traceback."""
    for path in cfg.address:
        if isinstance(path, str) and os.path.exists(path) and not Path(path).is_socket():
            raise settings.SettingsError(f"cannot listen on unix:{path}: something else is there")


def _share(fresh: settings.Settings) -> None:
    """Processes forked from now on have these settings, with the files as they are. Raises SettingsError."""
    from wsgi_router import native, tls, tokenizer_store
    from wsgi_router.workers import board, membership, pods

    pods.check(fresh)
    tokenizer_store.check(fresh.tokenizer_cache)
    tokenizers, credentials = native.read_tokenizers(fresh), tls.read(fresh)
    changes = membership.read(fresh)
    native.share_prefix_table(fresh)
    membership.share(board.current(), changes)
    native.share_tokenizers(fresh, tokenizers)
    tokenizer_store.forget(board.current())
    tokenizer_store.prune(fresh.tokenizer_cache, fresh.tokenizer_cache_mib)
    tls.share(fresh, credentials)
    settings.keep(fresh)


def _share_application(server: Any, fresh: settings.Settings) -> None:
    """Processes forked from now on need not make it, unless they serve another or read the code anew."""
    from wsgi_router import app

    serves_ours = getattr(server.app, "app_uri", None) == wsgi_app
    if serves_ours and not (server.cfg.reload or server.cfg.preload_app):
        app.share(fresh)
    else:
        app.unshare()


def _end_young_processes_at_once() -> None:
    """A signal that comes before a new process has gunicorn's handlers ends it.

    To import and to patch takes some tenths of a second. Until then the process has the master's handlers,
    which note a signal in a list that nobody reads there: the master would wait graceful_timeout for its end.
    """
    master = os.getpid()

    def begin() -> None:
        if os.getppid() == master:
            for number in _ENDING:
                signal.signal(number, lambda *_: os._exit(0))
        let_through()

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING),
        after_in_parent=let_through,
        after_in_child=begin,
    )


def on_reload(server: Any) -> None:
    """The files may have changed. Where they cannot be used, the new processes have what the old ones had."""
    try:
        fresh = settings.load()
        _share(fresh)
        _share_application(server, fresh)
    except settings.SettingsError as error:
        server.log.error("wsgi-router: %s; the processes start anew with the settings they had", error)
    except Exception:  # it would end the server
        server.log.exception("wsgi-router: the new settings cannot be used")


def _make_metrics_directory() -> None:
    given = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
    if given and not Path(given).name.startswith(f"wsgi-router-{_METRICS}-"):
        with setting_sources.writing("PROMETHEUS_MULTIPROC_DIR", given):
            Path(given).mkdir(parents=True, exist_ok=True)
            for stale in Path(given).glob("*.db"):
                stale.unlink(missing_ok=True)
        return
    # Also after USR2: the name of the old master's directory is inherited, but it is still in use.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(_make_directory(_METRICS))


def _make_directory(use: str) -> Path:
    """One that is removed when the server ends, and not before."""
    directory = tempfile.mkdtemp(prefix=f"wsgi-router-{use}-")
    _made.append(directory)
    # Days later its files look forgotten; systemd-tmpfiles passes over what is locked.
    fcntl.flock(os.open(directory, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
    return Path(directory)


def pre_fork(server: Any, worker: Any) -> None:
    """Runs in the master: a place for the new process's counts."""
    from wsgi_router.workers import board

    row = board.current().take_row()
    setattr(worker, _ROW, row)
    if row is None:
        server.log.warning("more than %d processes: one more counts its requests for itself", board.ROWS)


def post_fork(_server: Any, worker: Any) -> None:
    from wsgi_router.workers import board

    board.current().use_row(getattr(worker, _ROW, None))


def worker_int(_worker: Any) -> None:
    """Runs in a process that ends at once (SIGINT, SIGQUIT), a tenth of a second before it does."""
    from wsgi_router import serving

    serving.end_streams()


def post_worker_init(worker: Any) -> None:
    """Starts what each process has for itself, and watches for the moment it has to drain."""
    from gunicorn.errors import AppImportError

    from wsgi_router import serving

    try:
        serving.start(worker)
    except settings.SettingsError as error:
        raise AppImportError(f"wsgi-router: {error}") from None
    _collect_garbage_rarely()


def _collect_garbage_rarely() -> None:
    """What is there now stays, and need not be looked through again; a request leaves next to no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def worker_exit(server: Any, worker: Any) -> None:
    """Runs in the process that ends, and in the master for one that somebody else has waited for."""
    if worker.pid != os.getpid():
        child_exit(server, worker)
    elif worker.booted:
        from wsgi_router import serving

        serving.close()


def child_exit(server: Any, worker: Any) -> None:
    """Runs in the master: what a dead process had in flight is no more."""
    from wsgi_router import metrics_files, peers
    from wsgi_router.workers import board, health

    row = getattr(worker, _ROW, None)
    health.current().free_row(row)
    peers.current().clear(row)
    board.current().free_row(row)
    try:
        metrics_files.retire(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), worker.pid)
    except Exception as error:  # which would end the master, and every stream with it
        server.log.warning("wsgi-router: the counts of process %d stay where they are: %s", worker.pid, error)


def on_exit(_server: Any) -> None:
    _remove_directories(os.getpid())


def _remove_directories(master: int) -> None:
    if os.getpid() == master:  # a forked process ends with what the master has registered, too
        for directory in _made:
            shutil.rmtree(directory, ignore_errors=True)
