"""Builds what a wheel needs beside Python: the protobuf stubs, the Rust core, the Cython extension.

``WSGI_ROUTER_PROFILE`` picks cargo's profile: ``release`` (default) or ``dev``, which builds faster.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
NATIVE = ROOT / "_native"
PROTO = ROOT / "proto"
INCLUDED = (".pxi", ".pxd", ".h")
# All of the core would be visible, and so kept: a third of it is never called.
LINK_ARGS = ["-Wl,--exclude-libs,ALL", "-Wl,--gc-sections"] if sys.platform == "linux" else []
TARGET_FOLDERS = {"release": "release", "dev": "debug"}


def generate_stubs(destination: Path) -> None:
    """Writes wsgi_router/pb/*_pb2*.py below ``destination``, unless they are newer than their sources."""
    from grpc_tools import protoc

    sources = sorted(PROTO.glob("wsgi_router/pb/*.proto"))
    made = [
        destination / source.relative_to(PROTO).with_name(f"{source.stem}_pb2{suffix}")
        for source in sources
        for suffix in (".py", ".pyi", "_grpc.py")
    ]
    oldest = min((path.stat().st_mtime if path.exists() else 0.0) for path in made)
    if oldest > max(path.stat().st_mtime for path in sources):
        return
    include = Path(protoc.__file__).parent / "_proto"
    outs = [f"--{kind}_out={destination}" for kind in ("python", "pyi", "grpc_python")]
    arguments = ["protoc", f"-I{PROTO}", f"-I{include}", *outs, *(str(source) for source in sources)]
    if protoc.main(arguments) != 0:
        sys.exit("setup.py: protoc could not compile proto/ (see above)")


def build_core() -> Path:
    """Builds the Rust crate; returns the path of its static library."""
    profile = os.environ.get("WSGI_ROUTER_PROFILE", "release")
    if profile not in TARGET_FOLDERS:
        sys.exit(f"setup.py: WSGI_ROUTER_PROFILE is {profile!r}; it can be release or dev")
    cargo = shutil.which("cargo")
    if cargo is None:
        sys.exit("setup.py: building wsgi-router needs a Rust toolchain (cargo was not found on PATH)")
    target = Path(os.environ.get("CARGO_TARGET_DIR", NATIVE / "target"))
    command = [cargo, "build", "--locked", "--profile", profile, "--lib", "-p", "wsgi-router-core"]
    finished = subprocess.run([*command, "--target-dir", str(target)], cwd=NATIVE, check=False)
    if finished.returncode != 0:
        sys.exit("setup.py: the native core did not build (see cargo's words above)")
    return target / TARGET_FOLDERS[profile] / "libwsgi_router_core.a"


class BuildPy(build_py):
    """Adds the generated stubs to the package."""

    def run(self) -> None:
        generate_stubs(ROOT)
        super().run()


class BuildExt(build_ext):
    """Builds the Rust crate first and links it in."""

    def run(self) -> None:
        generate_stubs(ROOT)
        library = str(build_core())
        for extension in self.extensions:
            extension.extra_objects = [library]
            extension.depends = [*extension.depends, library]
        # The other profile's library may be older than the extension, and would not be linked then.
        linked = ROOT / "build" / "linked-core"
        self.force = self.force or not linked.exists() or linked.read_text() != library
        super().run()
        linked.parent.mkdir(exist_ok=True)
        linked.write_text(library)


setup(
    ext_modules=[
        Extension(
            "wsgi_router._core",
            ["_native/_core.pyx"],
            include_dirs=["_native"],
            depends=sorted(
                str(path.relative_to(ROOT)) for path in NATIVE.iterdir() if path.suffix in INCLUDED
            ),
            libraries=["dl", "pthread", "m"],
            extra_link_args=LINK_ARGS,
        )
    ],
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
)
