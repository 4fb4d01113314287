"""The gate of `/fleet`: checks the token and the protocol version, and reads and writes bodies."""

import hmac
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from fastapi import Request, Response

from node.errors import BadRequest, Unauthorized, WrongProtocol
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import PROTOCOL_VERSION
from serving.http.exchange import mark_authenticated

MAX_COMMAND_BYTES = 4 * 1024 * 1024
"""Room for the manifest of a model, which can be in a command."""

C = TypeVar("C", bound=msgspec.Struct)


class ControlGate:
    """Admits requests that have the token and the version of our protocol."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def __call__(self, request: Request) -> None:
        """Raises `Unauthorized` or `WrongProtocol`."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip() if scheme.lower() == "bearer" else ""
        token = token or request.headers.get("x-api-key", "")
        if not hmac.compare_digest(token.encode(), self._token):
            raise Unauthorized
        mark_authenticated(request.scope)
        spoken = request.headers.get(HEADER_PROTOCOL)
        if spoken != str(PROTOCOL_VERSION):
            theirs = f"version {spoken[:20]}" if spoken else "no version"
            raise WrongProtocol(
                f"This agent speaks version {PROTOCOL_VERSION} of the node protocol, but the "
                f"request's {HEADER_PROTOCOL} header names {theirs}. Install the same version of "
                "mlx-fleet on both sides."
            )


def command_of(kind: type[C]) -> Callable[[Request], Awaitable[C]]:
    """Returns a dependency that decodes the body as `kind`. It raises `BadRequest`."""
    decode = msgspec.json.Decoder(kind).decode

    async def command(request: Request) -> C:
        try:
            return decode(await read_body(request, MAX_COMMAND_BYTES))
        except msgspec.MsgspecError as exc:
            raise BadRequest(f"The body does not fit this path: {exc}.") from None

    return command


async def read_body(request: Request, limit_bytes: int) -> bytearray:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit_bytes:
            raise BadRequest("The body of a control request is too long.")
    return body


def json_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
