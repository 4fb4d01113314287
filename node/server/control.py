"""Routes for routers and people besides inference: health, state, events, residency."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from node.agent.agent import Agent
from node.agent.warm_prompts import WarmReport, parse_command
from node.errors import (
    BadRequest,
    MethodNotAllowed,
    NodeError,
    UnknownPath,
)
from node.protocol.bounds import MAX_BODY_BYTES, MOST, clipped
from node.protocol.lifecycle import (
    PATH_CLEAR_CACHE,
    PATH_POLICIES,
    PATH_UNLOAD,
    ClearCommand,
    Policies,
    UnloadCommand,
)
from node.protocol.logs import MOST_LINES, PATH_LOGS, page_of
from node.protocol.messages import (
    PATH_EVENTS,
    PATH_LOAD,
    PATH_STATUS,
    PATH_WARM,
    ControlError,
    Event,
    ModelCommand,
)
from node.protocol.ollama.left_out import RUNNING
from node.protocol.versions import Wire
from node.server.access import Access
from node.server.control_auth import (
    ControlGate,
    command_of,
    json_response,
    message_response,
    read_body,
    wire_in,
)
from node.settings import THREAD_BODY_BYTES
from serving.logs.recent import RECENT


def health_router(agent: Agent) -> APIRouter:
    """Routes open to everyone: the health of the process, and whether it can serve."""
    router = APIRouter()

    @router.get("/")
    async def root() -> Response:
        return Response(RUNNING, media_type="text/plain")

    @router.get("/health")
    async def health() -> Response:
        return json_response(b'{"status":"ok"}')

    @router.get("/ready")
    async def ready() -> Response:
        reason = agent.unready_reason()
        if reason is None:
            return json_response(b'{"status":"ready"}')
        return json_response(msgspec.json.encode({"status": "not ready", "reason": reason}), 503)

    return router


def control_router(agent: Agent, access: Access) -> APIRouter:
    """Routes of `/fleet/*`, which need the token."""
    gate = Depends(ControlGate(access))
    router = APIRouter(dependencies=[gate])

    @router.get(PATH_STATUS)
    async def status(request: Request) -> Response:
        return message_response(request, agent.status())

    @router.get(PATH_EVENTS)
    async def events(
        request: Request, caller: Annotated[str, gate], instance: str = "", after: int = 0
    ) -> Response:
        batches = agent.subscribe(instance, after)
        lines = _lines(batches, wire_in(request), lambda: access.still_admits(caller))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @router.post(PATH_LOAD)
    async def load(
        request: Request, command: Annotated[ModelCommand, Depends(command_of(ModelCommand))]
    ) -> Response:
        await agent.load(command.model)
        return message_response(request, agent.status())

    @router.post(PATH_UNLOAD)
    async def unload(
        request: Request, command: Annotated[UnloadCommand, Depends(command_of(UnloadCommand))]
    ) -> Response:
        await agent.unload(command.model, command.generation, command.min_idle_s)
        return message_response(request, agent.status())

    @router.post(PATH_POLICIES)
    async def policies(
        request: Request, command: Annotated[Policies, Depends(command_of(Policies))]
    ) -> Response:
        agent.set_policies(command)
        return message_response(request, agent.status())

    @router.get(PATH_LOGS)
    async def logs(
        request: Request,
        instance: str = "",
        after: Annotated[int, Query(ge=0, le=MOST)] = 0,
        lines: Annotated[int, Query(ge=1, le=MOST_LINES)] = 100,
    ) -> Response:
        return message_response(request, page_of(RECENT, lines, instance, after))

    _add_cache_routes(router, agent)
    return router


def _add_cache_routes(router: APIRouter, agent: Agent) -> None:
    @router.post(PATH_WARM)
    async def warm(request: Request) -> Response:
        body = await read_body(request, MAX_BODY_BYTES)
        if len(body) <= THREAD_BODY_BYTES:
            model, requests = parse_command(body)
        else:
            # In a thread, so that it stalls no stream.
            model, requests = await asyncio.to_thread(parse_command, body)
        # Only commands of this machine send it, where people type names.
        results = await agent.warm(await agent.meant(model), requests)
        # Until the model is loaded, a failure can still be an HTTP status.
        await anext(results)
        return StreamingResponse(_warm_lines(results), media_type="application/x-ndjson")

    @router.post(PATH_CLEAR_CACHE)
    async def clear_cache(
        request: Request, command: Annotated[ClearCommand, Depends(command_of(ClearCommand))]
    ) -> Response:
        return message_response(request, await agent.clear_cache(command.model))


def add_error_handlers(app: FastAPI) -> None:
    """Sends each error as a `ControlError`."""

    @app.exception_handler(NodeError)
    async def on_node_error(_request: Request, error: NodeError) -> Response:
        body = ControlError(clipped(error.message), error.code or "")
        response = json_response(msgspec.json.encode(body), error.status)
        response.raw_headers += error.headers()
        return response

    @app.exception_handler(RequestValidationError)
    async def on_bad_query(request: Request, _error: RequestValidationError) -> Response:
        return await on_node_error(request, BadRequest("The query of the request is not valid."))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        path = request.scope["path"]
        refused: NodeError = UnknownPath.at(path)
        if error.status_code == 405:
            methods = (error.headers or {}).get("Allow", "")
            refused = MethodNotAllowed.at(path, methods.split(", "))
        return await on_node_error(request, refused)


async def _lines(
    batches: AsyncIterator[list[Event]], wire: Wire, is_admitted: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Ends once the router is no longer paired."""
    async for events in batches:
        if not is_admitted():
            return
        if lines := b"".join(wire.encode_event(event) for event in events):
            yield lines


async def _warm_lines(results: AsyncGenerator[WarmReport | None, None]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(results):
        async for result in results:
            yield msgspec.json.encode(result) + b"\n"
