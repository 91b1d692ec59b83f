"""Logs and metrics: one line and one set of counts a request, at its end.

Under gunicorn each process writes its values into files of a directory that PROMETHEUS_MULTIPROC_DIR names
(gunicorn_conf.py makes and clears it), and /metrics adds them up. Elsewhere they are kept in memory.
Labels take only values that a client cannot choose: routes, statuses, workers' addresses.
"""

from __future__ import annotations

import bisect
import functools
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from wsgi_router import metrics_files, runtime
from wsgi_router.ids import random_id

LOGGER: Final = logging.getLogger("wsgi_router")
MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"

COMPLETE: Final = "complete"
REFUSED: Final = "refused"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
DRAINED: Final = "drained"
"""How a request ends."""

_NAMES_LOGGED: Final = 50

FLUSH_SECONDS: Final = 0.25
"""About the longest time for which a change of a request's metrics is kept back."""

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_PROBES: Final = frozenset({"/health", "/liveness", "/readiness", "/health_generate", "/metrics"})
"""Routes that machines ask every few seconds."""

_KINDS: Final = ("prompt", "cached", "completion", "reasoning")

_UP: Final = "up"
_STATES: Final = ("unknown", _UP, "suspect", "down")
_PHASES: Final = ("closed", "open", "half_open")
"""Of workers, and of their breakers; as `workers.breaker` has them."""


class WorkerStat(NamedTuple):
    """A worker's requests in flight, its state, and the phase of its breaker."""

    in_flight: int
    state: str
    breaker: str


WorkerStats = Mapping[str, WorkerStat]
"""By URL."""

AdmissionStats = tuple[int, int]
"""Requests that run, and those that wait for it."""

_ID: Final = re.compile(r"[!-~]{1,128}")


def configure_logging(level: str) -> None:
    """Logs of the router go to standard error from `level` up. Idempotent."""
    if not LOGGER.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s [%(process)d] [%(levelname)s] %(message)s"))
        LOGGER.addHandler(handler)
        LOGGER.propagate = False
    LOGGER.setLevel(level.upper())


def request_id(sent: str | None) -> str:
    """The client's id of a request if it is 1 to 128 visible ASCII characters, else a new one."""
    if sent is not None and _ID.fullmatch(sent):
        return sent
    return "req_" + random_id()


