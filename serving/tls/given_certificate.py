"""A certificate that an admin has given to a server, from a company's or a public authority."""

from __future__ import annotations

import datetime
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from serving.tls.own_certificate import CertificateUnusable, server_context

SOON = datetime.timedelta(days=14)

log = logging.getLogger("mlx_fleet.serving")

Now = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def given_context(certificate: Path, key: Path, now: Now = utc_now) -> ssl.SSLContext:
    """The context for a server with that certificate, which is followed by its chain in the file.
    Raises `CertificateUnusable` if the files cannot be read, do not fit each other, or the
    certificate is not valid now."""
    for file, what in ((certificate, "certificate"), (key, "key")):
        _check_readable(file, what)
    _check_dates(certificate, now())
    try:
        return server_context(certificate, key, ssl.TLSVersion.TLSv1_2, _no_password)
    except _Encrypted:
        raise CertificateUnusable(
            f"The key {key} is encrypted; give one without a passphrase, readable by you only."
        ) from None
    except ssl.SSLError as error:
        raise CertificateUnusable(_sentence(error, certificate, key)) from None


class _Encrypted(Exception):
    """The key needs a passphrase."""


def _no_password() -> str:
    raise _Encrypted


def _check_readable(file: Path, what: str) -> None:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise CertificateUnusable(f"The {what} {file} cannot be read: {error.strerror}.") from None
    if b"-----BEGIN" not in text:
        raise CertificateUnusable(f"The {what} {file} is not in PEM (-----BEGIN …).")


def valid_until(file: Path) -> datetime.datetime:
    """The end of the certificate's validity. Raises `OSError`, or `ValueError` if it is none."""
    return _validity(file)[1]


def _validity(file: Path) -> tuple[datetime.datetime, datetime.datetime]:
    from cryptography import x509

    found = x509.load_pem_x509_certificates(file.read_bytes())[0]
    return found.not_valid_before_utc, found.not_valid_after_utc


def _check_dates(file: Path, now: datetime.datetime) -> None:
    try:
        begin, end = _validity(file)
    except ValueError:
        raise CertificateUnusable(f"{file} has no certificate that can be read.") from None
    if now < begin:
        raise CertificateUnusable(
            f"The certificate {file} is valid from {begin:%Y-%m-%d %H:%M} UTC only; is this "
            "machine's clock right?"
        )
    if now >= end:
        raise CertificateUnusable(
            f"The certificate {file} has expired at {end:%Y-%m-%d %H:%M} UTC; renew it."
        )
    if end - now < SOON:
        log.warning("The certificate %s expires at %s UTC.", file, f"{end:%Y-%m-%d %H:%M}")


def _sentence(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"The key {key} does not belong to the certificate {certificate}."
    return f"{certificate} and {key} cannot be used ({error.reason or error})."
