"""Settings: one table that declares each once, with its type, default and reason.

Sources, the later one wins: default, the TOML file named by WSGI_ROUTER_CONFIG, the environment
(WSGI_ROUTER_<NAME>). A bad value raises `SettingsError`, whose text is one line for the operator.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wsgi_router import label_selectors, parsers, setting_sources, setting_tables
from wsgi_router import setting_casts as casts
from wsgi_router.setting_sources import ALIASES, CONFIG_VARIABLE, PREFIX, SettingsError, processes

__all__ = [
    "ALIASES",
    "CONFIG_VARIABLE",
    "FIELDS",
    "PREFIX",
    "Settings",
    "SettingsError",
    "current",
    "keep",
    "load",
    "markdown_table",
    "processes",
    "toml_example",
    "unknown_variables",
]


_POLICIES: Final = (
    "random",
    "round_robin",
    "power_of_two",
    "least_load",
    "cache_aware",
    "prefix_hash",
    "consistent_hashing",
    "sticky",
    "manual",
)


def _row(default: Any, cast: Callable[[object], Any], reason: str, *, secret: bool = False) -> Any:
    return dataclasses.field(default=default, repr=not secret, metadata={"cast": cast, "reason": reason})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, checked. Times are in seconds, sizes in bytes."""

    workers: tuple[str, ...] = _row(
        (),
        casts.worker_urls,
        "Workers' addresses, grpc://HOST:PORT or grpcs://, separated by commas. They may come up later.",
    )
    prefill_workers: tuple[str, ...] = _row(
        (),
        casts.with_ports(casts.worker_urls),
        "Workers that compute prompts for others to go on from, as `WORKERS`; behind a space the port where "
        "each is met, if it is not 8998 (as after SGLang's --prefill).",
    )
    decode_workers: tuple[str, ...] = _row(
        (),
        casts.worker_urls,
        "Workers that go on from prompts which others have computed, as `WORKERS` (SGLang's --decode).",
    )
    worker_ca_file: str = _row(
        "",
        casts.as_text,
        "PEM file of those who sign the certificates of grpcs:// workers. Empty: the system's authorities.",
    )
    worker_cert_file: str = _row(
        "",
        casts.as_text,
        "PEM file with the certificate, and its chain, that the router shows to grpcs:// workers (mTLS).",
    )
    worker_key_file: str = _row(
        "", casts.as_text, "PEM file with the key of `WORKER_CERT_FILE`, not encrypted. Both or neither."
    )
    worker_tls_server_name: str = _row(
        "",
        casts.host_name,
        "Name that grpcs:// workers' certificates bear. Empty: the host in each one's address.",
    )
    workers_file: str = _row(
        "",
        casts.as_text,
        "File that keeps what /workers has changed. Empty: it is kept until the server ends.",
    )
    workers_dns: tuple[str, ...] = _row(
        (),
        casts.dns_names,
        "Names that stand for many workers, grpc://NAME:PORT or grpcs://: each address is one.",
    )
    prefill_workers_dns: tuple[str, ...] = _row(
        (), casts.with_ports(casts.dns_names), "As `WORKERS_DNS`, of workers as in `PREFILL_WORKERS`."
    )
    decode_workers_dns: tuple[str, ...] = _row(
        (), casts.dns_names, "As `WORKERS_DNS`, of workers as in `DECODE_WORKERS`."
    )
    kubernetes_selector: str = _row(
        "",
        casts.label_selector,
        "Label selector: the ready pods that it matches are workers. Without any, Kubernetes is not asked.",
    )
    kubernetes_prefill_selector: str = _row(
        "",
        casts.label_selector,
        "Label selector of pods with prefill workers; each is met at the port in its annotation "
        "sglang.ai/bootstrap-port, else at 8998.",
    )
    kubernetes_decode_selector: str = _row(
        "", casts.label_selector, "Label selector of pods with decode workers."
    )
    kubernetes_namespace: str = _row("", casts.as_text, "Namespace of those pods. Empty: the router's own.")
    kubernetes_port: int = _row(
        30000, casts.integer(1, 65535), "Port of those pods, where they have no annotation wsgi-router/port."
    )
    discovery_interval: float = _row(
        10.0,
        casts.seconds(0.1),
        "Pause between two look-ups of a name, or after Kubernetes could not be asked.",
    )
    tokenizer_path: str = _row(
        "",
        casts.as_text,
        "Folder with tokenizer.json (or tiktoken ranks) and its sisters, or the file, for all models that "
        "`TOKENIZERS` does not name. Empty: their workers are asked for it.",
    )
    tokenizers: tuple[tuple[str, str], ...] = _row(
        (),
        casts.by_model(casts.as_text, "PATH"),
        "Models with tokenizers of their own, NAME=PATH, separated by commas.",
    )
    tokenizer_cache: str = _row(
        "",
        casts.as_text,
        "Folder for tokenizers that came from workers. Empty: one that is removed when the server ends.",
    )
    tokenizer_cache_mib: int = _row(
        2048,
        casts.integer(0, 2**20),
        "MiB for those, 2 to 40 each; beyond it go the ones that no process uses, used longest ago first.",
    )
    chat_template: str = _row(
        "",
        casts.as_text,
        "File with a chat template (Jinja) in place of the tokenizer's own, for all models that `TOKENIZERS` "
        "does not name.",
    )
    chat_templates: tuple[tuple[str, str], ...] = _row(
        (),
        casts.by_model(casts.as_text, "PATH"),
        "Models with chat templates of their own, NAME=PATH, whatever names their tokenizers.",
    )
    model: str = _row("", casts.as_text, "Served model name. Empty: the name that the workers report.")
    bind: str = _row("127.0.0.1:8080", casts.bind, "Address to listen on, HOST:PORT or unix:PATH.")
    tool_call_parser: str = _row(
        parsers.AUTO,
        parsers.tool_setting,
        "Format of the models' tool calls: auto (by their names), none, or a format.",
    )
    tool_call_parsers: tuple[tuple[str, str], ...] = _row(
        (),
        casts.by_model(parsers.tool_setting, "FORMAT"),
        "Models whose calls have another format, NAME=FORMAT.",
    )
    reasoning_parser: str = _row(
        parsers.AUTO,
        parsers.reasoning_setting,
        "Format of the models' reasoning: auto (by their names), none, or a format.",
    )
    reasoning_parsers: tuple[tuple[str, str], ...] = _row(
        (),
        casts.by_model(parsers.reasoning_setting, "FORMAT"),
        "Models whose reasoning has another format, NAME=FORMAT.",
    )
    policy: str = _row(
        "least_load",
        casts.choice(*_POLICIES),
        "How a worker is chosen: random, round_robin, power_of_two, least_load (requests in flight), "
        "cache_aware, prefix_hash, consistent_hashing, or sticky (also called manual).",
    )
    prefill_policy: str = _row(
        "", casts.choice("", *_POLICIES), "The policy for `PREFILL_WORKERS`. Empty: that of `POLICY`."
    )
    decode_policy: str = _row(
        "", casts.choice("", *_POLICIES), "The policy for `DECODE_WORKERS`. Empty: that of `POLICY`."
    )
    routing_key_headers: tuple[str, ...] = _row(
        ("x-smg-routing-key", "x-session-id"),
        casts.header_names,
        "Headers that consistent_hashing and sticky take a request's key from, the first that is there; "
        "after them its `prompt_cache_key`, then its `user`.",
    )
    sticky_idle_timeout: float = _row(
        14400.0, casts.seconds(1), "The policy sticky forgets a key that was not used for so long."
    )
    prefix_token_count: int = _row(
        256, casts.integer(1, 2**20), "The policy prefix_hash goes by so many tokens of a prompt's beginning."
    )
    prefix_hash_load_factor: float = _row(
        1.25,
        casts.factor,
        "The policy prefix_hash gives no worker more than so many times the mean of requests.",
    )
    cache_threshold: float = _row(
        0.1,
        casts.fraction,
        "The policy cache_aware goes by a cached beginning if it is at least so much of the prompt; less is "
        "not worth leaving the least loaded worker for.",
    )
    balance_abs_threshold: int = _row(
        16,
        casts.integer(0, 1_000_000),
        "With so many requests more than the least loaded one, and `BALANCE_REL_THRESHOLD` times as many, a "
        "worker gets none from cache_aware, whatever it has cached; with half of that, what it has half of.",
    )
    balance_rel_threshold: float = _row(
        1.5,
        casts.factor,
        "See `BALANCE_ABS_THRESHOLD`: of many requests a ratio says more than a difference.",
    )
    cache_index_mib: int = _row(
        32,
        casts.integer(1, 2**14),
        "MiB, of all processes together, for what cache_aware knows of the workers' caches: 8 bytes for 16 "
        "tokens, so 64 million tokens; what was used longest ago goes.",
    )
    cache_events: bool = _row(
        True,
        casts.flag,
        "cache_aware follows the workers' own KV events where they send them, else what it has sent there.",
    )
    target_worker_header: bool = _row(
        False,
        casts.flag,
        "A client may name the worker itself, whatever the policy, in the header X-SMG-Target-Worker.",
    )
    api_keys: tuple[str, ...] = _row(
        (),
        casts.api_keys,
        "Keys that /v1 and /generate accept as Bearer token. Empty: no check.",
        secret=True,
    )
    admin_key: str = _row(
        "",
        casts._api_key,
        "Key that /workers and /flush_cache accept as Bearer token. Empty: they answer 403.",
        secret=True,
    )
    max_concurrent_requests: int = _row(
        0,
        casts.integer(0, 10**6),
        "Requests that generate at once, over all processes; more wait their turn. 0: no limit.",
    )
    queue_limit: int = _row(
        100,
        casts.integer(0, 10**6),
        "Requests that wait for `MAX_CONCURRENT_REQUESTS`, divided among the processes; beyond it 429.",
    )
    queue_timeout: float = _row(
        60.0, casts.seconds(0.01), "Longest wait for `MAX_CONCURRENT_REQUESTS`; beyond it 503."
    )
    key_priorities: tuple[tuple[str, int], ...] = _row(
        (),
        casts.key_priorities,
        "KEY=PRIORITY for some of `API_KEYS`: of those that wait, the higher is served first. Others have 0.",
        secret=True,
    )
    loads_interval: float = _row(
        0.0,
        casts.loads_interval,
        "Pause between two questions to each worker for its own load, which the policies by load then count "
        "in. 0: it is not asked.",
    )
    shed_waiting_requests: int = _row(
        0,
        casts.integer(0, 10**6),
        "A worker that has as many requests waiting is full. All of a model full: 503. 0: it never is.",
    )
    shed_token_usage: float = _row(
        0.0,
        casts.fraction,
        "A worker that uses so much of its token memory, 0 to 1, is full. 0: it never is.",
    )
    queue_size: int = _row(
        2000,
        casts.integer(1, 1_000_000),
        "Worker messages kept for a request whose client reads slowly; past it the worker is held back.",
    )
    first_token_timeout: float = _row(
        600.0,
        casts.seconds(0.1),
        "Longest wait for a worker's first token.",
    )
    token_timeout: float = _row(120.0, casts.seconds(0.1), "Longest wait between two messages of a worker.")
    answer_timeout: float = _row(
        3600.0,
        casts.seconds(0.1),
        "Longest wait for an answer that is not streamed, where the worker gives it as a whole.",
    )
    request_timeout: float = _row(
        0.0, casts.seconds(0), "Longest time from a request's arrival to the end of its answer; 0: no bound."
    )
    keepalive_time: float = _row(
        300.0,
        casts.seconds(10),
        "gRPC ping interval while calls run. Workers cut off those who ping every 10 s.",
    )
    keepalive_timeout: float = _row(
        20.0, casts.seconds(1), "A gRPC ping unanswered for so long ends the connection."
    )
    close_timeout: float = _row(
        5.0,
        casts.seconds(0),
        "Longest wait for a call's status after its last message; then the call is cancelled.",
    )
    abort_timeout: float = _row(
        2.0,
        casts.seconds(0.1),
        "Deadline of the Abort call after an unfinished request.",
    )
    health_interval: float = _row(
        1.0,
        casts.seconds(0.1),
        "Pause between two checks of a worker that is down; an idle one is checked a fifth as often.",
    )
    health_timeout: float = _row(
        10.0, casts.seconds(0.5), "Deadline of a check. SGLang's own health check takes a second or more."
    )
    engine_check_interval: float = _row(
        30.0,
        casts.seconds(1),
        "A worker that began and ended no request for so long generates a token as a check (HealthCheck).",
    )
    breaker_failures: int = _row(
        10, casts.integer(1, 10_000), "So many requests that fail in a row at a worker open its breaker."
    )
    breaker_seconds: float = _row(
        60.0,
        casts.seconds(0.1),
        "An open breaker gives its worker no requests for so long; then a few on trial.",
    )
    breaker_successes: int = _row(
        3,
        casts.integer(1, 10_000),
        "So many requests on trial that go well close a breaker; one that fails opens it.",
    )
    retry_attempts: int = _row(
        3,
        casts.integer(1, 16),
        "Most workers that a request is sent to, one after the other, while it fails before its first token.",
    )
    retry_budget: float = _row(
        0.2,
        casts.share,
        "Most such repetitions for each answer begun of late, besides ten a second; 0: none at all.",
    )
    max_body_bytes: int = _row(
        64 * 2**20,
        casts.integer(1024, 2**31 - 1),
        "Largest request body; beyond it 413.",
    )
    body_timeout: float = _row(
        300.0, casts.seconds(1), "Longest time that a request's body may take to come; beyond it 408."
    )
    ping_interval: float = _row(
        15.0, casts.seconds(0.1), "An SSE comment is sent when a started stream was silent for so long."
    )
    max_choices: int = _row(16, casts.integer(1, 128), "Largest `n` of a request.")
    max_batch: int = _row(
        128, casts.integer(1, 2048), "Most answers of a request: the number of its prompts times `n`."
    )
    prepare_inline_bytes: int = _row(
        64 * 1024,
        casts.integer(0, 2**31 - 1),
        "Bodies beyond this are templated and tokenised in a thread pool, so that open streams keep flowing.",
    )
    prompt_cache_mib: int = _row(
        16,
        casts.integer(0, 2**20),
        "MiB a process and model for token ids of earlier prompts' parts (system prompts, turns); 0 is off.",
    )
    transport: str = _row(
        "auto",
        casts.choice("auto", "native", "grpcio"),
        "gRPC implementation: the native core's, or grpcio's; auto takes the native one.",
    )
    lend_sockets: bool = _row(
        True,
        casts.flag,
        "Under gunicorn's gevent worker the native transport writes streams to the client's socket itself.",
    )
    metrics: bool = _row(True, casts.flag, "Serve /metrics.")
    log_level: str = _row(
        "info",
        casts.choice("debug", "info", "warning", "error"),
        "Least level that is logged, on standard error.",
    )

    def all_workers(self) -> tuple[str, ...]:
        """The addresses of workers of every kind."""
        return (*self.workers, *_addresses(self.prefill_workers), *self.decode_workers)

    def all_names(self) -> tuple[str, ...]:
        """The addresses of names that stand for many workers, of every kind."""
        return (*self.workers_dns, *_addresses(self.prefill_workers_dns), *self.decode_workers_dns)

    def kubernetes_selectors(self) -> dict[str, str]:
        """Those that are given, by their settings."""
        names = ("kubernetes_prefill_selector", "kubernetes_decode_selector", "kubernetes_selector")
        return {name.upper(): given for name in names if (given := getattr(self, name))}

    def tool_format(self, model: str) -> str:
        """TOOL_CALL_PARSER, or what TOOL_CALL_PARSERS has in its place for this served name."""
        return _of(model, self.tool_call_parsers, self.tool_call_parser)

    def reasoning_format(self, model: str) -> str:
        """As `tool_format`, of reasoning."""
        return _of(model, self.reasoning_parsers, self.reasoning_parser)

    def public(self) -> bool:
        """Whether `bind` is reachable from other machines."""
        if self.bind.startswith("unix:"):
            return False
        host = self.bind.rpartition(":")[0].strip("[]")
        return not (host in ("localhost", "::1") or host.startswith("127."))


