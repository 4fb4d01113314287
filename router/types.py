"""The router's frozen data types: callers, tickets, leases, costs, decisions and views of nodes."""

import math
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import msgspec

from node.protocol.chain.prefix import Chain
from node.protocol.messages import Finished, ModelState, ModelStatus, NodeStatus
from router.prices import Prices
from router.quotas import Quota
from router.states import SCOPE_EXTERNAL
from router.waking import WakeNode, Waking


class Priority(IntEnum):
    """Priority classes of requests: a lower value is granted first, but none starves."""

    INTERACTIVE = 0
    DEFAULT = 1
    BATCH = 2


class Hints(msgspec.Struct, frozen=True):
    """The session that a request belongs to, as the client's headers and body name it. The texts
    are the client's own and are never more than a hint."""

    session: str = ""
    parent: str = ""
    """The session that this one was started from, and whose prefix it is likely to share."""


class Caller(msgspec.Struct, frozen=True):
    """A valid API key, and what it may do."""

    key_id: str
    name: str
    scopes: frozenset[str]
    owner: str
    """Prefix of the ids of the caller's requests."""
    expires_at_s: float | None = None
    priority: Priority = Priority.DEFAULT
    """The best class that the caller's requests may have."""
    salt: str = ""
    """Keeps the caller's prefix hashes apart from those of others; empty if it shares prefixes."""
    paid_budget: float | None = None
    """Most that its requests to paid servers may cost in a calendar month; None if it has none."""
    models: tuple[str, ...] | None = None
    """Names, and patterns of names with `*`, of the models and aliases that it may use; None for
    all."""
    quotas: tuple[Quota, ...] = ()
    """Limits of the key and of its team; empty if neither has any."""
    prefix: str = ""
    """The visible beginning of the key."""

    @property
    def may_use_servers(self) -> bool:
        """True if the caller's requests may go to third-party servers (kind openai)."""
        return SCOPE_EXTERNAL in self.scopes


class Ticket(msgspec.Struct, frozen=True):
    """One inference request. Its body is parsed only as far as routing needs it."""

    request_id: str
    caller: Caller
    path: str
    requested_model: str
    """The model's name in the client's body."""
    model: str
    """The model that the name stands for, with aliases resolved."""
    stream: bool
    arrived_s: float
    body: bytes
    trace: str = ""
    """Header lines of the caller's trace, each with its line break."""
    pinned_node_id: str = ""
    """The only node that can serve the ticket; empty if any may."""
    chain: Chain | None = None
    """The prefix hash chain of the prompt; None if nothing is prefilled."""
    is_whole: bool = True
    """True if the chain covers the whole prompt, False if it covers only what the request adds to a
    prompt that its node has stored."""
    follows: str = ""
    """Id of the ticket whose stored response this one continues; empty if there is none."""
    hints: Hints = Hints()
    priority: Priority = Priority.DEFAULT
    deadline_s: float = math.inf
    """Monotonic time by which the response must begin."""
    shows_decision: bool = False
    """True if the client requested the decision in the response's headers."""
    may_fall_back: bool = False
    """True if another target of the alias can be tried after this model."""
    earlier_attempts: int = 0
    """Number of attempts at models that were tried before this one."""
    cost_bound: float | None = None
    """Upper bound of what the request may cost at a paid server; None if it goes to none."""
    limit_headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers of the response that show what is left of the caller's limits."""


class Lease(msgspec.Struct, frozen=True):
    """The slot that a ticket occupies on one node."""

    ticket_id: str
    node_id: str
    model: str
    granted_s: float
    attempt: int
    instance_id: str = ""
    """Instance of the agent at the grant; a restarted agent does not know the request."""
    predicted_tokens: int = 0
    """Prompt tokens that the node is predicted to have cached."""
    prompt_tokens: int = 0
    """Estimated number of tokens in the prompt."""

    @property
    def node_request_id(self) -> str:
        """The request's id on the node. Each attempt has its own, since a node may still be working
        on an earlier one whose connection broke."""
        return self.ticket_id if self.attempt == 1 else f"{self.ticket_id}.{self.attempt}"


