"""The load that docs/reference/scheduling.md works out, decided by the scheduler."""

from __future__ import annotations

import msgspec
import pytest

from node.protocol.messages import CacheStatus, ModelState, ModelStatus
from router.types import Hints, NodeTerms, NodeView, Ticket
from tests.router.conftest import model_status, node_view
from tests.router.scheduler.fleet import Fleet, a_ticket, usage_record
from tests.router.scheduler.page import check_terms

GB = 10**9
CHIPS = {"studio": "Apple M4 Max", "mini": "Apple M4"}
LOADS_S = {"studio": 6.0, "mini": 9.0}


def model(name: str, node: str, there: str) -> ModelStatus:
    is_there = name == there
    return model_status(
        name,
        state=ModelState.READY if is_there else ModelState.ON_DISK,
        generation=int(is_there),
        weight_bytes=4 * GB,
        load_s=LOADS_S[node],
        cache=CacheStatus(60_000 * 100_000, 0, 100_000) if is_there else None,
    )


def node(name: str, there: str = "") -> NodeView:
    """With room for one model."""
    models = [model(each, name, there) for each in ("coder", "chat", "vision")]
    view = node_view(name, *models)
    assert view.status is not None
    status = msgspec.structs.replace(
        view.status,
        chip=CHIPS[name],
        memory_budget_bytes=6 * GB,
        memory_leased_bytes=4 * GB if there else 0,
        min_residency_s=30.0,
        max_swap_wait_s=120.0,
    )
    return msgspec.structs.replace(view, status=status)


def turn(session: str, model: str, tokens: int) -> Ticket:
    return a_ticket(session, tokens, model=model, hints=Hints(session))


class World(Fleet):
    """`coder` on studio, `chat` on mini, as the page describes them."""

    def __init__(self) -> None:
        super().__init__(node("studio"), node("mini"))
        self.scheduler.on_fleet(self.moment)
        self.load("mini", "chat", 60.0)
        lease = self.lease(turn("talk", "chat", 2000))
        self.now_s = 70.0
        self.first(lease)
        self.done(lease)
        self.judge(lease, usage=usage_record(lease, 2000, 0, 4.0))
        self.load("studio", "coder", 90.0)
        writing = self.lease(turn("code", "coder", 2000))
        self.now_s = 92.0
        self.first(writing)
        self.now_s = 100.0

    def load(self, name: str, there: str, now_s: float) -> None:
        self.now_s = now_s
        self.views = tuple(node(name, there) if v.name == name else v for v in self.views)
        self.scheduler.on_fleet(self.moment)

    def terms(self, ticket: Ticket) -> dict[str, NodeTerms]:
        return {each.node_id: each for each in self.scheduler.explain(ticket, self.moment).nodes}


def test_the_page_s_terms_of_a_load_are_the_scheduler_s() -> None:
    terms = World().terms(turn("new", "vision", 1000))
    check_terms("scheduling.md", "### Where a model is loaded, with numbers", terms)


def test_what_the_page_states_of_the_requests_after_it_is_so() -> None:
    world = World()
    beside = world.terms(turn("more", "coder", 1000))
    assert beside["studio"].total_s == pytest.approx(0.86, abs=0.006)
    assert world.lease(turn("new", "vision", 1000)).node_id == "mini"
    assert world.lease(turn("more", "coder", 1000)).node_id == "studio"
    second = world.terms(turn("second", "vision", 1000))
    totals_s = (second["studio"].total_s, second["mini"].total_s)
    assert totals_s == pytest.approx((36.11, 16.84), abs=0.006)
