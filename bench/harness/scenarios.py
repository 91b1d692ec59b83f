"""What is measured: worker profiles and, for each, the client's runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ITL_MS = 20

PROFILES: dict[str, list[str]] = {
    "paced": ["--itl-ms", str(ITL_MS)],
    "burst": ["--burst"],
    "headline": ["--ttft-ms", "130", "--itl-ms", "26.5"],
}
"""Options of the load worker. Scenarios of one profile share a worker and the routers before it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of the load client. `figure` is the field of its result that the ratio is made of."""

    name: str
    profile: str
    what: str
    options: Mapping[str, int | float]
    switches: tuple[str, ...] = ()
    figure: str = "tokens_per_cpu_s"
    path: str = ""

    def arguments(self) -> list[str]:
        """The client's command line for this scenario."""
        pairs = [word for name, value in self.options.items() for word in (f"--{name}", str(value))]
        return pairs + [f"--{switch}" for switch in self.switches]


@dataclass(frozen=True, slots=True)
class Size:
    """How long the runs are: enough CPU seconds that the clock's 10 ms do not matter, or a quick look."""

    stream_tokens: int = 250
    stream_rounds: dict[int, int] = field(default_factory=lambda: {20: 4})
    default_rounds: int = 2
    burst_requests: int = 256
    short_requests: int = 3000
    prompt_requests: int = 300
    first_requests: int = 200


FULL = Size()
QUICK = Size(100, {}, 1, 64, 400, 40, 40)


def streams(count: int, size: Size) -> Scenario:
    rounds = size.stream_rounds.get(count, size.default_rounds)
    return Scenario(
        f"streams-{count}",
        "paced",
        f"{count} streams of {size.stream_tokens} tokens, one each {ITL_MS} ms",
        {
            "streams": count,
            "requests": count * rounds,
            "max-tokens": size.stream_tokens,
            "ramp-ms": 500,
        },
    )


def all_scenarios(counts: list[int], size: Size) -> list[Scenario]:
    """Every scenario; the last ones are not among the defaults."""
    first = {"rate": 20, "requests": size.first_requests, "max-tokens": 8}
    return [
        *(streams(count, size) for count in counts),
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
            "100 requests at 20 a second, 20 in flight, 1,024 tokens in, 260 out, worker 130 ms / 26.5 ms",
            {"rate": 20, "concurrency": 20, "requests": 100, "max-tokens": 260, "prompt-tokens": 1024},
        ),
    ]


OPTIONAL = {"headline"}
"""Run only when named."""


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
        ),
        Scenario(
            "floor-burst",
            "",
            "64 streams of 500 chunks, unpaced",
            {"streams": 64, "requests": 2 * size.burst_requests, "max-tokens": 500},
            path="/burst/v1/chat/completions",
        ),
    ]
