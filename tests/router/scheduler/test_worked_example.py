"""The decision that docs/reference/cost.md works out, made by the scheduler."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from node.protocol.chain.prefix import Chain
from node.protocol.messages import CacheStatus, Finished
from router.coverage import Coverage
from router.scheduler.rates import NodeRates
from router.types import Hints, Lease, NodeTerms, NodeView, Ticket
from tests.router.conftest import model_status, node_view
from tests.router.conftest import ticket as any_ticket
from tests.router.scheduler.fleet import Fleet, queued, usage_record
from tests.router.scheduler.page import check_terms

POSITION_TOKENS, POSITION_BYTES = 256, 1024
KV_BYTES = 147_456
OUTPUT_TOKENS = 200


def node(name: str, chip: str, cache_tokens: int, disk_tokens: int = 0) -> NodeView:
    cache = CacheStatus(
        cache_tokens * KV_BYTES, cache_tokens * KV_BYTES, KV_BYTES, disk_tokens * KV_BYTES
    )
    view = node_view(name, model_status(cache=cache, weight_bytes=2_300_000_000))
    assert view.status is not None
    status = msgspec.structs.replace(view.status, chip=chip)
    return msgspec.structs.replace(view, status=status)


def turn_of(session: str, tokens: int, node_id: str = "", request_id: str = "") -> Ticket:
    """A turn of the session with a prompt of so many tokens."""
    positions = tokens // POSITION_TOKENS
    hashes = array("Q", [sum(session.encode()) * 1_000_003 + n for n in range(positions)])
    sizes = array("I", [POSITION_BYTES * (n + 1) for n in range(positions)])
    chain = Chain(hashes, sizes, array("I", range(1, positions + 1)), 0)
    return any_ticket(
        request_id or session, chain=chain, hints=Hints(session), pinned_node_id=node_id
    )


class World(Fleet):
    """Studio and mini, as quick as was guessed."""

    def __init__(self) -> None:
        super().__init__(
            node("studio", "Apple M4 Max", 40_000), node("mini", "Apple M4", 60_000, 600_000)
        )

    def cache(self, node_id: str, ticket: Ticket, tokens: int, memory_tokens: int) -> None:
        chain = ticket.chain
        assert chain is not None
        found = Coverage(tokens // POSITION_TOKENS, tokens, memory_tokens)
        self.prefixes.cached[node_id, chain.hashes[0]] = found

    def begin(self, ticket: Ticket, cached: int = 0) -> Lease:
        if cached:
            self.cache(ticket.pinned_node_id, ticket, cached, cached)
        return self.lease(ticket)

    def end(self, lease: Lease, prompt: int, cached: int) -> None:
        self.done(lease)
        self.judge(lease, usage=self.as_guessed(lease, prompt, cached))

    def as_guessed(self, lease: Lease, prompt: int, cached: int) -> Finished:
        view = next(each for each in self.views if each.node_id == lease.node_id)
        assert view.status is not None
        rates = NodeRates(view.status, view.status.models[0])
        usage = usage_record(lease, prompt, cached, rates.prefill.seconds(cached, prompt))
        decode_s = rates.row_step_s.value * (OUTPUT_TOKENS - 1)
        return msgspec.structs.replace(usage, completion_tokens=OUTPUT_TOKENS, decode_s=decode_s)

    def terms(self, ticket: Ticket) -> dict[str, NodeTerms]:
        nodes = self.scheduler.explain(ticket, self.moment).nodes
        return {terms.node_id: terms for terms in nodes}


def world_of_the_page() -> World:
    world = World()
    first = world.begin(turn_of("A", 19_456, "mini"))
    world.now_s = 40.0
    world.first(first)
    world.end(first, 19_456, 0)
    world.now_s = 78.0
    second = world.begin(turn_of("B", 15_360, "studio"), cached=11_264)
    world.now_s = 80.0
    world.first(second)
    world.end(second, 15_360, 11_264)
    world.now_s = 90.0
    third = world.begin(turn_of("C", 15_360, "studio"), cached=11_264)
    world.now_s = 92.0
    world.first(third)
    world.now_s = 99.0
    world.begin(turn_of("X", 12_288, "mini"), cached=10_240)
    world.now_s = 100.0
    world.cache("mini", turn_of("A", 19_456), 19_456, 19_456 - 3_072)
    return world


def test_the_page_s_terms_are_the_scheduler_s() -> None:
    terms = world_of_the_page().terms(turn_of("A", 20_480, request_id="again"))
    check_terms("cost.md", "## One decision, with numbers", terms)


def test_what_the_page_states_of_the_next_seconds_is_so() -> None:
    world = world_of_the_page()
    again = turn_of("A", 20_480, request_id="again")
    queued(world.submit(again))
    cold = world.terms(turn_of("cold", 512))
    assert (cold["studio"].total_s, cold["mini"].total_s) == pytest.approx((0.29, 5.23), abs=0.006)
    assert world.lease(turn_of("cold", 512)).node_id == "studio"
    world = world_of_the_page()
    queued(world.submit(again))
    world.now_s += 3.27
    later = world.terms(again)
    assert (later["mini"].total_s, later["studio"].total_s) == pytest.approx(
        (4.42, 17.28), abs=0.006
    )
    (action,) = world.scheduler.on_time(world.moment)
    assert action.lease.node_id == "mini"  # type: ignore[union-attr]
