"""The gate of `/fleet`: checks the token and the protocol version, and reads and writes bodies."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from fastapi import Request, Response

from node.errors import BadRequest, WrongProtocol
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import PROTOCOL_VERSION
from node.server.access import Access

MAX_COMMAND_BYTES = 4 * 1024 * 1024
"""Room for the manifest of a model, which can be in a command."""

C = TypeVar("C", bound=msgspec.Struct)


class ControlGate:
    """Admits requests that have the token and the version of our protocol."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, request: Request) -> str:
        """Returns who sends the request (`Access.check`). Raises `Unauthorized` or
        `WrongProtocol`."""
        caller = self._access.check(request.scope, shown_token(request))
        spoken = request.headers.get(HEADER_PROTOCOL)
        if spoken != str(PROTOCOL_VERSION):
            theirs = f"version {spoken[:20]}" if spoken else "no version"
            raise WrongProtocol(
                f"This agent speaks version {PROTOCOL_VERSION} of the node protocol, but the "
                f"request's {HEADER_PROTOCOL} header names {theirs}. Install the same version of "
                "mlx-fleet on both sides."
            )
        return caller


def shown_token(request: Request) -> bytes:
    """The token in the request's headers; empty if there is none."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.strip() if scheme.lower() == "bearer" else ""
    return (token or request.headers.get("x-api-key", "")).encode()


def command_of(
    kind: type[C], limit_bytes: int = MAX_COMMAND_BYTES
) -> Callable[[Request], Awaitable[C]]:
    """Returns a dependency that decodes the body as `kind`. It raises `BadRequest`."""
    decode = msgspec.json.Decoder(kind).decode

    async def command(request: Request) -> C:
        try:
            return decode(await read_body(request, limit_bytes))
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
