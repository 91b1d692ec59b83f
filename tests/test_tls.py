"""Certificates as the settings name them: what is read, and what stops the start."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from tests.support.certificates import Authority, Pair
from wsgi_router import cli, tls
from wsgi_router.grpc_client import GrpcTransport
from wsgi_router.native_client import NativeTransport
from wsgi_router.settings import Settings, SettingsError


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("router@example.org")


def test_everything_is_read(authority: Authority, pair: Pair) -> None:
    settings = Settings(worker_ca_file=str(authority.file), worker_tls_server_name="w", **pair.settings())
    found = tls.load(settings)
    assert found.roots == authority.file.read_bytes()
    assert found.private
    assert found.certificate == pair.certificate.read_bytes()
    assert found.key == pair.key.read_bytes()
    assert found.server_name == "w"
    assert "PRIVATE" not in repr(found)


def test_one_file_may_hold_certificate_and_key(pair: Pair, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(pair.key.read_bytes() + b"\n" + pair.certificate.read_bytes())
    settings = Settings(worker_cert_file=str(both), worker_key_file=str(both))
    NativeTransport(settings).close()
    GrpcTransport(settings).close()


def encrypted(pair: Pair, form: serialization.PrivateFormat) -> bytes:
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    return key.private_bytes(serialization.Encoding.PEM, form, locked)


def test_what_cannot_be_used_is_one_line_that_names_it(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    def written(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    certificate, key = str(pair.certificate), str(pair.key)
    other = str(authority.issue("other@example.org").key)
    der = ssl.PEM_cert_to_DER_cert(authority.file.read_text())
    cut = authority.file.read_bytes().replace(b"MII", b"MI")
    openssl, pkcs8 = serialization.PrivateFormat.TraditionalOpenSSL, serialization.PrivateFormat.PKCS8
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"worker_ca_file": "/no/such.pem"}, "WORKER_CA_FILE: cannot read /no/such.pem: No such file"),
        ({"worker_ca_file": str(tmp_path)}, f"WORKER_CA_FILE: cannot read {tmp_path}: Is a directory"),
        ({"worker_ca_file": written("der", der)}, "der holds no certificate in PEM"),
        ({"worker_ca_file": key}, "holds no certificate in PEM"),
        ({"worker_ca_file": written("cut", cut)}, "cut cannot be used: "),
        ({"worker_cert_file": certificate}, "WORKER_KEY_FILE: must be set too, as WORKER_CERT_FILE is"),
        ({"worker_key_file": key}, "WORKER_CERT_FILE: must be set too, as WORKER_KEY_FILE is"),
        ({"worker_cert_file": key, "worker_key_file": key}, "WORKER_CERT_FILE: "),
        ({"worker_cert_file": certificate, "worker_key_file": "/no"}, "WORKER_KEY_FILE: cannot read /no: "),
        ({"worker_cert_file": certificate, "worker_key_file": certificate}, "holds no private key in PEM"),
        ({"worker_cert_file": certificate, "worker_key_file": other}, "key values mismatch"),
        (
            {"worker_cert_file": certificate, "worker_key_file": written("a", encrypted(pair, pkcs8))},
            "a is encrypted",
        ),
        (
            {"worker_cert_file": certificate, "worker_key_file": written("b", encrypted(pair, openssl))},
            "b is encrypted",
        ),
    )
    for given, words in cases:
        with pytest.raises(SettingsError) as caught:
            tls.load(Settings(**given))
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_without_a_file_the_system_is_trusted(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    found = tls.load(Settings())
    assert found.roots == authority.file.read_bytes()
    assert not found.private

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "12345678.0").write_bytes(authority.file.read_bytes())
    (folder / "12345678.1").write_bytes(authority.file.read_bytes())
    (folder / "README").write_text("none")
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    assert tls.load(Settings()).roots.strip() == authority.file.read_bytes().strip()


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": ("grpcs://127.0.0.1:1",)},
        {"workers_dns": ("grpcs://a.test:1",)},
        {"prefill_workers_dns": ("grpcs://a.test:1 9001",)},
    ],
)
def test_a_system_that_trusts_nobody_has_to_be_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, Any]
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    NativeTransport(Settings(workers=("grpc://127.0.0.1:1",))).close()
    with pytest.raises(SettingsError, match=r"^WORKER_CA_FILE: must be set"):
        tls.load(Settings(**settings))


def test_what_only_the_core_refuses_is_a_setting_s_error(pair: Pair, tmp_path: Path) -> None:
    """OpenSSL takes keys that no TLS library of today would sign with."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256K1())
    found = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    builder = x509.CertificateBuilder(
        found.issuer,
        found.subject,
        key.public_key(),
        1,
        found.not_valid_before_utc,
        found.not_valid_after_utc,
    )
    odd = Pair(tmp_path / "odd.pem", tmp_path / "odd.key")
    odd.certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    odd.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(SettingsError, match=r"^WORKER_KEY_FILE: "):
        NativeTransport(Settings(**odd.settings()))


def test_processes_share_what_was_read_before_the_fork(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "roots.pem"
    file.write_bytes(authority.file.read_bytes())
    settings = Settings(worker_ca_file=str(file))
    monkeypatch.setattr(tls, "_shared", {})
    tls.share(settings, tls.read(settings))
    file.write_text("half a certificate")
    assert tls.load(settings).roots == authority.file.read_bytes()
    with pytest.raises(SettingsError):
        tls.load(Settings(worker_ca_file=str(file), worker_tls_server_name="w"))
    with pytest.raises(SettingsError):
        tls.read(settings)


def test_check_tells_of_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WSGI_ROUTER_WORKER_CA_FILE", "/no/such.pem")
    assert cli.main(["check"]) == 1
    assert "WORKER_CA_FILE: cannot read /no/such.pem" in capsys.readouterr().err
