"""`/v1/*` of the router: bytes to ticket, ticket to lease, node bytes back. Raw ASGI, outermost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time

from router.api import requests, responses
from router.api.answers import JSON_HEADERS, send_bytes, send_error, send_json
from router.api.bodies import (
    ClientLeft,
    ResponseRouting,
    Scope,
    parse_response_routing,
    parse_routing,
    read_body,
    referred_items,
    splice_model,
    trace_lines,
)
from router.api.methods import need
from router.api.models import Models
from router.api.ownership import node_of_items, node_of_response
from router.api.requests import RunningRequests
from router.api.responses import StoredResponses, pass_answer
from router.auth import SCOPE_ADMIN, SCOPE_INFERENCE, key_from_headers
from router.core import Core
from router.dialects import dialect_of
from router.errors import (
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
            need(scope, "POST")
            await self._infer(caller, scope, receive, send)
        elif _is_at(path, requests.PATH):
            caller = self._core.keys.check(key, SCOPE_INFERENCE, SCOPE_ADMIN)
            await self._serve_requests(caller, scope, send)
        else:
            caller = self._core.keys.check(key, SCOPE_INFERENCE)
            if path.startswith(responses.PATH + "/"):
                await self._responses.serve(caller, scope, send)
            elif _is_at(path, _MODELS):
                need(scope, "GET")
                name = path.removeprefix(_MODELS).removeprefix("/")
                body = self._models.one(name) if name else self._models.all()
                await send_bytes(send, 200, body, JSON_HEADERS)
            else:
                raise UnknownPath(f"There is nothing at {path}.")

    # --- inference ---

    async def _infer(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_s = time.monotonic()
        try:
            body = await read_body(scope, receive)
            ticket = await self._ticket(caller, scope, body, arrived_s)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        core = self._core
        relay = Relay(ticket, send, core.dispatcher, core.settings.hold_head_s)
        try:
            await self._run(relay, receive)
        except RouterError as error:
            await _tell(relay, error)
        except Exception:
            log.exception("a fault of the router, in request %s", relay.request_id)
            await _tell(relay, RouterError())

    async def _ticket(self, caller: Caller, scope: Scope, body: bytes, arrived_s: float) -> Ticket:
        path = scope["path"]
        goes_on = path == responses.PATH
        routing = parse_response_routing(body) if goes_on else parse_routing(body)
        model = self._core.fleet.resolve(routing.model)
        pinned = ""
        if isinstance(routing, ResponseRouting):
            pinned = await self._pinned(caller, routing, model)
        return Ticket(
            request_id=f"{caller.owner}{self._start}{next(self._numbers):06x}",
            caller=caller,
            path=path,
            asked_model=routing.model,
            model=model,
            stream=bool(routing.stream),
            arrived_s=arrived_s,
            body=body if model == routing.model else splice_model(body, model),
            trace=trace_lines(scope["headers"]),
            pinned_node_id=pinned,
        )

    async def _pinned(self, caller: Caller, routing: ResponseRouting, model: str) -> str:
        """The node that holds what the request goes on from; empty where it is complete."""
        fleet = self._core.fleet
        if routing.previous_response_id:
            # What the input refers to may have come with that response, wherever it was made.
            return node_of_response(fleet, caller, routing.previous_response_id, model)
        items = await referred_items(routing)
        return node_of_items(fleet, caller, items, model) if items else ""

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
            need(scope, "GET")
            await send_json(send, self._running.shown_to(caller))
            return
        need(scope, "DELETE")
        try:
            if await self._running.cancel(request_id, caller):
                await send_json(send, {"id": request_id, "object": "request", "cancelled": True})
                return
            view = self._running.holder(request_id, caller)
            target = f"{requests.PATH}/{request_id}"
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
