"""What has to be done so that nodes hold what is wanted of them: from what they told, to actions.

Pure. Each plan is made from the whole state, never from what has changed, so that it does not
matter which change was missed.
"""

from collections.abc import Iterable, Mapping

import msgspec

from node.protocol.lifecycle import ModelPolicy
from node.protocol.messages import ModelState, ModelStatus
from router.lifecycle.sources import sources
from router.states import ACTIVE, KIND_AGENT, MAINTENANCE
from router.types import NodeView

HELD = (ModelState.READY, ModelState.LOADING)

Asked = dict[str, ModelPolicy]
"""Of one node, by model."""


class Wish(msgspec.Struct, frozen=True):
    """What is wanted of a model; of one that an admin has pinned, or that a schedule keeps."""

    model: str
    node_id: str
    """Empty: of every node that has it."""
    pinned: bool = False
    keep_alive_s: float | None = None


class Push(msgspec.Struct, frozen=True):
    """Tell the node what is asked of its models."""

    node_id: str
    instance_id: str
    asked: Asked
    rests: bool = False
    """Under maintenance: pins of its own do not hold either."""


class Load(msgspec.Struct, frozen=True):
    node_id: str
    model: str


class Unload(msgspec.Struct, frozen=True):
    node_id: str
    model: str
    generation: int
    min_idle_s: float


class Pull(msgspec.Struct, frozen=True):
    """Go on with a copy that was cut short."""

    node_id: str
    model: str
    sources: tuple[str, ...]
    """Nodes that have it, those with fewest requests first."""


Action = Push | Load | Unload | Pull


class Step(msgspec.Struct, frozen=True):
    """What a schedule was due to do."""

    loads: bool
    """Else it unloads."""
    model: str
    node_id: str
    """Empty: there is no place to load it now, or it is to leave every node."""


def asked_of(view: NodeView, wishes: Iterable[Wish]) -> Asked:
    """What is asked of the node. What is said of it alone goes before what is said of all; under
    maintenance nothing is kept."""
    if view.state == MAINTENANCE:
        return {}
    asked: Asked = {}
    own = view.model_names()
    for wish in sorted(wishes, key=lambda wish: bool(wish.node_id)):
        if wish.node_id != view.node_id and (wish.node_id or wish.model not in own):
            continue
        before = asked.get(wish.model, ModelPolicy())
        keep_alive_s = before.keep_alive_s if wish.keep_alive_s is None else wish.keep_alive_s
        asked[wish.model] = ModelPolicy(before.pinned or wish.pinned, keep_alive_s)
    return asked


def plan(
    fleet: Iterable[NodeView], wishes: Iterable[Wish], pushed: Mapping[str, Push]
) -> list[Action]:
    """What is to be done now; `pushed` is what each node has been told last."""
    wishes, fleet = list(wishes), tuple(fleet)
    actions: list[Action] = []
    for view in fleet:
        if view.kind == KIND_AGENT and view.reachable and view.status is not None:
            actions += _plan_node(view, asked_of(view, wishes), pushed.get(view.node_id))
            actions += _plan_pulls(view, fleet)
    return actions


def _plan_pulls(view: NodeView, fleet: tuple[NodeView, ...]) -> list[Pull]:
    """Copies that stand still while somebody has the model. Under maintenance nothing comes."""
    stuck = (each for each in _models(view) if each.wants_peer and each.retry_after_s <= 0)
    actions = []
    for model in stuck if view.state != MAINTENANCE else ():
        found = sorted(sources(fleet, model.name, view), key=_leases)
        if found:
            ids = tuple(each.node_id for each in found)
            actions.append(Pull(view.node_id, model.name, ids))
    return actions


def _plan_node(view: NodeView, asked: Asked, told: Push | None) -> list[Action]:
    assert view.status is not None
    actions: list[Action] = []
    push = Push(view.node_id, view.status.instance_id, asked, view.state == MAINTENANCE)
    rests = view.status.rests
    if told != push or any(falls_short(each, asked, rests=rests) for each in view.status.models):
        actions.append(push)
    for model in view.status.models:
        if view.state == MAINTENANCE and model.state is ModelState.READY and not model.leases:
            actions.append(Unload(view.node_id, model.name, model.generation, 0.0))
        policy = asked.get(model.name)
        if _takes(view) and policy is not None and policy.pinned and may_load(model):
            actions.append(Load(view.node_id, model.name))
    return actions


