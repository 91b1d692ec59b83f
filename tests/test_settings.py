"""Settings: their sources, bad values, and that the documents show the table."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from wsgi_router import settings
from wsgi_router.setting_casts import MOST_WORKERS
from wsgi_router.workers.origins import origins
from wsgi_router.workers.roles import REGULAR, Part, Role

ROOT = Path(__file__).parents[1]


def test_defaults() -> None:
    assert settings.load({}) == settings.Settings()
    assert settings.load({}).bind == "127.0.0.1:8080"


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text('queue_size = 5\nworkers = ["a:1", "grpc://b:2"]\nmodel = "file"\n')
    environ = {
        "WSGI_ROUTER_CONFIG": str(file),
        "SGL_GRPC_ENDPOINTS": "c:3,d:4",
        "SGL_POLICY_NAME": "random",
        "WSGI_ROUTER_MODEL": "environment",
        "WSGI_ROUTER_POLICY": "round_robin",
    }
    loaded = settings.load(environ)
    assert loaded.queue_size == 5
    assert loaded.workers == ("grpc://c:3", "grpc://d:4")
    assert loaded.model == "environment"
    assert loaded.policy == "round_robin"


PREFILL = ("grpc://p:1 9001", "grpcs://q:2")
WORKERS_IN_LOWER_CASE = ("grpc://gpu-1.example:1", "grpc://[fe80::1]:2")


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        ("SGL_TOKENIZER_PATH", "/models/x", "tokenizer_path", "/models/x"),
        ("SGL_GRPC_ENDPOINT", "grpc://a:1", "workers", ("grpc://a:1",)),
        ("SGL_GRPC_ENDPOINTS", "a:1, b:2", "workers", ("grpc://a:1", "grpc://b:2")),
        ("SGL_POLICY_NAME", "round_robin", "policy", "round_robin"),
        ("PORT", "9000", "bind", "0.0.0.0:9000"),
        ("LOG_LEVEL", "DEBUG", "log_level", "debug"),
        ("WSGI_ROUTER_WORKERS", "[::1]:30001", "workers", ("grpc://[::1]:30001",)),
        ("WSGI_ROUTER_WORKERS", "grpcs://a:1,b:2", "workers", ("grpcs://a:1", "grpc://b:2")),
        ("WSGI_ROUTER_WORKERS", "grpc://GPU-1.Example:1,[FE80::1]:2", "workers", WORKERS_IN_LOWER_CASE),
        ("WSGI_ROUTER_PREFILL_WORKERS", "p:1 9001, grpcs://q:2", "prefill_workers", PREFILL),
        ("WSGI_ROUTER_DECODE_WORKERS", "d:1", "decode_workers", ("grpc://d:1",)),
        ("WSGI_ROUTER_PREFILL_POLICY", "prefix_hash", "prefill_policy", "prefix_hash"),
        ("WSGI_ROUTER_DECODE_POLICY", "", "decode_policy", ""),
        ("WSGI_ROUTER_WORKER_TLS_SERVER_NAME", "w.example", "worker_tls_server_name", "w.example"),
        ("WSGI_ROUTER_API_KEYS", "a,b", "api_keys", ("a", "b")),
        ("WSGI_ROUTER_ADMIN_KEY", " root,key ", "admin_key", "root,key"),
        ("WSGI_ROUTER_MAX_BATCH", "1", "max_batch", 1),
        ("WSGI_ROUTER_METRICS", "off", "metrics", False),
        ("WSGI_ROUTER_TOKEN_TIMEOUT", "1.5", "token_timeout", 1.5),
        ("WSGI_ROUTER_BIND", "unix:/run/router.sock", "bind", "unix:/run/router.sock"),
        ("WSGI_ROUTER_WORKERS", "", "workers", ()),
        ("WSGI_ROUTER_API_KEYS", "", "api_keys", ()),
        ("WSGI_ROUTER_TOKEN_TIMEOUT", "2147483", "token_timeout", 2147483.0),
        ("WSGI_ROUTER_LOADS_INTERVAL", "0", "loads_interval", 0.0),
        ("WSGI_ROUTER_LOADS_INTERVAL", "0.5", "loads_interval", 0.5),
    ],
)
def test_values(variable: str, value: str, name: str, expected: object) -> None:
    assert getattr(settings.load({variable: value}), name) == expected


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WSGI_ROUTER_QUEUE_SIZE", "many"),
        ("WSGI_ROUTER_QUEUE_SIZE", "0"),
        ("WSGI_ROUTER_QUEUE_SIZE", "1.5"),
        ("WSGI_ROUTER_TOKEN_TIMEOUT", "nan"),
        ("WSGI_ROUTER_TOKEN_TIMEOUT", "-1"),
        ("WSGI_ROUTER_METRICS", "perhaps"),
        ("WSGI_ROUTER_POLICY", "fastest"),
        ("WSGI_ROUTER_WORKERS", "http://a:1"),
        ("WSGI_ROUTER_WORKERS", "grpc://a"),
        ("WSGI_ROUTER_WORKERS", "a:0"),
        ("WSGI_ROUTER_WORKERS", "a:99999"),
        ("WSGI_ROUTER_WORKERS", "a:1,a:1"),
        ("WSGI_ROUTER_WORKERS", "grpc://a:1,grpcs://a:1"),
        ("WSGI_ROUTER_WORKERS", "grpc://gpu-1:1,grpc://GPU-1:1"),
        ("WSGI_ROUTER_WORKERS", "a" * 254 + ":1"),
        ("WSGI_ROUTER_WORKERS", "grpcs://a"),
        ("WSGI_ROUTER_WORKERS", "grpcs://grpc://a:1"),
        ("WSGI_ROUTER_PREFILL_WORKERS", "p:1 0"),
        ("WSGI_ROUTER_PREFILL_WORKERS", "p:1 9001 9002"),
        ("WSGI_ROUTER_PREFILL_WORKERS", "p:1 none"),
        ("WSGI_ROUTER_PREFILL_WORKERS", "p:1 1,p:1 2"),
        ("WSGI_ROUTER_DECODE_WORKERS", "d:1 9001"),
        ("WSGI_ROUTER_PREFILL_POLICY", "fastest"),
        ("WSGI_ROUTER_WORKER_TLS_SERVER_NAME", "https://w"),
        ("WSGI_ROUTER_BIND", "8080"),
        ("WSGI_ROUTER_API_KEYS", "two words"),
        ("WSGI_ROUTER_API_KEYS", ","),
        ("WSGI_ROUTER_API_KEYS", "  "),
        ("WSGI_ROUTER_KEEPALIVE_TIME", "1e12"),
        ("WSGI_ROUTER_FIRST_TOKEN_TIMEOUT", "2147484"),
        ("WSGI_ROUTER_MODEL", "a\nb"),
        ("WSGI_ROUTER_KEY_PRIORITIES", "a=1"),
        ("WSGI_ROUTER_KEY_PRIORITIES", "a"),
        ("WSGI_ROUTER_KEY_PRIORITIES", "=1"),
        ("WSGI_ROUTER_KEY_PRIORITIES", "a=high"),
        ("WSGI_ROUTER_KEY_PRIORITIES", "a=1,a=2"),
        ("WSGI_ROUTER_LOADS_INTERVAL", "0.01"),
        ("WSGI_ROUTER_SHED_TOKEN_USAGE", "1.5"),
        ("PORT", "http"),
        ("SGL_POLICY_NAME", "fastest"),
        ("WSGI_ROUTER_CONFIG", "/does/not/exist.toml"),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(variable: str, value: str) -> None:
    with pytest.raises(settings.SettingsError) as caught:
        settings.load({variable: value})
    assert variable in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("twice", [("WORKERS", "PREFILL_WORKERS"), ("PREFILL_WORKERS", "DECODE_WORKERS")])
def test_a_worker_has_one_role(twice: tuple[str, str]) -> None:
    with pytest.raises(settings.SettingsError, match=f"{twice[0]}.*names a worker twice"):
        settings.load({f"WSGI_ROUTER_{name}": "grpcs://a:1" for name in twice})
    many = ",".join(f"w{number}:1" for number in range(MOST_WORKERS))
    settings.load({"WSGI_ROUTER_DECODE_WORKERS": many})
    with pytest.raises(settings.SettingsError, match="at most"):
        settings.load({"WSGI_ROUTER_DECODE_WORKERS": many, "WSGI_ROUTER_WORKERS": "a:1"})


def test_priorities_of_keys(tmp_path: Path) -> None:
    keys = {"WSGI_ROUTER_API_KEYS": "sk-1,sk=2=,c"}
    loaded = settings.load({**keys, "WSGI_ROUTER_KEY_PRIORITIES": "sk-1=5, sk=2==-3"})
    assert loaded.key_priorities == (("sk-1", 5), ("sk=2=", -3))
    assert "sk-1" not in repr(loaded)
    for bad in ("sk-1=5,other=1", "sk-1=x", "sk-1=1,sk-1=2"):
        with pytest.raises(settings.SettingsError, match="WSGI_ROUTER_KEY_PRIORITIES") as caught:
            settings.load({**keys, "WSGI_ROUTER_KEY_PRIORITIES": bad})
        assert "sk-1" not in str(caught.value)
        assert "other" not in str(caught.value)


@pytest.mark.parametrize("name", ["SHED_WAITING_REQUESTS", "SHED_TOKEN_USAGE"])
def test_shedding_needs_the_workers_loads(name: str) -> None:
    given = {f"WSGI_ROUTER_{name}": "1"}
    with pytest.raises(settings.SettingsError, match="LOADS_INTERVAL"):
        settings.load(given)
    assert settings.load({**given, "WSGI_ROUTER_LOADS_INTERVAL": "1"}).loads_interval == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("queue_sise = 5", "queue_sise"),
        ("queue_size = 'x'", "queue_size"),
        ("queue_size = true", "queue_size"),
        ("workers = [1]", "workers"),
        ("model = 3", "model"),
        ("a = = b", "TOML"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "router.toml"
    file.write_text(text)
    with pytest.raises(settings.SettingsError) as caught:
        settings.load({"WSGI_ROUTER_CONFIG": str(file)})
    assert str(file) in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_misspelt_variables_are_found() -> None:
    environ = {
        "WSGI_ROUTER_WORKER": "a:1",
        "WSGI_ROUTER_WORKERS": "a:1",
        "WSGI_ROUTER_CONFIG": "x",
        "WSGI_ROUTER_SERVICE_HOST": "10.0.0.1",
        "WSGI_ROUTER_PORT": "tcp://10.0.0.1:80",
        "WSGI_ROUTER_PORT_80_TCP": "tcp://10.0.0.1:80",
    }
    assert settings.unknown_variables(environ) == ["WSGI_ROUTER_WORKER"]


@pytest.mark.parametrize(
    ("bind", "public"),
    [
        ("127.0.0.1:8080", False),
        ("localhost:80", False),
        ("[::1]:80", False),
        ("unix:/x", False),
        ("0.0.0.0:80", True),
        (":80", True),
        ("[::]:80", True),
        ("10.0.0.1:80", True),
    ],
)
def test_public_addresses(bind: str, public: bool) -> None:
    assert settings.Settings(bind=bind).public() is public


def test_secrets_are_not_printed() -> None:
    assert "secret" not in repr(settings.Settings(api_keys=("secret",), admin_key="secret"))


def test_the_example_file_is_made_from_the_table() -> None:
    assert (ROOT / "conf" / "router.toml").read_text() == settings.toml_example()
    assert tomllib.loads(settings.toml_example()).keys() == settings.FIELDS.keys()


def test_the_example_file_holds_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text(settings.toml_example())
    assert settings.load({"WSGI_ROUTER_CONFIG": str(file)}) == settings.Settings()


def test_the_table_shows_every_setting() -> None:
    table = settings.markdown_table()
    assert all(f"`WSGI_ROUTER_{name.upper()}`" in table for name in settings.FIELDS)


def test_tokenizers_by_model() -> None:
    def loaded(value: str) -> object:
        return settings.load({"WSGI_ROUTER_TOKENIZERS": value}).tokenizers

    assert loaded("org/a=/models/a, b = /models/x=y ,") == (("org/a", "/models/a"), ("b", "/models/x=y"))
    for bad in ("a", "=x", "a=", "a=/x,a=/y"):
        with pytest.raises(settings.SettingsError, match="WSGI_ROUTER_TOKENIZERS"):
            loaded(bad)


def test_tokenizers_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    for text in ('tokenizers = {"org/a" = "/models/a"}', 'tokenizers = ["org/a=/models/a"]'):
        path.write_text(text)
        loaded = settings.load({"WSGI_ROUTER_CONFIG": str(path)})
        assert loaded.tokenizers == (("org/a", "/models/a"),)
    path.write_text('tokenizers = {"a=b,c" = "/x=y,z"}')
    assert settings.load({"WSGI_ROUTER_CONFIG": str(path)}).tokenizers == (("a=b,c", "/x=y,z"),)
    for text in ("{a = 5}", "{a = true}", '{a = ""}', '{"" = "/x"}', '{a = {b = "/x"}}'):
        path.write_text(f"tokenizers = {text}")
        with pytest.raises(settings.SettingsError, match="tokenizers: must be"):
            settings.load({"WSGI_ROUTER_CONFIG": str(path)})


def test_what_discovers_workers() -> None:
    environ = {
        "WSGI_ROUTER_WORKERS_DNS": "grpc://Workers.test:1,dns+grpcs://b.test:2,c.test:3",
        "WSGI_ROUTER_KUBERNETES_SELECTOR": "app=sglang",
    }
    names = ("grpc://workers.test:1", "grpcs://b.test:2", "grpc://c.test:3")
    assert settings.load(environ).workers_dns == names
    found = origins(settings.load(environ))
    assert tuple(one.name for one in found) == (*names, "kubernetes:/app=sglang/30000")
    assert {one.part for one in found} == {REGULAR}
    assert origins(settings.load({})) == ()
    for bad in ("http://a.test:1", "a.test", "a.test:1,a.test:1", "a.test:1 9001"):
        with pytest.raises(settings.SettingsError, match="WSGI_ROUTER_WORKERS_DNS"):
            settings.load({"WSGI_ROUTER_WORKERS_DNS": bad})


def test_what_discovers_halves() -> None:
    environ = {
        "WSGI_ROUTER_PREFILL_WORKERS_DNS": "dns+grpcs://P.test:1 9001, q.test:2",
        "WSGI_ROUTER_DECODE_WORKERS_DNS": "d.test:3",
        "WSGI_ROUTER_WORKERS_DNS": "w.test:4",
        "WSGI_ROUTER_KUBERNETES_SELECTOR": "app=sglang",
        "WSGI_ROUTER_KUBERNETES_PREFILL_SELECTOR": "app=sglang,role=prefill",
        "WSGI_ROUTER_KUBERNETES_DECODE_SELECTOR": "app=sglang,role in (decode)",
        "WSGI_ROUTER_KUBERNETES_NAMESPACE": "models",
    }
    prefill, decode = Part(Role.PREFILL), Part(Role.DECODE)
    loaded = settings.load(environ)
    assert loaded.prefill_workers_dns == ("grpcs://p.test:1 9001", "grpc://q.test:2")
    assert [(one.name, one.part) for one in origins(loaded)] == [
        ("grpcs://p.test:1 (prefill)", Part(Role.PREFILL, 9001)),
        ("grpc://q.test:2 (prefill)", prefill),
        ("grpc://d.test:3 (decode)", decode),
        ("grpc://w.test:4", REGULAR),
        ("kubernetes:models/app=sglang,role=prefill/30000 (prefill)", prefill),
        ("kubernetes:models/app=sglang,role in (decode)/30000 (decode)", decode),
        ("kubernetes:models/app=sglang/30000", REGULAR),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"PREFILL_WORKERS_DNS": "a.test:1 0"}, "PREFILL_WORKERS_DNS"),
        ({"PREFILL_WORKERS_DNS": "a.test:1 1 2"}, "PREFILL_WORKERS_DNS: takes one bootstrap port"),
        ({"DECODE_WORKERS_DNS": "a.test:1 9001"}, "DECODE_WORKERS_DNS"),
        (
            {"DECODE_WORKERS_DNS": "a.test:1", "PREFILL_WORKERS_DNS": "a.test:1 7"},
            "together has a name twice",
        ),
        ({"WORKERS_DNS": "a.test:1", "DECODE_WORKERS_DNS": "A.test:1"}, "together has a name twice"),
        (
            {"KUBERNETES_SELECTOR": "a=b", "KUBERNETES_DECODE_SELECTOR": "a=b"},
            "KUBERNETES_DECODE_SELECTOR and KUBERNETES_SELECTOR: the same pods",
        ),
    ],
)
def test_halves_that_cannot_be_discovered(given: dict[str, str], message: str) -> None:
    with pytest.raises(settings.SettingsError, match=message) as caught:
        settings.load({f"WSGI_ROUTER_{name}": value for name, value in given.items()})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS", "/tmp"),
        ("CHAT_TEMPLATES", "/tmp/x.jinja"),
        ("TOOL_CALL_PARSERS", "qwen"),
        ("REASONING_PARSERS", "none"),
    ],
)
def test_what_models_have_is_by_served_names(name: str, value: str) -> None:
    given = {"WSGI_ROUTER_MODEL": "served", f"WSGI_ROUTER_{name}": f"own={value}"}
    with pytest.raises(settings.SettingsError, match=f"WSGI_ROUTER_{name} names another model"):
        settings.load(given)
    settings.load({**given, f"WSGI_ROUTER_{name}": f"served={value}"})
    settings.load({f"WSGI_ROUTER_{name}": f"own={value}"})  # such a model may come


def test_formats_by_model(tmp_path: Path) -> None:
    loaded = settings.load(
        {
            "WSGI_ROUTER_TOOL_CALL_PARSER": "llama3",
            "WSGI_ROUTER_TOOL_CALL_PARSERS": "org/a = Hermes, b:c=auto,",
            "WSGI_ROUTER_REASONING_PARSERS": "org/a=deepseek-r1",
        }
    )
    assert loaded.tool_call_parsers == (("org/a", "qwen"), ("b:c", "auto"))
    formats = [loaded.tool_format(model) for model in ("org/a", "b:c", "org/A", "")]
    assert formats == ["qwen", "auto", "llama", "llama"]
    assert [loaded.reasoning_format(model) for model in ("org/a", "x")] == ["deepseek_r1", "auto"]
    path = tmp_path / "router.toml"
    for text in ('{"org/a" = "hermes", b = "none"}', '["org/a=qwen", "b=none"]', '"org/a=qwen,b=none"'):
        path.write_text(f"tool_call_parsers = {text}")
        found = settings.load({"WSGI_ROUTER_CONFIG": str(path)}).tool_call_parsers
        assert found == (("org/a", "qwen"), ("b", "none"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("qwen", "must be NAME=FORMAT"),
        ("a=", "must be NAME=FORMAT"),
        ("a=qwen,a=llama", "names a model twice"),
        ("b=none,a=gwen", "a: must be one of auto, none, .*, not 'gwen'"),
    ],
)
def test_formats_by_model_that_cannot_be(value: str, message: str) -> None:
    with pytest.raises(settings.SettingsError, match=f"^WSGI_ROUTER_TOOL_CALL_PARSERS: {message}") as caught:
        settings.load({"WSGI_ROUTER_TOOL_CALL_PARSERS": value})
    assert "\n" not in str(caught.value)
