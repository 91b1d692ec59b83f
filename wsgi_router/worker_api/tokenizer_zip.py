"""The tokenizer's files as one reproducible zip, for GetTokenizer."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from wsgi_router.pb import common_pb2

CHUNK_BYTES = 1 << 20
# Whatever a tokenizer is loaded from, and nothing heavier: weights stay where they are.
PATTERNS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.tiktoken",
    "*.jinja",
    "chat_template*",
    "config.json",
    "generation_config.json",
)


def zip_tokenizer(path: Path) -> bytes:
    """The zip of a folder's tokenizer files, or of one file; the same bytes for the same files."""
    files = [path] if path.is_file() else sorted({f for p in PATTERNS for f in path.glob(p) if f.is_file()})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in files:
            # A fixed date, or the digest would change with each copy of the files.
            entry = zipfile.ZipInfo(file.name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    return buffer.getvalue()


def zip_chunks(data: bytes, size: int = CHUNK_BYTES) -> Iterator[common_pb2.GetTokenizerChunk]:
    """The zip in pieces of at most ``size`` bytes, its hex digest on the last one."""
    starts = range(0, len(data), size)
    for start in starts:
        last = start + size >= len(data)
        yield common_pb2.GetTokenizerChunk(
            data=data[start : start + size], sha256=sha256(data).hexdigest() if last else ""
        )
