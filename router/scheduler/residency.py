"""Decides from a node's memory which models can be loaded there now, and which must be unloaded for
them. Pure.

An agent unloads no model that serves requests, none before its minimum residency is over, and none
that is pinned. A request that needs more memory waits in the router, where it can still go to
another node, and does not delay requests for models that are loaded. Once it has waited too long,
those models get no more requests on that node.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from node.protocol.messages import IN_MEMORY, ModelState, ModelStatus, NodeStatus
from node.protocol.swap_rule import (
    NO_DISPLACEMENT,
    Displacement,
    ResidentModel,
    displaced,
    most_free_bytes,
)
from router.scheduler.node_state import NodeBook
from serving.units import gib


def needed_bytes(model: ModelStatus) -> int:
    return model.memory_bytes or model.weight_bytes


def fits(status: NodeStatus, model: ModelStatus) -> bool:
    """True if there is room for the model once everything that can be unloaded is."""
    return model.state in IN_MEMORY or needed_bytes(model) <= _most_free_bytes(status)


def no_room(status: NodeStatus, model: ModelStatus) -> str:
    """The memory that the model lacks on the node, as a sentence; empty if it fits."""
    if fits(status, model):
        return ""
    needed, most, limit = needed_bytes(model), _most_free_bytes(status), status.memory_budget_bytes
    pinned = f", {gib(limit - most)} of which are pinned" if most < limit else ""
    smaller = "raise its --memory-limit or choose a smaller model"
    advice = f"unpin another model, or {smaller}" if needed <= limit else smaller
    return (
        f"It needs {gib(needed)} for the model, and its memory limit is "
        f"{gib(limit)}{pinned}: {gib(needed - most)} too few; {advice}."
    )


def _most_free_bytes(status: NodeStatus) -> int:
    """Bytes of a node's memory that are free once every unpinned model is unloaded."""
    pinned = (each for each in status.models if each.pinned and each.state in IN_MEMORY)
    return most_free_bytes(status.memory_budget_bytes, map(needed_bytes, pinned))


def is_present(book: NodeBook, model: ModelStatus) -> bool:
    """True if the model is in memory, or has a lease that loads it."""
    return model.state in IN_MEMORY or model.name in book.rows


def displacement(
    book: NodeBook, status: NodeStatus, model: ModelStatus, now_s: float
) -> Displacement:
    """The models that the node will unload for this one; `NO_DISPLACEMENT` if there is room."""
    if is_present(book, model):
        return NO_DISPLACEMENT
    present = [each for each in status.models if is_present(book, each)]
    granted = (needed_bytes(each) for each in present if each.state not in IN_MEMORY)
    free_bytes = status.memory_budget_bytes - status.memory_leased_bytes - sum(granted)
    missing_bytes = needed_bytes(model) - free_bytes
    if missing_bytes <= 0:
        return NO_DISPLACEMENT
    residents = [_resident(book, status, each) for each in present]
    return displaced(residents, missing_bytes, now_s)


def _resident(book: NodeBook, status: NodeStatus, model: ModelStatus) -> ResidentModel:
    """The model as the node's swap rule sees it."""
    leases = book.rows.get(model.name, 0) + book.external_rows(model.name)
    if model.state is ModelState.DRAINING:
        evictable_s = -inf
    elif model.state is ModelState.READY:
        ready = book.ready.get(model.name)
        begin_s = ready.since_s if ready is not None else -inf
        evictable_s = begin_s + status.min_residency_s
    else:
        # An unfinished load that nobody waits for is aborted if its memory is needed.
        leases, evictable_s = max(model.leases, leases), book.load_until_s(model.name)
    return ResidentModel(
        model.name,
        needed_bytes(model),
        leases,
        evictable_s,
        model.unload_cost_s,
        model.pinned,
    )


class OldestTicket(NamedTuple):
    """The arrival of a model's oldest ticket."""

    model: str
    since_s: float


def models_to_close(
    waits: Iterable[OldestTicket], nodes: Mapping[str, tuple[NodeBook, NodeStatus]], now_s: float
) -> tuple[dict[str, frozenset[str]], float]:
    """The models that must get no more requests, by node, so that models that are on no node can be
    loaded; and the time when there may be others. Each waiting model gets one node, the longest
    waiting first."""
    closed: dict[str, frozenset[str]] = {}
    next_s = inf
    for wait in sorted(waits, key=lambda each: each.since_s):
        found: list[tuple[Displacement, str]] = []
        for node_id, (book, status) in nodes.items():
            model = next((each for each in status.models if each.name == wait.model), None)
            if model is None or model.state is ModelState.PULLING or not fits(status, model):
                continue
            if is_present(book, model):
                break
            found.append((displacement(book, status, model, now_s), node_id))
            if found[-1][0].evictable_s > now_s:
                next_s = min(next_s, found[-1][0].evictable_s)
        else:
            free = [pair for pair in found if pair[1] not in closed and pair[0].models]
            for needed, node_id in sorted(free, key=lambda pair: (pair[0][:0:-1], pair[1]))[:1]:
                overdue_s = wait.since_s + nodes[node_id][1].max_swap_wait_s
                names, later_s = needed.overdue(overdue_s, now_s)
                if names:
                    closed[node_id] = names
                next_s = min(next_s, later_s)
    return closed, next_s
