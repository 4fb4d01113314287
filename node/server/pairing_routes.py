"""Routes by which routers are paired with the agent, and by which its own commands see to that."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from node.errors import TlsRequired
from node.protocol.pairing import (
    CODE_S,
    PATH_LEAVE,
    PATH_NEW_CODE,
    PATH_PAIR,
    PATH_PAIRINGS,
    PATH_ROTATE,
    PATH_UNPAIR,
    NewCode,
    NewSecret,
    PairingList,
    PairRequest,
    Unpair,
)
from node.server.access import Access
from node.server.control_auth import (
    ControlGate,
    command_of,
    json_response,
    message_response,
    shown_token,
    wire_in,
)
from node.server.pairing_codes import PairingDesk

MAX_PAIR_BYTES = 4096


def pairing_router(desk: PairingDesk, access: Access) -> APIRouter:
    """Routes to pair with the agent, and those that only a paired router may use."""
    router, pairings = APIRouter(), desk.pairings

    def paired(request: Request) -> str:
        return access.check_router(request.scope, shown_token(request))

    @router.post(PATH_PAIR)
    async def pair(
        request: Request,
        asked: Annotated[PairRequest, Depends(command_of(PairRequest, MAX_PAIR_BYTES))],
    ) -> Response:
        if request.url.scheme != "https":
            raise TlsRequired
        return message_response(request, await desk.pair(asked))

    @router.post(PATH_ROTATE)
    async def rotate(request: Request, router_id: Annotated[str, Depends(paired)]) -> Response:
        wire_in(request)
        secret = await pairings.rotate(router_id)
        return message_response(request, NewSecret(secret))

    @router.post(PATH_LEAVE)
    async def leave(router_id: Annotated[str, Depends(paired)]) -> Response:
        await pairings.remove(router_id)
        return json_response(b"{}")

    return router


def pairings_router(desk: PairingDesk, access: Access, host: str) -> APIRouter:
    """Routes for commands on the agent's machine; `host` is the address to which it is bound."""
    router, pairings = APIRouter(), desk.pairings

    def local(request: Request) -> None:
        access.check_local(request.scope, shown_token(request))

    only_local = [Depends(local), Depends(ControlGate(access))]

    @router.get(PATH_PAIRINGS, dependencies=only_local)
    async def listed(request: Request) -> Response:
        return message_response(request, PairingList(pairings.list()))

    @router.post(PATH_NEW_CODE, dependencies=only_local)
    async def new_code(request: Request) -> Response:
        code = NewCode(desk.codes.renew().text(), CODE_S, host)
        return message_response(request, code)

    @router.post(PATH_UNPAIR, dependencies=only_local)
    async def unpair(
        request: Request, asked: Annotated[Unpair, Depends(command_of(Unpair))]
    ) -> Response:
        await pairings.remove(asked.router)
        return message_response(request, PairingList(pairings.list()))

    return router
