"""Where the settings say that workers are to be discovered, and as which part of the work."""

from __future__ import annotations

from typing import NamedTuple

from wsgi_router.settings import Settings
from wsgi_router.workers.roles import REGULAR, Part, Role, split_port


class Origin(NamedTuple):
    """A name with many addresses, or a selector of pods. One of `address` and `selector` is given."""

    name: str
    """For the log, and for what all processes know of it: another one for each origin."""
    part: Part = REGULAR
    """What its workers are, unless they say more of themselves."""
    address: str = ""
    """grpc://NAME:PORT, or grpcs://."""
    selector: str = ""
    first: tuple[str, ...] = ()
    """Selectors whose pods are not this one's."""


def origins(settings: Settings) -> tuple[Origin, ...]:
    """Of a worker that several find, the first one tells its part: halves come first.

    The selector of a label that all pods share may well stay when some of them become halves.
    """
    return (*_names(settings), *_selectors(settings))


def _names(settings: Settings) -> list[Origin]:
    given = [split_port(text) for text in settings.prefill_workers_dns]
    halves = [(address, Part(Role.PREFILL, port)) for address, port in given]
    halves += [(address, Part(Role.DECODE)) for address in settings.decode_workers_dns]
    found = [Origin(f"{address} ({part.role})", part, address=address) for address, part in halves]
    return found + [Origin(address, address=address) for address in settings.workers_dns]


def _selectors(settings: Settings) -> list[Origin]:
    given = (
        (settings.kubernetes_prefill_selector, Part(Role.PREFILL), " (prefill)"),
        (settings.kubernetes_decode_selector, Part(Role.DECODE), " (decode)"),
        (settings.kubernetes_selector, REGULAR, ""),
    )
    where = f"{settings.kubernetes_namespace}/{{}}/{settings.kubernetes_port}"
    found: list[Origin] = []
    for selector, part, suffix in given:
        if selector:
            first = tuple(origin.selector for origin in found)
            name = f"kubernetes:{where.format(selector)}{suffix}"
            found.append(Origin(name, part, selector=selector, first=first))
    return found
