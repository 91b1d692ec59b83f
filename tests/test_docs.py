"""What the documents say is what the code is."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT
from wsgi_router import settings
from wsgi_router.app import create_app
from wsgi_router.observability import AdmissionMetrics, Metrics, WorkerMetrics

README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def between(text: str, name: str) -> str:
    """What stands between `<!-- name -->` and `<!-- /name -->`."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def words(text: str) -> set[str]:
    """What is written as code."""
    return set(re.findall(r"`([^`\n]+)`", text))


def test_the_readme_shows_every_setting() -> None:
    assert between(README, "settings") == settings.markdown_table()


def test_the_example_file_shows_every_setting() -> None:
    text = (ROOT / "conf/router.toml").read_text("utf-8")
    assert text == settings.toml_example()
    assert tomllib.loads(text).keys() == settings.FIELDS.keys()


def test_the_example_file_is_the_default() -> None:
    environ = {settings.CONFIG_VARIABLE: str(ROOT / "conf/router.toml")}
    assert settings.load(environ) == settings.Settings()


def test_the_readme_names_the_aliases() -> None:
    assert {variable for variable, _, _ in settings.ALIASES} <= words(README)


def metric_names() -> Iterator[str]:
    shown = (*WorkerMetrics({}).collect(), *AdmissionMetrics((0, 0)).collect())
    for metric in (*Metrics((0.1, 1.0)).registry.collect(), *shown):
        yield metric.name + "_total" if metric.type == "counter" else metric.name


def test_the_readme_names_every_metric_and_no_other() -> None:
    named = {word for word in words(README) if re.fullmatch(r"wsgi_router_[a-z_]+", word)}
    assert named == set(metric_names())


def test_the_readme_names_every_route() -> None:
    routes = {
        re.sub(r"<(?:[a-z]+:)?([a-z_]+)>", r"{\1}", rule.rule)
        for rule in create_app(settings.Settings()).url_map.iter_rules()
    }
    assert len(routes) > 5
    table = README.partition("## What works")[2].partition("\n## ")[0]
    named = {
        path.replace("{model}", "{id}") for word in words(table) for path in re.findall(r"/[\w/{}.]+", word)
    }
    missing = {re.sub(r"\{\w+\}", "{id}", route) for route in routes} - named
    assert not missing


@functools.cache
def manifest() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def package_names(requirements: list[Any]) -> set[str]:
    texts = [text for text in requirements if isinstance(text, str)]
    return {re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0] for text in texts}


def test_every_direct_dependency_has_a_reason() -> None:
    declared = package_names(manifest()["project"]["dependencies"])
    declared |= package_names(manifest()["build-system"]["requires"])
    declared |= package_names(manifest()["dependency-groups"]["dev"])
    for group in manifest()["project"]["optional-dependencies"].values():
        declared |= package_names(group)
    table = re.findall(r"^\| ([^|]+) \| [^|\n]{8,} \|$", CONTRIBUTING, re.MULTILINE)
    named = {name for row in table for name in re.findall(r"[A-Za-z][A-Za-z0-9._-]*", row)}
    types = {name for name in declared if name.startswith("types-")}
    assert {name.removeprefix("types-") for name in types} <= declared
    assert declared - types - named == set()


def test_every_crate_has_a_reason() -> None:
    cargo = tomllib.loads((ROOT / "_native/core/Cargo.toml").read_text("utf-8"))
    declared = {
        given.get("package", name) if isinstance(given, dict) else name
        for kind in ("dependencies", "build-dependencies", "dev-dependencies")
        for name, given in cargo.get(kind, {}).items()
    }
    table = CONTRIBUTING.partition("| crate | why |")[2]
    assert declared <= set(re.findall(r"[a-z][a-z0-9_-]*", table))


def test_every_case_is_held_by_tests_that_are_there() -> None:
    rows = re.findall(r"^\| (.+) \| (.+) \|$", (ROOT / "docs/cases.md").read_text("utf-8"), re.MULTILINE)
    cases = [row for row in rows if row[0] != "Case"]
    assert len(cases) > 50
    for case, tests in cases:
        named = re.findall(r"`([\w/.]+)::(\w+)`", tests)
        assert len(named) == tests.count("`") // 2 > 0, case
        for path, name in named:
            word = "fn" if path.endswith(".rs") else "def"
            assert re.search(rf"\b{word} {name}\(", (ROOT / path).read_text("utf-8")), (case, path, name)


def test_the_architecture_fits_on_two_pages() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines()) <= 120


TRANSPORT_FUNCTION = re.compile("wr_(net|call)_|wr_stream_(lend|rest|resume|reclaim|ping)$")


def test_the_abi_is_small() -> None:
    header = (ROOT / "_native/wsgi_router_core.h").read_text("utf-8")
    functions = re.findall(r"^\w[\w \*]*?\b(wr_\w+)\(", header, re.MULTILINE)
    transport = [name for name in functions if TRANSPORT_FUNCTION.match(name)]
    assert 10 < len(transport) <= 18
    prefixes = [name for name in functions if re.match("wr_(prefix|follower)_", name)]
    assert len(prefixes) == 7
    assert 10 < len(functions) - len(transport) - len(prefixes) <= 22
    assert len(set(functions)) == len(functions)
    bound = set(re.findall(r"\bwr_\w+(?=\()", (ROOT / "_native/wsgi_router_core.pxd").read_text("utf-8")))
    assert bound == set(functions)


def imported(path: Path) -> Iterator[str]:
    """Absolute names of modules and of what is taken from them."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from (f"{base}.{name.name}" for name in node.names)


def test_one_module_imports_the_native_core() -> None:
    modules = [path for path in (ROOT / "wsgi_router").rglob("*.py") if "pb" not in path.parts]
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in modules
        if any("_core" in name.split(".") for name in imported(path))
    }
    assert importers == {"wsgi_router/native.py"}


def test_unsafe_code_lives_in_one_place() -> None:
    sources = list((ROOT / "_native/core/src").rglob("*.rs"))
    word = re.compile(r"^(?!\s*//).*\bunsafe\s*(\{|fn|impl|extern)", re.MULTILINE)
    unsafe = {path for path in sources if word.search(path.read_text("utf-8"))}
    assert {path.stem if path.parent.name == "src" else path.parent.name for path in unsafe} == {"ffi"}


@functools.cache
def committed() -> tuple[Path, ...]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def texts() -> Iterator[tuple[str, str]]:
    """(path, text) of all committed files."""
    for path in committed():
        yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8", "replace")


# Written apart, as this file is committed, too.
HOST_NAMES = (
    *("pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "npmjs" + ".com"),
    *("crates" + ".io", "huggingface" + ".co", "proxy.golang" + ".org"),
)
HOSTS = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in HOST_NAMES))
MACHINE = re.compile(r"(?<![\w.}$/-])/(?:home|Users|work|root|mnt|workspace)/\w+")


def test_no_file_names_a_registrys_host() -> None:
    # Cargo writes the registry it means into its lock files.
    found = {path for path, text in texts() if HOSTS.search(text) and not path.endswith("Cargo.lock")}
    assert not found


def test_no_file_holds_a_path_of_one_machine() -> None:
    found = {f"{path}: {match[0]}" for path, text in texts() if (match := MACHINE.search(text))}
    assert not found


def test_locks_pin_every_direct_dependency() -> None:
    locked = (ROOT / "requirements.lock").read_text("utf-8")
    pinned = {name.lower() for name in re.findall(r"^([A-Za-z0-9._-]+)==", locked, re.MULTILINE)}
    assert package_names(manifest()["project"]["dependencies"]) <= pinned
