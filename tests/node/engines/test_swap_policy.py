"""Which model is loaded next, and which is unloaded for it."""

from collections.abc import Sequence
from random import Random

import pytest

from node.engines.swap_policy import (
    ABANDONED_S,
    AwaitedModel,
    LoadingModel,
    MemoryView,
    SwapDecision,
    decide,
)
from node.protocol.swap_rule import ResidentModel
from tests.node.protocol import swap_cases
from tests.node.protocol.swap_cases import SwapCase

B = frozenset({"b"})
MIN_RESIDENCY_S, MAX_SWAP_WAIT_S = 30.0, 120.0


def resident(
    name: str,
    *,
    memory: int = 6,
    leases: int = 0,
    ready_s: float = 0.0,
    cost_s: float = 10.0,
    pinned: bool = False,
) -> ResidentModel:
    return ResidentModel(name, memory, leases, ready_s + MIN_RESIDENCY_S, cost_s, pinned)


def step(
    now_s: float,
    residents: Sequence[ResidentModel] = (),
    awaited: Sequence[AwaitedModel] = (),
    loading: Sequence[LoadingModel] = (),
    unloading_bytes: int = 0,
) -> SwapDecision:
    memory = MemoryView(10, residents, loading, awaited, unloading_bytes)
    return decide(memory, MAX_SWAP_WAIT_S, now_s)


@pytest.mark.parametrize("case", swap_cases.CASES, ids=lambda case: case.name)
def test_the_agent_follows_the_swap_rule(case: SwapCase) -> None:
    now_s = swap_cases.NOW_S
    awaited = [AwaitedModel("x", case.needed_bytes, now_s - case.waited_s)]
    memory = MemoryView(swap_cases.TOTAL_BYTES, case.residents, (), awaited)
    found = decide(memory, swap_cases.MAX_SWAP_WAIT_S, now_s)
    assert (found.unload, found.closed) == (case.unload, frozenset(case.closed))


def test_what_fits_is_loaded_and_nothing_is_unloaded() -> None:
    assert step(50, [resident("a")], [AwaitedModel("b", 4, 50.0)]) == SwapDecision(load="b")


def test_an_idle_model_is_unloaded_for_another_one_once_its_residency_is_over() -> None:
    awaited = [AwaitedModel("b", 6, 10.0)]
    assert step(10, [resident("a")], awaited) == SwapDecision(blocked=B, next_s=30.0)
    assert step(30, [resident("a")], awaited) == SwapDecision(unload=("a",))


def test_a_busy_model_serves_on_until_the_oldest_waiter_has_waited_too_long() -> None:
    busy, awaited = [resident("a", leases=1)], [AwaitedModel("b", 6, 40.0)]
    assert step(40, busy, awaited) == SwapDecision(blocked=B, next_s=160.0)
    assert step(159, busy, awaited) == SwapDecision(blocked=B, next_s=160.0)
    assert step(160, busy, awaited) == SwapDecision(closed=frozenset({"a"}), blocked=B)
    assert step(161, [resident("a")], awaited) == SwapDecision(unload=("a",))


def test_even_after_a_long_wait_a_model_keeps_its_minimum_residency() -> None:
    busy = [resident("a", leases=1, ready_s=200.0)]
    assert step(210, busy, [AwaitedModel("b", 6, 0.0)]) == SwapDecision(blocked=B, next_s=230.0)
    assert step(230, busy, [AwaitedModel("b", 6, 0.0)]).closed == {"a"}


def test_the_model_of_the_oldest_waiter_is_next() -> None:
    awaited = [AwaitedModel("b", 6, 30.0), AwaitedModel("c", 6, 20.0)]
    assert step(40, [], awaited).load == "c"


def test_a_later_model_is_loaded_only_where_it_uses_no_memory_that_an_earlier_one_waits_for() -> (
    None
):
    awaited = [AwaitedModel("b", 6, 30.0), AwaitedModel("c", 3, 31.0)]
    found = step(40, [resident("a", leases=1)], awaited)
    assert found.load is None and found.blocked == {"b", "c"}


