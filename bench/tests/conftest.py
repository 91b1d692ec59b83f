"""Puts the bench's own package on the path: `pytest bench`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
