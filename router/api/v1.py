"""Routes `/v1/*` of the router. Raw ASGI, without middleware."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable

from node.protocol.paths import (
    PATH_CHAT,
    PATH_COMPLETIONS,
    PATH_COUNT_TOKENS,
    PATH_MESSAGES,
    PATH_MODELS,
    PATH_REQUESTS,
    PATH_RESPONSES,
    dialect_of,
)
from router.api.bodies import ClientDisconnected, Scope
from router.api.early_ends import EarlyEnds
from router.api.inference import Inference
from router.api.methods import check_method
from router.api.models import Models
from router.api.requests import RunningRequests
from router.api.responses import StoredResponses, send_node_response
from router.api.whole_responses import JSON_HEADERS, send_bytes, send_error, send_json
from router.auth import SCOPE_ADMIN, SCOPE_INFERENCE, key_from_headers
from router.core import Core
from router.errors import (
    MethodNotAllowed,
    RouterError,
    ShuttingDown,
    UnknownModel,
    UnknownPath,
)
from router.types import Caller
from serving.http.exchange import Receive, Send, mark_authenticated

log = logging.getLogger("mlx_fleet.router")

RELAYED_PATHS = frozenset(
    (
        PATH_CHAT,
        PATH_COMPLETIONS,
        PATH_MESSAGES,
        PATH_COUNT_TOKENS,
        PATH_RESPONSES,
    )
)


class V1:
    """The ASGI app for every path under /v1."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ends = EarlyEnds(core)
        self._models = Models(core.fleet, core.names, int(time.time()))
        self._responses = StoredResponses(core)
        self._running = RunningRequests(core)
        self.inference = Inference(core, self._running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin_s = time.monotonic()
        try:
            await self._route(scope, receive, send)
        except RouterError as error:
            self._ends.refused(scope, error, begin_s)
            await send_error(send, error, dialect_of(scope["path"]))
        except ClientDisconnected:
            self._ends.left(scope, begin_s)
        except asyncio.CancelledError:
            return  # the client is gone; nobody reads the error
        except Exception:
            log.exception("a fault of the router, at %r", scope["path"])
            # If the response has begun, uvicorn refuses another one and closes the connection.
            fault = RouterError()
            self._ends.refused(scope, fault, begin_s)
            await send_error(send, fault, dialect_of(scope["path"]))

    def _route(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Returns the coroutine that serves the path. Raises `RouterError` if the request is not
        allowed."""
        path: str = scope["path"]
        key = key_from_headers(scope["headers"])
        if path in RELAYED_PATHS:
            caller = self._core.keys.check(key, SCOPE_INFERENCE)
            mark_authenticated(scope)
            if scope["method"] != "POST":
                raise MethodNotAllowed.at(path, ("POST",))
            return self.inference.serve(caller, scope, receive)
        if _is_at(path, PATH_REQUESTS):
            caller = self._core.keys.check(key, SCOPE_INFERENCE, SCOPE_ADMIN)
            mark_authenticated(scope)
            return self._serve_requests(caller, scope, send)
        caller = self._core.keys.check(key, SCOPE_INFERENCE)
        mark_authenticated(scope)
        if path.startswith(PATH_RESPONSES + "/"):
            return self._responses.serve(caller, scope, send)
        if _is_at(path, PATH_MODELS):
            return self._show_models(caller, scope, send)
        raise UnknownPath.at(path)

    async def _show_models(self, caller: Caller, scope: Scope, send: Send) -> None:
        name = scope["path"].removeprefix(PATH_MODELS).removeprefix("/")
        try:
            allowed = caller.models
            body = self._models.one(name, allowed) if name else self._models.all(allowed)
        except UnknownModel:
            check_method(scope, "GET", is_there=False)
            raise
        check_method(scope, "GET")
        await send_bytes(send, 200, body, JSON_HEADERS)

    # --- running requests ---

    async def _serve_requests(self, caller: Caller, scope: Scope, send: Send) -> None:
        request_id = scope["path"].removeprefix(PATH_REQUESTS).removeprefix("/")
        if not request_id:
            check_method(scope, "GET")
            await send_json(send, self._running.list_for(caller))
            return
        check_method(scope, "DELETE")
        try:
            if await self._running.cancel(request_id, caller):
                await send_json(send, {"id": request_id, "object": "request", "cancelled": True})
                return
            view = self._running.node_of(request_id, caller)
            target = f"{PATH_REQUESTS}/{request_id}"
            response = await self._core.dispatcher.follow_up(view, caller, "DELETE", target)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        await send_node_response(send, view, response)


def _is_at(path: str, base: str) -> bool:
    return path == base or path.startswith(base + "/")