def printable(text: str, limit: int) -> str:
    """`text` in printable ASCII, for headers and logs: all else becomes a question mark."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:limit])


class _Value(Protocol):
    """A counter, a gauge, or a part of a histogram."""

    def inc(self, amount: float, /) -> None: ...


Change = tuple[_Value, float]
"""What to add to a value."""


class Metrics:
    """All metrics of the router. Made once a process, by `metrics()`.

    A change of one value costs prometheus_client a lock and, with several processes, a write to a file; there
    are a dozen in a request. So they are added up here, and passed on a few times a second (`flush`).
    """

    def __init__(self, token_bounds: Sequence[float]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values

        if os.environ.get(MULTIPROCESS_VARIABLE):
            # It asks for the process's id at each change of each value.
            values.ValueClass = values.MultiProcessValue(runtime.process_id)  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        common: Any = {"namespace": "wsgi_router", "registry": self.registry}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, **common)

        def histogram(name: str, text: str, *labels: str, bounds: Sequence[float] = _SECONDS) -> Histogram:
            return Histogram(name, text, labels, buckets=bounds, **common)

        self.requests = counter("requests", "Requests answered.", "route", "status")
        self.in_flight = Gauge(
            "requests_in_flight",
            "Requests being answered, but for health checks and this one.",
            multiprocess_mode="livesum",
            **common,
        )
        self.duration = histogram(
            "request_duration_seconds", "Time from a request's headers to its answer's end.", "route"
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "Time from a request's headers to the worker's first event."
        )
        self.inter_token = histogram(
            "inter_token_seconds", "Time between two tokens of a choice.", bounds=token_bounds
        )
        self.tokens = counter(
            "tokens", "Tokens, by kind: prompt, cached (of the prompt), completion, reasoning.", "kind"
        )
        self.prompt_cache_hits = counter(
            "prompt_cache_hits", "Prompts of which some tokens were known from earlier ones."
        )
        self.prompt_cache_tokens = counter(
            "prompt_cache_tokens", "Tokens of prompts that were not encoded anew."
        )
        self.prefix_blocks = counter(
            "prefix_blocks",
            "Blocks of 16 prompt tokens that cache_aware has routed: asked, matched (known to be cached).",
            "kind",
        )
        self.prefix_choices = counter(
            "prefix_choices",
            "Choices of cache_aware, by reason: match, load, spill (the best match was overloaded).",
            "reason",
        )
        self.retries = counter("retries", "Times that a request went to another worker.")
        self.retry_budget_exhausted = counter(
            "retry_budget_exhausted",
            "Times that a request did not go to another worker, as too many others did.",
        )
        self.cancellations = counter("cancellations", "Requests whose client left before the end.")
        self.refused = counter(
            "requests_refused", "Requests that were too many: by the limit, or for the workers.", "reason"
        )
        self.queue_time = histogram(
            "queue_seconds", "Time that a request waited until it was allowed to run."
        )

        self._pending: dict[_Value, float] = {}
        self._lock = runtime.brief_lock()
        self._requests: dict[tuple[str, int], Counter] = {}
        self._durations: dict[str, Histogram] = {}
        self._prefix_kinds = {kind: self.prefix_blocks.labels(kind) for kind in ("asked", "matched")}
        self._prefix_reasons = {
            reason: self.prefix_choices.labels(reason) for reason in ("match", "load", "spill")
        }
        self._kinds = {f"{kind}_tokens": self.tokens.labels(kind) for kind in _KINDS}

    def note(self, changes: Iterable[Change]) -> None:
        """Takes changes in, for the next `flush`."""
        with self._lock:
            pending = self._pending
            first = not pending
            for value, amount in changes:
                pending[value] = pending.get(value, 0) + amount
        if first:
            runtime.call_later(runtime.until_common_moment(FLUSH_SECONDS), self.flush)

    def flush(self) -> None:
        """Passes on what was noted."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for value, amount in pending.items():
            if amount:
                value.inc(amount)

    def first_token_after(self, seconds: float) -> Iterator[Change]:
        return _observation(self.first_token, seconds)

    def queued_for(self, seconds: float) -> Iterator[Change]:
        return _observation(self.queue_time, seconds)

    def count_refusal(self, reason: str) -> None:
        """One more request was too many; `reason` is its error's code."""
        self.note(((self.refused.labels(reason), 1),))

    def answered(self, route: str, status: int, seconds: float) -> Iterator[Change]:
        """One more request answered."""
        requests = self._requests.get((route, status))
        if requests is None:
            requests = self._requests[route, status] = self.requests.labels(route, str(status))
        duration = self._durations.get(route)
        if duration is None:
            duration = self._durations[route] = self.duration.labels(route)
        yield requests, 1
        yield from _observation(duration, seconds)

    def counted(self, stats: Mapping[str, Any]) -> Iterator[Change]:
        """What the native core says of an answer."""
        for name, counter in self._kinds.items():
            if count := stats.get(name, 0):
                yield counter, count
        if stats.get("itl_count"):
            yield from self.inter_tokens(stats["itl_buckets"], stats["itl_sum"])

    def inter_tokens(self, buckets: Sequence[int], seconds: float) -> Iterator[Change]:
        """Counts by bucket (one more than the bounds) of times that add up to `seconds`."""
        for bucket, count in zip(self.inter_token._buckets, buckets, strict=True):
            if count:
                yield bucket, count
        yield self.inter_token._sum, seconds

    def count_reused(self, tokens: int) -> None:
        """Counts a prompt of which the prompt cache had `tokens`, if any."""
        if tokens:
            self.note(((self.prompt_cache_hits, 1), (self.prompt_cache_tokens, tokens)))

    def count_prefix(self, blocks: int, matched: int, reason: str) -> None:
        """Counts a choice of the policy cache_aware for a prompt of so many blocks."""
        kinds, reasons = self._prefix_kinds, self._prefix_reasons
        self.note(((kinds["asked"], blocks), (kinds["matched"], matched), (reasons[reason], 1)))

    def render(self, workers: WorkerStats, admission: AdmissionStats | None = None) -> tuple[bytes, str]:
        """(text, content type) of /metrics, over all processes; `workers` are those of the pool."""
        self.flush()
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        registry.register(WorkerMetrics(workers))
        if admission is not None:
            registry.register(AdmissionMetrics(admission))
        folder = os.environ.get(MULTIPROCESS_VARIABLE)
        if not folder:
            registry.register(self.registry)
            return generate_latest(registry), CONTENT_TYPE_LATEST
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        with metrics_files.reading(Path(folder)):
            return generate_latest(registry), CONTENT_TYPE_LATEST


def _observation(histogram: Any, seconds: float) -> Iterator[Change]:
    # prometheus_client has no call that adds many observations at once.
    yield histogram._buckets[bisect.bisect_left(histogram._upper_bounds, seconds)], 1
    yield histogram._sum, seconds


class WorkerMetrics:
    """Metrics of the workers that are served now: one that was removed has none."""

    def __init__(self, stats: WorkerStats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Any]:
        """For prometheus_client."""
        from prometheus_client.core import GaugeMetricFamily

        up = GaugeMetricFamily("wsgi_router_worker_up", "1 if a worker answers.", labels=["worker"])
        held = GaugeMetricFamily(
            "wsgi_router_worker_requests_in_flight", "Requests that a worker has in hand.", labels=["worker"]
        )
        states, breakers = (
            GaugeMetricFamily(f"wsgi_router_worker_{name}", text, labels=["worker", "state"])
            for name, text in (
                ("state", "1 for the state that a worker is in."),
                ("breaker", "1 for the state that a worker's breaker is in."),
            )
        )
        for url, (in_flight, state, phase) in self._stats.items():
            up.add_metric([url], int(state == _UP))
            held.add_metric([url], in_flight)
            for family, names, current in ((states, _STATES, state), (breakers, _PHASES, phase)):
                for name in names:
                    family.add_metric([url, name], int(name == current))
        return up, held, states, breakers


