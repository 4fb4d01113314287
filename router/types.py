"""The router's own nouns, frozen: who asks, for what, where it goes and why."""

import math
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Protocol

import msgspec

from node.protocol.messages import Finished, ModelState, NodeStatus
from node.protocol.prefix import Chain
from router.prices import Prices
from router.states import SCOPE_EXTERNAL

PATH_COUNT_TOKENS = "/v1/messages/count_tokens"
"""Nothing is generated there, so that a node keeps no accounts of it."""


class Priority(IntEnum):
    """The classes of requests; a lower one is served first, but none starves."""

    INTERACTIVE = 0
    DEFAULT = 1
    BATCH = 2


class Hints(msgspec.Struct, frozen=True):
    """What a client's headers and body say of the session that a request belongs to. Texts of the
    client's own; never more than a hint."""

    session: str = ""
    parent: str = ""
    """The session that this one came from, whose prefix it is likely to share."""


class Caller(msgspec.Struct, frozen=True):
    """The holder of an API key."""

    key_id: str
    name: str
    scopes: frozenset[str]
    owner: str
    """What the ids of its requests begin with."""
    expires_at_s: float | None = None
    priority: Priority = Priority.DEFAULT
    """The best class that its requests may have."""
    salt: str = ""
    """Parts its prefixes from those of others; empty: it shares them."""
    paid_budget: float | None = None
    """What its requests to paid servers may cost in a calendar month; None: none may."""

    @property
    def may_use_servers(self) -> bool:
        """Whether its requests may go to servers of kind openai, which are not the fleet's own."""
        return SCOPE_EXTERNAL in self.scopes


class Ticket(msgspec.Struct, frozen=True):
    """One inference request, its body parsed for routing only."""

    request_id: str
    caller: Caller
    path: str
    requested_model: str
    """The name in the caller's body."""
    model: str
    """The model that it means, aliases resolved."""
    stream: bool
    arrived_s: float
    body: bytes
    trace: str = ""
    """Header lines of the caller's trace, each with its line break."""
    pinned_node_id: str = ""
    """The only node that can serve it; empty where any may."""
    chain: Chain | None = None
    """What its prompt begins with; None where nothing is prefilled."""
    is_whole: bool = True
    """Whether the chain is that of the whole prompt, not only of what the request adds to what its
    node has stored."""
    follows: str = ""
    """Id of the ticket whose stored response it goes on from; empty where it does from none."""
    hints: Hints = Hints()
    priority: Priority = Priority.DEFAULT
    deadline_s: float = math.inf
    """Monotonic time after which nobody wants an answer that has not begun."""
    shows_decision: bool = False
    """Whether the caller wants to see where it went and why."""
    may_fall_back: bool = False
    """Whether another model is left to try where this one cannot take it."""
    earlier_attempts: int = 0
    """On models that were to take it before this one."""
    may_cost: float | None = None
    """Most that it is taken to cost at a paid server; None: it goes to none."""


class Lease(msgspec.Struct, frozen=True):
    """A ticket's place on one node."""

    ticket_id: str
    node_id: str
    model: str
    granted_s: float
    attempt: int
    instance_id: str = ""
    """Of the agent that it was granted for; another one knows nothing of it."""
    predicted_tokens: int = 0
    """How much of the prompt its node is taken to have cached."""
    prompt_tokens: int = 0
    """Estimated."""

    @property
    def node_request_id(self) -> str:
        """The request's id on the node: an own one for each attempt, since a node may still be at
        an earlier one whose connection broke."""
        return self.ticket_id if self.attempt == 1 else f"{self.ticket_id}.{self.attempt}"


def ticket_id_of(node_request_id: str) -> str:
    """The id of the ticket whose `Lease.node_request_id` that is."""
    return node_request_id.partition(".")[0]


