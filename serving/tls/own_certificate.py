"""A server's own key pair and self-signed certificate, made once and kept in one file.

Clients pin the certificate, so neither its names nor its dates tell anything: it is valid for as
long as its file exists, whatever the clocks of both machines show.
"""

from __future__ import annotations

import contextlib
import datetime
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serving.errors import CannotStart
from serving.tls.pinning import fingerprint
from serving.whole_file import written_whole

_NAME = "mlx-fleet node agent"
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""RFC 5280's date for a certificate that does not expire."""


class CertificateUnusable(CannotStart):
    """The file with the server's key and certificate cannot be used."""


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The certificate of a server, and the context with which it accepts connections."""

    der: bytes
    context: ssl.SSLContext

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.der)


def own_certificate(file: Path) -> OwnCertificate:
    """Loads the key and the certificate of that file, which the first call makes, readable by its
    owner only. Raises `CertificateUnusable`."""
    try:
        if not file.exists():
            _make(file)
        text = file.read_text()
        der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :].strip())
        context = server_context(file, file, ssl.TLSVersion.TLSv1_3)
    except OSError as error:  # ssl.SSLError is one
        raise CertificateUnusable(f"{file} cannot be used: {_reason(error)}.{_ADVICE}") from None
    except ValueError:
        raise CertificateUnusable(f"{file} has no certificate.{_ADVICE}") from None
    return OwnCertificate(der, context)


def server_context(
    certificate: Path,
    key: Path,
    least: ssl.TLSVersion,
    password: Callable[[], str] | None = None,
) -> ssl.SSLContext:
    """A context for a server of HTTP/1.1. `password` is called for a key that is encrypted; without
    it OpenSSL asks in the terminal. Raises `OSError`, of which `ssl.SSLError` is a kind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = least
    context.num_tickets = 0  # connections are kept, and no client resumes a session
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate, key, password)
    return context


_ADVICE = (
    " If it is damaged, delete it: a new one is made, and every router has to be paired again."
)


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


def _make(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A file that another process makes meanwhile stays.
    with contextlib.suppress(FileExistsError), written_whole(file, replace=False) as draft:
        draft.write_bytes(new_pem())


def new_pem() -> bytes:
    """A new EC key on P-256 and a certificate for it, in PEM."""
    # Only the first start needs the library, which takes long to import.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder(name, name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        # It signs no other certificate: who has the key cannot make a second one that is accepted.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
