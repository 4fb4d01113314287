"""Checks a request's head before it is used. A head that two parsers could read as two different
requests is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable

import httptools

from serving.http.refusals import NotARequest, NotImplementedHere, Refusal, WrongHttpVersion

_HOST = re.compile(rb"[\w.~%!$&'()*+,;=:\[\]-]*", re.ASCII)
_OTHER_VERSIONS = ("Invalid HTTP version", "Expected dot", "Pause on PRI/Upgrade")
"""Messages of the parser for requests in other versions."""


def check_head(version: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if the client waits for `100 Continue` before it sends the body. Raises a `Refusal`; the
    parser itself refuses two lengths or a folded line."""
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
    """The path and the query of a request's target. Raises a `Refusal`."""
    if method == b"CONNECT":
        raise NotImplementedHere("This server is no proxy: CONNECT is not served.")
    if target.startswith(b"/") and b"?" not in target and b"#" not in target:
        return target, b""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise NotARequest("The request's target is not valid.") from None
    return url.path or b"", url.query or b""


def _check_hosts(version: str, hosts: list[bytes]) -> None:
    if len(hosts) != 1 and (hosts or version == "1.1"):
        raise NotARequest("A request must have one `Host` header.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise NotARequest("The `Host` header is not valid.")


def _check_codings(version: str, codings: list[bytes]) -> None:
    if version != "1.1":
        raise NotARequest("HTTP/1.0 has no `Transfer-Encoding`.")
    if codings != [b"chunked"]:
        raise NotImplementedHere("The only `Transfer-Encoding` that is supported is chunked.")


def refusal_of(error: httptools.HttpParserError) -> Refusal:
    """The refusal for bytes that the parser rejected."""
    cause = error.__context__
    if isinstance(cause, Refusal):  # raised in a callback of the parser
        return cause
    if str(error) in _OTHER_VERSIONS:
        return WrongHttpVersion()
    return NotARequest(f"This is not an HTTP request: {error}.")
