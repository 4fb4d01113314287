"""Makes tickets from requests: resolves the model name, the nodes allowed, and the prefix hash
chain."""

import itertools
import secrets
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from node.protocol.chain.prefix import Chain, Fields
from node.protocol.ids import parse_id
from node.protocol.paths import OLLAMA_PREFIX, PATH_COUNT_TOKENS, PATH_RESPONSES, dialect_of
from router.api.bodies import Routing, parse_routing, referred_items, with_model
from router.api.body_room import BodyRoom
from router.api.ownership import node_of_items, node_of_response
from router.core import Core
from router.errors import (
    ContextTooLong,
    OwnerUnreachable,
    PaidBudgetUsed,
    PaidNotAllowed,
    RouterError,
    ServersNotAllowed,
    UnknownModel,
)
from router.limits.account import RequestSize
from router.limits.headers import Headers
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
from router.routing.output_limit import output_limit
from router.routing.sticky_targets import Turn
from router.states import BreakerState
from router.types import Caller, ModelRoute, Moment, Target, Ticket, ticket_id_of
from serving.tracing.context import trace_lines
from serving.tracing.spans import Span

THREAD_BYTES = 1 << 20
"""Length of a body above which its chain is computed in a thread, so that it delays no stream."""
THREAD_ITEMS = 3000
"""Messages and content parts above which this is done too, unless the body is short."""
_SHORT_BYTES = 256 << 10
_EVERY_BYTES, _SEEN_BYTES = 64 << 10, 8 << 10
"""Sampling interval and sample size for estimating the number of items; counting them all would
take a tenth of the time that a chain takes."""
_MAY_OVERFLOW_BYTES = 64 << 10
"""Items shorter than this fit into every model's context, so that looking for an overflow is
skipped."""
MOST_TOKENS_PER_BYTE = 2
TEMPLATE_TOKENS = 65_536
"""Bounds of what a node may report for a prompt: its template adds tokens, and escapes hardly
any."""
UNABLE = (UnknownModel, OwnerUnreachable, PaidBudgetUsed)
"""Errors that concern one model only; the alias's next target is tried."""


class NoPrompt(Exception):
    """The request has no prompt; it only loads or unloads a model."""

    def __init__(self, caller: Caller, routing: Routing) -> None:
        super().__init__()
        self.caller = caller
        self.routing = routing


class Prepared(msgspec.Struct, frozen=True):
    """A request's body with the defaults of one target, and its prefix hash chain."""

    fields: Fields
    chain: Chain | None
    is_whole: bool
    """True if the chain starts at the beginning of the prompt."""


@dataclass(slots=True)
class InferenceRequest:
    """A request, which may need several tickets, since its model's name may be an alias of several
    models."""

    request_id: str
    caller: Caller
    path: str
    trace: str
    span: Span | None
    body: bytes
    arrived_s: float
    routing: Routing
    hints: request_hints.RoutingHeaders
    route: ModelRoute
    targets_left: deque[Target] = field(default_factory=deque)
    """Targets that have not been tried, the best first."""
    reason: str = ""
    """Reason why the first target was chosen, as a sentence; empty if there was only one."""
    prepared: dict[str, Prepared] = field(default_factory=dict)
    turn: Turn | None = None
    """The session this turn belongs to; None if any target may serve it."""
    target: Target | None = None
    """Target of the newest ticket."""


