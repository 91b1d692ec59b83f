"""How one worker is chosen among those that may be asked: a class for each policy."""

from __future__ import annotations

from typing import Final

from wsgi_router.workers.policies.keyed import ConsistentHashing, PrefixHash, Sticky
from wsgi_router.workers.policies.policy import Policy
from wsgi_router.workers.policies.spreading import LeastLoad, PowerOfTwo, Random, RoundRobin

__all__ = ["POLICIES", "Policy"]

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