def ticket_id_of(node_request_id: str) -> str:
    """The id of the ticket that a `Lease.node_request_id` belongs to."""
    return node_request_id.partition(".")[0]


class Failure(StrEnum):
    """The way in which an attempt failed before the first content."""

    UNSENT = "unsent"
    """The node did not get the request: it was unreachable or had restarted."""
    BROKEN = "broken"
    """The connection broke."""
    ERROR_RESPONSE = "error_response"
    """The node responded with an error that it would repeat."""
    BUSY = "busy"
    """The node has not failed, but cannot accept the request now."""


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of an ended lease according to the node's usage record."""

    lease: Lease
    ended_s: float
    failed: bool
    usage: Finished | None = None
    """The usage record; None if the node keeps none."""


class Tokens(NamedTuple):
    """Token counts of a request, as a third-party server reports them in its response."""

    prompt: int
    cached: int
    completion: int
    reasoning: int = 0
    """Reasoning tokens among those of the completion."""


class NodeTerms(msgspec.Struct, frozen=True):
    """Cost of a request on one node: seconds until its first token, and seconds that it takes from
    others."""

    node_id: str
    name: str
    excluded: str = ""
    """The reason why the node cannot serve the request, as a sentence; all costs are 0 then. Empty
    if it can."""
    queue_s: float = 0.0
    """Prefill work ahead of the request."""
    prefill_s: float = 0.0
    """Prefill of the uncached tokens, at the node's rate for their depth."""
    restore_s: float = 0.0
    """Reading cached tokens from the node's disk."""
    load_s: float = 0.0
    """Loading the model if it is not resident."""
    wake_s: float = 0.0
    """Waking the node if it sleeps."""
    eviction_s: float = 0.0
    """Prefill that other sessions will need again for what the request evicts."""
    decode_interference_s: float = 0.0
    """Time that running streams and this one lose to each other in shared decode steps."""
    contention_s: float = 0.0
    """Expected wait of the session's next turns for turns of other sessions on the node."""
    externality_s: float = 0.0
    """Expected wait of other sessions' next turns for this prefill."""
    failure_penalty_s: float = 0.0
    """Added if the node failed or rejected a request for the model lately."""
    migration_s: float = 0.0
    """Added where the session is not warm: the margin by which another node must be better."""
    prompt_tokens: int = 0
    """Estimated number of tokens in the prompt."""
    cached_tokens: int = 0
    memory_tokens: int = 0
    promised_tokens: int = 0
    """Cached tokens that the node is sure to reuse, as far as can be known."""
    cached_positions: int = 0
    """Number of leading positions of the chain that the node has reported as cached."""
    is_estimated: bool = False
    """True if `cached_tokens` is a guess, since the node does not report its cache."""

    @property
    def total_s(self) -> float:
        return (
            self.queue_s
            + self.prefill_s
            + self.restore_s
            + self.load_s
            + self.wake_s
            + self.eviction_s
            + self.decode_interference_s
            + self.contention_s
            + self.externality_s
            + self.failure_penalty_s
            + self.migration_s
        )


class Decision(msgspec.Struct, frozen=True):
    """The node chosen for a request, and the request's costs on all nodes."""

    ticket_id: str
    model: str
    at_s: float
    node_id: str
    """Empty if no node can serve the request."""
    nodes: tuple[NodeTerms, ...]
    """Costs on all nodes of the fleet, in its order."""
    waited_s: float = 0.0
    """Seconds that the ticket waited in the router's queue."""
    reason: str = ""
    """The deciding term, as a sentence."""

    @property
    def chosen(self) -> NodeTerms | None:
        return next((terms for terms in self.nodes if terms.node_id == self.node_id), None)


class Grant(msgspec.Struct, frozen=True):
    lease: Lease
    decision: Decision


class Queued(msgspec.Struct, frozen=True):
    """The ticket waits in the router; a `Grant` or a `Reject` follows."""

    ticket_id: str
    position: int
    """Position among the waiting tickets of its model, from 1."""
    wait_s: float
    """Estimated wait."""


