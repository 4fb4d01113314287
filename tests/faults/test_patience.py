"""Reports 19 and 23, of which only time shows whether they occur: in a time that is moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

from node.agent.watchdog import UNWATCHED_S
from node.engines import processes as engines_module
from node.protocol.messages import ModelState
from tests.faults.played import (
    BUDGETS_BYTES,
    KEEP_ALIVE_S,
    LOADS,
    NODE,
    STOPS,
    PlayedEngine,
    PlayedNode,
)
from tests.faults.played_router import PlayedRouter
from tests.router.scheduler.played import SetClock

RESIDENCY_S = 2.0
SWAP_WAIT_S = 20.0
HOLDS_S = (3.0, 4.0, 5.0)
ROUND_S = 5.0
Happening = Callable[[PlayedNode, SetClock], Coroutine[Any, Any, None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has something happen at a node in a time of its own."""
    monkeypatch.setattr(engines_module, "EngineLink", PlayedEngine)

    def played(happening: Happening, budget_bytes: int, *pins: str) -> None:
        async def run(clock: SetClock) -> None:
            node = PlayedNode(Random(19), clock)
            NODE.set(node)
            node.budget_bytes, node.min_residency_s, node.failing = budget_bytes, RESIDENCY_S, 0.0
            node.settings = replace(
                node.settings,
                pins=pins,
                min_residency_s=RESIDENCY_S,
                max_swap_wait_s=SWAP_WAIT_S,
            )
            await node.start()
            async with asyncio.timeout(1000.0):
                await happening(node, clock)
            assert not node.witness.errors
            await node.close()

        with asyncio.Runner(loop_factory=SetClock) as runner:
            runner.run(run(cast(SetClock, runner.get_loop())))

    return played


def test_fault_19_who_waits_for_the_other_model_waits_no_longer_than_is_set(
    play: Callable[..., None],
) -> None:
    play(request_both, BUDGETS_BYTES[0])


async def request_both(node: PlayedNode, clock: SetClock) -> None:
    """One is requested all the time, the other now and then."""
    rounds = 5

    async def go_on_requesting(hold_s: float) -> None:
        while True:
            await node.request("a", hold_s)

    busy = [asyncio.create_task(go_on_requesting(hold_s)) for hold_s in HOLDS_S]
    for _ in range(rounds):
        await asyncio.sleep(ROUND_S)
        begun_s = clock.now_s
        await node.request("b", 0.0)
        least_s = SWAP_WAIT_S if node.witness.seen["swap"] == 1 else 0.0
        most_s = SWAP_WAIT_S + max(HOLDS_S) + max(STOPS) + max(LOADS)
        assert least_s <= clock.now_s - begun_s <= most_s
    assert node.witness.seen["load"] <= 2 * rounds + 1
    node.witness.check_swaps()
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)


def state(node: PlayedNode, model: str) -> ModelState:
    return next(each.state for each in node.status().models if each.name == model)


@pytest.mark.parametrize("is_watched", [True, False])
def test_fault_23_what_is_loaded_by_hand_goes_by_itself_and_what_is_pinned_stays(
    play: Callable[..., None], is_watched: bool
) -> None:
    async def leave_alone(node: PlayedNode, clock: SetClock) -> None:
        """Where a router watches, it unloads; where none does any more, the node itself."""
        node.is_watched = is_watched
        router = PlayedRouter("r", node)
        for model in "ab":
            await node.request(model, 0.0, ahead=True)
        ready_s = clock.now_s
        while state(node, "a") is ModelState.READY:
            await asyncio.sleep(ROUND_S)
            await node.run_watchdog()
            if is_watched:
                node.on_change()
                router.receive()
                await router.sweep()
        gone_s = clock.now_s - ready_s
        assert KEEP_ALIVE_S <= gone_s <= max(KEEP_ALIVE_S, UNWATCHED_S) + 4 * ROUND_S
        assert (gone_s < UNWATCHED_S) is is_watched
        (pinned,) = [each for each in node.status().models if each.pinned]
        assert (pinned.name, pinned.state) == ("b", ModelState.READY)

    play(leave_alone, BUDGETS_BYTES[-1], "b")