def test_two_that_fit_are_loaded_one_after_the_other_and_do_not_wait_for_each_other() -> None:
    second = AwaitedModel("c", 4, 1.0)
    assert step(0, [], [AwaitedModel("b", 6, 0.0), second]) == SwapDecision(load="b")
    assert step(0, [], [second], [LoadingModel("b", 6, None)]) == SwapDecision(load="c")


def test_what_fits_as_soon_as_engines_have_ended_is_not_blocked() -> None:
    awaited = [AwaitedModel("b", 6, 30.0), AwaitedModel("c", 4, 31.0), AwaitedModel("d", 1, 32.0)]
    assert step(40, [resident("a")], awaited).blocked == {"d"}
    assert step(40, [], awaited, unloading_bytes=5).blocked == {"d"}
    assert step(40, [], awaited, [LoadingModel("a", 6, 39.0)]).blocked == {"d"}
    assert step(40, [resident("a", leases=1)], awaited, unloading_bytes=4).blocked == {
        "b",
        "c",
        "d",
    }


def test_pinned_models_and_those_that_load_are_never_unloaded() -> None:
    pinned = [resident("a", pinned=True)]
    assert step(99, pinned, [AwaitedModel("b", 5, 0.0)]) == SwapDecision(hopeless=("b",))
    loading = [LoadingModel("a", 6, None)]
    assert step(99, [], [AwaitedModel("b", 5, 0.0)], loading).unload == ()


def test_a_model_larger_than_the_limit_is_hopeless_and_delays_no_other() -> None:
    found = step(99, [], [AwaitedModel("b", 11, 0.0), AwaitedModel("c", 6, 1.0)])
    assert (found.hopeless, found.load) == ((), "c")
    found = step(99, [], [AwaitedModel("b", 11, 0.0)], [LoadingModel("c", 6, None)])
    assert (found.hopeless, found.load) == (("b",), None)


def test_what_is_being_unloaded_is_waited_for_and_nothing_more_is_unloaded() -> None:
    found = step(99, [resident("a", memory=4)], [AwaitedModel("b", 6, 0.0)], unloading_bytes=6)
    assert (found.load, found.unload) == (None, ())


def test_a_load_that_nobody_waits_for_continues_for_a_while_unless_its_memory_is_needed() -> None:
    loading = [LoadingModel("a", 6, 10.0)]
    assert step(10, loading=loading) == SwapDecision(next_s=10.0 + ABANDONED_S)
    assert step(10.0 + ABANDONED_S, loading=loading) == SwapDecision(cancel=("a",))
    assert step(10, [], [AwaitedModel("b", 6, 10.0)], loading).cancel == ("a",)
    assert step(10, [], [AwaitedModel("b", 6, 10.0)], loading, unloading_bytes=2).cancel == ("a",)


def test_a_load_that_nobody_waits_for_continues_where_engines_that_end_free_enough_memory() -> None:
    found = step(
        10, [], [AwaitedModel("b", 6, 10.0)], [LoadingModel("a", 4, 10.0)], unloading_bytes=6
    )
    assert found == SwapDecision(next_s=10.0 + ABANDONED_S)


def test_models_in_turn_swap_once_in_a_minimum_residency_and_none_waits_for_ever() -> None:
    chance, now_s, waits = Random(1), 0.0, dict[str, float]()
    loaded, ready_s, swaps, longest_s = "a", 0.0, list[float](), 0.0
    while now_s < 5_000.0:
        waits.setdefault(chance.choice("abc"), now_s)
        waits.pop(loaded, None)
        awaited = [AwaitedModel(name, 6, since_s) for name, since_s in waits.items()]
        busy = resident(loaded, leases=1, ready_s=ready_s)
        found = step(now_s, [busy], awaited)
        if loaded in found.closed:
            loaded = min(waits, key=lambda name: waits[name])
            longest_s = max(longest_s, now_s - waits[loaded])
            ready_s = now_s
            swaps.append(now_s)
        now_s += chance.random()
    gaps = [after - before for before, after in zip(swaps, swaps[1:], strict=False)]
    assert len(swaps) > 20
    assert min(gaps) >= MIN_RESIDENCY_S
    assert longest_s <= MAX_SWAP_WAIT_S + 2 * MIN_RESIDENCY_S + 2.0
