"""Computes the actions that make nodes match policies and schedules.

Pure. Each plan is made from the whole state and not from changes, so that a missed change does no
harm.
"""

from collections.abc import Iterable, Mapping

import msgspec

from node.protocol.idle_rule import is_idle_too_long
from node.protocol.lifecycle import ModelPolicy
from node.protocol.messages import ModelState, ModelStatus
from router.lifecycle.sources import has_whole, sources
from router.states import ACTIVE, KIND_AGENT, MAINTENANCE
from router.types import NodeView

READY_OR_LOADING = (ModelState.READY, ModelState.LOADING)
"""States in which a model occupies memory and is not being unloaded."""

NodePolicies = dict[str, ModelPolicy]
"""Policies of one node, by model."""


class Requirement(msgspec.Struct, frozen=True):
    """A requirement for a model's residency, from a policy or a schedule."""

    model: str
    node_id: str
    """Empty for every node that has the model."""
    pinned: bool = False
    keep_alive_s: float | None = None


class PushPolicies(msgspec.Struct, frozen=True):
    """Sends the node its policies."""

    node_id: str
    instance_id: str
    policies: NodePolicies
    in_maintenance: bool = False
    """True under maintenance: then pins of the node's own do not apply either."""


class LoadModel(msgspec.Struct, frozen=True):
    node_id: str
    model: str


class UnloadModel(msgspec.Struct, frozen=True):
    node_id: str
    model: str
    generation: int
    min_idle_s: float


class PullModel(msgspec.Struct, frozen=True):
    """Continues a copy that was interrupted."""

    node_id: str
    model: str
    sources: tuple[str, ...]
    """Ids of nodes that have the model, those with the fewest requests first."""


Action = PushPolicies | LoadModel | UnloadModel | PullModel


class Step(msgspec.Struct, frozen=True):
    """The action that a schedule was due for."""

    loads: bool
    """True to load, False to unload."""
    model: str
    node_id: str
    """Empty if there is no node to load it on, or if it is unloaded from every node."""


def policies_for(view: NodeView, requirements: Iterable[Requirement]) -> NodePolicies:
    """Returns the node's policies. Requirements for this node take precedence over those for all;
    under maintenance there are none."""
    if view.state == MAINTENANCE:
        return {}
    policies: NodePolicies = {}
    own = view.model_names()
    for each in sorted(requirements, key=lambda each: bool(each.node_id)):
        if each.node_id != view.node_id and (each.node_id or each.model not in own):
            continue
        before = policies.get(each.model, ModelPolicy())
        keep_alive_s = before.keep_alive_s if each.keep_alive_s is None else each.keep_alive_s
        policies[each.model] = ModelPolicy(before.pinned or each.pinned, keep_alive_s)
    return policies


def plan(
    fleet: Iterable[NodeView],
    requirements: Iterable[Requirement],
    pushed: Mapping[str, PushPolicies],
) -> list[Action]:
    """Returns the actions due at this time; `pushed` is what was last sent to each node."""
    requirements, fleet = list(requirements), tuple(fleet)
    actions: list[Action] = []
    for view in fleet:
        if view.kind == KIND_AGENT and view.reachable and view.status is not None:
            actions += _plan_node(view, policies_for(view, requirements), pushed.get(view.node_id))
            actions += _plan_pulls(view, fleet)
    return actions


def _plan_pulls(view: NodeView, fleet: tuple[NodeView, ...]) -> list[PullModel]:
    """Returns pulls that are stuck although another node has the model; none under maintenance."""
    stuck = (each for each in _models(view) if each.wants_peer and each.retry_after_s <= 0)
    actions = []
    for model in stuck if view.state != MAINTENANCE else ():
        found = sorted(sources(fleet, model.name, view), key=_leases)
        if found:
            ids = tuple(each.node_id for each in found)
            actions.append(PullModel(view.node_id, model.name, ids))
    return actions


def _plan_node(view: NodeView, policies: NodePolicies, sent: PushPolicies | None) -> list[Action]:
    assert view.status is not None
    actions: list[Action] = []
    push = PushPolicies(view.node_id, view.status.instance_id, policies, view.state == MAINTENANCE)
    in_maintenance = view.status.in_maintenance
    if sent != push or any(
        falls_short(each, policies, in_maintenance=in_maintenance) for each in view.status.models
    ):
        actions.append(push)
    for model in view.status.models:
        if view.state == MAINTENANCE and model.state is ModelState.READY and not model.leases:
            actions.append(UnloadModel(view.node_id, model.name, model.generation, 0.0))
        policy = policies.get(model.name)
        if _takes(view) and policy is not None and policy.pinned and may_load(model):
            actions.append(LoadModel(view.node_id, model.name))
    return actions


