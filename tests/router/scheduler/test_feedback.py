"""Tests the feedback of ended leases."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from router.scheduler.rates import TOKENS_PER_BYTE
from router.states import KIND_OPENAI
from router.types import Hints
from tests.router.conftest import model_status, node_view
from tests.router.scheduler.fleet import Fleet, a_ticket, agents, usage_record


def test_what_goes_on_from_a_prompt_that_is_not_known_teaches_nothing_of_prompts() -> None:
    fleet = Fleet(*agents("a", "b"))
    before_s = fleet.term(a_ticket("cold", 1_000), "b", "prefill_s")
    for number in range(3):
        lease = fleet.lease(a_ticket(f"{number}", 1_000, is_whole=False, pinned_node_id="a"))
        fleet.first(lease)
        fleet.done(lease)
        fleet.judge(lease, usage=usage_record(lease, 50_000, cached=49_950, prefill_s=0.2))
    assert fleet.term(a_ticket("cold", 1_000), "b", "prompt_tokens") == 1_000
    assert fleet.term(a_ticket("cold", 1_000), "b", "prefill_s") == before_s
    fleet.lease(a_ticket("late", 1_000, deadline_s=10.0))


def test_the_turn_after_it_is_not_measured_by_it() -> None:
    fleet = Fleet(*agents("a"))
    hints = Hints("s")
    lease = fleet.lease(a_ticket("1", 1_000, hints=hints, is_whole=False))
    fleet.first(lease)
    fleet.done(lease)
    fleet.judge(lease, usage=usage_record(lease, 50_000, cached=49_950, prefill_s=0.2))
    assert fleet.term(a_ticket("2", 51_000, hints=hints), "a", "prompt_tokens") == 51_000


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_conversation_that_goes_on_from_its_responses_is_one_session(is_whole: bool) -> None:
    fleet = Fleet(*agents("a", memory_tokens=60_000, used_tokens=60_000))
    follows = ""
    for turn in range(1, 21):
        name = f"{turn}"
        fleet.now_s = 10.0 * turn
        ticket = a_ticket(
            name, 1_000 * turn, of=turn, follows=follows, is_whole=is_whole or not follows
        )
        fleet.serve(replace(ticket, arrived_s=fleet.now_s), cached=1_000 * (turn - 1))
        follows = name
    # It is all that the node's cache is known to be needed for; 20 sessions would fill it.
    assert fleet.term(a_ticket("x", 20_000), "a", "eviction_s") == 0.0


def test_one_unusual_prompt_changes_the_estimate_of_others_by_its_share_only() -> None:
    fleet = Fleet(*agents("a"))
    image = a_ticket("1", 100, hints=Hints("s"))
    lease = fleet.lease(image)
    fleet.first(lease)
    fleet.done(lease)
    fleet.judge(lease, usage=usage_record(lease, 4_000, cached=3_950))
    mean = (TOKENS_PER_BYTE + 1.5) / 2
    assert fleet.term(a_ticket("2", 1_000), "a", "prompt_tokens") == int(4_000 * mean)
    longer = a_ticket("3", 1_100, of=1, hints=Hints("s"))
    assert fleet.term(longer, "a", "prompt_tokens") == 4_000 + int(4_000 * 1.5)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_foreign_server_s_speed_is_learned_from_whole_prompts_only(is_whole: bool) -> None:
    view = replace(node_view("a", model_status()), kind=KIND_OPENAI)
    fleet = Fleet(view)
    before_s = fleet.term(a_ticket("x", 1_000), "a", "prefill_s")
    lease = fleet.lease(a_ticket("1", 1_000, is_whole=is_whole))
    fleet.now_s = 10 * before_s
    fleet.first(lease)
    fleet.done(lease, served=True)
    after_s = fleet.term(a_ticket("x", 1_000), "a", "prefill_s")
    assert after_s == pytest.approx(5.5 * before_s if is_whole else before_s)
