"""What the workers tell of their KV caches, brought into the table of prefixes; by one process for all.

A subscription asks for everything from the worker's first event on, so that what is known is whole. A worker
that has forgotten its first events (OUT_OF_RANGE) is asked for those after the last one seen, or else for new
ones; so is one whose events have a hole, which may be there whenever it tells them. Where not all is known,
or a worker has no events, what was sent there counts too.
"""

from __future__ import annotations

import logging
from typing import Final

from wsgi_router import native, runtime
from wsgi_router.pb import common_pb2
from wsgi_router.workers.pool import WorkerPool
from wsgi_router.workers.transport import MessageStream, RpcFailure, Transport
from wsgi_router.workers.worker import Worker

_LOG = logging.getLogger(__name__)

_METHOD: Final = "SubscribeKvEvents"
_LOOK_SECONDS: Final = 0.5
"""About the longest time until a change of the list of workers, or of who leads, is seen."""
_AGAIN_SECONDS: Final = 1.0
_REFUSED_SECONDS: Final = 60.0
"""A worker that has no events may be replaced by one that has."""
_BURST: Final = 64
"""Batches after which the other greenlets have their turn; some milliseconds."""


class KvEvents:
    """Follows the events of all workers while this process leads, if `follow`.

    Where none are followed, a worker that was started anew is forgotten once it was seen to be down.
    """

    def __init__(
        self, pool: WorkerPool, transport: Transport, table: native.PrefixTable, follow: bool = True
    ) -> None:
        self._follow = follow
        self._pool = pool
        self._transport = transport
        self._table = table
        self._subscriptions: dict[Worker, Subscription] = {}
        self._lives: dict[Worker, int] = {}
        self._looking = runtime.PeriodicTask("looking after the KV events", self._look, _LOOK_SECONDS)

    def start(self) -> None:
        """Begins. Once, after the fork."""
        self._looking.start()

    def close(self) -> None:
        """Ends what `start` began. Idempotent."""
        self._looking.stop()
        self._end_all(set(self._subscriptions))

    def _look(self) -> None:
        workers = set(self._pool.workers) if self._pool.leads() else set()
        self._subscribe(workers if self._follow else set())
        self._see_restarts(workers)

    def _subscribe(self, workers: set[Worker]) -> None:
        self._end_all(self._subscriptions.keys() - workers)
        for worker in workers - self._subscriptions.keys():
            subscription = Subscription(worker, self._transport, self._table)
            self._subscriptions[worker] = subscription
            try:
                runtime.spawn(subscription.run)
            except BaseException:  # no thread is to be had
                self._subscriptions.pop(worker, None)
                raise

    def _end_all(self, workers: set[Worker]) -> None:
        for worker in workers:
            self._subscriptions.pop(worker).close()

    def _see_restarts(self, workers: set[Worker]) -> None:
        """A worker that has come up again has most likely been started anew, with an empty cache."""
        lives = {worker: worker.record.life for worker in workers}
        for worker, life in lives.items():
            if (self._lives.get(worker) or life) != life:  # 0: it was never up before
                forget(self._table, worker)
        self._lives = lives

    def __repr__(self) -> str:
        return f"<KvEvents {list(self._subscriptions.values())!r}>"


def forget(table: native.PrefixTable, worker: Worker) -> None:
    """The worker's cache is empty now. One whose events are followed says so itself."""
    if not table.is_fed(worker.column):
        table.clear(worker.column)


class Subscription:
    """Follows one worker until it is closed."""

    def __init__(self, worker: Worker, transport: Transport, table: native.PrefixTable) -> None:
        self._worker = worker
        self._transport = transport
        self._table = table
        self._follower: native.Follower | None = None
        self._sequence = 0
        self._lacking = False
        """Events after those of `_sequence` were not taken in, though the worker has not been lost."""
        self._stream: MessageStream | None = None
        self._refused_life: int | None = None
        """The worker's life in which what it sent was refused."""
        self._closed = False
        self._wakeup = runtime.wakeup()
        self.state = "new"

    def run(self) -> None:
        """Subscribes again and again."""
        while not self._closed:
            self._wakeup.wait(self._subscribe() if self._may_subscribe() else _AGAIN_SECONDS)
        self._give_up()

    def close(self) -> None:
        """Ends `run` soon, whatever it waits for. Idempotent."""
        self._closed = True
        self._wakeup.set()
        if self._stream is not None:
            self._stream.close()

    def _may_subscribe(self) -> bool:
        return self._worker.usable() and self._worker.record.life != self._refused_life

    def _subscribe(self) -> float:
        """Follows the events until they end; returns the seconds until the next attempt."""
        life = self._worker.record.life
        try:
            self._follow()
        except RpcFailure as failure:
            if failure.code != "UNIMPLEMENTED":
                self._note("lost", failure)
                return _AGAIN_SECONDS
            self._note("none", failure)
        except native.NativeError as error:
            self._refuse(life)
            self._note("refused", error)
            return _AGAIN_SECONDS
        except Exception as error:  # what a worker sends must not end this for good
            self._note("refused", error)
        else:
            return _AGAIN_SECONDS
        self._give_up()
        return _REFUSED_SECONDS

    def _refuse(self, life: int) -> None:
        """It would send the same again, and each time what is known of it would be lost."""
        self._refused_life = life
        self._give_up()
        self._table.clear(self._worker.column)

    def _give_up(self) -> None:
        """The worker goes by what it is sent from now on."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _note(self, state: str, error: Exception) -> None:
        if state != self.state and not self._closed:
            _LOG.info("KV events of worker %s: %s (%s)", self._worker.url, state, error)
        self.state = state

    def _follow(self) -> None:
        if not self._lacking and self._is_there(1):
            return
        last = self._sequence
        if self._follower is not None and last and self._is_there(last + 1):
            if not self._lacking or self._sequence > last:
                return
            _LOG.info("KV events of worker %s: those after %d are not to be had", self._worker.url, last)
        self._read(0)

    def _is_there(self, start: int) -> bool:
        """`_read`, False if the worker has forgotten that batch."""
        try:
            self._read(start)
        except RpcFailure as failure:
            if failure.code != "OUT_OF_RANGE":
                raise
            return False
        return True

    def _read(self, start: int) -> None:
        """Takes in batches from `start` on, until they end, or one is missing."""
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=start)
        stream = self._transport.messages(self._worker, _METHOD, request.SerializeToString())
        self._stream = stream
        if self._closed:
            stream.close()
        follower = self._follower if start > 1 else None
        self._lacking = False
        count = 0
        try:
            for count, message in enumerate(stream, 1):
                if follower is None:
                    follower = self._begin()
                self._sequence, whole, gap = follower.apply(message)
                self._note_following(whole)
                if gap:
                    self._lacking = True
                    _LOG.info("KV events of worker %s: some are missing", self._worker.url)
                    break
                if count % _BURST == 0:
                    runtime.breathe()
        except RpcFailure as failure:
            if failure.code != "RESOURCE_EXHAUSTED" or not count:
                raise
            self._lacking = True  # it came faster than it was taken in
        finally:
            stream.close()

    def _begin(self) -> native.Follower:
        """What was known by earlier events is told anew."""
        self._give_up()
        self._follower = self._table.follow(self._worker.column)
        return self._follower

    def _note_following(self, whole: bool) -> None:
        state = "followed" if whole else "followed from now on"
        if state != self.state:
            _LOG.info("KV events of worker %s: %s", self._worker.url, state)
        self.state = state

    def __repr__(self) -> str:
        return f"<Subscription {self._worker.url} {self.state} sequence={self._sequence}>"
