"""What a request's head must be before anything is made of it. Where two readers of a head could
see two requests, there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable

import httptools

from serving.http.refusals import NotARequest, NotImplementedHere, Refusal, WrongHttpVersion

_HOST = re.compile(rb"[\w.~%!$&'()*+,;=:\[\]-]*", re.ASCII)
_OTHER_VERSIONS = ("Invalid HTTP version", "Expected dot", "Pause on PRI/Upgrade")
"""What the parser says of requests in them."""


def check_head(version: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the caller waits to be told to send the body. Raises what the request is refused
    with; what the parser refuses itself, two lengths or a folded line, does not come here."""
    if version not in ("1.1", "1.0"):
        raise WrongHttpVersion
    hosts: list[bytes] = []
    codings: list[bytes] = []
    waits = False
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value.lower())
        elif name == b"expect" and value.lower() == b"100-continue":
            waits = version == "1.1"
    _check_hosts(version, hosts)
    if codings:
        _check_codings(version, codings)
    return waits


def read_target(method: bytes, target: bytes) -> tuple[bytes, bytes]:
    """The path and the query of what a request asks for. Raises what it is refused with."""
    if method == b"CONNECT":
        raise NotImplementedHere("This server is no proxy: CONNECT is not served.")
    if target.startswith(b"/") and b"?" not in target and b"#" not in target:
        return target, b""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise NotARequest("The request asks for an address that is none.") from None
    return url.path or b"", url.query or b""


def _check_hosts(version: str, hosts: list[bytes]) -> None:
    if len(hosts) != 1 and (hosts or version == "1.1"):
        raise NotARequest("A request has one `Host` header.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise NotARequest("The `Host` header is no address.")


def _check_codings(version: str, codings: list[bytes]) -> None:
    if version != "1.1":
        raise NotARequest("HTTP/1.0 has no `Transfer-Encoding`.")
    if codings != [b"chunked"]:
        raise NotImplementedHere("The only `Transfer-Encoding` that is read here is chunked.")


def refusal_of(error: httptools.HttpParserError) -> Refusal:
    """What a caller is told of bytes that the parser stopped at."""
    cause = error.__context__
    if isinstance(cause, Refusal):  # raised by who was told of what it had read
        return cause
    if str(error) in _OTHER_VERSIONS:
        return WrongHttpVersion()
    return NotARequest(f"This is not an HTTP request: {error}.")