def _addresses(prefill_workers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.partition(" ")[0] for text in prefill_workers)


def _of(model: str, pairs: tuple[tuple[str, str], ...], default: str) -> str:
    return next((value for name, value in pairs if name == model), default)


FIELDS: Final = {field.name: field for field in dataclasses.fields(Settings)}


_kept: Settings | None = None


def keep(settings: Settings) -> None:
    """`current` gives these from now on, in processes that are forked, too."""
    global _kept
    _kept = settings


def current() -> Settings:
    """The kept settings, else those of this process. Raises SettingsError."""
    return _kept or load()


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process. Raises SettingsError."""
    settings = Settings(**setting_sources.read(FIELDS, os.environ if environ is None else environ))
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    """What one setting says of another. Raises SettingsError."""
    _check_halves(settings)
    keys = {key for key, _ in settings.key_priorities}
    if not keys <= set(settings.api_keys):
        raise SettingsError(f"{PREFIX}KEY_PRIORITIES names a key that is not in {PREFIX}API_KEYS")
    for setting in ("tokenizers", "chat_templates", "tool_call_parsers", "reasoning_parsers"):
        if settings.model and {name for name, _ in getattr(settings, setting)} - {settings.model}:
            raise SettingsError(
                f"{PREFIX}{setting.upper()} names another model than {PREFIX}MODEL, as which all are served"
            )
    if (settings.shed_waiting_requests or settings.shed_token_usage) and not settings.loads_interval:
        raise SettingsError(
            f"{PREFIX}SHED_… needs {PREFIX}LOADS_INTERVAL: else no worker is asked for its load"
        )


def _check_halves(settings: Settings) -> None:
    """Nothing is two parts of the work at once. Raises SettingsError."""
    parts = ((casts.worker_urls, settings.all_workers(), ""), (casts.dns_names, settings.all_names(), "_DNS"))
    for cast, given, suffix in parts:
        try:
            cast(given)
        except ValueError as error:
            kinds = f"WORKERS{suffix}, PREFILL_WORKERS{suffix} and DECODE_WORKERS{suffix}"
            raise SettingsError(f"{kinds}: together {error}") from None
    selectors = settings.kubernetes_selectors()
    if len({label_selectors.parse(given) for given in selectors.values()}) != len(selectors):
        raise SettingsError(f"{' and '.join(selectors)}: the same pods cannot be all of it")


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that begin like ours and set nothing: most likely misspelt."""
    return setting_sources.unknown_variables(FIELDS, environ)


def markdown_table() -> str:
    """The table of settings in README.md."""
    return setting_tables.markdown_table(FIELDS)


def toml_example() -> str:
    """conf/router.toml: every setting at its default."""
    return setting_tables.toml_example(FIELDS)
