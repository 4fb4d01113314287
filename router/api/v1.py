"""`/v1/*` of the router: bytes to ticket, ticket to lease, node bytes back. Raw ASGI, outermost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time

from router.api import requests, responses
from router.api.answers import send_error, send_json
from router.api.bodies import (
    ClientLeft,
    Scope,
    parse_routing,
    read_body,
    splice_model,
    trace_lines,
)
from router.api.models import Models
from router.api.ownership import pinned_node_id
from router.api.requests import RunningRequests
from router.api.responses import StoredResponses, pass_answer
from router.auth import SCOPE_ADMIN, SCOPE_INFERENCE, key_from_headers
from router.core import Core
from router.dialects import dialect_of
from router.errors import (
    MethodNotAllowed,
    RequestCancelled,
    RouterError,
    ShuttingDown,
    UnknownPath,
)
from router.leaving import Leavers, Receive
from router.relay import Relay, Send
from router.types import PATH_COUNT_TOKENS, Caller, Ticket

log = logging.getLogger("mlx_fleet.router")

RELAYED_PATHS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        PATH_COUNT_TOKENS,
        responses.PATH,
    )
)
_MODELS = "/v1/models"


class V1:
    """The ASGI app for every path under /v1."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._models = Models(core.fleet, int(time.time()))
        self._responses = StoredResponses(core)
        self._running = RunningRequests(core)
        self._leavers = Leavers()
        # Unique over restarts and routers; a random id for each request costs a system call.
        self._start = f"-{secrets.token_hex(4)}-"
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except RouterError as error:
            await send_error(send, error, dialect_of(scope["path"]))
        except (ClientLeft, asyncio.CancelledError):
            return  # whoever cancels a request that has failed wants its end, not its story
        except Exception:
            log.exception("a fault of the router, at %s", scope["path"])
            # Once the answer has begun, uvicorn refuses another one and closes the connection.
            await send_error(send, RouterError(), dialect_of(scope["path"]))

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        key = key_from_headers(scope["headers"])
        if path in RELAYED_PATHS:
            caller = self._core.keys.check(key, SCOPE_INFERENCE)
            _need(scope, "POST")
            await self._infer(caller, scope, receive, send)
        elif _is_at(path, requests.PATH):
            caller = self._core.keys.check(key, SCOPE_INFERENCE, SCOPE_ADMIN)
            await self._serve_requests(caller, scope, send)
        else:
            caller = self._core.keys.check(key, SCOPE_INFERENCE)
            if path.startswith(responses.PATH + "/"):
                await self._responses.serve(caller, scope, send)
            elif _is_at(path, _MODELS):
                _need(scope, "GET", "HEAD")
                name = path.removeprefix(_MODELS).lstrip("/")
                await send_json(send, self._models.one(name) if name else self._models.all())
            else:
                raise UnknownPath(f"There is nothing at {path}.")

    # --- inference ---

    async def _infer(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        core = self._core
        arrived_s = time.monotonic()
        try:
            body = await read_body(scope, receive)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        path = scope["path"]
        routing = parse_routing(body, goes_on=path == responses.PATH)
        model = core.fleet.resolve(routing.model)
        previous_id = routing.previous_id
        ticket = Ticket(
            request_id=f"{caller.owner}{self._start}{next(self._numbers):06x}",
            caller=caller,
            path=path,
            asked_model=routing.model,
            model=model,
            stream=bool(routing.stream),
            arrived_s=arrived_s,
            body=body if model == routing.model else splice_model(body, model),
            trace=trace_lines(scope["headers"]),
            pinned_node_id=(
                pinned_node_id(core.fleet, caller, previous_id, model) if previous_id else ""
            ),
        )
        relay = Relay(ticket, send, core.dispatcher, core.settings.hold_head_s)
        try:
            await self._run(relay, receive)
        except RouterError as error:
            await _tell(relay, error)
        except Exception:
            log.exception("a fault of the router, in request %s", relay.request_id)
            await _tell(relay, RouterError())

    async def _run(self, relay: Relay, receive: Receive) -> None:
        running = self._running.begin(relay)
        try:
            await self._leavers.cancel_when_left(relay.run(), receive)
        except ShuttingDown:
            if running.cancelled:
                raise RequestCancelled from None
            raise
        finally:
            self._running.end(running)

    # --- running requests ---

    async def _serve_requests(self, caller: Caller, scope: Scope, send: Send) -> None:
        request_id = scope["path"].removeprefix(requests.PATH).removeprefix("/")
        if not request_id:
            _need(scope, "GET", "HEAD")
            await send_json(send, self._running.shown_to(caller))
            return
        _need(scope, "DELETE")
        if self._running.cancel(request_id, caller):
            await send_json(send, {"id": request_id, "object": "request", "cancelled": True})
            return
        view = self._running.holder(request_id, caller)
        target = f"{requests.PATH}/{request_id}"
        try:
            answer = await self._core.dispatcher.follow_up(view, caller, "DELETE", target)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        await pass_answer(send, view, answer)


async def _tell(relay: Relay, error: RouterError) -> None:
    """Ends the request's answer with the error. Raises it where nothing has been sent."""
    error.request_id = relay.request_id
    await relay.fail(error)


def _is_at(path: str, base: str) -> bool:
    return path == base or path.startswith(base + "/")


def _need(scope: Scope, method: str, other: str = "") -> None:
    """Raises `MethodNotAllowed`."""
    if scope["method"] not in (method, other):
        raise MethodNotAllowed(f"{scope['path']} takes {method}.")
