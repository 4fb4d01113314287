"""Engine processes within the memory budget: their loads, their ends, and their reports."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from node.engines.cache_events import CacheWatch
from node.engines.link import ENGINE_MODULE, EngineLink
from node.engines.load_log import quarters
from node.engines.memory_budget import Budget, Leases
from node.engines.reported_speed import reported_speed
from node.engines.sizing import Plan, engine_spec, stored_choices
from node.engines.slot import EngineHandle, EngineKind, Slot
from node.errors import LoadFailure
from node.ipc.child_process import Spare
from node.ipc.messages import (
    WITHOUT_MLX,
    CacheEvent,
    EngineSpec,
    EngineStats,
    Loaded,
    Marked,
    Pressure,
)
from node.models.store import ModelEntry
from node.protocol.messages import ModelState
from serving.awake import Awake
from serving.stay_awake import StayAwake

STOP_GRACE_S = 5.0
SPARE_S = 3.0
"""Seconds after the start or a load until a spare process for the next load is started."""
LEAST_CHUNK_TOKENS = 64
"""Smallest prefill chunk, however often the GPU was overloaded."""
EXIT_GRACE_S = 1.0
"""Seconds that a process may live on after its end of the link closed."""

FAULT = "The agent failed while it loaded the model; see its log."

logger = logging.getLogger(__name__)


Prepare = Callable[[ModelEntry], Coroutine[Any, Any, None]]


async def nothing_to_prepare(entry: ModelEntry) -> None:
    """For models that need only their engine."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks for the events of engines."""

    on_change: Callable[[], None] = lambda: None
    """The state of a model or the progress of a load has changed."""
    on_marked: Callable[[Marked], None] = lambda marked: None
    watch: CacheWatch = field(default_factory=CacheWatch)
    prepare: Prepare = nothing_to_prepare
    """Loads anything else that a model needs to serve. Raises `LoadFailure`."""
    awake: Awake = field(default_factory=lambda: Awake(StayAwake.NEVER))
    """Keeps the machine awake while models are leased or waited for."""


