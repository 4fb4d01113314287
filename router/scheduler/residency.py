"""Which models may come to a node now: a node's memory, and who has it. Pure.

An agent unloads nobody who serves, nobody before its minimum residency is over, and nothing that is
pinned. A request that needs more room waits here, where it can still go elsewhere, and lets those
go before it whose model is loaded, until it has waited too long: then they get no more of the node.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from node.protocol.messages import ModelState, ModelStatus, NodeStatus
from router.scheduler.node_state import NodeBook
from serving.units import gib

IN_MEMORY = (ModelState.READY, ModelState.LOADING, ModelState.DRAINING)


class Claim(NamedTuple):
    """Models that would have to leave a node for one that is waited for."""

    models: tuple[str, ...]
    leases: int
    """Of all of them, those of others too."""
    may_leave_s: float
    """Not before, whatever becomes of their leases; infinite where they cannot."""


NOTHING = Claim((), 0, -inf)


def needed_bytes(model: ModelStatus) -> int:
    return model.memory_bytes or model.weight_bytes


def fits(status: NodeStatus, model: ModelStatus) -> bool:
    """Whether there is room for the model once all have left that may ever leave."""
    return model.state in IN_MEMORY or needed_bytes(model) <= _most_free_bytes(status)


def no_room(status: NodeStatus, model: ModelStatus) -> str:
    """What a model lacks that does not fit, as a sentence about its node; empty where it fits."""
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
    """Of a node's memory, once all have left that may ever leave."""
    pinned = (each for each in status.models if each.pinned and each.state in IN_MEMORY)
    return status.memory_budget_bytes - sum(map(needed_bytes, pinned))


def is_coming(book: NodeBook, model: ModelStatus) -> bool:
    """Whether the model is in memory, or a lease has it loaded."""
    return model.state in IN_MEMORY or model.name in book.rows


def claim(book: NodeBook, status: NodeStatus, model: ModelStatus) -> Claim:
    """Of those that may leave, those that do so soonest; nothing where there is room."""
    if is_coming(book, model):
        return NOTHING
    present = [each for each in status.models if is_coming(book, each)]
    granted = (needed_bytes(each) for each in present if each.state not in IN_MEMORY)
    free_bytes = status.memory_budget_bytes - status.memory_leased_bytes - sum(granted)
    missing_bytes = needed_bytes(model) - free_bytes
    models: list[str] = []
    leases, latest_s = 0, -inf
    movable = ((_claim_of(book, status, each), each) for each in present if not each.pinned)
    for one, each in sorted(movable, key=lambda pair: (pair[0].leases > 0, *pair[0][1:])):
        if missing_bytes <= 0:
            break
        missing_bytes -= needed_bytes(each)
        models.append(each.name)
        leases, latest_s = leases + one.leases, max(latest_s, one.may_leave_s)
    return Claim(tuple(models), leases, latest_s if missing_bytes <= 0 else inf)


def _claim_of(book: NodeBook, status: NodeStatus, model: ModelStatus) -> Claim:
    leases = book.rows.get(model.name, 0) + book.others_rows(model.name)
    if model.state is ModelState.DRAINING:
        return Claim((model.name,), leases, -inf)
    if model.state is not ModelState.READY:
        # A load that nobody waits for ends where its room is needed.
        return Claim((model.name,), max(model.leases, leases), book.load_until_s(model.name))
    ready = book.ready.get(model.name)
    begin_s = ready.since_s if ready is not None else -inf
    return Claim((model.name,), leases, begin_s + status.min_residency_s)


def may_load(claimed: Claim, now_s: float) -> bool:
    """Whether nobody who may not leave is in the way."""
    return not claimed.leases and claimed.may_leave_s <= now_s


class Waits(NamedTuple):
    """Of a model's oldest ticket."""

    model: str
    since_s: float


def to_close(
    waits: Iterable[Waits], nodes: Mapping[str, tuple[NodeBook, NodeStatus]], now_s: float
) -> tuple[dict[str, frozenset[str]], float]:
    """The models that get no more of a node, by node, so that one that nobody has comes to it; and
    when there may be others. One node for each, those first that have waited longest."""
    closed: dict[str, frozenset[str]] = {}
    look_s = inf
    for wait in sorted(waits, key=lambda each: each.since_s):
        claims: list[tuple[Claim, str]] = []
        for node_id, (book, status) in nodes.items():
            model = next((each for each in status.models if each.name == wait.model), None)
            if model is None or model.state is ModelState.PULLING or not fits(status, model):
                continue
            if is_coming(book, model):
                break
            claims.append((claim(book, status, model), node_id))
            if claims[-1][0].may_leave_s > now_s:
                look_s = min(look_s, claims[-1][0].may_leave_s)
        else:
            free = [pair for pair in claims if pair[1] not in closed and pair[0].models]
            for claimed, node_id in sorted(free, key=lambda pair: (pair[0][:0:-1], pair[1]))[:1]:
                overdue_s = wait.since_s + nodes[node_id][1].max_swap_wait_s
                due_s = max(overdue_s, claimed.may_leave_s)
                if due_s <= now_s:
                    closed[node_id] = frozenset(claimed.models)
                else:
                    look_s = min(look_s, due_s)
    return closed, look_s
