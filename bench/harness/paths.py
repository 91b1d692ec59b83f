"""Where things lie."""

from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
CACHE = ROOT / ".cache"
WORK = CACHE / "bench"
"""Logs, token ids, results: all that a run writes unless told otherwise."""
TOKENIZER = CACHE / "models" / "qwen3"
"""Qwen 3's tokenizer, shared with the tests."""
LOAD_CRATE = BENCH / "load"
LOAD = LOAD_CRATE / "target" / "release" / "load"
