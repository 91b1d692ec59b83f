"""Certificates made for a test, as files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """Files of a certificate, with its chain, and of its key."""

    certificate: Path
    key: Path

    def flags(self, client_ca: Path | None = None) -> tuple[str, ...]:
        """The simulator's."""
        flags = ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))
        return flags if client_ca is None else (*flags, "--tls-client-ca", str(client_ca))

    def settings(self) -> dict[str, Any]:
        """The router's, as a client of workers."""
        return {"worker_cert_file": str(self.certificate), "worker_key_file": str(self.key)}


class Authority:
    """A certificate authority whose files are in `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.name = name
        self._authority = trustme.CA()
        self.file = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def issue(self, *names: str, **more: Any) -> Pair:
        """A certificate for hosts, addresses or people."""
        return self._write(self._authority.issue_cert(*names, **more), names[0])

    def expired(self, *names: str) -> Pair:
        return self._write(self._authority.issue_cert(*names, not_after=now() - DAY), "expired")

    def early(self, *names: str) -> Pair:
        return self._write(self._authority.issue_cert(*names, not_before=now() + DAY), "early")

    def below(self) -> Pair:
        """A certificate for 127.0.0.1 by an authority that this one has signed; the chain tells."""
        return self._write(self._authority.create_child_ca().issue_cert("127.0.0.1"), "below")

    def _write(self, made: trustme.LeafCert, name: str) -> Pair:
        stem = f"{self.name}-{name.replace('@', '-at-')}"
        pair = Pair(self.folder / f"{stem}.pem", self.folder / f"{stem}.key")
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(pair.key)
        return pair


def now() -> datetime:
    return datetime.now(UTC)


def self_signed(folder: Path, name: str) -> Pair:
    """What `openssl req -x509` makes by default: a CA's certificate that is its own, for one address."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - DAY)
        .not_valid_after(now() + DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    )
    pair = Pair(folder / "self-signed.pem", folder / "self-signed.key")
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    pair.certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    pair.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain))
    return pair
