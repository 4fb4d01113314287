"""The material of the scheduler's tests: nodes, tickets with chains, and prefixes by hand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from node.protocol.chain.prefix import Chain
from node.protocol.messages import CacheStatus, Finished, FinishReason, ModelStatus
from router.coverage import NOT_COVERED, Coverage
from router.scheduler.scheduler import Scheduler
from router.types import Action, Grant, Lease, Moment, NodeView, Queued, Reject, Ticket, Verdict
from tests.router.conftest import model_status, node_view
from tests.router.conftest import ticket as any_ticket

POSITION_BYTES = 400
"""100 tokens, before anything was learned."""
TOKEN_S = 0.003
"""About what the tests' nodes are taken to need, before anything was learned."""


class Prefixes:
    """The prefixes that nodes have cached. Implements `router.types.Prefixes`."""

    def __init__(self) -> None:
        self.cached: dict[tuple[str, int], Coverage] = {}
        """By node and the first hash of a chain."""
        self.lookups = 0
        """Calls of `coverage`."""

    def add(self, node_id: str, chain: Chain, tokens: int, memory_tokens: int = -1) -> None:
        memory = tokens if memory_tokens < 0 else memory_tokens
        self.cached[node_id, chain.hashes[0]] = Coverage(tokens // 100, tokens, memory)

    def coverage(self, node_id: str, chain: Chain) -> Coverage:
        self.lookups += 1
        return self.cached.get((node_id, chain.hashes[0]), NOT_COVERED)


def chain(name: int, positions: int) -> Chain:
    """Positions of 100 tokens; two of one name share the shorter one."""
    hashes = array("Q", [name * 1_000_003 + number + 1 for number in range(positions)])
    sizes = array("I", [POSITION_BYTES * (number + 1) for number in range(positions)])
    return Chain(hashes, sizes, array("I", range(1, positions + 1)), 0)


def a_ticket(name: str, tokens: int = 100, of: int = 0, **fields: Any) -> Ticket:
    """A ticket for a prompt of so many tokens, of the chain `of`; by default of one of its own."""
    number = of or 1000 + sum(name.encode()) * 31 + len(name)
    return any_ticket(name, chain=chain(number, max(1, tokens // 100)), **fields)


def cached_model(name: str = "m", memory_tokens: int = 60_000, **fields: Any) -> ModelStatus:
    used = fields.pop("used_tokens", 0)
    disk = fields.pop("disk_tokens", 0)
    slots, slots_used = fields.pop("slots", 0), fields.pop("slots_used", 0)
    cache = CacheStatus(
        memory_tokens * 1000,
        used * 1000,
        1000,
        disk_bytes=disk * 1000,
        slots=slots,
        slots_used=slots_used,
    )
    return model_status(name, cache=cache, **fields)


def agents(*names: str, **fields: Any) -> tuple[NodeView, ...]:
    """Nodes that report their caches: one prefill at a time is sent to each."""
    return tuple(node_view(name, cached_model(**fields)) for name in names)


class Fleet:
    """A scheduler, and the moments that it is called with."""

    def __init__(self, *views: NodeView, limits: Any = None) -> None:
        self.prefixes = Prefixes()
        self.scheduler = Scheduler(self.prefixes, limits) if limits else Scheduler(self.prefixes)
        self.views = views
        self.now_s = 0.0

    @property
    def moment(self) -> Moment:
        return Moment(self.now_s, self.views)

    def submit(self, ticket: Ticket) -> list[Action]:
        return self.scheduler.on_request(ticket, self.moment)

    def lease(self, ticket: Ticket) -> Lease:
        return granted(self.submit(ticket))

    def first(self, lease: Lease) -> list[Action]:
        return self.scheduler.on_first_content(lease, self.moment)

    def done(self, lease: Lease, *, served: bool = False, failed: bool = False) -> list[Action]:
        return self.scheduler.on_done(lease, self.moment, served=served, failed=failed)

    def serve(self, ticket: Ticket, *, cached: int = 0, prefill_s: float = 1.0) -> Lease:
        """From request to verdict, in no time."""
        lease = self.lease(ticket)
        self.first(lease)
        self.done(lease)
        tokens = 100 * len(ticket.chain) if ticket.chain else 0
        self.judge(lease, usage=usage_record(lease, tokens, cached, prefill_s))
        return lease

    def judge(self, lease: Lease, *, failed: bool = False, usage: Finished | None = None) -> None:
        self.scheduler.on_verdict(Verdict(lease, self.now_s, failed, usage))

    def chosen(self, ticket: Ticket) -> str:
        return self.scheduler.explain(ticket, self.moment).node_id

    def term(self, ticket: Ticket, node_id: str, name: str) -> float:
        terms = self.scheduler.explain(ticket, self.moment).nodes
        value: float = getattr(next(each for each in terms if each.node_id == node_id), name)
        return value


def usage_record(lease: Lease, prompt: int, cached: int = 0, prefill_s: float = 1.0) -> Finished:
    return Finished(
        seq=1,
        request_id=lease.ticket_id,
        origin="",
        model=lease.model,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=0,
        reasoning_tokens=0,
        queue_s=0.0,
        ttft_s=prefill_s,
        prefill_s=prefill_s,
        decode_s=0.0,
        reason=FinishReason.STOP,
        finished_unix_s=0.0,
    )


def granted(actions: Sequence[Action]) -> Lease:
    (action,) = actions
    assert isinstance(action, Grant)
    return action.lease


def rejected(actions: Sequence[Action]) -> Reject:
    (action,) = actions
    assert isinstance(action, Reject)
    return action


def queued(actions: Sequence[Action]) -> Queued:
    (action,) = actions
    assert isinstance(action, Queued)
    return action
