"""Does what the plans say: tells nodes their policies, loads, unloads, and fires schedules."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from node.protocol.lifecycle import Peer, Policies, PullCommand
from registry import audit
from registry.db import Registry
from registry.errors import RegistryError
from registry.records import PolicyRecord, ScheduleRecord
from router.errors import NodeRefused, NoNodeReady, RouterError
from router.fleet.fleet import Fleet
from router.fleet.watcher import Watcher
from router.lifecycle.attempts import RETRY_S, Attempts, Pushes
from router.lifecycle.calendar import LOAD, UNLOAD, keeps, lines_of
from router.lifecycle.crons import trigger_of
from router.lifecycle.reconcile import (
    Action,
    Load,
    Pull,
    Push,
    Step,
    Unload,
    Wish,
    best_place,
    idle,
    plan,
    steps,
)
from router.lifecycle.timetable import Timetable
from router.states import KIND_AGENT
from router.types import NodeView
from router.upstream.node_client import NodeClient

log = logging.getLogger("mlx_fleet.lifecycle")

SWEEP_S = 5.0
LOAD_RETRY_S = 30.0
LEAVE_S = 2.0
"""For how long a node that is removed may take to hear of it."""
_LATE_IS_WELL = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
"""Of a timer: each run does all that is due, by the registry's rows and the nodes' words."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What the lifecycle asks of the rest of the router."""

    registry: Registry
    fleet: Fleet
    watcher: Watcher
    queued: Callable[[], frozenset[str]]
    """Models that requests wait for."""
    router_id: str
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic


