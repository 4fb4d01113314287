"""A client that knows a server by its certificate alone."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from serving.tls.own_certificate import OwnCertificate, own_certificate
from serving.tls.pinning import pinned_context


def pem(certificate: OwnCertificate) -> str:
    return ssl.DER_cert_to_PEM_cert(certificate.der)


@asynccontextmanager
async def serving(certificate: OwnCertificate) -> AsyncIterator[int]:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=certificate.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def greeting(port: int, pin: str, name: str = "any.name") -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=pinned_context(pin), server_hostname=name
    )
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_the_pinned_certificate_is_accepted_under_any_name(tmp_path: Path) -> None:
    certificate = own_certificate(tmp_path / "tls.pem")
    async with serving(certificate) as port:
        for name in ("mac.local", "192.168.1.7", "localhost"):
            assert await greeting(port, pem(certificate), name) == b"hello"


async def test_any_other_certificate_is_refused(tmp_path: Path) -> None:
    pinned, other = (own_certificate(tmp_path / each) for each in ("a.pem", "b.pem"))
    async with serving(other) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeting(port, pem(pinned))


async def test_another_certificate_with_the_pinned_one_s_key_is_refused(tmp_path: Path) -> None:
    pinned = own_certificate(tmp_path / "a.pem")
    text = (tmp_path / "a.pem").read_bytes()
    key = serialization.load_pem_private_key(text, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    old = x509.load_der_x509_certificate(pinned.der)
    made = (
        x509.CertificateBuilder(old.subject, old.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(old.not_valid_after_utc)
        .sign(key, hashes.SHA256())
    )
    before, _, _ = text.partition(b"-----BEGIN CERTIFICATE")
    (tmp_path / "b.pem").write_bytes(before + made.public_bytes(serialization.Encoding.PEM))
    async with serving(own_certificate(tmp_path / "b.pem")) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeting(port, pem(pinned))


def test_a_pin_is_checked_and_is_one_certificate(tmp_path: Path) -> None:
    one, two = (pem(own_certificate(tmp_path / each)) for each in ("a.pem", "b.pem"))
    context = pinned_context(one)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    for text in (one + two, "", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"):
        with pytest.raises(ValueError, match=r".+"):
            pinned_context(text)