def steps(step: Step, fleet: Iterable[NodeView], wishes: Iterable[Wish]) -> list[Action] | None:
    """What brings the step further now; None where it is done. What is pinned does not leave."""
    if step.loads:
        return _steps_to_load(step, [view for view in fleet if view.node_id == step.node_id])
    views = [view for view in fleet if step.node_id in ("", view.node_id)]
    known = [view for view in views if view.reachable and view.status is not None]
    if step.node_id and not known:
        return []
    wishes = list(wishes)
    held = [
        (view, model)
        for view in known
        for model in _models(view)
        if model.name == step.model
        and model.state in HELD
        and not asked_of(view, wishes).get(model.name, ModelPolicy()).pinned
    ]
    if not held:
        return None
    # One that is pinned still waits for its node to hear that it is no longer.
    return [
        Unload(view.node_id, model.name, model.generation, 0.0)
        for view, model in held
        if model.state is ModelState.READY and not model.leases and not model.pinned
    ]


def _steps_to_load(step: Step, views: list[NodeView]) -> list[Action] | None:
    able = [view for view in views if _takes(view) and view.reachable]
    found = [model for view in able for model in _models(view) if model.name == step.model]
    if any(model.state is ModelState.READY for model in found):
        return None
    return [Load(step.node_id, step.model) for model in found if may_load(model)]


def falls_short(model: ModelStatus, asked: Asked, *, rests: bool = False) -> bool:
    """Whether the node keeps the model for less long than was asked: another router may want more
    of it, none can want less, but for one under which it `rests`."""
    policy = asked.get(model.name)
    if policy is None or model.state not in HELD:
        return False
    if policy.pinned and not model.pinned:
        return not rests
    wanted_s, kept_s = policy.keep_alive_s, model.keep_alive_s
    if model.pinned or wanted_s is None or kept_s is None:
        return False
    return wanted_s == 0 or kept_s < wanted_s


def may_load(model: ModelStatus) -> bool:
    """Whether it is whole, not in memory, and may be tried now."""
    if model.state is ModelState.FAILED:
        return model.retry_after_s <= 0
    return model.state is ModelState.ON_DISK


def idle(view: NodeView, now_s: float, queued: frozenset[str]) -> list[Unload]:
    """Models that have been idle for longer than they are kept; `queued` are those that requests
    wait for in the router."""
    if view.kind != KIND_AGENT or not view.reachable or view.status is None:
        return []
    since_s = max(0.0, now_s - view.status_at_s)
    return [
        Unload(view.node_id, model.name, model.generation, model.keep_alive_s)
        for model in view.status.models
        if model.state is ModelState.READY
        and not model.pinned
        and not model.leases
        and model.name not in queued
        and model.idle_s is not None
        and model.keep_alive_s is not None
        and model.idle_s + since_s >= model.keep_alive_s
    ]


def best_place(fleet: Iterable[NodeView], model: str, current: str = "") -> str:
    """The id of the node where a model is to be that may be anywhere: where it was put already,
    else where it is loaded, else the one with most free memory; empty where there is none."""
    best, best_rank = "", (False, False, 0)
    for view in fleet:
        if view.kind != KIND_AGENT or not _takes(view) or not view.reachable:
            continue
        told = next((each for each in _models(view) if each.name == model), None)
        if told is None or view.status is None or told.state is ModelState.PULLING:
            continue
        free = view.status.memory_budget_bytes - view.status.memory_leased_bytes
        rank = (view.node_id == current, told.state in HELD, free)
        if not best or rank > best_rank:
            best, best_rank = view.node_id, rank
    return best


def _takes(view: NodeView) -> bool:
    """Whether models may be loaded there that nobody has asked for yet: no router, this or another,
    has it under maintenance."""
    return view.state == ACTIVE and view.status is not None and not view.status.rests


def _leases(view: NodeView) -> int:
    return sum(model.leases for model in _models(view))


def _models(view: NodeView) -> tuple[ModelStatus, ...]:
    return view.status.models if view.status else ()