class Failure(StrEnum):
    """How a lease's node failed before any content."""

    UNSENT = "unsent"
    """It did not get the request: it was gone or had started anew."""
    BROKEN = "broken"
    """The connection broke."""
    ANSWERED = "answered"
    """It said so; it would say so again."""
    TURNED_AWAY = "turned_away"
    """It has not failed, but cannot take the request now."""


class Verdict(msgspec.Struct, frozen=True):
    """What a node's accounts say of a lease that has ended."""

    lease: Lease
    ended_s: float
    failed: bool
    accounts: Finished | None = None
    """None where the node keeps none."""


class Tokens(NamedTuple):
    """What a server that keeps no accounts says that a request took."""

    prompt: int
    cached: int
    completion: int


class Coverage(msgspec.Struct, frozen=True):
    """How much of a request's prompt a node holds."""

    positions: int = 0
    """Of the request's chain."""
    usable_tokens: int = 0
    """Need not be computed."""
    memory_tokens: int = 0
    """Share of `usable_tokens` that need not be read from disk."""


NOT_COVERED = Coverage()


class Prefixes(Protocol):
    """What nodes have told of the prefixes that they hold."""

    def coverage(self, node_id: str, chain: Chain) -> Coverage:
        """The deepest position of the chain that the node holds."""


class NodeTerms(msgspec.Struct, frozen=True):
    """What a request would cost on one node, in seconds until its first token and in those that
    it takes from others."""

    node_id: str
    name: str
    excluded: str = ""
    """Why the node is out of the question, as a sentence; then all costs are 0."""
    queue_s: float = 0.0
    """Prefill work that is ahead of it."""
    prefill_s: float = 0.0
    """Its own uncached tokens at the node's rate for their depth."""
    restore_s: float = 0.0
    """Reading cached tokens from the node's disk."""
    load_s: float = 0.0
    """Of the model, where it is not resident."""
    eviction_s: float = 0.0
    """Prefill that others will need again for what it pushes out."""
    decode_interference_s: float = 0.0
    """What it takes from streams that run, and they from it."""
    contention_s: float = 0.0
    """What the next turn of its session is likely to wait for those of other sessions there."""
    externality_s: float = 0.0
    """What the sessions there are likely to wait for its prefill, where their next turns come
    meanwhile."""
    failure_penalty_s: float = 0.0
    """The node failed lately."""
    migration_s: float = 0.0
    """Leaving the node where the session is: the margin by which another must be better."""
    prompt_tokens: int = 0
    """Estimated."""
    cached_tokens: int = 0
    memory_tokens: int = 0
    promised_tokens: int = 0
    """Share of `cached_tokens` that the node is sure to reuse, as far as can be known."""
    held_positions: int = 0
    """Of the request's chain, that the node has told of."""
    is_estimated: bool = False
    """Whether `cached_tokens` are a guess, since the node tells nothing of its cache."""

    @property
    def total_s(self) -> float:
        return (
            self.queue_s
            + self.prefill_s
            + self.restore_s
            + self.load_s
            + self.eviction_s
            + self.decode_interference_s
            + self.contention_s
            + self.externality_s
            + self.failure_penalty_s
            + self.migration_s
        )


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes, and what it would have cost elsewhere."""

    ticket_id: str
    model: str
    at_s: float
    node_id: str
    """Empty where no node can take it."""
    nodes: tuple[NodeTerms, ...]
    """All nodes of the fleet, in its order."""
    waited_s: float = 0.0
    """In the router's queue."""
    reason: str = ""
    """A sentence: what decided."""

    @property
    def chosen(self) -> NodeTerms | None:
        return next((terms for terms in self.nodes if terms.node_id == self.node_id), None)


class Grant(msgspec.Struct, frozen=True):
    lease: Lease
    decision: Decision


class Queued(msgspec.Struct, frozen=True):
    """The ticket waits in the router; a `Grant` or a `Reject` will follow."""

    ticket_id: str
    position: int
    """Tickets of its model that are ahead of it, and itself: from 1."""
    wait_s: float
    """Estimated."""


