"""TLS to the workers: the certificates that the settings name, read and checked once for both transports.

They are read before the fork, and anew on SIGHUP; a process that is replaced in between has the others' ones.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wsgi_router.settings import Settings, SettingsError

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_KEY: Final = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----(\r?\nProc-Type: 4,ENCRYPTED)?")
_SYSTEM_FILES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions keep all authorities in one file."""
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a transport needs for TLS. All bytes are PEM, empty where there is none."""

    roots: bytes = b""
    private: bool = False
    """The roots are those of a file of the user's, whose certificates a worker may show as its own."""
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    server_name: str = ""


_shared: dict[tuple[str, ...], Credentials] = {}


def share(settings: Settings, credentials: Credentials) -> None:
    """Processes forked from now on have these for `settings`."""
    _shared.clear()
    _shared[_key(settings)] = credentials


def load(settings: Settings) -> Credentials:
    """Those that are shared, or what `read` gives. Raises SettingsError."""
    return _shared.get(_key(settings)) or read(settings)


def read(settings: Settings) -> Credentials:
    """What the settings name. Raises SettingsError."""
    _check_pair(settings)
    certificate, key = _own(settings)
    return Credentials(
        roots=_roots(settings),
        private=bool(settings.worker_ca_file),
        certificate=certificate,
        key=key,
        server_name=settings.worker_tls_server_name,
    )


def _key(settings: Settings) -> tuple[str, ...]:
    return (
        settings.worker_ca_file,
        settings.worker_cert_file,
        settings.worker_key_file,
        settings.worker_tls_server_name,
        *_addresses(settings),
    )


def _addresses(settings: Settings) -> tuple[str, ...]:
    """Of all workers that the settings name, whether one by one or many together."""
    return (*settings.all_workers(), *settings.all_names())


def _error(name: str, why: str) -> SettingsError:
    return SettingsError(f"{name}: {' '.join(why.split())}")


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise _error(name, f"cannot read {path}: {getattr(error, 'strerror', error)}") from None


def _roots(settings: Settings) -> bytes:
    name, path = "WORKER_CA_FILE", settings.worker_ca_file
    if not path:
        roots = _system_roots()
        if not roots and any(url.startswith("grpcs://") for url in _addresses(settings)):
            raise _error(name, "must be set, as this system has no certificates of authorities")
        return roots
    roots = _read(name, path)
    if _CERTIFICATE not in roots:
        raise _error(name, f"{path} holds no certificate in PEM")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise _error(name, f"{path} cannot be used: {_reason(error)}") from None
    return roots


def _check_pair(settings: Settings) -> None:
    files = {"WORKER_CERT_FILE": settings.worker_cert_file, "WORKER_KEY_FILE": settings.worker_key_file}
    missing = [name for name, path in files.items() if not path]
    if len(missing) == 1:
        other = next(name for name, path in files.items() if path)
        raise _error(missing[0], f"must be set too, as {other} is")


def _own(settings: Settings) -> tuple[bytes, bytes]:
    """The router's certificate and key."""
    if not settings.worker_cert_file:
        return b"", b""
    certificate = _read("WORKER_CERT_FILE", settings.worker_cert_file)
    if _CERTIFICATE not in certificate:
        raise _error("WORKER_CERT_FILE", f"{settings.worker_cert_file} holds no certificate in PEM")
    key = _read("WORKER_KEY_FILE", settings.worker_key_file)
    kind = _KEY.search(key)
    if kind is None:
        raise _error("WORKER_KEY_FILE", f"{settings.worker_key_file} holds no private key in PEM")
    if kind[1] == b"ENCRYPTED " or kind[2]:
        raise _error("WORKER_KEY_FILE", f"{settings.worker_key_file} is encrypted: there is nobody to ask")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(settings.worker_cert_file, settings.worker_key_file)
    except (OSError, ValueError) as error:
        files = f"{settings.worker_key_file} with {settings.worker_cert_file}"
        raise _error("WORKER_KEY_FILE", f"{files} cannot be used: {_reason(error)}") from None
    return certificate, key


def _reason(error: Exception) -> str:
    """OpenSSL's own words, such as "key values mismatch"."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).replace("_", " ").lower()


def _system_roots() -> bytes:
    """What the system trusts, or SSL_CERT_FILE or SSL_CERT_DIR names."""
    found = ssl.get_default_verify_paths()
    files = [found.cafile or ""]
    if "SSL_CERT_DIR" not in os.environ:
        files += _SYSTEM_FILES
    for path in files:
        if path and (roots := _quietly_read(Path(path))):
            return roots
    folder = Path(found.capath or "/etc/ssl/certs")
    if not folder.is_dir():
        return b""
    hashed = sorted(path for path in folder.iterdir() if _HASHED.fullmatch(path.name))
    return b"\n".join(dict.fromkeys(_quietly_read(path) for path in hashed))


def _quietly_read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError:
        return b""
    return content if _CERTIFICATE in content else b""
