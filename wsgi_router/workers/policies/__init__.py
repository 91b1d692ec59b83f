"""How one worker is chosen among those that may be asked: a class for each policy."""

from __future__ import annotations

from typing import Final

from wsgi_router.settings import Settings
from wsgi_router.workers.policies.keyed import ConsistentHashing, PrefixHash, Sticky
from wsgi_router.workers.policies.policy import Policy
from wsgi_router.workers.policies.spreading import LeastLoad, PowerOfTwo, Random, RoundRobin
from wsgi_router.workers.roles import Role

__all__ = ["POLICIES", "Policy", "make_policy", "reads_key", "reads_prefix"]

POLICIES: Final[dict[str, type[Policy]]] = {
    "random": Random,
    "round_robin": RoundRobin,
    "power_of_two": PowerOfTwo,
    "least_load": LeastLoad,
    "prefix_hash": PrefixHash,
    "consistent_hashing": ConsistentHashing,
    "sticky": Sticky,
    "manual": Sticky,
}
"""By the names that the setting POLICY takes; "manual" is what SGLang's gateway calls `Sticky`."""


def _chosen(settings: Settings, role: Role) -> type[Policy]:
    names = {Role.PREFILL: settings.prefill_policy, Role.DECODE: settings.decode_policy}
    return POLICIES[names.get(role) or settings.policy]


def make_policy(settings: Settings, role: Role) -> Policy:
    """The policy for workers of this role."""
    return _chosen(settings, role)(settings)


def reads_key(settings: Settings) -> bool:
    """Whether a policy of any role goes by `Hints.key`."""
    return any(_chosen(settings, role).reads_key for role in Role)


def reads_prefix(settings: Settings) -> bool:
    """Whether a policy of any role goes by `Hints.prefix`."""
    return any(_chosen(settings, role).reads_prefix for role in Role)
