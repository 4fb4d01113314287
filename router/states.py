"""Names of node kinds, node states and breaker states, as the registry, the admin API and the
command line spell them."""

from enum import StrEnum

KIND_AGENT, KIND_OPENAI = "agent", "openai"
"""A node agent, and a third-party server that speaks OpenAI's dialect and reports no status."""
ACTIVE, CORDONED, MAINTENANCE = "active", "cordoned", "maintenance"
"""States of a node that an admin sets: it accepts requests, it accepts no new ones, or it has no
models loaded either."""
SCOPE_EXTERNAL = "external"
"""Scope of a key whose requests may go to third-party servers (kind openai)."""
BROKEN = "broken"
"""State of a model whose files on a node are damaged, besides the states that the node reports."""
OUT_OF_SERVICE = {CORDONED: "cordoned", MAINTENANCE: "under maintenance"}


class BreakerState(StrEnum):
    """State of the circuit breaker of one model on one node."""

    CLOSED = "closed"
    OPEN = "open"
    """The model failed there lately; requests go to other nodes where there are any."""
    HALF_OPEN = "half_open"
    """One trial request may show if the node still fails."""
