"""Bodies of `/v1/*`: read once, decoded for routing only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from node.protocol.prefix import Fields, read_fields
from router.errors import BadRequest, BodyTooLarge
from router.settings import MAX_BODY_BYTES
from serving.http.exchange import Receive

Scope = MutableMapping[str, Any]

_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_TRACE_MEMBER = rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\x2d-<>-~]{0,255}[!-+\x2d-<>-~]"
_TRACESTATE = re.compile(_TRACE_MEMBER + rb"(?:[ \t]*,[ \t]*" + _TRACE_MEMBER + rb"){0,31}")
_TRACESTATE_BYTES = 512

_REFERENCE = b'"item_reference"'
_NO_TYPE = (b"", b"null", b'""')
_ABSENT = msgspec.Raw(b"")
_ID_FIELD = b'"id"'
_THREAD_BYTES = 1 << 20
"""A longer input is gone through in a thread, beside the requests of others."""

R = TypeVar("R")


class ClientLeft(Exception):
    """The caller closed the connection before it had sent its whole body."""


@dataclass(frozen=True, slots=True)
class Routing:
    """What routing needs of a body; the node parses the rest."""

    fields: Fields
    model: str
    stream: bool
    previous_response_id: str | None = None
    """Of `/v1/responses`: the response that the request goes on from, which a node holds."""


class _ItemHead(msgspec.Struct, gc=False):
    """What tells whether an item stands for another one. Nothing is decoded that may be long."""

    type: msgspec.Raw = _ABSENT
    id: msgspec.Raw = _ABSENT
    role: msgspec.Raw = _ABSENT

    @property
    def reference(self) -> str | None:
        """The id of the item that it stands for; None where it is an item itself."""
        kind = bytes(self.type)
        # Without a type, what has a role is a message.
        if kind != _REFERENCE and (kind not in _NO_TYPE or bytes(self.role)):
            return None
        item_id = bytes(self.id)
        return _decode_text(item_id) if item_id.startswith(b'"') else None


_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_flag = msgspec.json.Decoder(bool | None).decode
_decode_id = msgspec.json.Decoder(str | None).decode
_decode_items = msgspec.json.Decoder(list[_ItemHead]).decode
_decode_text = msgspec.json.Decoder(str).decode


def body_bytes(scope: Scope) -> int:
    """How long the body is; of one that comes in chunks, how long it may be. Raises
    `BodyTooLarge`."""
    size_bytes = 0
    for name, value in scope["headers"]:
        if name == b"content-length":
            size_bytes = int(value)
        elif name == b"transfer-encoding":
            size_bytes = MAX_BODY_BYTES
    if size_bytes > MAX_BODY_BYTES:
        raise BodyTooLarge
    return size_bytes


async def read_body(receive: Receive) -> bytes:
    """The whole request body. Raises `BodyTooLarge`, `BadRequest`, and `ClientLeft` where the
    connection ends within it."""
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


def parse_routing(body: bytes, *, goes_on: bool = False) -> Routing:
    """What a body says for routing; `goes_on`: it may go on from a response. Raises `BadRequest`
    naming the field at fault."""
    try:
        fields = read_fields(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body must be a JSON object ({error}).") from None
    except _BROKEN as error:
        raise _not_json(error) from None
    if "model" not in fields:
        raise BadRequest("The field `model` is missing.", param="model")
    previous = _field(fields, "previous_response_id", _decode_id) if goes_on else None
    return Routing(
        fields,
        model=_field(fields, "model", _decode_text) or "",
        stream=bool(_field(fields, "stream", _decode_flag)),
        previous_response_id=previous,
    )


def _field(fields: Fields, name: str, decode: Callable[[msgspec.Raw], R]) -> R | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{name}: {error}.", param=name) from None
    except _BROKEN as error:
        raise _not_json(error) from None


async def referred_items(fields: Fields) -> dict[str, str]:
    """The ids of the items that the input refers to in place of repeating them, by the path of each
    id in the body. None of an input that is not as it should be: the node will refuse it."""
    items = bytes(fields.get("input", _ABSENT))
    if _ID_FIELD not in items:
        return {}
    if len(items) <= _THREAD_BYTES:
        return _references(items)
    return await asyncio.to_thread(_references, items)


def _references(items: bytes) -> dict[str, str]:
    try:
        found = [(at, item.reference) for at, item in enumerate(_decode_items(items))]
    except _BROKEN:
        return {}
    return {f"input[{at}].id": item_id for at, item_id in found if item_id is not None}


def _not_json(error: Exception) -> BadRequest:
    return BadRequest(f"The body is not valid JSON: {error}.")


def with_model(fields: Fields, model: str) -> bytes:
    """The body with another top-level `model`; every other value keeps its bytes."""
    return msgspec.json.encode({**fields, "model": msgspec.Raw(msgspec.json.encode(model))})
