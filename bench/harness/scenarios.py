"""What is measured: worker profiles and, for each, the client's runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ITL_MS = 20
GROWTH_ITL_MS = 80
"""Slower, so that 5,000 streams want no more than one process can give: what grows is the cost alone."""

PROFILES: dict[str, list[str]] = {
    "paced": ["--itl-ms", str(ITL_MS)],
    "engine": ["--itl-ms", str(ITL_MS), "--engine-like"],
    "burst": ["--burst"],
    "headline": ["--ttft-ms", "130", "--itl-ms", "26.5"],
    "growth": ["--itl-ms", str(GROWTH_ITL_MS)],
}
"""Options of the load worker. Scenarios of one profile share a worker and the routers before it."""

STREAMS = (20, 200, 600, 2000)
MANY_STREAMS = (5000,)
"""Run only when named: more than two cores can pace."""
GROWTH = (1, 20, 200, 600, 2000, 5000)
MEMORY_STREAMS = (200, 600, 2000)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of the load client. `figure` is the field of its result that the ratio is made of.

    `most_repeats` bounds the repeats of what takes long and varies little; `fresh` starts the router anew for
    each run; `warm` sends it some requests before.
    """

    name: str
    profile: str
    what: str
    options: Mapping[str, int | float]
    switches: tuple[str, ...] = ()
    figure: str = "tokens_per_cpu_s"
    path: str = ""
    most_repeats: int = 100
    fresh: bool = False
    warm: bool = True

    @property
    def unit(self) -> str:
        """The figure's unit in words."""
        return self.figure.replace("_per_cpu_s", " a CPU-second").replace("_per_s", " a second")

    def arguments(self) -> list[str]:
        """The client's command line for this scenario."""
        pairs = [word for name, value in self.options.items() for word in (f"--{name}", str(value))]
        return pairs + [f"--{switch}" for switch in self.switches]


@dataclass(frozen=True, slots=True)
class Size:
    """How long the runs are: enough CPU seconds that noise does not matter, or a quick look."""

    stream_tokens: int = 250
    stream_rounds: dict[int, int] = field(default_factory=lambda: {2000: 1, 5000: 1})
    default_rounds: int = 2
    burst_requests: int = 1024
    short_requests: int = 3000
    prompt_requests: int = 300
    first_requests: int = 200
    headline_requests: int = 100
    growth_tokens: int = 80
    idle_ms: int = 2000


FULL = Size()
QUICK = Size(100, {}, 1, 64, 400, 40, 40, 20, 30, 1000)


def _ramp_ms(count: int) -> int:
    """Streams start over half a second, many over longer: streaming is measured, no rush of requests."""
    return max(500, count)


def streams(count: int, size: Size, *, profile: str = "paced", name: str = "streams") -> Scenario:
    rounds = size.stream_rounds.get(count, size.default_rounds)
    how = "all stepping together" if profile == "engine" else "each on its own clock"
    return Scenario(
        f"{name}-{count}",
        profile,
        f"{count:,} streams of {size.stream_tokens} tokens, one each {ITL_MS} ms, {how}",
        {
            "streams": count,
            "requests": count * rounds,
            "max-tokens": size.stream_tokens,
            "ramp-ms": _ramp_ms(count),
        },
    )


