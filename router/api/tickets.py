"""From a request to a ticket: which model, where it may go, and what its prompt begins with."""

import itertools
import secrets
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from node.protocol.ids import parse_id
from node.protocol.prefix import Chain, Fields
from router.api import responses
from router.api.bodies import Routing, parse_routing, referred_items, trace_lines, with_model
from router.api.body_room import BodyRoom
from router.api.ownership import node_of_items, node_of_response
from router.core import Core
from router.errors import (
    ContextTooLong,
    NodeAway,
    PaidBudgetUsed,
    PaidNotAllowed,
    ServersNotAllowed,
    UnknownModel,
)
from router.routing import request_hints
from router.routing.alias_defaults import with_defaults
from router.routing.alias_targets import (
    SPILLOVER,
    Order,
    TargetQuery,
    is_external,
    keeps_sessions,
    order,
    overflow,
)
from router.routing.sticky_targets import Turn
from router.states import BreakerState
from router.types import PATH_COUNT_TOKENS, Caller, ModelRoute, Moment, Target, Ticket, ticket_id_of

THREAD_BYTES = 1 << 20
"""The chain of a longer body is made in a thread, so that it stalls no stream."""
THREAD_ITEMS = 3000
"""So is that of a body with more messages and parts, if it is no short one."""
_SHORT_BYTES = 256 << 10
_EVERY_BYTES, _SEEN_BYTES = 64 << 10, 8 << 10
"""To count them all would take a tenth of the time that a chain takes."""
_MAY_OVERFLOW_BYTES = 64 << 10
"""No model has a context that is too small for less, whatever it says; to look takes time."""
UNABLE = (UnknownModel, NodeAway, PaidBudgetUsed)
"""Why a ticket for one model cannot be made, where another model's may."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request's body in the words for one target."""

    fields: Fields
    chain: Chain | None
    is_whole: bool
    """Whether the chain begins where the prompt does."""


@dataclass(slots=True)
class Call:
    """A request that may need more than one ticket, since its model's name may mean several."""

    request_id: str
    caller: Caller
    path: str
    trace: str
    body: bytes
    arrived_s: float
    routing: Routing
    asked: request_hints.RoutingHeaders
    route: ModelRoute
    left: deque[Target] = field(default_factory=deque)
    """Those that it may still go to, the best first."""
    why: str = ""
    """How the first of them was chosen, as a sentence; empty where there was no choice."""
    prepared: dict[str, Prepared] = field(default_factory=dict)
    turn: Turn | None = None
    """Of which session; None where any of the targets may answer it."""
    target: Target | None = None
    """Of its newest ticket."""


