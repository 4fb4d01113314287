"""Inference requests: bytes to ticket, ticket to a node's answer, model after model."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack

from router.api.bodies import Scope, body_bytes, read_body
from router.api.body_room import BodyRoom
from router.api.requests import Running, RunningRequests
from router.api.tickets import UNABLE, Call, Tickets
from router.client.disconnect import CancelWhenLeft
from router.core import Core
from router.dispatch.relay import Relay
from router.dispatch.reply import Reply
from router.errors import ContextTooLong, RequestCancelled, RouterError, ShuttingDown
from router.routing.alias_targets import falls_back
from router.types import Caller, Ticket
from serving.http.exchange import EXTENSION, Exchange, Receive

log = logging.getLogger("mlx_fleet.router")


class Inference:
    """The paths whose requests go to a node that has a model."""

    def __init__(self, core: Core, running: RunningRequests) -> None:
        self._core = core
        self._running = running
        self._bodies = BodyRoom()
        self._tickets = Tickets(core, self._bodies)

    async def serve(self, caller: Caller, scope: Scope, receive: Receive) -> None:
        """Answers one request. Raises `RouterError` where nothing of an answer has been sent."""
        with ExitStack() as held:
            try:
                call = await self._read(caller, scope, receive, held)
                ticket = await self._tickets.next(call)
            except asyncio.CancelledError:
                raise ShuttingDown from None
            exchange: Exchange = scope["extensions"][EXTENSION]
            running = self._running.begin(self._relay(ticket, exchange))
            try:
                with CancelWhenLeft(exchange):
                    await self._go(call, running, exchange)
            except ShuttingDown as error:
                _fail(running.relay, RequestCancelled() if running.cancelled else error)
            except RouterError as error:
                _fail(running.relay, error)
            except Exception:
                log.exception("a fault of the router, in request %s", running.relay.request_id)
                _fail(running.relay, RouterError())
            finally:
                self._running.end(running)
                self._core.budgets.release(running.relay.ticket)

    async def _read(self, caller: Caller, scope: Scope, receive: Receive, held: ExitStack) -> Call:
        """The request, its body read once there is room for it; `held` gives that back."""
        arrived_s = time.monotonic()
        share = await self._bodies.admitted(caller.key_id, body_bytes(scope))
        if share is not None:
            held.callback(share.release)
        body = await read_body(receive)
        if share is not None:
            share.resize(len(body))
            await self._bodies.check(caller.key_id, body)
        return await self._tickets.call(caller, scope["path"], scope["headers"], body, arrived_s)

    async def _go(self, call: Call, running: Running, exchange: Exchange) -> None:
        """Down the call's route, to the first model that takes it."""
        decisions = self._core.decisions
        decisions.chosen(running.relay.ticket, call.why)
        while True:
            relay = running.relay
            try:
                await relay.run()
                return
            except RouterError as error:
                if relay.reply.has_content or not (call.left and falls_back(error, call.route)):
                    raise
                ticket = await self._next(call, relay, error)
                decisions.fell_back(ticket, relay.ticket.model, error.code)
                running.relay = self._relay(ticket, exchange)
            finally:
                if relay.reply.has_content and exchange.status == 200:
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
        core.budgets.reserve(ticket)
        reply = Reply(ticket, exchange, core.dispatcher, core.settings.hold_head_s)
        return Relay(reply, core.dispatcher)


def _fail(relay: Relay, error: RouterError) -> None:
    """Ends the request's answer with the error. Raises it where nothing has been sent."""
    error.request_id = relay.request_id
    relay.reply.fail(error)
