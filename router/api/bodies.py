"""Reads the bodies of `/v1/*` once, and decodes only what routing needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

import msgspec

from node.protocol.bounds import MAX_BODY_BYTES
from node.protocol.chain.prefix import Fields, read_fields
from node.protocol.paths import PATH_OLLAMA_CHAT, PATH_OLLAMA_GENERATE, PATH_RESPONSES
from router.errors import BadRequest, BodyTooLarge
from serving.http.exchange import Receive

Scope = MutableMapping[str, Any]

_REFERENCE = b'"item_reference"'
_NO_TYPE = (b"", b"null", b'""')
_ABSENT = msgspec.Raw(b"")
_ID_FIELD = b'"id"'
PROMPT_FIELDS = {
    PATH_OLLAMA_CHAT: ("messages",),
    PATH_OLLAMA_GENERATE: ("prompt", "images"),
}
"""Fields of Ollama's dialect of which a request for text has at least one."""
_EMPTY = (b"", b"null", b'""', b"[]")
_SPACES = b" \t\r\n"
_SHORT_BYTES = 64
_THREAD_BYTES = 1 << 20
"""Inputs longer than this are searched in a thread, so that other requests are not delayed."""

R = TypeVar("R")


class ClientDisconnected(Exception):
    """The client closed the connection before it had sent its whole body."""


class Routing(msgspec.Struct, frozen=True):
    """The fields of a body that routing needs; the node parses the rest."""

    fields: Fields
    model: str
    stream: bool
    previous_response_id: str | None = None
    """Id of the response that a `/v1/responses` request continues; it is stored on one node."""
    only_loads: bool = False
    """True if a request of Ollama's dialect has no prompt, and only loads or unloads the model."""


class _ItemHead(msgspec.Struct, gc=False):
    """The fields that show whether an input item refers to another one. Long values are not
    decoded."""

    type: msgspec.Raw = _ABSENT
    id: msgspec.Raw = _ABSENT
    role: msgspec.Raw = _ABSENT

    @property
    def reference(self) -> str | None:
        """Id of the item that it refers to; None if it is an item itself."""
        kind = bytes(self.type)
        # Without a type, an item that has a role is a message.
        if kind != _REFERENCE and (kind not in _NO_TYPE or bytes(self.role)):
            return None
        item_id = bytes(self.id)
        return _decode_text(item_id) if item_id.startswith(b'"') else None


_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_flag = msgspec.json.Decoder(bool | None).decode
_decode_id = msgspec.json.Decoder(str | None).decode
_decode_items = msgspec.json.Decoder(list[_ItemHead]).decode
_decode_text = msgspec.json.Decoder(str).decode


def client_of(scope: Scope) -> str:
    """Returns the address that the request came from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def body_bytes(scope: Scope) -> int:
    """Returns the length of the body from its headers; for a chunked body, the longest it may be.
    Raises `BodyTooLarge`."""
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
    """Reads the whole request body. Raises `BodyTooLarge`, or `ClientDisconnected` if the
    connection closes before the body is complete."""
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
        raise ClientDisconnected
    return b"".join(parts)


def parse_routing(body: bytes, path: str) -> Routing:
    """Decodes the fields that routing needs of a body for that path. Raises `BadRequest` naming the
    invalid field."""
    try:
        fields = read_fields(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body must be a JSON object ({error}).") from None
    except _BROKEN as error:
        raise _not_json(error) from None
    if "model" not in fields:
        raise BadRequest("The field `model` is missing.", param="model")
    model = _field(fields, "model", _decode_text) or ""
    stream = _field(fields, "stream", _decode_flag)
    if path in PROMPT_FIELDS:
        only_loads = all(_is_empty(fields.get(name, _ABSENT)) for name in PROMPT_FIELDS[path])
        return Routing(fields, model, stream=stream is not False, only_loads=only_loads)
    is_stored = path == PATH_RESPONSES
    previous = _field(fields, "previous_response_id", _decode_id) if is_stored else None
    return Routing(fields, model, stream=bool(stream), previous_response_id=previous)


def _is_empty(raw: msgspec.Raw) -> bool:
    """Returns True for null, an empty text and an empty list."""
    return len(memoryview(raw)) < _SHORT_BYTES and bytes(raw).translate(None, _SPACES) in _EMPTY


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
    """Returns the ids of the items that the input refers to without repeating them, by their path
    in the body. Returns none for an invalid input; the node will refuse it."""
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
    """Encodes the body with another top-level `model`; every other value keeps its bytes."""
    return msgspec.json.encode({**fields, "model": msgspec.Raw(msgspec.json.encode(model))})
