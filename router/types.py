"""The router's own nouns, frozen: who asks, for what, where it goes."""

from dataclasses import dataclass

from node.protocol.messages import NodeStatus

PATH_COUNT_TOKENS = "/v1/messages/count_tokens"
"""Nothing is generated there, so that a node keeps no accounts of it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of an API key."""

    key_id: str
    name: str
    scopes: frozenset[str]
    owner: str
    """What the ids of its requests begin with."""
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ticket:
    """One inference request, its body parsed for routing only."""

    request_id: str
    caller: Caller
    path: str
    asked_model: str
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


@dataclass(frozen=True, slots=True)
class Lease:
    """A ticket's place on one node."""

    ticket_id: str
    node_id: str
    model: str
    granted_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a node's accounts say of a lease that has ended."""

    lease: Lease
    ended_s: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Grant:
    lease: Lease


@dataclass(frozen=True, slots=True)
class Reject:
    """No node can take the ticket. `known` tells whether any node has the model at all."""

    ticket_id: str
    known: bool
    reason: str
    retry_after_s: int


Action = Grant | Reject


@dataclass(frozen=True, slots=True)
class NodeView:
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
    remembered: frozenset[str] = frozenset()
    """Models that it had before the router's start; they count until its first word."""

    def model_names(self) -> frozenset[str]:
        if self.status is None:
            return self.remembered
        return frozenset(model.name for model in self.status.models)
