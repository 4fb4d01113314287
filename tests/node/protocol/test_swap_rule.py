"""Which models leave the memory of a node for one that is waited for."""

from math import inf

import pytest

from node.protocol.swap_rule import NO_DISPLACEMENT, SwapPlan, cheapest, displaced, swap_plan
from tests.node.protocol.swap_cases import (
    CASES,
    MAX_SWAP_WAIT_S,
    NOW_S,
    TOTAL_BYTES,
    SwapCase,
    resident,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_table_of_cases_holds(case: SwapCase) -> None:
    missing = case.needed_bytes - TOTAL_BYTES + sum(each.memory_bytes for each in case.residents)
    overdue_s = NOW_S - case.waited_s + MAX_SWAP_WAIT_S
    plan = swap_plan(case.residents, missing, overdue_s, NOW_S)
    assert (plan.unload, plan.closed) == (case.unload, frozenset(case.closed))


def test_those_of_least_cost_for_their_bytes_leave_and_no_more_than_needed() -> None:
    dear, cheap = resident("a", 4, cost_s=100.0), resident("b", 4, cost_s=1.0)
    large = resident("c", 8, cost_s=30.0)
    assert cheapest([dear, cheap, large], 3) == (cheap,)
    assert cheapest([dear, cheap, large], 8) == (large,)
    assert cheapest([dear, cheap, large], 12) == (cheap, large)
    assert cheapest([dear], 5) == ()


def test_of_equally_cheap_models_the_one_that_becomes_idle_first_leaves() -> None:
    busy, late = resident("a", 4, leases=1), resident("b", 4, loaded_for_s=10.0)
    assert cheapest([busy, late], 4) == (late,)
    early = resident("c", 4)
    assert cheapest([late, early], 4) == (early,)


def test_models_that_together_have_too_little_are_not_displaced() -> None:
    found = displaced([resident("a", 4), resident("b", 4, pinned=True)], 5, NOW_S)
    assert (found.models, found.evictable_s) == ((), inf)
    assert not found.can_unload(NOW_S)


def test_a_plan_contains_when_to_plan_again() -> None:
    young = resident("a", 6, loaded_for_s=10.0)
    assert swap_plan([young], 2, NOW_S + 90.0, NOW_S) == SwapPlan(next_s=NOW_S + 20.0)
    busy = resident("a", 6, leases=1)
    assert swap_plan([busy], 2, NOW_S + 90.0, NOW_S) == SwapPlan(next_s=NOW_S + 90.0)
    assert swap_plan([busy], 2, NOW_S, NOW_S) == SwapPlan(closed=frozenset({"a"}))


def test_models_are_closed_one_by_one_as_they_become_due() -> None:
    old, young = resident("a", 5), resident("b", 5, loaded_for_s=10.0)
    both, one = displaced([old, young], 10, NOW_S), displaced([old], 5, NOW_S)
    assert both.overdue(NOW_S, NOW_S) == (frozenset({"a"}), NOW_S + 20.0)
    assert one.overdue(NOW_S + 1.0, NOW_S) == (frozenset(), NOW_S + 1.0)
    assert NO_DISPLACEMENT.overdue(NOW_S, NOW_S) == (frozenset(), inf)
