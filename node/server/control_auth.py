"""The gate of `/fleet`: checks the token and the protocol version, and reads and writes messages in
that version."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from fastapi import Request, Response

from node.errors import BadRequest, WrongProtocol
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.versions import SPOKEN, Wire, read_version
from node.server.access import Access
from serving.version import own_version

MAX_COMMAND_BYTES = 4 * 1024 * 1024
"""Room for the manifest of a model, which can be in a command."""

C = TypeVar("C", bound=msgspec.Struct)


class ControlGate:
    """Admits requests that have the token and a version of the protocol that is spoken here."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, request: Request) -> str:
        """Returns who sends the request (`Access.check`). Raises `Unauthorized` or
        `WrongProtocol`."""
        caller = self._access.check(request.scope, shown_token(request))
        wire_in(request)
        return caller


def wire_in(request: Request) -> Wire:
    """Returns the wire in which the request and its response are. Raises `WrongProtocol`."""
    spoken = read_version(request.headers.get(HEADER_PROTOCOL))
    if spoken is None or spoken not in SPOKEN:
        raise WrongProtocol(_mismatch(spoken), SPOKEN.newest)
    return SPOKEN.wire(spoken)


def _mismatch(spoken: int | None) -> str:
    """Says which side has to be upgraded."""
    here = f"This agent, of mlx-fleet {own_version()}, speaks {SPOKEN} of the node protocol"
    if spoken is None:
        return f"{here}, and the request's {HEADER_PROTOCOL} header names none."
    if spoken > SPOKEN.newest:
        return (
            f"{here}, and the other side version {spoken}. The agent is the older one: upgrade "
            "mlx-fleet on its machine and restart it; `router upgrade-plan` shows how."
        )
    return (
        f"{here}, and the other side version {spoken}, which is older: upgrade mlx-fleet there. "
        "A router is restarted after that."
    )


def shown_token(request: Request) -> bytes:
    """The token in the request's headers; empty if there is none."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.strip() if scheme.lower() == "bearer" else ""
    return (token or request.headers.get("x-api-key", "")).encode()


def command_of(
    kind: type[C], limit_bytes: int = MAX_COMMAND_BYTES
) -> Callable[[Request], Awaitable[C]]:
    """Returns a dependency that decodes the body as `kind`. It raises `BadRequest` and
    `WrongProtocol`."""

    async def command(request: Request) -> C:
        wire = wire_in(request)
        try:
            return wire.decode(await read_body(request, limit_bytes), kind)
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


def message_response(request: Request, message: msgspec.Struct, status: int = 200) -> Response:
    """The message in the version of the request."""
    return json_response(wire_in(request).encode(message), status)


def json_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
