"""Third-party servers (kind openai) as nodes. The models that they list are not trusted until an
admin accepts them."""

from collections.abc import Sequence

from node.protocol.messages import PROTOCOL_VERSION, ModelState, ModelStatus, NodeStatus
from registry.records import NodeRecord

FOREIGN_ROWS = 32
"""Requests that a third-party server is assumed to serve at once, if no admin has set a number; a
usual limit of servers that batch. More of them wait in the router."""


def foreign_status(record: NodeRecord, listed: Sequence[str]) -> NodeStatus:
    """Returns the server as a node whose models are always ready. It has the listed models that an
    admin has accepted; otherwise it would attract prompts by listing any model's name."""
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
    """Returns the models that the server lists and no admin has accepted."""
    accepted = frozenset(record.accepted or ())
    return tuple(name for name in listed if name not in accepted)