class Tickets:
    """Makes all tickets of one router."""

    def __init__(self, core: Core, bodies: BodyRoom) -> None:
        self._core = core
        self._bodies = bodies
        # Unique across restarts and routers; a random id for each request would cost a system call.
        self._start = f"-{secrets.token_hex(4)}-"
        self._numbers = itertools.count(1)

    async def read(
        self,
        caller: Caller,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        arrived_s: float,
    ) -> InferenceRequest:
        """Reads the request and finds the models that may serve it. Raises `BadRequest`,
        `Forbidden`, `UnknownModel`, `NoPrompt`."""
        routing = parse_routing(body, path)
        if routing.only_loads:
            raise NoPrompt(caller, routing)
        trace = trace_lines(headers)
        span = self._core.ledger.request_log.begin_span(trace)
        try:
            request = InferenceRequest(
                request_id=f"{caller.owner}{self._start}{next(self._numbers):06x}",
                caller=caller,
                path=path,
                trace=trace if span is None else span.trace,
                span=span,
                body=body,
                arrived_s=arrived_s,
                routing=routing,
                hints=request_hints.read_headers(headers, caller),
                route=self._core.names.route(self._name(path, routing.model), caller.models),
            )
        except RouterError as error:
            error.model = routing.model
            raise
        if len(request.route.targets) == 1:
            request.targets_left.extend(request.route.targets)
        else:
            chosen = await self._order(request)
            request.targets_left.extend(chosen.targets)
            request.reason = chosen.why
        return request

    def _name(self, path: str, model: str) -> str:
        """Returns the name to look up; in Ollama's dialect it may have the tag `latest`."""
        return self._core.names.untagged(model) if path.startswith(OLLAMA_PREFIX) else model

    async def next(self, request: InferenceRequest, earlier_attempts: int = 0) -> Ticket:
        """Returns the ticket for the best target that is left. Raises the error of the last target:
        `ContextTooLong`, `UnknownModel`, `OwnerUnreachable`, `PaidNotAllowed`, `PaidBudgetUsed`, or
        what `node_of_response` and `node_of_items` raise."""
        while True:
            target = request.target = request.targets_left.popleft()
            try:
                return await self._ticket(request, target, earlier_attempts)
            except RouterError as error:
                error.model = request.routing.model
                if not (request.targets_left and isinstance(error, UNABLE)):
                    raise

    def on_served(self, request: InferenceRequest) -> None:
        """Records that the newest ticket's target served the request, so that its session continues
        there."""
        if request.turn is not None and request.target is not None:
            self._core.last_targets.served(request.turn, request.target, time.monotonic())

    async def _order(self, request: InferenceRequest) -> Order:
        route, core, now_s = request.route, self._core, time.monotonic()
        chain = (await self._prepare(request, route.targets[0])).chain
        in_flight: tuple[int, ...] = ()
        if route.selector == SPILLOVER:
            in_flight = tuple(map(core.traffic.in_flight_on, route.targets))
        if keeps_sessions(route):
            request.turn = _turn(request, chain)
        query = TargetQuery(
            prompt_bytes=chain.sizes[-1] if chain and chain.sizes else 0,
            may_use_paid=request.caller.paid_budget is not None,
            may_use_servers=request.caller.may_use_servers,
            in_flight=in_flight,
            failing=frozenset(
                (each.node_id, each.model)
                for each in core.traffic.breakers()
                if each.state is BreakerState.OPEN
            ),
            last=core.last_targets.find(request.turn, now_s) if request.turn else "",
        )
        return order(route, query, Moment(now_s, core.fleet.snapshot))

    async def _ticket(
        self, request: InferenceRequest, target: Target, earlier_attempts: int
    ) -> Ticket:
        routing, caller, path, model = request.routing, request.caller, request.path, target.model
        if not caller.may_use_servers and is_external(target, self._core.fleet.snapshot):
            raise ServersNotAllowed
        refers, pinned_node_id = await self._pinned(caller, path, routing, model)
        prepared = await self._prepare(request, target)
        self._check_length(request, target, prepared)
        changed = model != routing.model or prepared.fields is not routing.fields
        return Ticket(
            request_id=request.request_id,
            caller=caller,
            path=path,
            requested_model=routing.model,
            model=model,
            stream=routing.stream,
            arrived_s=request.arrived_s,
            body=with_model(prepared.fields, model) if changed else request.body,
            trace=request.trace,
            pinned_node_id=pinned_node_id or target.node_id,
            chain=prepared.chain,
            is_whole=prepared.is_whole and not refers,
            follows=_ticket_of(routing.previous_response_id),
            hints=request_hints.hints(request.hints, prepared.fields, path, caller, model),
            priority=request.hints.priority,
            deadline_s=request.arrived_s + request.hints.deadline_after_s,
            shows_decision=request.hints.shows_decision,
            may_fall_back=bool(request.targets_left),
            earlier_attempts=earlier_attempts,
            cost_bound=self._cost_bound(request, target, prepared) if target.is_paid else None,
            # Last: from here on nothing can fail that would leave the request uncounted or open.
            limit_headers=self._reserve(request, target, prepared) if caller.quotas else (),
        )

    def _reserve(self, request: InferenceRequest, target: Target, prepared: Prepared) -> Headers:
        """Counts the request against its caller's limits. Raises `LimitExceeded`."""
        chain, body_bytes = prepared.chain, len(request.body)
        if request.path == PATH_COUNT_TOKENS:
            size = RequestSize(output_tokens=0)
        else:
            prompt_bytes = chain.sizes[-1] if chain and chain.sizes else body_bytes
            most = max(prompt_bytes, body_bytes) * MOST_TOKENS_PER_BYTE + TEMPLATE_TOKENS
            size = RequestSize(
                self._core.traffic.prompt_tokens(target.model, prompt_bytes),
                output_limit(prepared.fields),
                most if prepared.is_whole else None,
            )
        dialect = dialect_of(request.path)
        return self._core.limiter.reserve(request.request_id, request.caller, size, dialect)

    def _check_length(self, request: InferenceRequest, target: Target, prepared: Prepared) -> None:
        """Raises `ContextTooLong` if the prompt would not fit however the model were loaded."""
        chain = prepared.chain
        if (
            chain is None
            or chain.items_bytes < _MAY_OVERFLOW_BYTES
            or request.path == PATH_COUNT_TOKENS
        ):
            return
        moment = Moment(time.monotonic(), self._core.fleet.snapshot)
        found = overflow(target, chain.items_bytes, moment)
        if found is not None:
            raise ContextTooLong(overflow=found)

    def _cost_bound(self, request: InferenceRequest, target: Target, prepared: Prepared) -> float:
        """Returns the most that the request may cost at a paid server. Raises `PaidNotAllowed` and
        `PaidBudgetUsed`."""
        if request.caller.paid_budget is None:
            raise PaidNotAllowed
        if request.path == PATH_COUNT_TOKENS:
            return 0.0
        cost = self._core.budgets.cost_bound(target, prepared.fields, prepared.chain)
        self._core.budgets.check(request.caller, cost)
        return cost

    async def _pinned(
        self, caller: Caller, path: str, routing: Routing, model: str
    ) -> tuple[bool, str]:
        """Returns (True if the input refers to items that it does not repeat, id of the node that
        stores what the request continues; empty if the request is complete)."""
        if path != PATH_RESPONSES:
            return False, ""
        fleet = self._core.fleet
        items = await referred_items(routing.fields)
        if routing.previous_response_id:
            # Items that the input refers to may have come with that response, whichever node made
            # them.
            node_id = node_of_response(fleet, caller, routing.previous_response_id, model)
            return bool(items), node_id
        return bool(items), node_of_items(fleet, caller, items, model) if items else ""

    async def _prepare(self, request: InferenceRequest, target: Target) -> Prepared:
        """Returns the body with the target's defaults and its chain; computed once for each
        target."""
        key = target.key
        if key not in request.prepared:
            fields = request.routing.fields
            if target.defaults:
                fields = with_defaults(fields, target.defaults, request.path)
            chain, is_whole = await self._chain(request, fields, target.model)
            request.prepared[key] = Prepared(fields, chain, is_whole)
        return request.prepared[key]

    async def _chain(
        self, request: InferenceRequest, fields: Fields, model: str
    ) -> tuple[Chain | None, bool]:
        """Computes the chain; returns (chain, True if it starts at the beginning of the prompt)."""
        if request.path == PATH_COUNT_TOKENS:
            return None, True

        previous, salt = request.routing.previous_response_id, request.caller.salt
        head = self._core.prefixes.head(previous) if previous else None

        def make() -> tuple[Chain | None, bool]:
            chain = partial(self._core.prefix_hasher.chain, fields, request.path, model, salt=salt)
            following = chain(head=head) if head else None
            return (following, True) if following else (chain(), not previous)

        if takes_long(request.body):
            return await self._bodies.in_thread(request.caller.key_id, make)
        return make()


def _turn(request: InferenceRequest, chain: Chain | None) -> Turn:
    return Turn(
        scope=f"{request.caller.owner}/{request.route.alias!r}/",
        session=request_hints.short(request.hints.session),
        stored_as=request.request_id if request.path == PATH_RESPONSES else "",
        follows=_ticket_of(request.routing.previous_response_id),
        chain=chain,
    )


def _ticket_of(response_id: str | None) -> str:
    """Returns the id of the ticket that a response belongs to; empty if there is none."""
    parsed = parse_id(response_id) if response_id else None
    return ticket_id_of(parsed.request_id) if parsed else ""


def takes_long(body: bytes) -> bool:
    """Returns True if computing the chain of the body would stall the event loop."""
    size = len(body)
    if size <= _SHORT_BYTES or size > THREAD_BYTES:
        return size > THREAD_BYTES
    seen = sum(
        body.count(name, at, at + _SEEN_BYTES)
        for at in range(0, size, _EVERY_BYTES)
        for name in (b'"role"', b'"type"')
    )
    return seen * _EVERY_BYTES > THREAD_ITEMS * _SEEN_BYTES
