"""Connections to a server that is known by exactly one certificate, whatever its name is."""

from __future__ import annotations

import hashlib
import ssl


def fingerprint(der: bytes) -> bytes:
    """The SHA-256 of a certificate."""
    return hashlib.sha256(der).digest()


def pinned_context(pem: str) -> ssl.SSLContext:
    """A client's context that accepts this certificate and no other. Raises `ValueError` for a text
    that is not one certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate stands for the server, whose address and name may change.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if pem.count("-----BEGIN") != 1:
        raise ValueError("A pin is exactly one certificate.")
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise ValueError("A pin is a certificate in PEM.") from error
    return context


def untrusting_context() -> ssl.SSLContext:
    """A client's context that accepts any certificate, to read it. Nothing may be sent over such a
    connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