def steps(
    step: Step, fleet: Iterable[NodeView], requirements: Iterable[Requirement]
) -> list[Action] | None:
    """Returns the next actions of the step; None if it is done. Pinned models are not unloaded."""
    if step.loads:
        return _steps_to_load(step, [view for view in fleet if view.node_id == step.node_id])
    views = [view for view in fleet if step.node_id in ("", view.node_id)]
    known = [view for view in views if view.reachable and view.status is not None]
    if step.node_id and not known:
        return []
    requirements = list(requirements)
    in_memory = [
        (view, model)
        for view in known
        if (model := view.model(step.model)) is not None
        and model.state in READY_OR_LOADING
        and not policies_for(view, requirements).get(model.name, ModelPolicy()).pinned
    ]
    if not in_memory:
        return None
    # A model that the node still reports as pinned waits until the node has its new policies.
    return [
        UnloadModel(view.node_id, model.name, model.generation, 0.0)
        for view, model in in_memory
        if model.state is ModelState.READY and not model.leases and not model.pinned
    ]


def _steps_to_load(step: Step, views: list[NodeView]) -> list[Action] | None:
    able = [view for view in views if _takes(view) and view.reachable]
    found = [model for view in able if (model := view.model(step.model)) is not None]
    if any(model.state is ModelState.READY for model in found):
        return None
    return [LoadModel(step.node_id, step.model) for model in found if may_load(model)]


def falls_short(
    model: ModelStatus, policies: NodePolicies, *, in_maintenance: bool = False
) -> bool:
    """Returns True if the node keeps the model for less time than required. Another router's
    policies can extend that time but not shorten it, unless that router has the node under
    maintenance (`in_maintenance`)."""
    policy = policies.get(model.name)
    if policy is None or model.state not in READY_OR_LOADING:
        return False
    if policy.pinned and not model.pinned:
        return not in_maintenance
    wanted_s, kept_s = policy.keep_alive_s, model.keep_alive_s
    if model.pinned or wanted_s is None or kept_s is None:
        return False
    return wanted_s == 0 or kept_s < wanted_s


def may_load(model: ModelStatus) -> bool:
    """Returns True if the model is complete, not loaded, and not waiting for a retry."""
    if model.state is ModelState.FAILED:
        return model.retry_after_s <= 0
    return model.state is ModelState.ON_DISK


def idle(view: NodeView, now_s: float, queued: frozenset[str]) -> list[UnloadModel]:
    """Returns unloads of models that have been idle for too long; `queued` are the models that
    requests in the router wait for."""
    if view.kind != KIND_AGENT or not view.reachable or view.status is None:
        return []
    age_s = max(0.0, now_s - view.status_at_s)
    return [
        UnloadModel(view.node_id, model.name, model.generation, model.keep_alive_s)
        for model in view.status.models
        if model.keep_alive_s is not None
        and is_idle_too_long(model, age_s)
        and model.name not in queued
    ]


def node_for_schedule(fleet: Iterable[NodeView], model: str, current: str = "") -> str:
    """Returns the id of the node for a schedule that names none: where it placed the model before,
    else the best one by `load_rank`; empty if there is none."""
    able = [view for view in fleet if _takes(view) and has_whole(view, model)]
    if not able:
        return ""
    return max(able, key=lambda view: (view.node_id == current, load_rank(view, model))).node_id


def load_rank(view: NodeView, model: str) -> tuple[bool, int]:
    """Ranks nodes on which a model can be loaded, the best highest: where it is loaded already,
    else by free memory."""
    status = view.model(model)
    if view.status is None or status is None:
        return False, 0
    free_bytes = view.status.memory_budget_bytes - view.status.memory_leased_bytes
    return status.state in READY_OR_LOADING, free_bytes


def _takes(view: NodeView) -> bool:
    """Returns True if further models may be loaded on the node; False if this or another router has
    it under maintenance."""
    return view.state == ACTIVE and view.status is not None and not view.status.in_maintenance


def _leases(view: NodeView) -> int:
    return sum(model.leases for model in _models(view))


def _models(view: NodeView) -> tuple[ModelStatus, ...]:
    return view.status.models if view.status else ()
