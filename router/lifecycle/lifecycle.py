"""Plans residency: compares policies and schedules with the fleet, and starts the actions due."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from registry.records import PolicyRecord, ScheduleRecord
from router.lifecycle.action_runner import ActionRunner, Dependencies
from router.lifecycle.calendar import LOAD, UNLOAD, keeps, lines_of
from router.lifecycle.crons import trigger_of
from router.lifecycle.policy_table import PolicyTable
from router.lifecycle.reconcile import (
    Action,
    LoadModel,
    PullModel,
    PushPolicies,
    Requirement,
    Step,
    UnloadModel,
    idle,
    node_for_schedule,
    plan,
    steps,
)
from router.lifecycle.timetable import Timetable
from router.types import NodeView

SWEEP_S = 5.0
_LATE_IS_FINE = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
"""Options of all timers; a late run is fine, since each run does all that is due."""


class Lifecycle:
    """Makes nodes match the policies and schedules."""

    def __init__(
        self,
        parts: Dependencies,
        policies: Iterable[PolicyRecord] = (),
        records: Iterable[ScheduleRecord] = (),
    ) -> None:
        self.policies = PolicyTable(policies)
        self.timetable = Timetable(parts.registry, parts.wall, records)
        self.actions = ActionRunner(parts, self._on_fleet)
        self.timers = AsyncIOScheduler(timezone="UTC")
        """Timers of the sweep and of each cron line."""
        self._parts = parts
        self._places: dict[str, str] = {}
        """Node chosen for the model of each schedule that names none, by schedule id."""
        self._due: asyncio.Handle | None = None
        self._closed = False

    # --- from start to end ---

    async def start(self) -> None:
        """Starts after the watchers of nodes; due times that passed while the router was down are
        handled."""
        await self.settle()
        self.timers.add_job(self.sweep, "interval", seconds=SWEEP_S, **_LATE_IS_FINE)
        for record in self.timetable.records:
            self._add_jobs(record)
        self.timers.start()
        self._parts.fleet.listen(self._on_fleet)

    async def close(self) -> None:
        """Stops the timers and cancels the actions in progress."""
        self._closed = True
        self.timers.remove_all_jobs()
        if self._due is not None:
            self._due.cancel()
        await self.timetable.close()
        self.timers.shutdown(wait=False)
        await self.actions.close()

    # --- changes by an admin ---

    def put_policy(self, record: PolicyRecord) -> None:
        """Replaces a policy that has been written to the registry."""
        self.policies.put(record)
        self.reconcile()

    def add_schedule(self, record: ScheduleRecord) -> None:
        """Adds a schedule that has been written to the registry."""
        self.timetable.add(record)
        self._add_jobs(record)

    def remove_schedule(self, schedule_id: str) -> None:
        record = self.timetable.remove(schedule_id)
        self._places.pop(schedule_id, None)
        for what in lines_of(record):
            with suppress(JobLookupError):
                self.timers.remove_job(f"{schedule_id}.{what}")
        self.reconcile()

    def forget_node(self, node_id: str) -> None:
        """Deletes the state of a node that has been removed."""
        self.policies.forget_node(node_id)
        for record in self.timetable.records:
            if record.node_id == node_id:
                self.remove_schedule(record.id)
        self.actions.forget_node(node_id)

    def _add_jobs(self, record: ScheduleRecord) -> None:
        for what, line in lines_of(record).items():
            trigger = trigger_of(line, record.timezone)
            name = f"{record.id}.{what}"
            self.timers.add_job(self.settle, trigger, id=name, **_LATE_IS_FINE)

    # --- schedules and the fleet ---

    def pending_error(self, schedule_id: str) -> str | None:
        """Returns the reason why the schedule's pending action failed last."""
        record = self.timetable.find(schedule_id)
        if record is None or record.pending is None:
            return None
        attempts = self.actions.attempts
        if record.pending == UNLOAD:
            return attempts.failure(UnloadModel, record.model, record.node_id)
        place = record.node_id or self._places.get(schedule_id, "")
        return attempts.failure(LoadModel, record.model, place)

    def keeping(self, model: str, node_id: str) -> str | None:
        """Returns the id of a schedule that keeps the model on the node at this time."""
        fleet = self._parts.fleet.snapshot
        found = (each for each in self.timetable.records if each.model == model and keeps(each))
        return next((each.id for each in found if self._place(each, fleet) == node_id), None)

    def _place(self, record: ScheduleRecord, fleet: tuple[NodeView, ...]) -> str:
        """Returns the id of the node where the schedule's model belongs; empty if there is
        none."""
        if record.node_id:
            return record.node_id
        before = self._places.get(record.id, "")
        self._places[record.id] = node_for_schedule(fleet, record.model, before)
        return self._places[record.id]

    # --- planning ---

    async def settle(self) -> None:
        """Acts on every due time that has not been acted on, once."""
        await self.timetable.settle()
        self.reconcile()

    async def sweep(self) -> None:
        """Unloads models that have been idle for too long, and plans again."""
        await self.settle()
        queued, now_s = self._parts.queued(), self._parts.clock()
        for view in self._parts.fleet.snapshot:
            for unload in idle(view, now_s, queued):
                self.actions.begin(unload, "idle")

    def _on_fleet(self) -> None:
        """Makes one plan for all changes within one iteration of the event loop."""
        if self._due is None and not self._closed:
            self._due = asyncio.get_running_loop().call_soon(self.reconcile)

    def reconcile(self) -> None:
        """Starts all actions that are due at this time."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        fleet = self._parts.fleet.snapshot
        requirements = self._requirements(fleet)
        for action in plan(fleet, requirements, self.actions.pushed()):
            self.actions.begin(action, self._actor(action))
        for record in self.timetable.records:
            if record.pending is not None:
                self._advance(record, fleet, requirements)

    def _advance(
        self,
        record: ScheduleRecord,
        fleet: tuple[NodeView, ...],
        requirements: list[Requirement],
    ) -> None:
        """Starts the next actions of a pending load or unload."""
        node_id = record.node_id if record.pending == UNLOAD else self._place(record, fleet)
        step = Step(record.pending == LOAD, record.model, node_id)
        actions = steps(step, fleet, requirements)
        if actions is None:
            self.timetable.done(record.id)
        for action in actions or ():
            self.actions.begin(action, "schedule")

    def _actor(self, action: Action) -> str:
        """Returns the actor of the action's audit entry; empty if it has none."""
        if isinstance(action, UnloadModel):
            return "maintenance"
        if isinstance(action, PullModel):
            return "resume"
        if isinstance(action, PushPolicies):
            return ""
        own = (self.policies.get(action.model, node_id) for node_id in (action.node_id, ""))
        return "pin" if any(policy.pinned for policy in own) else "schedule"

    def _requirements(self, fleet: tuple[NodeView, ...]) -> list[Requirement]:
        found = [
            Requirement(each.model, each.node_id, each.pinned, each.keep_alive_s)
            for each in self.policies.records
        ]
        for record in self.timetable.records:
            place = self._place(record, fleet) if keeps(record) else ""
            if place:
                found.append(Requirement(record.model, place, pinned=True))
        return found