class Loading(msgspec.Struct, frozen=True):
    """What a ticket waits for whose model is being loaded."""

    model: str
    progress: float | None
    """Share that is done; None where its node does not tell."""


class RejectKind(StrEnum):
    UNKNOWN_MODEL = "unknown_model"
    """No node of the fleet has the model."""
    NO_NODE = "no_node"
    """None that has it can take it now."""
    NOT_TAKEN = "not_taken"
    """None that has it will take it before somebody changes something: it fits nowhere, or its
    nodes are to rest."""
    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    """It would not begin before its deadline, or has not."""


class Reject(msgspec.Struct, frozen=True):
    """No node takes the ticket."""

    ticket_id: str
    kind: RejectKind
    reason: str
    """A sentence for the caller."""
    retry_after_s: int | None
    """None: it does not help to wait."""
    position: int = 0
    """Where it would stand, or stood, in the queue; 0 where there is none."""
    wait_s: float = 0.0
    """Estimated wait there."""


Action = Grant | Queued | Reject


class NodeView(msgspec.Struct, frozen=True):
    """What the router last heard of one node."""

    node_id: str
    name: str
    kind: str
    url: str
    status: NodeStatus | None
    """None before the first word."""
    reachable: bool
    error: str | None
    """Why it is not reachable, as a sentence."""
    heard_s: float
    """Monotonic time of its last word; 0 before the first."""
    silent_since_s: float | None = None
    """Monotonic time since which it takes no connection or answers nothing; what says something
    that nobody can use is not silent."""
    remembered: frozenset[str] = frozenset()
    """Models that it had before the router's start; they count until its first word."""
    state: str = "active"
    """What an admin wants of it: `NODE_STATES`."""
    prices: Prices | None = None
    """None: requests to it cost nothing."""
    stalled: frozenset[str] = frozenset()
    """Loaded models that it makes no token of though requests wait for some."""
    unaccepted: tuple[str, ...] = ()
    """What a server of kind openai lists besides its models, and no admin has accepted."""

    @property
    def is_paid(self) -> bool:
        """Whether requests to it cost money: only what an alias names goes there."""
        return self.prices is not None

    def broken(self, model: str) -> str | None:
        """Why the model cannot be served from its disk, as a sentence; None where it can, or is not
        there."""
        told = self.status.broken if self.status else ()
        return next((each.reason for each in told if each.name == model), None)

    def model_names(self) -> frozenset[str]:
        """Of those that are whole on it."""
        if self.status is None:
            return self.remembered
        return frozenset(
            model.name for model in self.status.models if model.state is not ModelState.PULLING
        )


class Target(msgspec.Struct, frozen=True):
    """A model that a name may mean."""

    model: str
    node_id: str = ""
    """The only node that may serve it; empty where any may that has it."""
    is_paid: bool = False
    """Whether it is one of paid servers."""
    is_known: bool = True
    """Whether some node has it, reachable or not."""
    defaults: dict[str, Any] = {}
    """Fields for requests that do not have them, JSON values."""

    @property
    def key(self) -> str:
        """As an alias names it where no other is meant."""
        return f"{self.model}@{self.node_id}"

    def is_on(self, view: NodeView) -> bool:
        """Whether the node is one of those that may serve it."""
        return (
            view.is_paid is self.is_paid
            and (not self.node_id or view.node_id == self.node_id)
            and self.model in view.model_names()
        )


class Road(msgspec.Struct, frozen=True):
    """What a name means: one model, or more in an order of preference."""

    targets: tuple[Target, ...]
    alias: str = ""
    """As it is registered; empty where the name is a model's own."""
    selector: str = "first"
    spill_at: int = 1
    """Requests in flight on a target from which on `spillover` takes the next one."""


class Moment(msgspec.Struct, frozen=True):
    """What the scheduler decides from: the time, and the last word of every node."""

    now_s: float
    """Monotonic."""
    fleet: tuple[NodeView, ...]