class Tickets:
    """Maker of all tickets of one router."""

    def __init__(self, core: Core, bodies: BodyRoom) -> None:
        self._core = core
        self._bodies = bodies
        # Unique over restarts and routers; a random id for each request costs a system call.
        self._start = f"-{secrets.token_hex(4)}-"
        self._numbers = itertools.count(1)

    async def call(
        self,
        caller: Caller,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        arrived_s: float,
    ) -> Call:
        """The request, and the models that it may go to. Raises `BadRequest`, `Forbidden`,
        `UnknownModel`."""
        routing = parse_routing(body, goes_on=path == responses.PATH)
        call = Call(
            request_id=f"{caller.owner}{self._start}{next(self._numbers):06x}",
            caller=caller,
            path=path,
            trace=trace_lines(headers),
            body=body,
            arrived_s=arrived_s,
            routing=routing,
            asked=request_hints.read_headers(headers, caller),
            route=self._core.names.route(routing.model),
        )
        if len(call.route.targets) == 1:
            call.left.extend(call.route.targets)
        else:
            chosen = await self._order(call)
            call.left.extend(chosen.targets)
            call.why = chosen.why
        return call

    async def next(self, call: Call, earlier_attempts: int = 0) -> Ticket:
        """The ticket for the best model that is left. Raises what is said of the last one:
        `ContextTooLong`, `UnknownModel`, `NodeAway`, `PaidNotAllowed`, `PaidBudgetUsed`, and what
        `node_of_response` and `node_of_items` raise."""
        while True:
            target = call.target = call.left.popleft()
            try:
                return await self._ticket(call, target, earlier_attempts)
            except UNABLE:
                if not call.left:
                    raise

    def answered(self, call: Call) -> None:
        """The newest ticket's model answers: its session goes on there."""
        if call.turn is not None and call.target is not None:
            self._core.last_targets.served(call.turn, call.target, time.monotonic())

    async def _order(self, call: Call) -> Order:
        route, core, now_s = call.route, self._core, time.monotonic()
        chain = (await self._prepare(call, route.targets[0])).chain
        in_flight: tuple[int, ...] = ()
        if route.selector == SPILLOVER:
            in_flight = tuple(map(core.traffic.in_flight_on, route.targets))
        if keeps_sessions(route):
            call.turn = _turn(call, chain)
        asked = TargetQuery(
            prompt_bytes=chain.sizes[-1] if chain and chain.sizes else 0,
            may_use_paid=call.caller.paid_budget is not None,
            may_use_servers=call.caller.may_use_servers,
            in_flight=in_flight,
            failing=frozenset(
                (each.node_id, each.model)
                for each in core.traffic.breakers()
                if each.state is BreakerState.OPEN
            ),
            last=core.last_targets.find(call.turn, now_s) if call.turn else "",
        )
        return order(route, asked, Moment(now_s, core.fleet.snapshot))

    async def _ticket(self, call: Call, target: Target, earlier_attempts: int) -> Ticket:
        routing, caller, path, model = call.routing, call.caller, call.path, target.model
        if not caller.may_use_servers and is_external(target, self._core.fleet.snapshot):
            raise ServersNotAllowed
        refers, pinned_node_id = await self._pinned(caller, path, routing, model)
        prepared = await self._prepare(call, target)
        self._check_length(call, target, prepared)
        changed = model != routing.model or prepared.fields is not routing.fields
        return Ticket(
            request_id=call.request_id,
            caller=caller,
            path=path,
            requested_model=routing.model,
            model=model,
            stream=routing.stream,
            arrived_s=call.arrived_s,
            body=with_model(prepared.fields, model) if changed else call.body,
            trace=call.trace,
            pinned_node_id=pinned_node_id or target.node_id,
            chain=prepared.chain,
            is_whole=prepared.is_whole and not refers,
            follows=_ticket_of(routing.previous_response_id),
            hints=request_hints.hints(call.asked, prepared.fields, path, caller, model),
            priority=call.asked.priority,
            deadline_s=call.arrived_s + call.asked.deadline_after_s,
            shows_decision=call.asked.shows_decision,
            may_fall_back=bool(call.left),
            earlier_attempts=earlier_attempts,
            cost_bound=self._cost_bound(call, target, prepared) if target.is_paid else None,
        )

    def _check_length(self, call: Call, target: Target, prepared: Prepared) -> None:
        """Raises `ContextTooLong` for what no load of the model would make room for."""
        chain = prepared.chain
        if (
            chain is None
            or chain.items_bytes < _MAY_OVERFLOW_BYTES
            or call.path == PATH_COUNT_TOKENS
        ):
            return
        moment = Moment(time.monotonic(), self._core.fleet.snapshot)
        found = overflow(target, chain.items_bytes, moment)
        if found is not None:
            raise ContextTooLong(overflow=found)

    def _cost_bound(self, call: Call, target: Target, prepared: Prepared) -> float:
        """At a paid server. Raises `PaidNotAllowed` and `PaidBudgetUsed`."""
        if call.caller.paid_budget is None:
            raise PaidNotAllowed
        if call.path == PATH_COUNT_TOKENS:
            return 0.0
        cost = self._core.budgets.cost_bound(target, prepared.fields, prepared.chain)
        self._core.budgets.check(call.caller, cost)
        return cost

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

    async def _prepare(self, call: Call, target: Target) -> Prepared:
        """The body with the target's defaults, and its chain; made once."""
        key = target.key
        if key not in call.prepared:
            fields = call.routing.fields
            if target.defaults:
                fields = with_defaults(fields, target.defaults, call.path)
            chain, is_whole = await self._chain(call, fields, target.model)
            call.prepared[key] = Prepared(fields, chain, is_whole)
        return call.prepared[key]

    async def _chain(self, call: Call, fields: Fields, model: str) -> tuple[Chain | None, bool]:
        """And whether it begins where the prompt does."""
        if call.path == PATH_COUNT_TOKENS:
            return None, True

        previous, salt = call.routing.previous_response_id, call.caller.salt
        head = self._core.prefixes.head(previous) if previous else None

        def make() -> tuple[Chain | None, bool]:
            chain = partial(self._core.chainer.chain, fields, call.path, model, salt=salt)
            following = chain(head=head) if head else None
            return (following, True) if following else (chain(), not previous)

        if takes_long(call.body):
            return await self._bodies.in_thread(call.caller.key_id, make)
        return make()


def _turn(call: Call, chain: Chain | None) -> Turn:
    return Turn(
        scope=f"{call.caller.owner}/{call.route.alias!r}/",
        session=request_hints.short(call.asked.session),
        stored_as=call.request_id if call.path == responses.PATH else "",
        follows=_ticket_of(call.routing.previous_response_id),
        chain=chain,
    )


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
