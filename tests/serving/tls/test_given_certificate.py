"""Certificates that an admin gives to a server."""

import datetime
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from serving.tls.given_certificate import given_context
from serving.tls.own_certificate import CertificateUnusable

NOW = datetime.datetime(2030, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def write(folder: Path, name: str, *, days: int = 90, password: bytes | None = None) -> list[Path]:
    """A certificate that began yesterday, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "router")])
    made = (
        x509.CertificateBuilder(subject, subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + days * DAY)
        .sign(key, hashes.SHA256())
    )
    kept = (
        serialization.NoEncryption()
        if password is None
        else (serialization.BestAvailableEncryption(password))
    )
    files = [folder / f"{name}.pem", folder / f"{name}.key"]
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kept)
    )
    return files


def test_a_certificate_with_its_key_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = write(tmp_path, "a")
    given_context(certificate, key, lambda: NOW)
    assert caplog.messages == []


def test_one_that_expires_soon_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = write(tmp_path, "a", days=13)
    given_context(certificate, key, lambda: NOW)
    assert "expires at 2030-06-14" in caplog.text


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (NOW + 91 * DAY, "has expired at 2030-08-30"),
        (NOW - 2 * DAY, "is valid from 2030-05-31.*clock"),
    ],
)
def test_one_that_is_not_valid_now_stops_the_start(
    tmp_path: Path, moment: datetime.datetime, words: str
) -> None:
    certificate, key = write(tmp_path, "a")
    with pytest.raises(CertificateUnusable, match=words):
        given_context(certificate, key, lambda: moment)


def test_a_key_of_another_certificate_stops_the_start(tmp_path: Path) -> None:
    certificate, _ = write(tmp_path, "a")
    _, key = write(tmp_path, "b")
    with pytest.raises(CertificateUnusable, match="does not belong"):
        given_context(certificate, key, lambda: NOW)


def test_an_encrypted_key_is_not_asked_for_in_the_terminal(tmp_path: Path) -> None:
    certificate, key = write(tmp_path, "a", password=b"secret")
    with pytest.raises(CertificateUnusable, match="without a passphrase"):
        given_context(certificate, key, lambda: NOW)


@pytest.mark.parametrize("name", ["a.pem", "a.key"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is not in PEM"),
        (b"-----BEGIN X-----\nzz\n-----END X-----\n", "cannot be used|can be read"),
    ],
)
def test_a_file_that_is_none_stops_the_start(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    certificate, key = write(tmp_path, "a")
    if content is None:
        os.unlink(tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CertificateUnusable, match=words):
        given_context(certificate, key, lambda: NOW)