class Lifecycle:
    """Owner of policies, and of the tasks that bring nodes to what these and the schedules say."""

    def __init__(
        self,
        outside: Outside,
        policies: Iterable[PolicyRecord] = (),
        records: Iterable[ScheduleRecord] = (),
    ) -> None:
        self._outside = outside
        self._policies = {(each.model, each.node_id): each for each in policies}
        self._timetable = Timetable(outside.registry, outside.wall, records)
        self._places: dict[str, str] = {}
        """Where the model of a schedule that names no node was put."""
        self._pushes = Pushes(outside.clock)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By node and model, none for the policies of all."""
        self._leaving: set[str] = set()
        """Nodes that are being removed: nothing is begun on them."""
        self._attempts = Attempts(outside.clock)
        self._copied_from: dict[tuple[str, str], str] = {}
        """Which node gave last what a node has in part: another one is asked first."""
        self._due: asyncio.Handle | None = None
        self._closed = False
        self._timers = AsyncIOScheduler(timezone="UTC")

    # --- from start to end ---

    async def start(self) -> None:
        """After the nodes are watched: what was due while the router was away is made up for."""
        await self.settle()
        self._timers.add_job(self.sweep, "interval", seconds=SWEEP_S, **_LATE_IS_WELL)
        for record in self._timetable.records:
            self._add_jobs(record)
        self._timers.start()
        self._outside.fleet.listen(self._on_fleet)

    async def close(self) -> None:
        """Ends what is in work."""
        self._closed = True
        self._timers.remove_all_jobs()
        if self._due is not None:
            self._due.cancel()
        await self._timetable.close()
        self._timers.shutdown(wait=False)
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def busy(self) -> bool:
        """Whether something is being done on a node."""
        return bool(self._tasks)

    def look_at_timers(self) -> None:
        """The wall clock was moved: what is due by it is done now."""
        self._timers.wakeup()

    # --- policies ---

    @property
    def policies(self) -> tuple[PolicyRecord, ...]:
        return tuple(self._policies.values())

    def policy(self, model: str, node_id: str) -> PolicyRecord:
        nothing = PolicyRecord(model, node_id, pinned=False, keep_alive_s=None)
        return self._policies.get((model, node_id), nothing)

    def put_policy(self, record: PolicyRecord) -> None:
        """As it has been written to the registry."""
        key = (record.model, record.node_id)
        if record.pinned or record.keep_alive_s is not None:
            self._policies[key] = record
        else:
            self._policies.pop(key, None)
        self.reconcile()

    async def leave_node(self, node_id: str) -> None:
        """Before a node is removed: takes back what was asked of it, if it can be reached."""
        self._leaving.add(node_id)
        view, client = self._outside.fleet.node(node_id), self._outside.watcher.client(node_id)
        if view is None or client is None or view.kind != KIND_AGENT or not view.reachable:
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                pushing = self._tasks.get((node_id, ""))
                if pushing is not None:
                    await asyncio.wait({pushing})
                await client.set_policies(Policies(self._outside.router_id, {}))
        except (RouterError, TimeoutError) as error:
            log.warning("%s was not told that it is removed: %s", view.name, error)

    def forget_node(self, node_id: str) -> None:
        """The node has been removed, and what the registry had for it."""
        self._leaving.discard(node_id)
        for key in [key for key in self._policies if key[1] == node_id]:
            del self._policies[key]
        for record in self._timetable.records:
            if record.node_id == node_id:
                self.remove_schedule(record.id)
        self._pushes.forget_node(node_id)
        for place in [place for place in self._copied_from if place[0] == node_id]:
            del self._copied_from[place]
        for where, task in self._tasks.items():
            if where[0] == node_id:
                task.cancel()
        self._attempts.forget_node(node_id)

    # --- schedules ---

    @property
    def now_s(self) -> float:
        """On the clock of the schedules."""
        return self._outside.wall()

    @property
    def schedules(self) -> tuple[ScheduleRecord, ...]:
        return self._timetable.records

    def pending(self, schedule_id: str) -> str | None:
        """What the schedule was due to do, "load" or "unload", and is not done yet."""
        record = self._timetable.find(schedule_id)
        return record.pending if record else None

    def pending_error(self, schedule_id: str) -> str | None:
        """Why that failed when it was tried last."""
        record = self._timetable.find(schedule_id)
        if record is None or record.pending is None:
            return None
        if record.pending == UNLOAD:
            return self._attempts.failure(Unload, record.model, record.node_id)
        place = record.node_id or self._places.get(schedule_id, "")
        return self._attempts.failure(Load, record.model, place)

    def keeping(self, model: str, node_id: str) -> str | None:
        """The id of a schedule that keeps the model on the node now."""
        fleet = self._outside.fleet.snapshot
        found = (each for each in self.schedules if each.model == model and keeps(each))
        return next((each.id for each in found if self._place(each, fleet) == node_id), None)

    def add_schedule(self, record: ScheduleRecord) -> None:
        """As it has been written to the registry."""
        self._timetable.add(record)
        self._add_jobs(record)

    def remove_schedule(self, schedule_id: str) -> None:
        record = self._timetable.remove(schedule_id)
        self._places.pop(schedule_id, None)
        for what in lines_of(record):
            with suppress(JobLookupError):
                self._timers.remove_job(f"{schedule_id}.{what}")
        self.reconcile()

    def _add_jobs(self, record: ScheduleRecord) -> None:
        for what, line in lines_of(record).items():
            trigger = trigger_of(line, record.timezone)
            name = f"{record.id}.{what}"
            self._timers.add_job(self.settle, trigger, id=name, **_LATE_IS_WELL)

    async def settle(self) -> None:
        """Acts upon every due time that was not acted upon, once."""
        await self._timetable.settle()
        self.reconcile()

    # --- bringing it about ---

    def _on_fleet(self) -> None:
        """One plan for all that changes in one turn of the loop."""
        if self._due is None and not self._closed:
            self._due = asyncio.get_running_loop().call_soon(self.reconcile)

    def reconcile(self) -> None:
        """Begins what has to be done now."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        fleet = self._outside.fleet.snapshot
        wishes = self._wishes(fleet)
        for action in plan(fleet, wishes, self._pushes.fresh()):
            self._begin(action, self._why(action))
        for record in self._timetable.records:
            if record.pending is not None:
                self._go_on_with(record, fleet, wishes)

    def _go_on_with(
        self, record: ScheduleRecord, fleet: tuple[NodeView, ...], wishes: list[Wish]
    ) -> None:
        node_id = record.node_id if record.pending == UNLOAD else self._place(record, fleet)
        wanted = Step(record.pending == LOAD, record.model, node_id)
        actions = steps(wanted, fleet, wishes)
        if actions is None:
            self._timetable.done(record.id)
        for action in actions or ():
            self._begin(action, "schedule")

    def _why(self, action: Action) -> str:
        """The actor that the audit log has for it."""
        if isinstance(action, Unload):
            return "maintenance"
        if isinstance(action, Pull):
            return "resume"
        if isinstance(action, Push):
            return ""
        own = (self.policy(action.model, node_id) for node_id in (action.node_id, ""))
        return "pin" if any(policy.pinned for policy in own) else "schedule"

    async def sweep(self) -> None:
        """Unloads what has been idle for too long, and looks at everything once more."""
        await self.settle()
        queued, now_s = self._outside.queued(), self._outside.clock()
        for view in self._outside.fleet.snapshot:
            for unload in idle(view, now_s, queued):
                self._begin(unload, "idle")

    def _wishes(self, fleet: tuple[NodeView, ...]) -> list[Wish]:
        wishes = [
            Wish(each.model, each.node_id, each.pinned, each.keep_alive_s)
            for each in self._policies.values()
        ]
        for record in self._timetable.records:
            place = self._place(record, fleet) if keeps(record) else ""
            if place:
                wishes.append(Wish(record.model, place, pinned=True))
        return wishes

    def _place(self, record: ScheduleRecord, fleet: tuple[NodeView, ...]) -> str:
        """The node that the schedule means now; empty where there is none."""
        if record.node_id:
            return record.node_id
        before = self._places.get(record.id, "")
        self._places[record.id] = best_place(fleet, record.model, before)
        return self._places[record.id]

    # --- doing it ---

    def _begin(self, action: Action, why: str) -> None:
        """Single flight for each node and model, and not at once again."""
        place = (action.node_id, "" if isinstance(action, Push) else action.model)
        is_new = isinstance(action, Push) and self._pushes.fresh().get(action.node_id) != action
        if place in self._tasks or action.node_id in self._leaving:
            return
        if self._attempts.must_wait(action, is_new=is_new):
            return
        task = asyncio.create_task(self._do(action, why))
        self._tasks[place] = task
        task.add_done_callback(lambda _task: self._ended(place))

    def _ended(self, place: tuple[str, str]) -> None:
        """What had to wait for it may begin."""
        if self._tasks.pop(place, None) is not None:
            self._on_fleet()

    async def _do(self, action: Action, why: str) -> None:
        client = self._outside.watcher.client(action.node_id)
        if client is None:
            return  # removed meanwhile
        try:
            await self._act(client, action, why)
            self._attempts.on_done(action)
        except RouterError as error:
            retry_s = LOAD_RETRY_S if isinstance(action, Load) else RETRY_S
            if self._attempts.on_failed(action, error.message, retry_s):
                self._tell(action, error)

    async def _act(self, client: NodeClient, action: Action, why: str) -> None:
        if isinstance(action, Push):
            asked = Policies(self._outside.router_id, action.asked, action.rests)
            await client.set_policies(asked)
            self._pushes.on_told(action)
        elif isinstance(action, Load):
            await client.load(action.model)
            await self._note(why, "model.load", action)
        elif isinstance(action, Pull):
            await self._go_on(client, action)
            await self._note(why, "model.pull", action)
        else:
            await client.unload(action.model, action.generation, action.min_idle_s)
            await self._note(why, "model.unload", action)

    def _tell(self, action: Action, error: RouterError) -> None:
        """A model that is in use is no news."""
        if not (isinstance(action, Unload) and isinstance(error, NodeRefused)):
            what = type(action).__name__.lower()
            model = "of policies" if isinstance(action, Push) else f"of {action.model}"
            log.warning(
                "%s %s on %s: %s It is tried again.",
                what,
                model,
                self._name(action.node_id),
                error.message,
            )

    def _name(self, node_id: str) -> str:
        view = self._outside.fleet.node(node_id)
        return view.name if view else node_id

    async def _go_on(self, client: NodeClient, action: Pull) -> None:
        """With a ticket of the first node that gives one. Raises what the last one does."""
        place = (action.node_id, action.model)
        last = self._copied_from.get(place, "")
        failure: RouterError = NoNodeReady(f"No node that has {action.model} can be reached.")
        for node_id in sorted(action.sources, key=lambda each: each == last):
            source = self._outside.watcher.client(node_id)
            if source is None:
                continue  # removed meanwhile
            try:
                share = await source.share(action.model)
            except RouterError as error:
                failure = error
                continue
            self._copied_from[place] = node_id
            peer = Peer(source.url, share)
            await client.pull(PullCommand(action.model, peer=peer, resumes=True))
            return
        raise failure

    async def _note(self, actor: str, verb: str, action: Load | Unload | Pull) -> None:
        entry = partial(
            audit.add,
            at_s=self._outside.wall(),
            actor=actor,
            verb=verb,
            subject=action.model,
            detail=f"on {self._name(action.node_id)}",
        )
        try:
            await self._outside.registry.write(entry)
        except RegistryError:
            log.error("the audit entry of %s %s cannot be written", verb, action.model)
