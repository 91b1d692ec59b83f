"""Where settings come from: the TOML file, the environment, and the names that SGLang's Go router uses."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from wsgi_router import setting_casts as casts

PREFIX: Final = "WSGI_ROUTER_"
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"

Fields = Mapping[str, "dataclasses.Field[Any]"]
"""The settings by name; a field's metadata has the `cast` of its values."""


class SettingsError(ValueError):
    """A setting that cannot be used. Its text names the setting and its source, in one line."""


@contextlib.contextmanager
def writing(name: str, folder: str | Path) -> Iterator[None]:
    """Within, the folder that `name` sets is made ready; then it has to take files. Raises SettingsError."""
    try:
        yield
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(f"{name}: {folder} cannot be written: {error.strerror}") from None


def _port_alias(value: object) -> str:
    """PORT means every address of the machine, as it does for gunicorn and for SGLang's Go router."""
    return f"0.0.0.0:{casts.integer(1, 65535)(value)}"


def _same(value: object) -> object:
    return value


ALIASES: Final[tuple[tuple[str, str, Callable[[object], object]], ...]] = (
    ("SGL_TOKENIZER_PATH", "tokenizer_path", _same),
    ("SGL_GRPC_ENDPOINT", "workers", _same),
    ("SGL_GRPC_ENDPOINTS", "workers", _same),
    ("SGL_POLICY_NAME", "policy", _same),
    ("PORT", "bind", _port_alias),
    ("LOG_LEVEL", "log_level", _same),
)
"""Names that SGLang's Go router uses: (variable, setting, conversion). A later line wins."""


def read(fields: Fields, environ: Mapping[str, str]) -> dict[str, Any]:
    """The values of the settings that any source names, cast. Raises SettingsError."""
    values: dict[str, Any] = {}

    def put(name: str, value: object, source: str) -> None:
        if name not in fields:
            raise SettingsError(f"{source}: there is no setting {name!r}")
        label = source if source.isupper() else f"{source}: {name}"
        values[name] = _cast(fields[name].metadata["cast"], value, label)

    if path := environ.get(CONFIG_VARIABLE):
        for name, value in _read_file(Path(path)).items():
            put(name, value, path)
    for variable, name, convert in ALIASES:
        if environ.get(variable):
            put(name, _cast(convert, environ[variable], variable), variable)
    for name in fields:
        variable = PREFIX + name.upper()
        if variable in environ:
            put(name, environ[variable], variable)
    return values


def processes(environ: Mapping[str, str]) -> int | None:
    """The number in WEB_CONCURRENCY, gunicorn's own variable, if there is one. Raises SettingsError."""
    given = environ.get("WEB_CONCURRENCY")
    count: int | None = _cast(casts.integer(1, 4096), given, "WEB_CONCURRENCY") if given else None
    return count


def unknown_variables(fields: Fields, environ: Mapping[str, str]) -> list[str]:
    """Variables that begin like ours and set nothing: most likely misspelt.

    Kubernetes adds variables of its own for a service that is called wsgi-router; they are left out.
    """
    known = {CONFIG_VARIABLE, *(PREFIX + name.upper() for name in fields)}
    kubernetes = re.compile(PREFIX + r"(SERVICE_|PORT(_|$))")
    return sorted(
        name
        for name in environ
        if name.startswith(PREFIX) and name not in known and not kubernetes.match(name)
    )


def _read_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {path} is no TOML: {_one_line(error)}") from None


def _cast(cast: Callable[[object], Any], value: object, label: str) -> Any:
    try:
        return cast(value)
    except ValueError as error:
        raise SettingsError(f"{label}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
