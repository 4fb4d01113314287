"""`/v1/*` of the router: bytes to ticket, ticket to lease, node bytes back. Raw ASGI, outermost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Iterable, MutableMapping
from typing import Any

import msgspec

from router.auth import SCOPE_INFERENCE, key_from_headers
from router.core import Core
from router.errors import (
    BadRequest,
    BodyTooLarge,
    MethodNotAllowed,
    RouterError,
    ShuttingDown,
    UnknownPath,
)
from router.leaving import Leavers, Receive
from router.relay import Relay, Send
from router.settings import MAX_BODY_BYTES
from router.types import Caller, Ticket

log = logging.getLogger("mlx_fleet.router")

Scope = MutableMapping[str, Any]

RELAYED_PATHS = frozenset(("/v1/chat/completions", "/v1/completions"))
_MODELS = "/v1/models"
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_TRACE_MEMBER = rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\x2d-<>-~]{0,255}[!-+\x2d-<>-~]"
_TRACESTATE = re.compile(_TRACE_MEMBER + rb"(?:[ \t]*,[ \t]*" + _TRACE_MEMBER + rb"){0,31}")
_TRACESTATE_BYTES = 512


class ClientLeft(Exception):
    """The caller closed the connection before it had sent its whole body."""


class _Routing(msgspec.Struct):
    """The fields of a body that routing needs; the node parses the rest."""

    model: str
    stream: bool | None = False


_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_routing = msgspec.json.Decoder(_Routing).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class OpenAIApi:
    """The ASGI app for every path under /v1."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._started_unix_s = int(time.time())
        # Unique over restarts and routers; a random id for each request costs a system call.
        self._id_prefix = f"req-{secrets.token_hex(8)}-"
        self._numbers = itertools.count(1)
        self._leavers = Leavers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except RouterError as error:
            await send_error(send, error)
        except (ClientLeft, asyncio.CancelledError):
            return  # whoever cancels a request that has failed wants its end, not its story
        except Exception:
            log.exception("a fault of the router, at %s", scope["path"])
            # Once the answer has begun, uvicorn refuses another one and closes the connection.
            await send_error(send, RouterError())

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        caller = self._core.keys.check(key_from_headers(scope["headers"]), SCOPE_INFERENCE)
        if path in RELAYED_PATHS:
            if method != "POST":
                raise MethodNotAllowed(f"{path} takes POST.")
            await self._infer(caller, scope, receive, send)
        elif path == _MODELS or path.startswith(_MODELS + "/"):
            if method not in ("GET", "HEAD"):
                raise MethodNotAllowed(f"{path} takes GET.")
            await send_json(send, self._models(path.removeprefix(_MODELS).lstrip("/")))
        else:
            raise UnknownPath(f"There is nothing at {path}.")

    async def _infer(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        core = self._core
        arrived_s = time.monotonic()
        try:
            body = await read_body(scope, receive)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        routing = parse_routing(body)
        model = core.fleet.resolve(routing.model)
        ticket = Ticket(
            request_id=f"{self._id_prefix}{next(self._numbers):06x}",
            caller=caller,
            path=scope["path"],
            asked_model=routing.model,
            model=model,
            stream=bool(routing.stream),
            arrived_s=arrived_s,
            body=body if model == routing.model else splice_model(body, model),
            trace=trace_lines(scope["headers"]),
        )
        relay = Relay(ticket, send, core.dispatcher, core.settings.hold_head_s)
        try:
            await self._leavers.cancel_when_left(relay.run(), receive)
        except RouterError as error:
            error.request_id = ticket.request_id
            await relay.fail(error)
        except Exception:
            log.exception("a fault of the router, in request %s", ticket.request_id)
            fault = RouterError()
            fault.request_id = ticket.request_id
            await relay.fail(fault)

    def _models(self, name: str) -> dict[str, object]:
        names = self._core.fleet.names()
        if name:
            if name not in names:
                self._core.fleet.resolve(name)
            return self._model(name)
        return {"object": "list", "data": [self._model(each) for each in sorted(names)]}

    def _model(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._started_unix_s,
            "owned_by": "mlx-fleet",
        }


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


def parse_routing(body: bytes) -> _Routing:
    """Model and stream flag of a body. Raises `BadRequest` naming the field at fault."""
    try:
        return _decode_routing(body)
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


async def send_json(send: Send, value: object, status: int = 200) -> None:
    """A whole JSON answer."""
    await _send_bytes(send, status, msgspec.json.encode(value), [])


async def send_error(send: Send, error: RouterError) -> None:
    """An error as an HTTP status with OpenAI's envelope."""
    headers = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    if error.request_id is not None:
        headers.append((b"x-request-id", error.request_id.encode()))
    await _send_bytes(send, error.status, error.body(), headers)


async def _send_bytes(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
