"""Errors of connections, as macOS and Linux raise them, in words."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from serving.unreached import Cause, cause_of, sentence_of

LAN = ("192.168.1.7",)
NO_WAY = OSError(errno.EHOSTUNREACH, "No route to host")
TWO = (
    "Multiple exceptions: [Errno {}] Connect call failed ('192.168.1.7', 8801), [Errno {}] Connect"
)


def wrapped(error: OSError) -> Exception:
    """Wraps the error as a client library raises it."""
    outer = RuntimeError("Cannot connect to host studio.local:8801 ssl:default [None]")
    outer.__cause__ = error
    return outer


def both(first: int, second: int) -> OSError:
    return OSError(TWO.format(first, second))


@pytest.mark.parametrize(
    ("error", "addresses", "platform", "cause"),
    [
        (NO_WAY, LAN, "darwin", Cause.LOCAL_NETWORK),
        (NO_WAY, ("10.0.0.4",), "darwin", Cause.LOCAL_NETWORK),
        (NO_WAY, ("fe80::1%en0",), "darwin", Cause.LOCAL_NETWORK),
        (NO_WAY, ("17.253.144.10", "192.168.1.7"), "darwin", Cause.LOCAL_NETWORK),
        (wrapped(NO_WAY), LAN, "darwin", Cause.LOCAL_NETWORK),
        (both(errno.EHOSTUNREACH, errno.ENETUNREACH), LAN, "darwin", Cause.LOCAL_NETWORK),
        (NO_WAY, LAN, "linux", Cause.NO_ROUTE),
        (NO_WAY, ("17.253.144.10",), "darwin", Cause.NO_ROUTE),
        (NO_WAY, (), "darwin", Cause.NO_ROUTE),
        (OSError(errno.EHOSTDOWN, "Host is down"), LAN, "darwin", Cause.NO_ROUTE),
        (both(errno.ECONNREFUSED, errno.EHOSTUNREACH), LAN, "darwin", Cause.REFUSED),
        (
            wrapped(ConnectionRefusedError(errno.ECONNREFUSED, "refused")),
            LAN,
            "darwin",
            Cause.REFUSED,
        ),
        (wrapped(socket.gaierror(8, "nodename nor servname")), (), "darwin", Cause.NAME),
        (TimeoutError(), LAN, "darwin", Cause.SILENT),
        (OSError(errno.ETIMEDOUT, "Operation timed out"), LAN, "darwin", Cause.SILENT),
        (wrapped(ssl.SSLCertVerificationError(1, "bad")), LAN, "darwin", Cause.CERTIFICATE),
        (wrapped(ssl.SSLError(1, "wrong version number")), LAN, "darwin", Cause.TLS),
        (ConnectionResetError(errno.ECONNRESET, "reset"), LAN, "darwin", Cause.BROKEN),
    ],
)
def test_each_failure_has_its_cause(
    error: Exception, addresses: tuple[str, ...], platform: str, cause: Cause
) -> None:
    assert cause_of(error, addresses, platform) is cause


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_is_a_sentence_without_the_insides_of_libraries(cause: Cause) -> None:
    sentence = sentence_of(cause, wrapped(ConnectionResetError(errno.ECONNRESET, "reset by peer")))
    assert sentence.endswith((".", "?"))
    assert "ssl:" not in sentence and "Errno" not in sentence


def test_the_local_networks_sentence_names_the_setting() -> None:
    sentence = sentence_of(Cause.LOCAL_NETWORK, NO_WAY)
    assert "System Settings > Privacy & Security > Local Network" in sentence


def test_a_refused_certificate_is_reported_with_the_reason() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    sentence = sentence_of(Cause.CERTIFICATE, wrapped(error))
    assert sentence == "its certificate is refused (self-signed certificate)."


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
            "Connection reset by peer",
        ),
        (RuntimeError("Server disconnected"), "Server disconnected"),
        (RuntimeError(), "it gave no reason"),
    ],
)
def test_what_has_no_cause_of_its_own_is_reported_as_it_is(error: Exception, shown: str) -> None:
    assert sentence_of(Cause.BROKEN, error) == f"the connection failed ({shown})."


def test_an_error_in_the_arguments_of_another_one_is_its_cause() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    assert cause_of(OSError(refused)) is Cause.REFUSED
