"""The W3C Trace Context of a request: `traceparent` and `tracestate`, dropped if they are not
valid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_TRACE_MEMBER = rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\x2d-<>-~]{0,255}[!-+\x2d-<>-~]"
_TRACESTATE = re.compile(_TRACE_MEMBER + rb"(?:[ \t]*,[ \t]*" + _TRACE_MEMBER + rb"){0,31}")
_TRACESTATE_BYTES = 512
_ID_AT, _ID_CHARS = len("traceparent: 00-"), 32


def trace_lines(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the caller's W3C trace context as header lines; empty if it is missing or not
    valid."""
    found = [pair for pair in headers if pair[0] == b"traceparent" or pair[0] == b"tracestate"]
    if not found:
        return ""
    parents = [value for name, value in found if name == b"traceparent"]
    if len(parents) != 1 or not _TRACEPARENT.fullmatch(parents[0]):
        return ""
    lines = b"traceparent: %b\r\n" % parents[0]
    state = b",".join(value for name, value in found if name == b"tracestate")
    if len(state) <= _TRACESTATE_BYTES and _TRACESTATE.fullmatch(state):
        lines += b"tracestate: %b\r\n" % state
    return lines.decode("ascii")


def trace_id_of(lines: str) -> str:
    """Returns the id of the trace in lines of `trace_lines`; empty if there is none."""
    return lines[_ID_AT : _ID_AT + _ID_CHARS]


def headers_of(lines: str) -> dict[str, str]:
    """Returns the headers in lines of `trace_lines`."""
    pairs = (line.partition(": ") for line in lines.splitlines())
    return {name: value for name, _, value in pairs}


def header_lines(headers: Mapping[str, str]) -> str:
    """Returns headers as lines, each with its line break."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