def requests(size: Size) -> list[Scenario]:
    """First tokens, bursts, short answers, long prompts, and the headline shape."""
    first = {"rate": 20, "requests": size.first_requests, "max-tokens": 8}
    return [
        Scenario(
            "first-token",
            "paced",
            "20 requests a second, 8 tokens, a new connection each: time to first token",
            first,
            ("fresh",),
            "requests_per_cpu_s",
        ),
        Scenario(
            "first-token-kept",
            "paced",
            "the same on kept connections",
            first,
            (),
            "requests_per_cpu_s",
        ),
        Scenario(
            "burst",
            "burst",
            "64 streams of 500 tokens, unpaced",
            {"streams": 64, "requests": size.burst_requests, "max-tokens": 500},
        ),
        Scenario(
            "short",
            "burst",
            "16 tokens, not streamed, 32 in flight",
            {"streams": 32, "requests": size.short_requests, "max-tokens": 16},
            ("no-stream",),
            "requests_per_cpu_s",
        ),
        Scenario(
            "prompt-4k",
            "burst",
            "prompts of 4,096 tokens, 8 tokens back, not streamed, 8 in flight",
            {"streams": 8, "requests": size.prompt_requests, "max-tokens": 8, "prompt-tokens": 4096},
            ("no-stream",),
            "requests_per_cpu_s",
        ),
        Scenario(
            "headline",
            "headline",
            f"{size.headline_requests} requests at 20 a second, 20 in flight, 1,024 tokens in, 260 out, "
            "worker 130 ms / 26.5 ms",
            {
                "rate": 20,
                "concurrency": 20,
                "requests": size.headline_requests,
                "max-tokens": 260,
                "prompt-tokens": 1024,
            },
            most_repeats=1,
        ),
    ]


def growth(size: Size) -> list[Scenario]:
    """CPU a token from one stream to thousands, at a pace that all of them can keep."""
    return [
        Scenario(
            f"growth-{count}",
            "growth",
            f"{count:,} stream{'s' if count > 1 else ''} of {size.growth_tokens} tokens, one each "
            f"{GROWTH_ITL_MS} ms",
            {
                "streams": count,
                "requests": count,
                "max-tokens": size.growth_tokens,
                "ramp-ms": _ramp_ms(count),
                "idle-ms": size.idle_ms,
            },
            most_repeats=1,
        )
        for count in GROWTH
    ]


def scaling(size: Size) -> list[Scenario]:
    """What more processes give: as much as the router can answer, so the figure is a rate and no cost."""
    return [
        Scenario(
            "processes-short",
            "burst",
            "16 tokens, not streamed, 128 in flight: requests a second",
            {"streams": 128, "requests": 2 * size.short_requests, "max-tokens": 16},
            ("no-stream",),
            "requests_per_s",
        ),
        Scenario(
            "processes-burst",
            "burst",
            "128 streams of 500 tokens, unpaced: tokens a second",
            {"streams": 128, "requests": size.burst_requests, "max-tokens": 500},
            figure="tokens_per_s",
        ),
    ]


def memory(size: Size) -> list[Scenario]:
    """Memory of a router just started, idle and under streams; each run has a router of its own."""
    return [
        Scenario(
            f"memory-{count}",
            "paced",
            f"{count:,} streams of 100 tokens before a router just started"
            + (" and warmed up" if count > MEMORY_STREAMS[0] else ""),
            {"streams": count, "requests": count, "max-tokens": 100, "ramp-ms": _ramp_ms(count)},
            most_repeats=1,
            fresh=True,
            warm=count > MEMORY_STREAMS[0],
        )
        for count in MEMORY_STREAMS
    ]


def all_scenarios(size: Size) -> list[Scenario]:
    """Every scenario that all routers run alike."""
    return [
        *(streams(count, size) for count in (*STREAMS, *MANY_STREAMS)),
        streams(200, size, profile="engine", name="engine-like"),
        *requests(size),
        *growth(size),
    ]


OPTIONAL = {f"streams-{count}" for count in MANY_STREAMS}


def floor(size: Size) -> list[Scenario]:
    """The WSGI side alone: chunks a CPU-second of ready bytes."""
    paced = {
        "streams": 600,
        "requests": 600 * size.default_rounds,
        "max-tokens": size.stream_tokens,
        "ramp-ms": 500,
    }
    return [
        Scenario(
            "floor-paced",
            "",
            f"600 streams, a chunk each {ITL_MS} ms",
            paced,
            path="/paced/v1/chat/completions",
            most_repeats=1,
        ),
        Scenario(
            "floor-burst",
            "",
            "64 streams of 500 chunks, unpaced",
            {"streams": 64, "requests": 512, "max-tokens": 500},
            path="/burst/v1/chat/completions",
            most_repeats=1,
        ),
    ]
