"""A node of an agent's own supervisor, residency policy, watchdog and pulls, over engines and
downloads that are simulated, in a time that a test sets. A witness keeps its own record of events
and fails at the first state that must never occur."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

from node.agent.disk import Disk
from node.agent.watchdog import UNWATCHED_S, Watchdog
from node.app import ScriptedStore
from node.engines.memory_budget import Budget
from node.engines.processes import Hooks
from node.engines.residency_policy import ResidencyPolicy
from node.engines.slot import EngineKind
from node.engines.supervisor import Supervisor
from node.errors import EngineDied, LoadFailure, UnknownModel
from node.hardware import Machine
from node.ipc.messages import EngineSpec, EngineStats, Loaded, MemoryLease, Pressure
from node.models.formats import ModelFormats
from node.models.pull_process import PullReport
from node.models.pulls import Pulls
from node.models.store import Contents, ModelEntry
from node.protocol.lifecycle import Policies, PullCommand
from node.protocol.messages import PROTOCOL_VERSION, ModelState, ModelStatus, NodeStatus
from node.settings import Settings
from serving.units import GIB
from tests.router.scheduler.played import SetClock

SIZES = {"a": GIB, "b": GIB, "c": 2 * GIB, "p": GIB}
"""Bytes of the models' weights; the last one is absent at the start."""
HERE = ("a", "b", "c")
PULLED = "p"
ENTRIES = {name: ModelEntry(name, Path(), size, 4096, 0) for name, size in SIZES.items()}
MACHINE = Machine("x", 64 * GIB)
NODE_ID = "n"
PINS: tuple[tuple[str, ...], ...] = ((), (), (), ("a",))
BUDGETS_BYTES = (2 * GIB, int(3.5 * GIB), 5 * GIB, 64 * GIB)
RULES_S = ((0.0, 0.0), (2.0, 20.0), (30.0, 5.0))
"""Minimum residency, and longest wait for a swap."""
KEEP_ALIVE_S = 25.0
STALL_S = 30.0
LOADS = (0, 1, 2, 3, 0.5, 5.0)
"""Durations of a load: iterations of the loop (int), or seconds (float)."""
STOPS = (0, 1, 2, 3, 0.1, 2.0)
HOPS = (0, 0, 1, 2, 3, 4)
READY, LOADING, DRAINING = ModelState.READY, ModelState.LOADING, ModelState.DRAINING
ON_DISK, FAILED = ModelState.ON_DISK, ModelState.FAILED
STEPS = {
    (ON_DISK, LOADING),
    (FAILED, LOADING),
    (LOADING, READY),
    (LOADING, FAILED),
    (LOADING, ON_DISK),
    (READY, DRAINING),
    (READY, ON_DISK),
    (DRAINING, ON_DISK),
    (FAILED, ON_DISK),
}
NODE: ContextVar[PlayedNode] = ContextVar("NODE")
"""The one whose engines are made."""


class PlayedEngine:
    """An engine process, as its supervisor sees it."""

    def __init__(self, *, on_died: Any, **_: Any) -> None:
        self.node = NODE.get()
        self.model = ""
        self.bytes = 0
        self.holders = 0
        """Requests that were given it and have not ended."""
        self.is_here = self.is_serving = self.is_leaving = False
        self.work_tokens = self.prefilled_tokens = self.decoded_tokens = 0
        self.stats: EngineStats | None = None
        self.broken = None
        """Its last message, which it does not have when it dies."""
        self._rows: set[asyncio.Future[None]] = set()
        self._on_died = on_died

    @property
    def open_rows(self) -> int:
        return len(self._rows)

    @property
    def alive(self) -> bool:
        return self.is_here

    async def start(self, spec: EngineSpec, _waiting: object = None) -> Loaded:
        self.model, self.bytes = spec.model, spec.lease.total_bytes
        self.node.witness.on_start(self)
        self.is_here = True
        try:
            await self.node.take(LOADS)
            if self.node.chance.random() < self.node.failing:
                raise LoadFailure("The engine fails.")
        except BaseException:
            self.is_here = False
            raise
        self.is_serving = True
        return Loaded(SIZES[self.model], 4096, 4, 1)

    async def set_lease(self, _lease: MemoryLease) -> None:
        """Keeps within it, soon."""
        await self.node.take(HOPS)

    def set_pressure(self, _level: Pressure) -> None:
        """Always as set."""

    async def stop(self, _grace_s: float) -> int:
        self.node.witness.on_stop(self)
        self.is_leaving = True
        await self.node.take(STOPS)
        self.node.witness.on_stop(self)
        self._end()
        return 0

    def kill(self) -> None:
        asyncio.get_running_loop().call_soon(self.die)

    def die(self) -> None:
        if self.is_here and self.is_serving and not self.is_leaving:
            self._end()
            self._on_died()

    async def serve(self, hold_s: float) -> None:
        """Raises `EngineDied`."""
        loop = asyncio.get_running_loop()
        row: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(hold_s, _end, row)
        self._rows.add(row)
        try:
            await row
        finally:
            timer.cancel()
            self._rows.discard(row)
            self.work_tokens += 1

    def _end(self) -> None:
        self.is_here = self.is_serving = False
        for row in self._rows:
            _end(row, EngineDied())


