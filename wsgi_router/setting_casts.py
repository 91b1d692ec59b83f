"""From a TOML value or an environment string to a setting's type, or ValueError with the reason."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from wsgi_router import label_selectors


def as_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("must not contain control characters")
    return value.strip()


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"must be a number, not {value!r}") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


_MOST_SECONDS: Final = 2**31 // 1000
"""gRPC counts milliseconds in 32 bits."""


def seconds(minimum: float) -> Callable[[object], float]:
    def cast(value: object) -> float:
        number = _number(value)
        if number < minimum:
            raise ValueError(f"must be at least {minimum:g} seconds")
        if number > _MOST_SECONDS:
            raise ValueError(f"must be at most {_MOST_SECONDS} seconds")
        return number

    return cast


def integer(minimum: int, maximum: int) -> Callable[[object], int]:
    def cast(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {value!r}")
        if not minimum <= value <= maximum:
            raise ValueError(f"must be between {minimum} and {maximum}")
        return value

    return cast


_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})


def flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else str(value)
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"must be true or false, not {value!r}")


def factor(value: object) -> float:
    number = _number(value)
    if not 1 <= number <= 1000:
        raise ValueError("must be between 1 and 1000")
    return number


def share(value: object) -> float:
    number = _number(value)
    if not 0 <= number <= 100:
        raise ValueError("must be between 0 and 100")
    return number


def fraction(value: object) -> float:
    number = _number(value)
    if not 0 <= number <= 1:
        raise ValueError("must be between 0 and 1")
    return number


def choice(*words: str) -> Callable[[object], str]:
    def cast(value: object) -> str:
        word = as_text(value).lower()
        if word not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {word!r}")
        return word

    return cast


def _words(value: object) -> tuple[str, ...]:
    """A list of strings, or one string with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError("must be a list, or a string with commas")
    return tuple(word for word in (as_text(part) for part in parts) if word)


def _host_and_port(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{0,253}):(\d{1,5})", text)
    if not match or not 0 <= int(match[2]) <= 65535:
        raise ValueError(f"{text!r} is no HOST:PORT")
    return match[1], int(match[2])


def worker_url(value: object) -> str:
    """`grpc://HOST:PORT`, or `grpcs://` with TLS; also from `HOST:PORT`. ValueError if it is none of them."""
    text = as_text(value)
    scheme = "grpcs://" if text.startswith("grpcs://") else "grpc://"
    address = text.removeprefix(scheme).rstrip("/")
    if "://" in address:
        raise ValueError(f"{text!r} must begin with grpc:// or grpcs://")
    host, port = _host_and_port(address)
    if not host or not port:
        raise ValueError(f"{text!r} must be {scheme}HOST:PORT")
    return f"{scheme}{host.lower()}:{port}"  # one name for each, as DNS has it


MOST_WORKERS: Final = 256


def dns_names(value: object) -> tuple[str, ...]:
    names = tuple(worker_url(as_text(word).removeprefix("dns+")) for word in _words(value))
    if len({name.partition("://")[2] for name in names}) != len(names):
        raise ValueError("has a name twice")
    return names


def label_selector(value: object) -> str:
    text = as_text(value)
    label_selectors.parse(text)
    return text


def worker_urls(value: object) -> tuple[str, ...]:
    urls = tuple(worker_url(word) for word in _words(value))
    if len({url.partition("://")[2] for url in urls}) != len(urls):
        raise ValueError("names a worker twice")
    if len(urls) > MOST_WORKERS:
        raise ValueError(f"names {len(urls)} workers; at most {MOST_WORKERS} can be served")
    return urls


def by_model(cast: Callable[[object], str], what: str) -> Callable[[object], tuple[tuple[str, str], ...]]:
    """Pairs of a model's name and what `cast` makes, from NAME=VALUE words or a table; `what`: see errors."""

    def split(value: object) -> tuple[tuple[str, str], ...]:
        if isinstance(value, Mapping):
            pairs = tuple((as_text(name), as_text(one)) for name, one in value.items())
        else:
            parts = (word.partition("=") for word in _words(value))
            pairs = tuple((name.strip(), one.strip()) for name, _, one in parts)
        if not all(name and one for name, one in pairs):
            raise ValueError(f"must be NAME={what}, with commas between them")
        if len(dict(pairs)) != len(pairs):
            raise ValueError("names a model twice")
        return tuple((name, _of_model(name, cast, one)) for name, one in pairs)

    return split


def _of_model(name: str, cast: Callable[[object], str], value: str) -> str:
    try:
        return cast(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def with_ports(cast: Callable[[object], tuple[str, ...]]) -> Callable[[object], tuple[str, ...]]:
    """As `cast`; each may have its bootstrap port behind a space, as after SGLang's own --prefill."""

    def split(value: object) -> tuple[str, ...]:
        parts = [word.split() for word in _words(value)]
        if any(len(part) > 2 for part in parts):
            raise ValueError("takes one bootstrap port for each worker")
        ports = ["".join(f" {integer(1, 65535)(port)}" for port in part[1:]) for part in parts]
        return tuple(map("".join, zip(cast([part[0] for part in parts]), ports, strict=True)))

    return split


def host_name(value: object) -> str:
    text = as_text(value)
    if text and not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", text):
        raise ValueError(f"{text!r} is no host's name")
    return text


def bind(value: object) -> str:
    text = as_text(value)
    if text.startswith("unix:") and len(text) > len("unix:"):
        return text
    _host_and_port(text)
    return text


def api_keys(value: object) -> tuple[str, ...]:
    keys = tuple(_api_key(key) for key in _words(value))
    if value and not keys:  # an open door that somebody believes to be locked
        raise ValueError("names no key")
    return keys


def _api_key(value: object) -> str:
    key = as_text(value)
    if not key.isascii() or " " in key:
        raise ValueError("keys must be ASCII without spaces")
    return key


def key_priorities(value: object) -> tuple[tuple[str, int], ...]:
    """Of words such as KEY=5; a key may hold = itself. No message repeats one."""
    found: dict[str, int] = {}
    for place, word in enumerate(_words(value), 1):
        key, equals, number = word.rpartition("=")
        if not (equals and key and re.fullmatch(r"[+-]?\d{1,3}", number)):
            raise ValueError(f"entry {place} is no KEY=PRIORITY, with a priority from -999 to 999")
        if found.setdefault(_api_key(key), int(number)) != int(number):
            raise ValueError(f"entry {place} names a key for the second time")
    return tuple(found.items())


def loads_interval(value: object) -> float:
    number = seconds(0)(value)
    if 0 < number < 0.1:
        raise ValueError("must be 0, or at least 0.1 seconds")
    return number


def header_names(value: object) -> tuple[str, ...]:
    names = tuple(word.lower() for word in _words(value))
    for name in names:
        if not re.fullmatch(r"[a-z0-9-]+", name):  # servers drop other names, or confuse them
            raise ValueError(f"{name!r} is no name of a header (letters, digits and hyphens)")
    return names
