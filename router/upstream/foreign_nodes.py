"""Servers of kind openai as nodes. They are not the fleet's own: what they list is only said."""

from collections.abc import Sequence

from node.protocol.messages import PROTOCOL_VERSION, ModelState, ModelStatus, NodeStatus
from registry.records import NodeRecord

FOREIGN_ROWS = 32
"""Requests that a foreign server is taken to serve at once, where no admin has said: a usual limit
of servers that batch. Those above it wait in the router, those below it perhaps in the server."""


def foreign_status(record: NodeRecord, listed: Sequence[str]) -> NodeStatus:
    """The server as a node whose models are always ready: of those that it lists now, the ones that
    an admin has accepted. Else it would draw the prompts of any model whose name it lists."""
    max_rows = record.max_rows or FOREIGN_ROWS
    accepted = frozenset(record.accepted or ())
    return NodeStatus(
        protocol=PROTOCOL_VERSION,
        node_id=record.id,
        instance_id="foreign",
        version="",
        engine="openai",
        chip="",
        memory_budget_bytes=0,
        memory_leased_bytes=0,
        models=tuple(
            ModelStatus(name=name, state=ModelState.READY, weight_bytes=0, max_rows=max_rows)
            for name in listed
            if name in accepted
        ),
    )


def unaccepted(record: NodeRecord, listed: Sequence[str]) -> tuple[str, ...]:
    """What the server lists and no admin has accepted."""
    accepted = frozenset(record.accepted or ())
    return tuple(name for name in listed if name not in accepted)
