"""Inference requests: makes tickets from a body, and relays a node's response, one model after
another."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack

from node.protocol.paths import dialect_of
from router.api.bodies import Scope, body_bytes, read_body
from router.api.body_room import BodyRoom
from router.api.requests import RunningRequest, RunningRequests
from router.api.tickets import UNABLE, InferenceRequest, Tickets
from router.client.disconnect import CancelOnDisconnect
from router.core import Core
from router.dispatch.relay import Relay
from router.dispatch.reply import Reply
from router.errors import ContextTooLong, RequestCancelled, RouterError, ShuttingDown
from router.records.outcomes import BY_DISCONNECT, reason_of
from router.routing.alias_targets import falls_back
from router.types import Caller, Ticket
from serving.http.exchange import EXTENSION, Exchange, Receive
from serving.logs.request_id import set_request_id
from serving.tracing.context import trace_id_of

log = logging.getLogger("mlx_fleet.router")

SMALL_BYTES = 64 * 1024
"""Bodies up to this length are not counted; the number of connections bounds their sum."""


class Inference:
    """Serves the paths whose requests go to a node that has a model."""

    def __init__(self, core: Core, running: RunningRequests) -> None:
        self._core = core
        self._running = running
        self._bodies = BodyRoom()
        self._tickets = Tickets(core, self._bodies)

    async def serve(self, caller: Caller, scope: Scope, receive: Receive) -> None:
        """Serves one request. Raises `RouterError` if nothing of a response has been sent."""
        with ExitStack() as releases:
            try:
                request = await self._read(caller, scope, receive, releases)
                set_request_id(request.request_id, trace_id_of(request.trace))
                if caller.quotas:
                    releases.callback(self._core.limiter.close, request.request_id)
                ticket = await self._tickets.next(request)
            except asyncio.CancelledError:
                raise ShuttingDown from None
            exchange: Exchange = scope["extensions"][EXTENSION]
            running = self._running.begin(self._relay(ticket, exchange))
            self._core.ledger.request_log.begin(ticket, request.span)
            failure: RouterError | None = None
            try:
                with CancelOnDisconnect(exchange):
                    await self._try_targets(request, running, exchange)
            except ShuttingDown as error:
                failure = RequestCancelled() if running.cancelled else error
            except RouterError as error:
                failure = error
            except Exception:
                log.exception("a fault of the router, in request %s", running.relay.request_id)
                failure = RouterError()
            finally:
                self._running.end(running)
                self._core.budgets.release(running.relay.ticket)
            self._end(running.relay, exchange, failure)

    def _end(self, relay: Relay, exchange: Exchange, failure: RouterError | None) -> None:
        """Ends the response with the failure, if there was one. Raises it if nothing has been
        sent."""
        status, error = exchange.status, ""
        if failure is not None:
            failure.request_id = relay.request_id
            self._core.metrics.refused(failure)
            status, error = status or failure.status, reason_of(failure)
        if exchange.disconnected and not exchange.complete:
            self._core.metrics.aborted(relay.ticket.model, BY_DISCONNECT, relay.phase)
        self._core.ledger.request_log.ended(relay.ticket, status, error, time.monotonic())
        if failure is not None:
            relay.reply.fail(failure)

    async def _read(
        self, caller: Caller, scope: Scope, receive: Receive, releases: ExitStack
    ) -> InferenceRequest:
        """Reads the body once there is room for it, and returns the request; `releases` frees the
        room."""
        arrived_s = time.monotonic()
        size_bytes = body_bytes(scope)
        if size_bytes <= SMALL_BYTES:
            body = await read_body(receive)
        else:
            if caller.quotas:
                self._core.limiter.check(caller, dialect_of(scope["path"]))
            share = await self._bodies.reserve(caller.key_id, size_bytes)
            releases.callback(share.release)
            body = await read_body(receive)
            share.resize(len(body))
            await self._bodies.check(caller.key_id, body)
        return await self._tickets.read(caller, scope["path"], scope["headers"], body, arrived_s)

    async def _try_targets(
        self, request: InferenceRequest, running: RunningRequest, exchange: Exchange
    ) -> None:
        """Tries the request's models in order until one serves it."""
        decisions = self._core.decisions
        decisions.chosen(running.relay.ticket, request.reason)
        while True:
            relay = running.relay
            try:
                await relay.run()
                return
            except RouterError as error:
                if relay.reply.has_content or not (
                    request.targets_left and falls_back(error, request.route)
                ):
                    raise
                ticket = await self._next(request, relay, error)
                decisions.fell_back(ticket, relay.ticket.model, error.code)
                running.relay = self._relay(ticket, exchange)
            finally:
                if relay.reply.has_content and exchange.status == 200:
                    self._tickets.on_served(request)

    async def _next(self, request: InferenceRequest, relay: Relay, error: RouterError) -> Ticket:
        """Returns the ticket for the next model, after the relay has failed with `error`."""
        try:
            return await self._tickets.next(request, relay.attempts)
        except UNABLE:
            if isinstance(error, ContextTooLong):
                raise error from None  # a client can fix this one: shorten the prompt
            raise

    def _relay(self, ticket: Ticket, exchange: Exchange) -> Relay:
        core = self._core
        # Reserved before anything is awaited, so that another ticket of the key cannot use the same
        # budget.
        core.budgets.reserve(ticket)
        reply = Reply(ticket, exchange, core.traffic, core.settings.current.stream_keepalive_s)
        return Relay(reply, core.dispatcher, core.stalls)
