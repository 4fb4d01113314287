"""From a request to a ticket: which model, where it may go, and what its prompt begins with."""

import asyncio
import itertools
import secrets
from collections.abc import Iterable
from functools import partial

from node.protocol.ids import parse_id
from node.protocol.prefix import Chain
from router import hints
from router.api import responses
from router.api.bodies import Routing, parse_routing, referred_items, trace_lines, with_model
from router.api.ownership import node_of_items, node_of_response
from router.core import Core
from router.types import PATH_COUNT_TOKENS, Caller, Ticket, ticket_id_of

THREAD_BYTES = 1 << 20
"""The chain of a longer body is made in a thread, so that it stalls no stream."""
THREAD_ITEMS = 3000
"""So is that of a body with more messages and parts, if it is no short one."""
_SHORT_BYTES = 256 << 10
_EVERY_BYTES, _SEEN_BYTES = 64 << 10, 8 << 10
"""To count them all would take a tenth of the time that a chain takes."""


class Tickets:
    """Maker of all tickets of one router."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # Unique over restarts and routers; a random id for each request costs a system call.
        self._start = f"-{secrets.token_hex(4)}-"
        self._numbers = itertools.count(1)

    async def make(
        self,
        caller: Caller,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        arrived_s: float,
    ) -> Ticket:
        """Raises `BadRequest`, `Forbidden`, `UnknownModel`, and what `node_of_response` and
        `node_of_items` raise."""
        routing = parse_routing(body, goes_on=path == responses.PATH)
        model = self._core.fleet.resolve(routing.model)
        asked = hints.read_headers(headers, caller)
        refers, pinned_node_id = await self._pinned(caller, path, routing, model)
        chain, is_whole = await self._chain(caller, path, routing, model, body)
        return Ticket(
            request_id=f"{caller.owner}{self._start}{next(self._numbers):06x}",
            caller=caller,
            path=path,
            asked_model=routing.model,
            model=model,
            stream=routing.stream,
            arrived_s=arrived_s,
            body=body if model == routing.model else with_model(routing.fields, model),
            trace=trace_lines(headers),
            pinned_node_id=pinned_node_id,
            chain=chain,
            is_whole=is_whole and not refers,
            follows=_ticket_of(routing.previous_response_id),
            hints=hints.hints(asked, routing.fields, path, caller, model),
            priority=asked.priority,
            deadline_s=arrived_s + asked.deadline_after_s,
            shows_decision=asked.wants_decision,
        )

    async def _pinned(
        self, caller: Caller, path: str, routing: Routing, model: str
    ) -> tuple[bool, str]:
        """Whether the input refers to items that it does not repeat, and the node that holds what
        the request goes on from; empty where it is complete."""
        if path != responses.PATH:
            return False, ""
        fleet = self._core.fleet
        items = await referred_items(routing.fields)
        if routing.previous_response_id:
            # What the input refers to may have come with that response, wherever it was made.
            node_id = node_of_response(fleet, caller, routing.previous_response_id, model)
            return bool(items), node_id
        return bool(items), node_of_items(fleet, caller, items, model) if items else ""

    async def _chain(
        self, caller: Caller, path: str, routing: Routing, model: str, body: bytes
    ) -> tuple[Chain | None, bool]:
        """And whether it begins where the prompt does."""
        if path == PATH_COUNT_TOKENS:
            return None, True

        previous = routing.previous_response_id
        head = self._core.prefixes.head(previous) if previous else None

        def make() -> tuple[Chain | None, bool]:
            chain = partial(self._core.chainer.chain, routing.fields, path, model, salt=caller.salt)
            following = chain(head=head) if head else None
            return (following, True) if following else (chain(), not previous)

        return await asyncio.to_thread(make) if takes_long(body) else make()


def _ticket_of(response_id: str | None) -> str:
    """Id of the ticket that a response answered; empty where there is none."""
    parsed = parse_id(response_id) if response_id else None
    return ticket_id_of(parsed.request_id) if parsed else ""


def takes_long(body: bytes) -> bool:
    """Whether making the chain of the body would stall a loop."""
    size = len(body)
    if size <= _SHORT_BYTES or size > THREAD_BYTES:
        return size > THREAD_BYTES
    seen = sum(
        body.count(name, at, at + _SEEN_BYTES)
        for at in range(0, size, _EVERY_BYTES)
        for name in (b'"role"', b'"type"')
    )
    return seen * _EVERY_BYTES > THREAD_ITEMS * _SEEN_BYTES
