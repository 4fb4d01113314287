"""`/v1/*` of the router: bytes to ticket, ticket to lease, node bytes back. Raw ASGI, outermost."""

from __future__ import annotations

import asyncio
import logging
import time

from router.api import requests, responses
from router.api.answers import JSON_HEADERS, send_bytes, send_error, send_json
from router.api.bodies import ClientLeft, Scope, body_bytes, read_body
from router.api.body_room import BodyRoom
from router.api.methods import need
from router.api.models import Models
from router.api.requests import Running, RunningRequests
from router.api.responses import StoredResponses, pass_answer
from router.api.tickets import UNABLE, Call, Tickets
from router.auth import SCOPE_ADMIN, SCOPE_INFERENCE, key_from_headers
from router.core import Core
from router.dialects import dialect_of
from router.errors import (
    ContextTooLong,
    RequestCancelled,
    RouterError,
    ShuttingDown,
    UnknownModel,
    UnknownPath,
)
from router.leaving import cancel_when_left
from router.relay import Relay
from router.targets import leads_on
from router.types import PATH_COUNT_TOKENS, Caller, Ticket
from serving.exchange import EXTENSION, Exchange, Receive, Send, vouch
from serving.fair_shares import Share

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
        self._models = Models(core.fleet, core.names, int(time.time()))
        self._responses = StoredResponses(core)
        self._running = RunningRequests(core)
        self._bodies = BodyRoom()
        self._tickets = Tickets(core, self._bodies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except RouterError as error:
            await send_error(send, error, dialect_of(scope["path"]))
        except (ClientLeft, asyncio.CancelledError):
            return  # whoever cancels a request that has failed wants its end, not its story
        except Exception:
            log.exception("a fault of the router, at %r", scope["path"])
            # Once the answer has begun, uvicorn refuses another one and closes the connection.
            await send_error(send, RouterError(), dialect_of(scope["path"]))

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        key = key_from_headers(scope["headers"])
        if path in RELAYED_PATHS:
            caller = self._core.keys.check(key, SCOPE_INFERENCE)
            vouch(scope)
            need(scope, "POST")
            await self._take(caller, scope, receive)
        elif _is_at(path, requests.PATH):
            caller = self._core.keys.check(key, SCOPE_INFERENCE, SCOPE_ADMIN)
            vouch(scope)
            await self._serve_requests(caller, scope, send)
        else:
            caller = self._core.keys.check(key, SCOPE_INFERENCE)
            vouch(scope)
            if path.startswith(responses.PATH + "/"):
                await self._responses.serve(caller, scope, send)
            elif _is_at(path, _MODELS):
                await self._show_models(scope, send)
            else:
                raise UnknownPath.at(path)

    async def _show_models(self, scope: Scope, send: Send) -> None:
        name = scope["path"].removeprefix(_MODELS).removeprefix("/")
        try:
            body = self._models.one(name) if name else self._models.all()
        except UnknownModel:
            need(scope, "GET", is_there=False)
            raise
        need(scope, "GET")
        await send_bytes(send, 200, body, JSON_HEADERS)

    # --- inference ---

    async def _take(self, caller: Caller, scope: Scope, receive: Receive) -> None:
        """Reads the body once there is room for it, and does what it asks for."""
        arrived_s = time.monotonic()
        share: Share | None = None
        try:
            share = await self._bodies.admitted(caller.key_id, body_bytes(scope))
            body = await read_body(receive)
            if share is not None:
                share.resize(len(body))
                await self._bodies.check(caller.key_id, body)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        else:
            await self._infer(caller, scope, body, arrived_s)
        finally:
            if share is not None:
                share.give_back()

    async def _infer(self, caller: Caller, scope: Scope, body: bytes, arrived_s: float) -> None:
        try:
            path, headers = scope["path"], scope["headers"]
            call = await self._tickets.call(caller, path, headers, body, arrived_s)
            ticket = await self._tickets.next(call)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        exchange: Exchange = scope["extensions"][EXTENSION]
        running = self._running.begin(self._relay(ticket, exchange))
        try:
            await self._run(call, running, exchange)
        except RouterError as error:
            await _tell(running.relay, error)
        except Exception:
            log.exception("a fault of the router, in request %s", running.relay.request_id)
            await _tell(running.relay, RouterError())

    async def _run(self, call: Call, running: Running, exchange: Exchange) -> None:
        try:
            await cancel_when_left(self._go(call, running, exchange), exchange)
        except ShuttingDown:
            if running.cancelled:
                raise RequestCancelled from None
            raise
        finally:
            self._running.end(running)
            self._core.budgets.release(running.relay.ticket)

    async def _go(self, call: Call, running: Running, exchange: Exchange) -> None:
        """Down the call's road, to the first model that takes it."""
        decisions = self._core.dispatcher.decisions
        decisions.chosen(running.relay.ticket, call.why)
        while True:
            relay = running.relay
            try:
                await relay.run()
                return
            except RouterError as error:
                if relay.content_sent or not (call.left and leads_on(error, call.road)):
                    raise
                ticket = await self._next(call, relay, error)
                decisions.fell_back(ticket, relay.ticket.model, error.code)
                running.relay = self._relay(ticket, exchange)
            finally:
                if relay.content_sent and exchange.status == 200:
                    self._tickets.answered(call)

    async def _next(self, call: Call, relay: Relay, error: RouterError) -> Ticket:
        """The ticket for the next model, after the relay has failed with `error`."""
        try:
            return await self._tickets.next(call, relay.attempts)
        except UNABLE:
            if isinstance(error, ContextTooLong):
                raise error from None  # which its client can mend
            raise

    def _relay(self, ticket: Ticket, exchange: Exchange) -> Relay:
        core = self._core
        # At once: a ticket of the same key that is made meanwhile must not count on the same money.
        core.budgets.hold(ticket)
        return Relay(ticket, exchange, core.dispatcher, core.settings.hold_head_s)

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