class EngineProcesses:
    """Owner of loads and stops, and of the memory lease of each engine."""

    def __init__(
        self,
        kind: EngineKind,
        budget: Budget,
        hooks: Hooks,
        on_end: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`on_end` is called when a load is over or an engine has ended."""
        self.now_s = clock
        self.pressure = Pressure.NONE
        self.pressure_since_s = clock()
        self.is_closing = False
        self._budget = budget
        self._kind = kind
        self._hooks = hooks
        self._on_end = on_end
        self._leases = Leases(budget)
        self._chores: set[asyncio.Task[None]] = set()
        # No number is used twice, not even over restarts: a request to unload may be as old.
        self._generation = time.time_ns() // 1000
        keeps_spare = kind.settings.spare_engine and kind.settings.engine not in WITHOUT_MLX
        self._spare = Spare(*(ENGINE_MODULE, kind.settings.engine) if keeps_spare else ())

    def begin_load(self, slot: Slot, plan: Plan) -> None:
        """Raises `DoesNotFit`."""
        self._budget.admit(slot.entry.name, plan.fixed, self._kind.settings.kv_cache_bytes)
        self._generation += 1
        slot.begin_load(self._working(slot, self._load(slot, plan)), self._generation)
        self._hooks.on_change()

    def stop_soon(self, slot: Slot) -> None:
        """Sends the engine no more requests, and stops it once its last lease has ended."""
        if slot.state is ModelState.READY and slot.handle is not None:
            slot.begin_stop(self._working(slot, self._stop(slot, slot.handle.link)))
            self._hooks.on_change()

    def _working(self, slot: Slot, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a load or a stop. Its end is reported only once it is complete: an engine has its
        share of stored KV before it gets its first request."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._worked(slot, task))
        return task

    def _worked(self, slot: Slot, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("Internal error of the agent with %s.", slot.entry.name, exc_info=fault)
        # A task that is cancelled before its first step runs none of its own code.
        if slot.work is task and slot.state is ModelState.LOADING:
            self._end_load(slot, None)
        self._on_end()

    def keep_spare(self, is_needed: Callable[[], bool]) -> None:
        """Starts a spare process for the next load, if one is likely."""
        self._spare.refill(SPARE_S, is_needed)

    def set_pressure(self, level: Pressure, slots: Iterable[Slot]) -> None:
        """Sends the level to the engines of the slots, and to those that are loaded later."""
        self.pressure = level
        self.pressure_since_s = self.now_s()
        for slot in slots:
            if slot.handle is not None:
                slot.handle.link.set_pressure(level)

    async def settled(self) -> None:
        """Waits until every engine has the stored KV that the budget grants it, or has missed the
        time for it."""
        # Engines that are late are logged by `Leases.settle_soon`.
        with suppress(LoadFailure):
            await self._leases.settle()

    async def close(self, slots: Collection[Slot], grace_s: float) -> None:
        """Ends all loads and engines; kills an engine that has not ended after `grace_s`
        seconds."""
        self.is_closing = True
        work = [slot.work for slot in slots if slot.work is not None]
        for task in work:
            task.cancel()
        links = [slot.handle.link for slot in slots if slot.handle is not None]
        await asyncio.gather(*(link.stop(grace_s) for link in links))
        if ending := [*work, *self._chores]:
            await asyncio.wait(ending)
        await self._spare.close()
        await self._leases.close()

    async def _load(self, slot: Slot, plan: Plan) -> None:
        entry = slot.entry
        link = self._new_link(slot)
        started_s = self.now_s()
        handle: EngineHandle | None = None
        # An unexpected error fails the load as well: an immediate retry could go on without end.
        reason: str | None = FAULT
        slot.connect(link)
        try:
            await self._leases.make_room()
            info = await self._started(link, self._spec(slot, plan), entry)
            handle = EngineHandle(entry, link, info)
        except LoadFailure as exc:
            reason = exc.message
        except OSError as exc:
            reason = f"The engine process cannot be started: {exc}."
        except asyncio.CancelledError:
            reason = None
            raise
        finally:
            if handle is None:
                self._end_load(slot, reason)
        if handle is None:
            logger.error("Cannot load %s: %s", entry.name, reason)
        else:
            self._move_in(slot, handle, plan, self.now_s() - started_s)

    def _new_link(self, slot: Slot) -> EngineLink:
        entry = slot.entry
        link = EngineLink(
            on_progress=self._on_progress(slot),
            on_loaded=lambda info: self._hooks.watch.on_loaded(entry, info),
            on_marked=self._hooks.on_marked,
            on_cache_events=lambda events: self._on_cache_events(slot, events),
            on_stats=lambda stats: self._on_stats(slot, stats),
            on_died=lambda: self._on_died(slot, link),
        )
        return link

    async def _started(self, link: EngineLink, spec: EngineSpec, entry: ModelEntry) -> Loaded:
        """Raises `LoadFailure` or `OSError`, after the engine has ended."""
        preparing = asyncio.create_task(self._hooks.prepare(entry))
        try:
            info = await link.start(spec, self._spare.take())
            await preparing
            if not link.alive:
                raise LoadFailure("The engine process ended as soon as it was loaded.")
        except BaseException:
            preparing.cancel()
            await asyncio.wait({preparing})
            await link.stop(0.0)
            raise
        return info

    def _spec(self, slot: Slot, plan: Plan) -> EngineSpec:
        spec = engine_spec(slot.entry, plan, self._kind.settings, self._kind.script_json)
        # A request warms the engine up by itself.
        spec = msgspec.structs.replace(spec, warm_up=not slot.use.has_request)
        overloads = slot.loads.overloads
        return _in_smaller_chunks(spec, overloads) if overloads else spec

    def _end_load(self, slot: Slot, reason: str | None) -> None:
        """Ends a load that failed with `reason`, or that was cancelled."""
        self._release(slot.entry.name)
        if reason is None:
            slot.cancel_load()
        else:
            slot.fail_load(reason, self.now_s())
        self._hooks.on_change()

    def _move_in(self, slot: Slot, handle: EngineHandle, plan: Plan, load_s: float) -> None:
        """Completes a load, and gives the new engine its share of stored KV."""
        name = handle.entry.name
        slot.complete_load(handle, load_s, self.now_s())
        logger.info("Loaded %s in %.1f s.", name, load_s)
        self._hooks.on_change()
        self._budget.correct(name, handle.info.weight_bytes)
        self._leases.add(name, handle.link, plan.fixed)
        if self.pressure is not Pressure.NONE:
            handle.link.set_pressure(self.pressure)
        self._settle()
        stored_bytes = self._budget.lease(name).stored_kv_bytes
        stored = stored_choices(stored_bytes, self._leases.tenants, self._kind.settings)
        for choice in (*plan.choices, *stored):
            logger.info("%s: %s", name, choice.line)

    def _release(self, name: str) -> None:
        self._hooks.watch.on_ended(name)
        self._budget.release(name)
        self._leases.remove(name)
        self._settle()

    def _settle(self) -> None:
        """Starts to bring the engines to the leases that the budget grants, in the background."""
        if not self.is_closing:
            self._leases.settle_soon()

    def _on_progress(self, slot: Slot) -> Callable[[float], None]:
        log_quarter = quarters(slot.entry.name)

        def on_progress(fraction: float) -> None:
            log_quarter(fraction)
            if slot.set_progress(fraction):
                self._hooks.on_change()

        return on_progress

    def _on_cache_events(self, slot: Slot, events: tuple[CacheEvent, ...]) -> None:
        slot.count(events)
        self._hooks.watch.on_cache_events(slot.entry.name, events)

    def _on_stats(self, slot: Slot, stats: EngineStats) -> None:
        slot.set_speed(reported_speed(stats))
        if slot.handle is not None and self._budget.pin(slot.entry.name, stats.pinned_kv_bytes):
            self._settle()

    async def _stop(self, slot: Slot, link: EngineLink) -> None:
        try:
            await slot.use.until_idle()
            if code := await link.stop(STOP_GRACE_S):
                logger.error("The engine of %s ended with code %s.", slot.entry.name, code)
        finally:
            self._end_engine(slot)

    def _on_died(self, slot: Slot, link: EngineLink) -> None:
        if slot.handle is None or slot.handle.link is not link:
            return
        # A stop in progress waits for its requests, which fail at once, and then ends by itself.
        if link.broken is not None and link.broken.is_overload:
            slot.loads.overloaded()
        if slot.state is ModelState.READY:
            chore = asyncio.create_task(self._bury(slot.entry.name, link))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)
            self._end_engine(slot)
            self._on_end()

    async def _bury(self, name: str, link: EngineLink) -> None:
        code = await link.stop(EXIT_GRACE_S)
        if link.broken is not None:
            logger.error("The engine of %s has ended: %s", name, link.broken.reason)
            return
        logger.error("The engine of %s ended with code %s; a request starts it again.", name, code)

    def _end_engine(self, slot: Slot) -> None:
        self._release(slot.entry.name)
        slot.end_engine()
        self._hooks.on_change()


def _in_smaller_chunks(spec: EngineSpec, overloads: int) -> EngineSpec:
    """Halves the prefill chunk for each overload. A prefill chunk is the longest GPU command, and
    the GPU serves the display only between two commands."""
    tokens = max(spec.prefill_chunk_tokens >> overloads, LEAST_CHUNK_TOKENS)
    logger.warning(
        "%s: prefill_chunk %d tokens (the GPU was overloaded %d times).",
        *(spec.model, tokens, overloads),
    )
    return msgspec.structs.replace(spec, prefill_chunk_tokens=tokens)
