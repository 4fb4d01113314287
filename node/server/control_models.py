"""Routes for the models on an agent's disk, and for the files that peers copy."""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from node.agent.agent import Agent
from node.protocol.headers import HEADER_TICKET
from node.protocol.lifecycle import (
    PATH_FILES,
    PATH_PULL,
    PATH_PULL_CANCEL,
    PATH_REMOVE,
    PATH_SHARE,
    PullCommand,
)
from node.protocol.messages import ModelCommand
from node.server.access import Access
from node.server.control_auth import ControlGate, command_of, message_response
from serving.awake import Awake
from serving.http.exchange import mark_authenticated

MODEL_COMMAND = Depends(command_of(ModelCommand))


class ModelFile(FileResponse):
    """Sends a file in chunks that suit a model's weights, and keeps the Mac awake meanwhile."""

    chunk_size = 4 * 1024 * 1024

    def __init__(self, file: Path, awake: Awake) -> None:
        super().__init__(file)
        self._awake = awake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._awake.work():
            await super().__call__(scope, receive, send)


def models_router(agent: Agent, access: Access) -> APIRouter:
    """Routes for pulls, removals and shares, which need the token."""
    router = APIRouter(dependencies=[Depends(ControlGate(access))])

    @router.post(PATH_PULL)
    async def pull(
        request: Request, command: Annotated[PullCommand, Depends(command_of(PullCommand))]
    ) -> Response:
        await agent.disk.pull(command)
        return message_response(request, agent.status(), 202)

    @router.post(PATH_PULL_CANCEL)
    async def pull_cancel(
        request: Request, command: Annotated[ModelCommand, MODEL_COMMAND]
    ) -> Response:
        await agent.disk.pulls.cancel(command.model)
        return message_response(request, agent.status())

    @router.post(PATH_REMOVE)
    async def remove(request: Request, command: Annotated[ModelCommand, MODEL_COMMAND]) -> Response:
        await agent.disk.remove(command.model)
        return message_response(request, agent.status())

    @router.post(PATH_SHARE)
    async def share(request: Request, command: Annotated[ModelCommand, MODEL_COMMAND]) -> Response:
        return message_response(request, await agent.disk.share(command.model))

    return router


def files_router(agent: Agent) -> APIRouter:
    """The route `PATH_FILES`, which needs a ticket."""
    router = APIRouter()

    @router.get(PATH_FILES)
    async def files(
        request: Request, model: Annotated[str, Query()], path: Annotated[str, Query()]
    ) -> Response:
        ticket = request.headers.get(HEADER_TICKET, "")
        file = agent.disk.shares.file(ticket, model, path)
        mark_authenticated(request.scope)
        return ModelFile(file, agent.awake)

    return router
