"""Which kinds of fields are honoured already.

The fields of a kind that is not built are refused with a 400 that names them, unless their value is neutral.
"""

from __future__ import annotations

from typing import Final

BUILT: Final[dict[str, bool]] = {
    "tools": True,
    "formats": True,
    "logprobs": True,
    "reasoning": True,
}
"""Kind: whether the core can do it. A kind's options of the native Stream are sent only when it is built."""

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "tools": ("tools", "tool_choice", "functions", "function_call"),
    "formats": ("response_format", "regex", "ebnf", "structural_tag"),
    "logprobs": ("logprobs", "top_logprobs"),
    "reasoning": (),
}
"""The fields that are refused as long as a kind is not built. Those of reasoning are then without effect."""


def built_fields() -> frozenset[str]:
    """The fields that are honoured."""
    return frozenset(name for kind, names in FIELDS.items() if BUILT[kind] for name in names)
