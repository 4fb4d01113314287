"""`/v1/requests`: lists and cancels the requests of a caller that are running."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import cast

from node.protocol.ids import parse_id
from node.protocol.messages import ModelState
from node.protocol.paths import PATH_REQUESTS, PATH_RESPONSES
from router.api.ownership import node_of_own
from router.auth import SCOPE_ADMIN
from router.core import Core
from router.dispatch.relay import Relay
from router.errors import RouterError, UnknownRequest
from router.records.outcomes import BY_CANCEL
from router.states import KIND_AGENT
from router.types import Caller, NodeView, ticket_id_of

STATE_QUEUED = "queued"
STATE_RUNNING = "running"


log = logging.getLogger("mlx_fleet.router")


@dataclass(slots=True)
class RunningRequest:
    """A request that is being served, and the task that serves it."""

    relay: Relay
    task: asyncio.Task[None]
    cancelled: bool = False
    ended: bool = False

    def is_for(self, caller: Caller) -> bool:
        """Returns True if the caller may see and cancel it."""
        return SCOPE_ADMIN in caller.scopes or self.relay.ticket.caller.owner == caller.owner

    def cancel(self) -> None:
        """Cancels its task, as if its client had disconnected."""
        if not self.cancelled:
            self.cancelled = True
            self.task.cancel()


class RunningRequests:
    """Owns the list of running requests."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._running: dict[str, RunningRequest] = {}
        """Requests by the ids of their tickets."""

    def begin(self, relay: Relay) -> RunningRequest:
        """Registers the current task as the one that serves the relay's ticket."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        running = self._running[relay.ticket.request_id] = RunningRequest(relay, task)
        self._core.awake.begin()
        return running

    def end(self, running: RunningRequest) -> None:
        running.ended = True
        del self._running[running.relay.ticket.request_id]
        self._core.awake.end()

    def list_for(self, caller: Caller) -> dict[str, object]:
        """Lists the running requests that the caller may see, oldest first."""
        visible = [each for each in self._running.values() if each.is_for(caller)]
        return {"object": "list", "data": [_shown(each, self._core) for each in visible]}

    async def cancel(self, request_id: str, caller: Caller) -> bool:
        """Cancels a request that runs here; returns False if the caller has none with that id.
        Accepts every id that the response and its headers carry."""
        parsed = parse_id(request_id)
        running = self._running.get(ticket_id_of(parsed.request_id if parsed else request_id))
        if running is None or not running.is_for(caller):
            return False
        # A cancelled `/v1/responses` request gets a proper response, which its node sends and
        # stores.
        if running.relay.ticket.path == PATH_RESPONSES:
            if await self._ends_on_node(running):
                self._count(running)
                return True
            if running.ended:
                return False
        if not running.cancelled:
            self._count(running)
        running.cancel()
        return True

    def _count(self, running: RunningRequest) -> None:
        relay = running.relay
        self._core.metrics.aborted(relay.ticket.model, BY_CANCEL, relay.phase)

    async def _ends_on_node(self, running: RunningRequest) -> bool:
        """Asks the request's node to cancel it; returns True if the node did."""
        relay = running.relay
        lease, caller = relay.reply.lease, relay.ticket.caller
        view = self._core.fleet.node(lease.node_id) if lease else None
        if lease is None or view is None or view.kind != KIND_AGENT:
            return False
        target = f"{PATH_REQUESTS}/{lease.node_request_id}"
        try:
            response = await self._core.dispatcher.follow_up(view, caller, "DELETE", target)
        except RouterError as error:
            log.warning("%s is cut, since its node did not end it: %s", relay.request_id, error)
            return False
        return response.status == 200

    def node_of(self, request_id: str, caller: Caller) -> NodeView:
        """Returns the node that may know a request of the caller's that does not run here.

        Raises `UnknownRequest`.
        """
        gone = "The node that had this request is not part of the fleet any more."
        return node_of_own(self._core.fleet, caller, request_id, UnknownRequest, gone)


def _shown(running: RunningRequest, core: Core) -> dict[str, object]:
    relay = running.relay
    ticket, lease = relay.ticket, relay.reply.lease
    view = core.fleet.node(lease.node_id) if lease else None
    standing = core.traffic.queued(ticket.request_id)
    queue = {"position": standing.position, "wait_s": standing.wait_s} if standing else {}
    return {
        "id": relay.request_id,
        "object": "request",
        "model": ticket.model,
        "node": view.name if view else None,
        "path": ticket.path,
        "state": STATE_RUNNING if _runs(relay, view) else STATE_QUEUED,
        "stream": ticket.stream,
        "key": ticket.caller.name,
        "priority": ticket.priority.name.lower(),
        "arrived_unix_s": time.time() - (time.monotonic() - ticket.arrived_s),
        **queue,
    }


def _runs(relay: Relay, view: NodeView | None) -> bool:
    """Returns True once the response has begun; if it is not streamed, once its model is loaded."""
    if relay.reply.has_content or relay.ticket.stream:
        return relay.reply.has_content
    status = view.model(relay.ticket.model) if view else None
    return status is not None and status.state is ModelState.READY
