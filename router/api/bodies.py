"""Bodies of `/v1/*`: read once, decoded for routing only."""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from typing import Any

import msgspec

from router.errors import BadRequest, BodyTooLarge
from router.leaving import Receive
from router.settings import MAX_BODY_BYTES

Scope = MutableMapping[str, Any]

_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_TRACE_MEMBER = rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\x2d-<>-~]{0,255}[!-+\x2d-<>-~]"
_TRACESTATE = re.compile(_TRACE_MEMBER + rb"(?:[ \t]*,[ \t]*" + _TRACE_MEMBER + rb"){0,31}")
_TRACESTATE_BYTES = 512


_ITEM_PREFIXES = ("msg", "rs", "fc")


class ClientLeft(Exception):
    """The caller closed the connection before it had sent its whole body."""


class _Routing(msgspec.Struct):
    """The fields of a body that routing needs; the node parses the rest."""

    model: str
    stream: bool | None = False

    @property
    def previous_id(self) -> str | None:
        """The response that the request goes on from."""
        return None


class _ResponseRouting(_Routing):
    previous_response_id: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")

    @property
    def previous_id(self) -> str | None:
        return self.previous_response_id or self._referred()

    def _referred(self) -> str | None:
        """The response of the first item that the input refers to in place of repeating it."""
        if b"item_reference" not in bytes(self.input):
            return None
        items = msgspec.json.decode(self.input)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("type") == "item_reference":
                return _response_of(item.get("id"))
        return None


def _response_of(item_id: object) -> str | None:
    """The response that has the item; None for an id that is not one of an agent's items."""
    prefix, found, rest = str(item_id).partition("_")
    if not found or prefix not in _ITEM_PREFIXES:
        return None
    return "resp_" + rest.rpartition("-")[0]


_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_routing = msgspec.json.Decoder(_Routing).decode
_decode_response_routing = msgspec.json.Decoder(_ResponseRouting).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole request body. Raises `BodyTooLarge`, `BadRequest`, and `ClientLeft` where the
    connection ends within it."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > MAX_BODY_BYTES:
            raise BodyTooLarge
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body", False):
        return body
    parts, size = [body], len(body)
    while message["type"] == "http.request" and message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return b"".join(parts)


def trace_lines(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's W3C trace context as header lines; empty where it is not one."""
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


def parse_routing(body: bytes, *, goes_on: bool = False) -> _Routing:
    """Model and stream flag of a body; where it may go on from a response, that too.

    Raises `BadRequest` naming the field at fault.
    """
    try:
        return _decode_response_routing(body) if goes_on else _decode_routing(body)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from None
    except _BROKEN as error:
        raise _not_json(error) from None


def _not_json(error: Exception) -> BadRequest:
    return BadRequest(f"The body is not valid JSON: {error}.")


def _bad_field(text: str) -> BadRequest:
    if "missing required field `model`" in text:
        return BadRequest("The field `model` is missing.", param="model")
    what, found, where = text.partition(" - at `$.")
    if found:
        return BadRequest(f"{where.rstrip('`')}: {what}.", param=where.rstrip("`"))
    return BadRequest(f"The body must be a JSON object ({what}).")


def splice_model(body: bytes, model: str) -> bytes:
    """The body with another top-level `model`; every other value keeps its bytes.

    Raises `BadRequest` for a broken field that routing had skipped.
    """
    try:
        fields = _decode_fields(body)
    except _BROKEN as error:
        raise _not_json(error) from None
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)
