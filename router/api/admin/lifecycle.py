"""`/admin/policies` and `/admin/schedules`: which models stay in memory, and when they are loaded
and unloaded."""

import secrets
from dataclasses import replace

from node.protocol.messages import ModelStatus
from registry import policies, schedules
from registry.records import PolicyRecord, ScheduleRecord
from router.api.admin.bodies import AddSchedule, PolicyChange
from router.api.admin.gate import CurrentAdmin
from router.api.admin.views import PolicyRow, ScheduleRow
from router.core import Core
from router.errors import BadRequest, Conflict, NotFound, UnknownModel
from router.lifecycle.calendar import LOAD, UNLOAD, lines_of, next_times
from router.lifecycle.crons import InvalidCron, next_due_s, trigger_of
from router.states import KIND_AGENT
from router.types import NodeView
from serving.units import GIB, gib

_ID_BYTES = 4


# --- policies ---


async def list_policies(admin: CurrentAdmin) -> list[PolicyRow]:
    """Lists the residency policies."""
    records = sorted(
        admin.core.lifecycle.policies.records, key=lambda each: (each.model, each.node_id)
    )
    return [_policy_row(admin.core, record) for record in records]


async def change_policy(admin: CurrentAdmin, change: PolicyChange) -> PolicyRow:
    """Changes a residency policy; fields that are not given are kept."""
    core = admin.core
    node_id = _node_id(core, change.node)
    known = any(each.model == change.model for each in core.lifecycle.policies.records)
    model = change.model if known else _agents_model(core, change.model)
    given = change.model_fields_set & {"pinned", "keep_alive_s"}
    if not given:
        raise BadRequest("Give `pinned` or `keep_alive_s`.")
    record = core.lifecycle.policies.get(model, node_id)
    if "keep_alive_s" in given:
        record = replace(record, keep_alive_s=change.keep_alive_s)
    if change.pinned is not None:
        record = replace(record, pinned=change.pinned)
    if change.pinned or change.keep_alive_s is not None:
        _check_there(core, record.model, change.node)
    if change.pinned:
        _check_room(core, record.model, record.node_id)
    detail = f"{_policy_words(record)}, {f'on {change.node}' if change.node else 'everywhere'}"
    await admin.change("policy.set", model, detail, lambda session: policies.put(session, record))
    core.lifecycle.put_policy(record)
    return _policy_row(core, record)


def _policy_words(record: PolicyRecord) -> str:
    pinned = "pinned" if record.pinned else "not pinned"
    if record.keep_alive_s is None:
        return f"{pinned}, kept by the node's own settings"
    if record.keep_alive_s == 0:
        return f"{pinned}, kept forever"
    return f"{pinned}, kept for {record.keep_alive_s:g} s"


def _check_there(core: Core, model: str, node: str | None) -> None:
    """Raises `UnknownModel` if the named node does not have the model; a node without a status may
    have it."""
    view = core.fleet.by_name(node) if node is not None else None
    if view is None or view.status is None or view.model(model) is not None:
        return
    raise UnknownModel(
        f"The node {node!r} does not have the model {model!r}; `router models pull {model} --node "
        f"{node}` brings it there.",
        param="model",
    )


def _check_room(core: Core, model: str, node_id: str, *, on_any: bool = False) -> None:
    """Raises `Conflict` if a node that has the model lacks the memory for it beside everything
    pinned there; with `on_any`, only if all of them do."""
    words = [
        _lack_of_room(core, model, view)
        for view in core.fleet.snapshot
        if view.kind == KIND_AGENT and node_id in ("", view.node_id) and view.model(model)
    ]
    lacking = [each for each in words if each]
    if lacking and (not on_any or all(words)):
        raise Conflict(lacking[0], param="model")


def _lack_of_room(core: Core, name: str, view: NodeView) -> str:
    """Describes the lack of memory as a sentence; empty if there is enough."""
    status = view.model(name)
    assert view.status is not None and status is not None
    pinned = {each.model for each in core.lifecycle.policies.records if _pins(each, view)}
    others = [
        model
        for model in view.status.models
        if model.name != name and (model.pinned or model.name in pinned)
    ]
    needed, pinned_bytes = _bytes(status), sum(_bytes(model) for model in others)
    budget = view.status.memory_budget_bytes
    if needed + pinned_bytes <= budget:
        return ""
    return (
        f"{name!r} takes {gib(needed)} on {view.name}, and models that are pinned there "
        f"take {pinned_bytes / GIB:.1f} of its {gib(budget)}."
    )


