"""Explains to people why another machine cannot be reached."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
import ssl
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum

from serving.terminal.error_text import error_text

_NUMBERS = re.compile(r"\[Errno (\d+)\]")
"""Matches the error numbers in the message of a connection attempt to several addresses that failed
in different ways."""


class Cause(StrEnum):
    """Causes of a failed connection. If several addresses fail in different ways, the first cause
    in this order counts."""

    NAME = "name_unknown"
    CERTIFICATE = "certificate"
    TLS = "tls"
    REFUSED = "refused"
    LOCAL_NETWORK = "local_network"
    NO_ROUTE = "no_route"
    SILENT = "silent"
    BROKEN = "broken"


LOCAL_NETWORK = (
    "See System Settings > Privacy & Security > Local Network, and allow the program that "
    "started it. Programs started from Apple's Terminal, by ssh or as a launchd daemon have "
    "access without a question; in tmux or as a launchd agent they may be blocked without "
    "one."
)
"""Rules since macOS 15, by Apple's technical note 3179 and users' reports."""
_SENTENCES = {
    Cause.NAME: "its name does not resolve; is it on, and in this network?",
    Cause.REFUSED: "nothing listens there; is it running, on an address that others reach "
    "(--host 0.0.0.0), and is the port right?",
    Cause.LOCAL_NETWORK: (
        "there is no route to it: either it is off, or macOS blocks this program's access to the "
        f"local network. {LOCAL_NETWORK}"
    ),
    Cause.NO_ROUTE: "there is no route to it; are both machines on, and in one network?",
    Cause.SILENT: (
        "it does not respond in time; is it asleep, or does its firewall drop connections?"
    ),
    Cause.TLS: "it does not speak TLS there; is it http in place of https?",
}


_KINDS: dict[Cause, type[BaseException]] = {
    Cause.NAME: socket.gaierror,
    Cause.CERTIFICATE: ssl.SSLCertVerificationError,
    Cause.TLS: ssl.SSLError,
}
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}


def cause_of(
    error: BaseException, addresses: Iterable[str] = (), platform: str = sys.platform
) -> Cause:
    """The cause of the error. `addresses`: the addresses that were tried, as far as they are
    known."""
    chain = list(_chain(error))
    for cause, kind in _KINDS.items():
        if any(isinstance(each, kind) for each in chain):
            return cause
    numbers = {number for each in chain for number in _numbers(each)}
    if errno.ECONNREFUSED in numbers:
        return Cause.REFUSED
    if errno.EHOSTUNREACH in numbers and platform == "darwin" and any(map(_is_local, addresses)):
        return Cause.LOCAL_NETWORK
    if numbers & _NO_ROUTE:
        return Cause.NO_ROUTE
    if errno.ETIMEDOUT in numbers or any(isinstance(each, TimeoutError) for each in chain):
        return Cause.SILENT
    return Cause.BROKEN


def sentence_of(cause: Cause, error: BaseException) -> str:
    """The end of a sentence whose subject is the machine."""
    if cause is Cause.CERTIFICATE:
        reasons = [getattr(each, "verify_message", "") for each in _chain(error)]
        reason = next((each for each in reasons if each), "it is not valid here")
        return f"its certificate is refused ({reason})."
    if cause is Cause.BROKEN:
        last = list(_chain(error))[-1]
        reason = getattr(last, "strerror", None) or error_text(last)
        return f"the connection failed ({reason})."
    return _SENTENCES[cause]


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        # Some libraries name the system's error in their own one's arguments only.
        inside = next((each for each in cause.args if isinstance(each, BaseException)), None)
        cause = cause.__cause__ or inside


def _numbers(error: BaseException) -> Iterator[int]:
    if isinstance(error, OSError):
        if error.errno is not None:
            yield error.errno
        yield from map(int, _NUMBERS.findall(str(error)))


def _is_local(address: str) -> bool:
    """True if the address belongs to a local network."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(address.partition("%")[0])
        return (found.is_private or found.is_link_local) and not found.is_loopback
    return False
