"""The words for what a node is, what an admin wants of it, and how its models fare: they go into
the registry, over the admin API and to the terminal."""

from enum import StrEnum

KIND_AGENT, KIND_OPENAI = "agent", "openai"
"""Nodes of ours, and any server that speaks OpenAI's dialect, which tells nothing of itself."""
ACTIVE, CORDONED, MAINTENANCE = "active", "cordoned", "maintenance"
NODE_STATES = (ACTIVE, CORDONED, MAINTENANCE)
"""Of a node: it takes requests, it takes no new ones, or it has no models loaded either."""
SCOPE_EXTERNAL = "external"
"""Of a key whose requests may go to servers of kind openai."""
BROKEN = "broken"
"""Of a model on a node, besides the states that the node tells: its files are damaged."""
REST_WORDS = {CORDONED: "cordoned", MAINTENANCE: "under maintenance"}


class BreakerState(StrEnum):
    """Of one model on one node."""

    CLOSED = "closed"
    OPEN = "open"
    """It failed lately: requests go elsewhere where there is another node."""
    HALF_OPEN = "half_open"
    """One request may show whether it still fails."""