def _pins(record: PolicyRecord, view: NodeView) -> bool:
    return record.pinned and record.node_id in ("", view.node_id)


def _bytes(model: ModelStatus) -> int:
    return model.memory_bytes or model.weight_bytes


def _policy_row(core: Core, record: PolicyRecord) -> PolicyRow:
    return PolicyRow(
        model=record.model,
        node=_node_name(core, record.node_id),
        pinned=record.pinned,
        keep_alive_s=record.keep_alive_s,
    )


# --- schedules ---


async def list_schedules(admin: CurrentAdmin) -> list[ScheduleRow]:
    """Lists the schedules."""
    return [_schedule_row(admin.core, record) for record in admin.core.lifecycle.timetable.records]


async def add_schedule(admin: CurrentAdmin, body: AddSchedule) -> ScheduleRow:
    """Adds a schedule of loads and unloads."""
    core = admin.core
    if body.load is None and body.unload is None:
        raise BadRequest("Give `load`, `unload` or both: cron lines such as '0 8 * * 1-5'.")
    record = ScheduleRecord(
        id=secrets.token_hex(_ID_BYTES),
        model=_agents_model(core, body.model),
        node_id=_node_id(core, body.node),
        load_cron=body.load,
        unload_cron=body.unload,
        timezone=body.timezone,
        created_at_s=core.lifecycle.timetable.wall(),
    )
    _check_lines(record)
    _check_there(core, record.model, body.node)
    if record.load_cron is not None:
        _check_room(core, record.model, record.node_id, on_any=True)
    detail = f"load={body.load!r} unload={body.unload!r} {body.timezone}"
    await admin.change(
        "schedule.add",
        record.model,
        detail,
        lambda session: schedules.add(session, record),
    )
    core.lifecycle.add_schedule(record)
    return _schedule_row(core, record)


async def remove_schedule(admin: CurrentAdmin, schedule_id: str) -> ScheduleRow:
    """Removes a schedule."""
    core = admin.core
    found = next(
        (each for each in core.lifecycle.timetable.records if each.id == schedule_id), None
    )
    if found is None:
        raise NotFound(f"There is no schedule {schedule_id!r}; `router schedule list` shows them.")
    row = _schedule_row(core, found)
    await admin.change(
        "schedule.remove", found.model, "", lambda session: schedules.remove(session, schedule_id)
    )
    core.lifecycle.remove_schedule(schedule_id)
    return row


def _check_lines(record: ScheduleRecord) -> None:
    for what, line in lines_of(record).items():
        try:
            trigger = trigger_of(line, record.timezone)
        except InvalidCron as error:
            raise BadRequest(f"{what}: {error}", param=what) from error
        if next_due_s(trigger, record.created_at_s) is None:
            raise BadRequest(f"{what}: {line!r} is never due.", param=what)


def _schedule_row(core: Core, record: ScheduleRecord) -> ScheduleRow:
    coming = next_times(record, core.lifecycle.timetable.wall())
    return ScheduleRow(
        id=record.id,
        model=record.model,
        node=_node_name(core, record.node_id),
        load=record.load_cron,
        unload=record.unload_cron,
        timezone=record.timezone,
        load_fired_s=record.load_fired_s,
        unload_fired_s=record.unload_fired_s,
        next_load_s=coming.get(LOAD),
        next_unload_s=coming.get(UNLOAD),
        pending=record.pending,
        pending_error=core.lifecycle.pending_error(record.id),
    )


# --- nodes ---


def _agents_model(core: Core, name: str) -> str:
    """Resolves the model name. Raises `UnknownModel`, and `BadRequest` if no node agent has the
    model."""
    model = core.names.resolve(name)
    views = (view for view in core.fleet.snapshot if view.kind == KIND_AGENT)
    if not any(model in view.model_names() for view in views):
        raise BadRequest(
            f"No node agent has the model {model!r}; the server that does manages it itself.",
            param="model",
        )
    return model


def _node_id(core: Core, name: str | None) -> str:
    """Returns the id of the agent with that name, reachable or not; empty if no name is given."""
    if name is None:
        return ""
    view = core.fleet.by_name(name)
    if view is None:
        raise NotFound(f"There is no node {name!r}; `router nodes` lists them.", param="node")
    if view.kind != KIND_AGENT:
        raise BadRequest(
            f"The node {name!r} is not a node agent; it manages its models itself.",
            param="node",
        )
    return view.node_id


def _node_name(core: Core, node_id: str) -> str | None:
    view = core.fleet.node(node_id) if node_id else None
    return view.name if view else None