class AdmissionMetrics:
    """What the limit of requests holds now, in all processes."""

    def __init__(self, stats: AdmissionStats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Any]:
        """For prometheus_client."""
        from prometheus_client.core import GaugeMetricFamily

        running, waiting = self._stats
        name = "wsgi_router_requests_"
        yield GaugeMetricFamily(f"{name}running", "Requests that the limit lets run.", value=running)
        yield GaugeMetricFamily(f"{name}waiting", "Requests that the limit lets wait.", value=waiting)


_token_bounds: Sequence[float] = (0.01, 0.1, 1.0, 10.0)
"""Until the native core's own are set."""


def set_token_bounds(bounds: Sequence[float]) -> None:
    """Bounds of the native core's buckets of inter-token time. Metrics that have others are made anew."""
    global _token_bounds
    if _token_bounds != tuple(bounds):
        _token_bounds = tuple(bounds)
        metrics.cache_clear()


_made: dict[Sequence[float], Metrics] = {}
_making: Final = threading.Lock()


@functools.cache
def metrics() -> Metrics:
    """The metrics of this process."""
    with _making:  # threads that ask first at once have to count in the same ones
        if _token_bounds not in _made:
            _made.clear()
            _made[_token_bounds] = Metrics(_token_bounds)
        return _made[_token_bounds]


_NO_STATS: Final[Mapping[str, Any]] = {}
_FINISHING: Final = runtime.brief_lock()


class RequestRecord:
    """What becomes of one request: counted in flight when made, and logged and counted once, by `finish`."""

    __slots__ = (
        "_finished",
        "_first_token",
        "_is_probe",
        "_label",
        "deferred",
        "method",
        "model",
        "outcome",
        "request_id",
        "route",
        "started",
        "stats",
        "status",
    )

    def __init__(self, method: str, route: str, request_id: str) -> None:
        self.method = method
        self.route = route
        self.request_id = request_id
        self.status = 200
        self.deferred = False
        """True once a stream has taken over; it calls `finish` itself."""
        self.outcome = COMPLETE
        self.stats = _NO_STATS
        self.model = ""
        self._label = ""
        self.started = time.monotonic()
        """When the request's headers were there."""
        self._first_token: float | None = None
        self._finished = False
        self._is_probe = route in _PROBES
        if not self._is_probe:
            metrics().note(((metrics().in_flight, 1),))

    def label(self, text: str | None) -> None:
        """A label that the client gave the request, for the log."""
        self._label = printable(text, 64).replace(" ", "_") if text else ""

    def unknown_fields(self, names: Sequence[str]) -> None:
        """Fields of the request that nobody knows: their names are logged, at debug."""
        if names and LOGGER.isEnabledFor(logging.DEBUG):
            shown = " ".join(printable(name, 100).replace(" ", "?") for name in names[:_NAMES_LOGGED])
            LOGGER.debug("id=%s has %d unknown fields: %s", self.request_id, len(names), shown)

    def first_token(self) -> None:
        """The worker's first event is there."""
        if self._first_token is None:
            self._first_token = time.monotonic() - self.started
            metrics().note(metrics().first_token_after(self._first_token))

    def answered(self, stats: Mapping[str, Any], outcome: str) -> None:
        """The answer's generation has ended: with the view, or later for a stream that has taken over."""
        self.stats, self.outcome = stats, outcome
        if self.deferred:
            self.finish()

    def finish(self) -> None:
        """The request is over. Idempotent."""
        with _FINISHING:
            if self._finished:
                return
            self._finished = True
        elapsed = time.monotonic() - self.started
        self._count(elapsed)
        level = logging.DEBUG if self._is_probe else logging.INFO
        if LOGGER.isEnabledFor(level):
            LOGGER.log(level, "%s", self._line(elapsed))

    def _count(self, elapsed: float) -> None:
        values = metrics()
        changes = [*values.answered(self.route, self.status, elapsed), *values.counted(self.stats)]
        if not self._is_probe:
            changes.append((values.in_flight, -1))
        if self.outcome == CANCELLED:
            changes.append((values.cancellations, 1))
        values.note(changes)

    def _line(self, elapsed: float) -> str:
        words = [self.method, self.route, str(self.status), self.outcome, f"{elapsed:.3f}s"]
        words.append(f"id={self.request_id}")
        if self._label:
            words.append(f"rid={self._label}")
        if self.model:
            words.append(f"model={printable(self.model, 128)}")
        if self._first_token is not None:
            words.append(f"ttft={self._first_token:.3f}s")
        if stats := self.stats:
            words.append(f"prompt={stats['prompt_tokens']} completion={stats['completion_tokens']}")
            words.append(f"finish={','.join(stats['finish_reasons']) or '-'}")
        return " ".join(words)

    def __repr__(self) -> str:
        state = "finished" if self._finished else "open"
        return f"<RequestRecord {self.method} {self.route} {self.status} {state}>"