def _end(row: asyncio.Future[None], failure: EngineDied | None = None) -> None:
    if not row.done():
        row.set_exception(failure) if failure else row.set_result(None)


@dataclass(frozen=True, slots=True)
class Order:
    """An unload that is commanded."""

    model: str
    generation: int | None = None
    min_idle_s: float = 0.0
    drains: bool = False
    """True if it waits for the active requests."""
    by_itself: bool = False
    """True if the node unloads by itself, since the model is idle."""
    is_alone: bool = False
    """True if no router had watched for so long that the node may unload by itself."""


class Witness:
    """Owner of an account of one node beside the node's own."""

    def __init__(self, node: PlayedNode) -> None:
        self._node = node
        self.engines: list[PlayedEngine] = []
        self.orders: dict[asyncio.Task[Any] | None, Order] = {}
        """By the task that is giving it."""
        self.states: dict[str, ModelState] = {}
        self.generations: set[int] = set()
        self.ready_s: dict[str, float] = {}
        self.used_s: dict[str, float] = {}
        self.swaps_s: list[float] = []
        """Times at which models were unloaded for others."""
        self.seen: Counter[str] = Counter()
        """Counts of what has happened, by kind."""
        self.errors: list[BaseException] = []

    def on_end(self, task: asyncio.Task[None]) -> None:
        """Records the error of a task that fails only where something is wrong."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    def engine(self, model: str) -> PlayedEngine | None:
        """The one that serves."""
        found = (each for each in self.engines if each.model == model and each.is_serving)
        return next(found, None)

    def on_start(self, engine: PlayedEngine) -> None:
        self.engines = [each for each in self.engines if each.is_here]
        assert all(each.model != engine.model for each in self.engines), "two engines of a model"
        assert self._node.store.find(engine.model) is not None, "a model that is not there"
        used_bytes = sum(each.bytes for each in self.engines)
        assert used_bytes + engine.bytes <= self._node.budget_bytes, "more memory than there is"
        self.engines.append(engine)
        self.seen["load"] += 1

    def on_stop(self, engine: PlayedEngine) -> None:
        if engine.is_here and not self._node.is_closing:
            assert not engine.holders, "an engine was stopped that had a request"

    def on_status(self, models: tuple[ModelStatus, ...]) -> None:
        assert len({model.name for model in models}) == len(models)
        for model in models:
            before = self.states.get(model.name)
            if before is model.state or model.state is ModelState.PULLING:
                continue
            self.states[model.name] = model.state
            assert before is None or (before, model.state) in STEPS, (before, model.state)
            if before is not None and not self._node.is_closing:
                waited_for = {each.name for each in models if each.leases}
                self._on_step(model, before, waited_for)

    def _on_step(self, model: ModelStatus, before: ModelState, waited_for: set[str]) -> None:
        if model.state is LOADING:
            assert model.generation not in self.generations, "a number of a load was used twice"
            self.generations.add(model.generation)
        if model.state is READY:
            self.ready_s[model.name] = self.used_s[model.name] = self._node.clock.now_s
        if model.state is DRAINING:
            self._on_leaving(model, waited_for)
        if (before, model.state) == (READY, ON_DISK):
            assert self.engine(model.name) is None
            self.seen["death"] += 1

    def _on_leaving(self, model: ModelStatus, waited_for: set[str]) -> None:
        """A model leaves: by whose will, and whether it may."""
        order = self.orders.get(asyncio.current_task())
        now_s, engine = self._node.clock.now_s, self.engine(model.name)
        assert engine is not None
        assert not engine.holders or (order is not None and order.drains), "it has requests"
        if order is None:
            assert waited_for - {model.name}, "it makes room for nobody"
            self._on_swap(model.name, now_s)
            return
        self.seen["sweep" if order.by_itself else "idle" if order.min_idle_s else "order"] += 1
        least_s = order.min_idle_s
        if order.by_itself:
            keep_alive_s = self._node.residency.of(model.name).keep_alive_s
            assert keep_alive_s is not None, "it was to stay for ever"
            least_s = keep_alive_s
            assert order.is_alone, "a router should have done it"
        else:
            assert order.model == model.name
        if order.generation is not None:
            assert order.generation == model.generation, "another load than was meant"
        if least_s:
            assert now_s - self.used_s[model.name] >= least_s, "it was used meanwhile"
            assert not self._node.is_pinned(model.name), "a pinned model left by itself"

    def _on_swap(self, model: str, now_s: float) -> None:
        assert not self._node.is_pinned(model), "a pinned model made room"
        assert now_s >= self.ready_s[model] + self._node.min_residency_s, "it has just come"
        self.swaps_s.append(now_s)
        self.seen["swap"] += 1

    def check_swaps(self) -> None:
        """No more than one for each minimum residency, where there is room for one model."""
        if self._node.budget_bytes == BUDGETS_BYTES[0] and self.swaps_s:
            passed_s = self.swaps_s[-1] - self.swaps_s[0]
            least_s = (len(self.swaps_s) - 1) * self._node.min_residency_s
            assert passed_s >= least_s or math.isclose(passed_s, least_s)


class PlayedStore(ScriptedStore):
    """A disk to which models are pulled, and from which they are deleted."""

    def __init__(self) -> None:
        super().__init__((), ModelFormats())
        self.here = {name: ENTRIES[name] for name in HERE}

    def contents(self) -> Contents:
        return Contents(tuple(self.here.values()), ())

    def remove(self, name: str) -> int:
        if self.here.pop(name, None) is None:
            raise UnknownModel
        return 1


class PlayedPulls(Pulls):
    """Pulls of an agent whose downloads are simulated."""

    def __init__(self, node: PlayedNode) -> None:
        super().__init__(node.store, node.on_change, node.supervisor.refresh, node.supervisor.awake)
        self._node = node

    async def _pulled(self, pull: Any, command: PullCommand) -> PullReport | None:
        pull.total_bytes = 4
        while pull.done_bytes < pull.total_bytes:
            await self._node.take(LOADS)
            pull.done_bytes += 1
            self._node.on_change()
            if self._node.chance.random() < self._node.failing:
                return PullReport(failure="The hub fails.")
        self._node.store.here[command.model] = ENTRIES[command.model]
        return None


class PlayedNode:
    """A node agent, but for its requests' tokens and its sockets."""

    def __init__(self, chance: Random, clock: SetClock) -> None:
        self.chance = chance
        self.clock = clock
        self.store = PlayedStore()
        self.budget_bytes = chance.choice(BUDGETS_BYTES)
        self.min_residency_s, max_swap_wait_s = chance.choice(RULES_S)
        self.settings = Settings(
            home=Path("/nowhere"),
            engine="scripted",
            pins=chance.choice(PINS),
            keep_alives=(("", KEEP_ALIVE_S),),
            min_residency_s=self.min_residency_s,
            max_swap_wait_s=max_swap_wait_s,
        )
        self.failing = chance.choice((0.0, 0.1, 0.4))
        """Probability that a load fails, and a piece of a pull."""
        self.is_watched = True
        self.watched_s = 0.0
        """When a round saw last that a router watched."""
        self.is_closing = False
        self.listeners: list[Any] = []
        """Called with each status."""
        self.instance = 0
        self.witness = Witness(self)

    async def start(self) -> None:
        """Another instance."""
        self.instance += 1
        self.is_closing = False
        self.witness.states.clear()
        self.pins: dict[str, set[str]] = {"": set(self.settings.pins)}
        self.in_maintenance: dict[str, bool] = {}
        """By router, as reported last."""
        kind = EngineKind(self.settings, MACHINE)
        hooks = Hooks(self.on_change)
        self.residency = ResidencyPolicy(self.settings)
        budget = Budget(self.budget_bytes)
        self.supervisor = Supervisor(
            self.store, budget, kind, self.residency, hooks, self.clock.time
        )
        self.watchdog = Watchdog(self.supervisor, self.residency, lambda: self.is_watched, STALL_S)
        self.watched_s = self.clock.now_s
        self.disk = Disk(self.store, self.supervisor, self.on_change)
        self.disk.pulls = PlayedPulls(self)
        await self.supervisor.refresh()

    async def close(self) -> None:
        """All at once, whatever is in work."""
        self.is_closing = True
        await self.disk.close()
        await self.supervisor.close(1.0)
        assert not any(engine.is_here for engine in self.witness.engines)

    # --- what it reports ---

    def on_change(self) -> None:
        status = self.status()
        self.witness.on_status(status.models)
        for listen in self.listeners:
            listen(status)

    def status(self) -> NodeStatus:
        return NodeStatus(
            protocol=PROTOCOL_VERSION,
            node_id=NODE_ID,
            instance_id=str(self.instance),
            version="0",
            engine="text",
            chip="M4",
            memory_budget_bytes=self.budget_bytes,
            memory_leased_bytes=self.supervisor.budget.leased_bytes,
            models=self.disk.with_pulls(self.supervisor.status()),
            min_residency_s=self.min_residency_s,
            max_swap_wait_s=self.settings.max_swap_wait_s,
            in_maintenance=self.residency.in_maintenance,
        )

    def is_pinned(self, model: str) -> bool:
        is_maintained = any(self.in_maintenance.values())
        return not is_maintained and any(model in pins for pins in self.pins.values())

    # --- its commands ---

    async def take(self, choices: tuple[float, ...]) -> None:
        """Turns of the loop, or seconds."""
        taken = self.chance.choice(choices)
        if isinstance(taken, float):
            await asyncio.sleep(taken)
            return
        for _ in range(taken):
            await asyncio.sleep(0)

    async def request(self, model: str, hold_s: float, *, ahead: bool = False) -> None:
        """Raises `NodeError`."""
        supervisor, witness = self.supervisor, self.witness
        entry = await supervisor.find(model)
        assert self.store.find(model) is not None or self.witness.engine(model) is not None
        with supervisor.serving(entry) as lease:
            link: object = (await lease.ready(ahead=ahead)).link
            engine = cast(PlayedEngine, link)
            assert engine.is_serving and not engine.is_leaving, "an engine that goes"
            engine.holders += 1
            try:
                if not ahead:
                    await engine.serve(hold_s)
                    witness.seen["request"] += 1
            finally:
                engine.holders -= 1
                witness.used_s[model] = self.clock.now_s

    async def unload(self, order: Order) -> None:
        """Raises `NodeError`."""
        entry = await self.supervisor.find(order.model)
        task = asyncio.current_task()
        self.witness.orders[task] = order
        try:
            if order.drains:
                await self.supervisor.drain(entry)
            else:
                await self.supervisor.unload(entry, order.generation, order.min_idle_s)
        finally:
            del self.witness.orders[task]

    async def run_watchdog(self) -> None:
        """Runs the watchdog once."""
        if self.is_watched:
            self.watched_s = self.clock.now_s
        task = asyncio.current_task()
        is_alone = self.clock.now_s - self.watched_s >= UNWATCHED_S
        self.witness.orders[task] = Order("", by_itself=True, is_alone=is_alone)
        try:
            await self.watchdog.check()
        finally:
            del self.witness.orders[task]

    def set_policies(self, policies: Policies) -> None:
        models = policies.models.items()
        self.pins[policies.router_id] = {name for name, each in models if each.pinned}
        self.in_maintenance[policies.router_id] = policies.in_maintenance
        self.residency.set(policies)
        self.supervisor.on_residency_change()
        self.on_change()
