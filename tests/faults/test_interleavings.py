"""Any order of requests, callers that leave, unloads, drains, pins, pulls, deaths, restarts and
words that come late: no model leaves that has a request, none that is pinned, none by a stale word,
and nothing is left behind. The witness in `played` checks it at each step."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, cast

import pytest

from node.agent.watchdog import UNWATCHED_S
from node.engines import processes as engines_module
from node.errors import NodeError
from node.ipc.messages import Pressure
from node.protocol.idle_rule import is_idle_too_long
from node.protocol.lifecycle import PullCommand
from node.protocol.messages import ModelState
from router.states import ACTIVE, CORDONED, MAINTENANCE
from tests.faults.played import (
    HERE,
    HOPS,
    NODE,
    PULLED,
    Order,
    PlayedEngine,
    PlayedNode,
)
from tests.faults.played_router import PlayedRouter
from tests.router.scheduler.played import SetClock

INTERLEAVINGS = 1_000_000 if os.environ.get("MLX_FLEET_SOAK") else 10_000
FIRST = int(os.environ.get("MLX_FLEET_SOAK_FROM") or 0)
"""A run that was broken off goes on there."""
SHARD = 250
"""So that none takes long on a busy machine."""
ROUNDS = 25
"""Rounds of one node: each is an interleaving of events that occur at once."""
AT_ONCE = 5
HOLDS_S = (0.0, 0.0, 0.0, 0.1, 3.0, 20.0)
HANGS_S = 1e6
LATER_S = (0.0, 0.5, 5.0, 40.0, 100.0)
SETTLE_S = 20.0
REST_S = 80.0
"""After the last interleaving, until all that is idle has gone."""
CALM_S = 40.0
"""Longer than a router waits until it tries a load again."""
ALONE = 3
PATIENCE = 100


class World:
    """A node, its routers, and all their commands."""

    def __init__(self, seed: int, clock: SetClock) -> None:
        self.chance = Random(seed)
        self.clock = clock
        self.node = PlayedNode(self.chance, clock)
        NODE.set(self.node)
        self.routers = [PlayedRouter(f"r{number}", self.node) for number in range(1 + seed % 2)]
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def router(self) -> PlayedRouter:
        return self.chance.choice(self.routers)

    @property
    def model(self) -> str:
        return self.chance.choice((*HERE, *HERE, PULLED))

    # --- what happens ---

    async def request(self) -> None:
        self.router.send(self.model, self.chance.choice(HOLDS_S))

    async def leave(self) -> None:
        """A request whose caller leaves at any time, perhaps since its engine hangs."""
        sent = self.router.send(self.model, self.chance.choice((*HOLDS_S, HANGS_S)))
        await self.node.take((*HOPS, 0.1, 4.0))
        if sent is not None:
            sent.cancel()

    async def hang(self) -> None:
        """Until the node sees it."""
        self.router.send(self.model, HANGS_S)

    async def unload(self) -> None:
        """Unloads the model as an admin orders it."""
        order = Order(self.model, drains=self.chance.random() < 0.3)
        with contextlib.suppress(NodeError):
            await self.node.unload(order)

    async def unload_stale(self) -> None:
        """A stale command, of any load that there was."""
        loads = sorted(self.node.witness.generations)[-4:] or [1]
        order = Order(self.model, self.chance.choice(loads), self.chance.choice((0.0, 5.0)))
        with contextlib.suppress(NodeError):
            await self.node.unload(order)

    async def die(self) -> None:
        if engines := self.node.witness.engines:
            self.chance.choice(engines).die()

    async def run_watchdog(self) -> None:
        await self.node.run_watchdog()

    async def watch(self) -> None:
        """Routers reconnect, or have all gone."""
        self.node.is_watched = self.chance.random() < 0.5

    async def want(self) -> None:
        keep_alive_s = self.chance.choice((None, 0.0, 2.0, 60.0))
        pinned = self.chance.random() < 0.4
        self.router.want(self.model, pinned=pinned, keep_alive_s=keep_alive_s)

    async def set_state(self) -> None:
        self.router.set_state(self.chance.choice((CORDONED, MAINTENANCE, *3 * (ACTIVE,))))

    async def drain(self) -> None:
        """Drains the node as `router maintenance --deadline --cut` does."""
        router = self.router
        await router.drain(self.chance.choice((0.0, 1.0, 30.0)))
        await self.node.take((*HOPS, 0.1, 10.0))
        router.set_state(ACTIVE)

    async def receive(self) -> None:
        if self.chance.random() < 0.5:
            self.node.on_change()  # its heartbeat
        self.router.receive(self.chance.choice((1, 3, 99)))

    async def sweep(self) -> None:
        await self.router.sweep()

    async def pull(self) -> None:
        """A model is added, or deleted again."""
        disk = self.node.disk
        with contextlib.suppress(NodeError):
            match self.chance.randrange(4):
                case 0:
                    await disk.pulls.cancel(PULLED)
                case 1:
                    await disk.remove(PULLED)
                case _:
                    disk.pulls.begin(PullCommand(PULLED, "org/p"))

    async def press(self) -> None:
        pressure = self.chance.choice((Pressure.NONE, Pressure.SOFT, Pressure.HARD))
        self.node.supervisor.set_pressure(pressure)
        await self.node.take((*HOPS, 0.1, 10.0))
        self.node.supervisor.set_pressure(Pressure.NONE)

    async def pass_time(self) -> None:
        await asyncio.sleep(self.chance.choice(LATER_S))

    async def restart(self) -> None:
        if self.chance.random() < 0.2 and not self.node.is_closing:
            await self.node.close()
            await self.node.start()
            for router in self.routers:
                router.connect()

    # --- from beginning to end ---

    async def play_round(self) -> None:
        for happening in self.chance.choices(HAPPENINGS, WEIGHTS, k=AT_ONCE):
            task = asyncio.create_task(self.begin(happening))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            task.add_done_callback(self.node.witness.on_end)
        await self.node.take((2, 4, 8, 8, 1.0, 10.0))
        self.check()

    async def begin(self, happening: Happening) -> None:
        await self.node.take(HOPS)
        await happening(self)

    def check(self) -> None:
        """Raises what has gone wrong first."""
        for error in (
            *self.node.witness.errors,
            *(fault["exception"] for fault in self.clock.faults),
        ):
            raise error
        self.node.witness.check_swaps()

    async def settle(self) -> None:
        """All is well again, and time passes."""
        self.node.failing = 0.0
        begun_s = calm_s = self.clock.now_s
        loads = -1
        for _ in range(PATIENCE):
            for router in self.routers:
                router.set_state(ACTIVE)
                await router.sweep()
            await self.rest()
            if not self.is_still() or loads != self.node.witness.seen["load"]:
                loads, calm_s = self.node.witness.seen["load"], self.clock.now_s
            if self.clock.now_s > max(begun_s + REST_S, calm_s + CALM_S):
                break
        assert self.is_still(), self.tasks

    async def rest(self) -> None:
        self.node.supervisor.set_pressure(Pressure.NONE)
        self.node.on_change()
        for router in self.routers:
            router.receive()
        await self.node.run_watchdog()
        await asyncio.sleep(SETTLE_S)
        self.check()

    def is_still(self) -> bool:
        busy = (router.requests or bool(router.lifecycle.actions._tasks) for router in self.routers)
        return not self.tasks and not any(busy)

    def check_residency(self) -> None:
        """Checks that pinned models are loaded, if all of them fit, and that idle ones are
        unloaded."""
        whole = [each for each in self.node.status().models if each.state is not ModelState.PULLING]
        pinned = [each for each in whole if self.node.is_pinned(each.name)]
        assert all(each.pinned for each in pinned)
        if sum(each.memory_bytes for each in pinned) <= self.node.budget_bytes:
            assert all(each.state is ModelState.READY for each in pinned), pinned
        for each in whole:
            assert each.leases == 0
            assert each.state not in (ModelState.LOADING, ModelState.DRAINING)
            if each.idle_s is not None and is_idle_too_long(each):
                assert each.keep_alive_s is not None
                assert each.idle_s - each.keep_alive_s <= 2 * SETTLE_S

    async def leave_alone(self) -> None:
        """No router is there any more: what is idle goes nevertheless."""
        self.node.is_watched = False
        with contextlib.suppress(NodeError):
            await self.node.request(self.model, 0.0)
        for _ in range(ALONE):
            await asyncio.sleep(UNWATCHED_S / 2)
            await self.node.run_watchdog()
        self.check()
        assert not any(is_idle_too_long(each) for each in self.node.status().models)


Happening = Callable[[World], Coroutine[Any, Any, None]]
EVENTS = (
    (World.request, 12),
    (World.leave, 4),
    (World.hang, 0.5),
    (World.unload, 2),
    (World.unload_stale, 2),
    (World.die, 1),
    (World.run_watchdog, 2),
    (World.watch, 1),
    (World.want, 2),
    (World.set_state, 1),
    (World.drain, 0.5),
    (World.receive, 4),
    (World.sweep, 2),
    (World.pull, 2),
    (World.press, 0.5),
    (World.pass_time, 1),
    (World.restart, 0.5),
)
HAPPENINGS = [event for event, _ in EVENTS]
WEIGHTS = [weight for _, weight in EVENTS]


async def play(seed: int, clock: SetClock) -> Counter[str]:
    """Plays one node with this seed and returns the counts of what has happened."""
    clock.now_s = 0.0
    world = World(seed, clock)
    await world.node.start()
    for _ in range(ROUNDS):
        await world.play_round()
    await world.settle()
    world.check_residency()
    await world.leave_alone()
    await world.node.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return world.node.witness.seen


@pytest.fixture
def played_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines_module, "EngineLink", PlayedEngine)
    logging.disable(logging.ERROR)
    gc.freeze()  # what is there already is much, and nothing of it is ever garbage
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("played_engines")
@pytest.mark.parametrize("first", range(FIRST, INTERLEAVINGS, SHARD))
def test_no_engine_is_stopped_while_it_has_a_request(first: int) -> None:
    seen: Counter[str] = Counter()
    with asyncio.Runner(loop_factory=SetClock) as runner:
        for seed in range(first // ROUNDS, (first + SHARD) // ROUNDS):
            try:
                seen += runner.run(play(seed, cast(SetClock, runner.get_loop())))
            except Exception as error:
                raise AssertionError(f"node {seed}") from error
    assert min(seen[kind] for kind in ("request", "swap", "order", "sweep", "death")) > 0
