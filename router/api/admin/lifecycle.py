"""`/admin/policies` and `/admin/schedules`: what stays in memory, and what comes and goes when."""

import secrets
from dataclasses import replace

from node.protocol.messages import ModelStatus
from registry import policies, schedules
from registry.records import PolicyRecord, ScheduleRecord
from router.api.admin.bodies import AddSchedule, PolicyChange
from router.api.admin.gate import AdminGiven
from router.api.admin.models import find_status
from router.api.admin.views import PolicyRow, ScheduleRow
from router.core import Core
from router.errors import BadRequest, Conflict, NotFound, UnknownModel
from router.lifecycle.calendar import LOAD, UNLOAD, lines_of, next_times
from router.lifecycle.crons import NoCron, next_due_s, trigger_of
from router.states import KIND_AGENT
from router.types import NodeView
from serving.units import GIB, gib

_ID_BYTES = 4


# --- policies ---


async def list_policies(admin: AdminGiven) -> list[PolicyRow]:
    records = sorted(admin.core.lifecycle.policies, key=lambda each: (each.model, each.node_id))
    return [_policy_row(admin.core, record) for record in records]


async def change_policy(admin: AdminGiven, change: PolicyChange) -> PolicyRow:
    core = admin.core
    node_id = _node_id(core, change.node)
    known = any(each.model == change.model for each in core.lifecycle.policies)
    model = change.model if known else _agents_model(core, change.model)
    given = change.model_fields_set & {"pinned", "keep_alive_s"}
    if not given:
        raise BadRequest("Give `pinned` or `keep_alive_s`.")
    record = core.lifecycle.policy(model, node_id)
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
        return f"{pinned}, kept as the node says"
    if record.keep_alive_s == 0:
        return f"{pinned}, kept for ever"
    return f"{pinned}, kept for {record.keep_alive_s:g} s"


def _check_there(core: Core, model: str, node: str | None) -> None:
    """Raises where the node that is named does not have the model; one that has told nothing yet
    may have it."""
    view = core.fleet.by_name(node) if node is not None else None
    if view is None or view.status is None or find_status(view, model) is not None:
        return
    raise UnknownModel(
        f"The node {node!r} does not have the model {model!r}; `router models pull {model} --node "
        f"{node}` brings it there.",
        param="model",
    )


def _check_room(core: Core, model: str, node_id: str, *, on_any: bool = False) -> None:
    """Raises where the node could not hold the model beside all that is pinned on it; without a
    node, where one that has it could not, or with `on_any`, where none could."""
    words = [
        _lack_of_room(core, model, view)
        for view in core.fleet.snapshot
        if view.kind == KIND_AGENT and node_id in ("", view.node_id) and find_status(view, model)
    ]
    lacking = [each for each in words if each]
    if lacking and (not on_any or all(words)):
        raise Conflict(lacking[0], param="model")


def _lack_of_room(core: Core, name: str, view: NodeView) -> str:
    """In a sentence; empty where there is room."""
    status = find_status(view, name)
    assert view.status is not None and status is not None
    pinned = {each.model for each in core.lifecycle.policies if _pins(each, view)}
    others = [
        model
        for model in view.status.models
        if model.name != name and (model.pinned or model.name in pinned)
    ]
    needed, held = _bytes(status), sum(_bytes(model) for model in others)
    budget = view.status.memory_budget_bytes
    if needed + held <= budget:
        return ""
    return (
        f"{name!r} takes {gib(needed)} on {view.name}, and models that are pinned there "
        f"take {held / GIB:.1f} of its {gib(budget)}."
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


async def list_schedules(admin: AdminGiven) -> list[ScheduleRow]:
    return [_schedule_row(admin.core, record) for record in admin.core.lifecycle.schedules]


async def add_schedule(admin: AdminGiven, asked: AddSchedule) -> ScheduleRow:
    core = admin.core
    if asked.load is None and asked.unload is None:
        raise BadRequest("Give `load`, `unload` or both: cron lines such as '0 8 * * 1-5'.")
    record = ScheduleRecord(
        id=secrets.token_hex(_ID_BYTES),
        model=_agents_model(core, asked.model),
        node_id=_node_id(core, asked.node),
        load_cron=asked.load,
        unload_cron=asked.unload,
        timezone=asked.timezone,
        created_at_s=core.lifecycle.now_s,
    )
    _check_lines(record)
    _check_there(core, record.model, asked.node)
    if record.load_cron is not None:
        _check_room(core, record.model, record.node_id, on_any=True)
    detail = f"load={asked.load!r} unload={asked.unload!r} {asked.timezone}"
    await admin.change(
        "schedule.add",
        record.model,
        detail,
        lambda session: schedules.add(session, record),
    )
    core.lifecycle.add_schedule(record)
    return _schedule_row(core, record)


async def remove_schedule(admin: AdminGiven, schedule_id: str) -> ScheduleRow:
    core = admin.core
    found = next((each for each in core.lifecycle.schedules if each.id == schedule_id), None)
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
        except NoCron as error:
            raise BadRequest(f"{what}: {error}", param=what) from error
        if next_due_s(trigger, record.created_at_s) is None:
            raise BadRequest(f"{what}: {line!r} is never due.", param=what)


def _schedule_row(core: Core, record: ScheduleRecord) -> ScheduleRow:
    coming = next_times(record, core.lifecycle.now_s)
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
    """The model that the name means. Raises `UnknownModel`, and `BadRequest` where no node agent
    has it."""
    model = core.names.resolve(name)
    views = (view for view in core.fleet.snapshot if view.kind == KIND_AGENT)
    if not any(model in view.model_names() for view in views):
        raise BadRequest(
            f"No node agent has the model {model!r}; the server that does takes care of it by "
            "itself.",
            param="model",
        )
    return model


def _node_id(core: Core, name: str | None) -> str:
    """The id of the agent of that name, reachable or not; empty for none."""
    if name is None:
        return ""
    view = core.fleet.by_name(name)
    if view is None:
        raise NotFound(f"There is no node {name!r}; `router nodes` lists them.", param="node")
    if view.kind != KIND_AGENT:
        raise BadRequest(
            f"The node {name!r} is not a node agent; it takes care of its models by itself.",
            param="node",
        )
    return view.node_id


def _node_name(core: Core, node_id: str) -> str | None:
    view = core.fleet.node(node_id) if node_id else None
    return view.name if view else None