class RejectKind(StrEnum):
    UNKNOWN_MODEL = "unknown_model"
    """No node of the fleet has the model."""
    NO_NODE = "no_node"
    """No node that has the model can serve the ticket now."""
    NOT_TAKEN = "not_taken"
    """No node that has the model will serve the ticket until somebody changes something: the model
    fits nowhere, or its nodes are cordoned or under maintenance."""
    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    """The response would not begin before the ticket's deadline, or has not."""


class Reject(msgspec.Struct, frozen=True):
    """No node serves the ticket."""

    ticket_id: str
    kind: RejectKind
    reason: str
    """A sentence for the client."""
    retry_after_s: int | None
    """None if waiting does not help."""
    position: int = 0
    """The position in the queue that the ticket had or would have had; 0 without a queue."""
    wait_s: float = 0.0
    """Estimated wait at that position."""


Action = Grant | Queued | Reject | WakeNode


class NodeView(msgspec.Struct, frozen=True):
    """The last known state of one node."""

    node_id: str
    name: str
    kind: str
    url: str
    status: NodeStatus | None
    """The node's last status; None before the first one."""
    reachable: bool
    error: str | None
    """The reason why the node is not reachable, as a sentence."""
    status_at_s: float
    """Monotonic time of the last status; 0 before the first one."""
    silent_since_s: float | None = None
    """Monotonic time since which the node accepts no connection or sends no response; None if it
    responds, even with something unusable."""
    remembered: frozenset[str] = frozenset()
    """Models that the node had before the router's start; used until its first status."""
    state: str = "active"
    """The state that an admin has set, `active`, `cordoned` or `maintenance`."""
    prices: Prices | None = None
    """None if requests to the node are free."""
    stalled: frozenset[str] = frozenset()
    """Loaded models of which the node computes no token although requests for them run."""
    unaccepted: tuple[str, ...] = ()
    """Models that a third-party server lists and no admin has accepted."""
    waking: Waking | None = None
    """None if requests may not wake the node, or have tried in vain."""

    @property
    def may_be_woken(self) -> bool:
        """True if the node is silent, perhaps asleep, and requests may wake it."""
        return not self.reachable and self.waking is not None and self.silent_since_s is not None

    @property
    def is_paid(self) -> bool:
        """True if requests to the node cost money; such a node serves only aliases that name it."""
        return self.prices is not None

    def model(self, name: str) -> ModelStatus | None:
        """The node's status of the model; None if it has reported none."""
        if self.status is not None:
            for model in self.status.models:
                if model.name == name:
                    return model
        return None

    def broken(self, model: str) -> str | None:
        """The reason why the model's files on the node cannot be loaded, as a sentence; None if
        they can be, or there are none."""
        damaged = self.status.broken if self.status else ()
        return next((each.reason for each in damaged if each.name == model), None)

    def model_names(self) -> frozenset[str]:
        """Names of the models that the node has completely, without those still being pulled."""
        if self.status is None:
            return self.remembered
        return frozenset(
            model.name for model in self.status.models if model.state is not ModelState.PULLING
        )


class Target(msgspec.Struct, frozen=True):
    """A model that a requested name may stand for."""

    model: str
    node_id: str = ""
    """The only node that may serve the target; empty if any node with the model may."""
    is_paid: bool = False
    """True if the model is served by paid servers."""
    is_known: bool = True
    """True if some node has the model, reachable or not."""
    defaults: dict[str, Any] = {}
    """JSON values of fields that are added to requests without them."""

    @property
    def key(self) -> str:
        """The target's unique name within an alias."""
        return f"{self.model}@{self.node_id}"

    def is_on(self, view: NodeView) -> bool:
        """True if the node may serve the target."""
        return (
            view.is_paid is self.is_paid
            and (not self.node_id or view.node_id == self.node_id)
            and self.model in view.model_names()
        )


class ModelRoute(msgspec.Struct, frozen=True):
    """The targets that a requested name stands for, in order of preference."""

    targets: tuple[Target, ...]
    alias: str = ""
    """The alias as registered; empty if the name is a model's own."""
    selector: str = "first"
    spill_at: int = 1
    """Number of requests in flight on a target from which on `spillover` chooses the next one."""


class Moment(msgspec.Struct, frozen=True):
    """The scheduler's input: the time, and the last known state of every node."""

    now_s: float
    """Monotonic time."""
    fleet: tuple[NodeView, ...]
