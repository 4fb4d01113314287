"""Orders the targets of an alias for a request. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from node.protocol.messages import ModelState, ModelStatus
from node.protocol.overflow import Overflow
from router.errors import (
    ContextTooLong,
    NodeFailed,
    NodeRefused,
    NoNodeReady,
    OwnerUnreachable,
    QueueFull,
    RouterError,
    ServersNotAllowed,
    UnknownModel,
    WrongNodeToken,
)
from router.states import ACTIVE, KIND_OPENAI
from router.types import ModelRoute, Moment, NodeView, Target

FIRST, WARM, SPILLOVER = "first", "warm", "spillover"
SURE_TOKENS_PER_BYTE = 0.12
"""Least tokens per byte of any prompt: half of what English text or code has."""
_NEARNESS = {ModelState.READY: 0, ModelState.LOADING: 1}
_FAR = len(_NEARNESS)
_WHY = {
    FIRST: "the first that can serve it",
    WARM: "the one that can respond soonest",
    SPILLOVER: "the first with room",
}


_FALLBACK_ERRORS = (
    ContextTooLong,
    NoNodeReady,
    ServersNotAllowed,
    OwnerUnreachable,
    NodeFailed,
    NodeRefused,
    UnknownModel,
    WrongNodeToken,
)
"""Errors that are due to a model or its nodes, not to the request."""


class Order(msgspec.Struct, frozen=True):
    """The targets that a request may go to, the best first; never empty."""

    targets: tuple[Target, ...]
    why: str = ""
    """The reason for the order, as a sentence; empty if there was no choice."""


class TargetQuery(msgspec.Struct, frozen=True):
    """The properties of a request on which the choice of a target depends."""

    prompt_bytes: int
    may_use_paid: bool = False
    """True if the key may use paid servers."""
    may_use_servers: bool = True
    """True if the key may use third-party servers (kind openai)."""
    in_flight: tuple[int, ...] = ()
    """Number of requests in flight on each target; for `spillover` only."""
    failing: frozenset[tuple[str, str]] = frozenset()
    """Pairs of node and model for which requests have failed lately."""
    last: str = ""
    """Key of the target that served the session's last turn; empty for a new session."""


def order(route: ModelRoute, query: TargetQuery, moment: Moment) -> Order:
    """The targets that can serve the request, in the order of the alias's selector. If none can,
    the first target that some node has, so that the client gets its error."""
    if len(route.targets) == 1:
        return Order(route.targets)
    reasons = [unfit(target, query, moment) for target in route.targets]
    able = [at for at, reason in enumerate(reasons) if not reason]
    if not able:
        first = next((each for each in route.targets if _is_open(each, query)), route.targets[0])
        passed = _listed(route, reasons)
        return Order((first,), f"No target of the alias {route.alias} can serve it ({passed}).")
    ranks = {at: _rank(route, at, query, moment) for at in able}
    able.sort(key=lambda at: ranks[at])
    why = _WHY[route.selector]
    stay = next((at for at in able if _stays(route, at, ranks[at], query)), None)
    if stay is not None:
        able.remove(stay)
        able.insert(0, stay)
        why = "the one that served its session"
    for at in able[1:]:
        reasons[at] = "requests fail on its nodes" if ranks[at].fails else ""
    chosen = tuple(route.targets[at] for at in able)
    passed = _listed(route, reasons)
    besides = f" (passed over: {passed})" if passed else ""
    what = f"Of the targets of the alias {route.alias}, {chosen[0].model} is {why}"
    return Order(chosen, f"{what}{besides}.")


def _listed(route: ModelRoute, reasons: list[str]) -> str:
    named = zip(route.targets, reasons, strict=True)
    return "; ".join(f"{target.model}: {reason}" for target, reason in named if reason)


def keeps_sessions(route: ModelRoute) -> bool:
    """True if a session should stay with its target: otherwise each turn could go to another one,
    where nothing of the session is cached."""
    return len(route.targets) > 1 and route.selector in (WARM, SPILLOVER)


def falls_back(error: RouterError, route: ModelRoute) -> bool:
    """True if a request that one target failed with this error falls back to the next one."""
    if isinstance(error, QueueFull):
        return route.selector == SPILLOVER
    return isinstance(error, _FALLBACK_ERRORS)


def unfit(target: Target, query: TargetQuery, moment: Moment) -> str:
    """The reason why the target cannot serve the request, in a few words; empty if it may."""
    if target.is_paid and not query.may_use_paid:
        return "it costs money, and the key has no budget"
    having = [view for view in moment.fleet if target.is_on(view)]
    if not having:
        return "no node has it"
    if not query.may_use_servers and is_external(target, moment.fleet):
        return "only servers of kind openai have it, and the key lacks the scope external"
    up = [view for view in having if _is_up(view)]
    if not up:
        return "no node that has it can be reached"
    statuses = [(view, status) for view in up if (status := view.model(target.model))]
    if all(_is_too_small(status, query) for _, status in statuses):
        return "its context is too small for the prompt"
    if all(_has_failed(view, status, moment.now_s) for view, status in statuses):
        return "its load has failed"
    return ""


def _is_up(view: NodeView) -> bool:
    """True if requests may go to the node, perhaps once it has been woken."""
    return (view.reachable or view.may_be_woken) and view.state == ACTIVE


def is_external(target: Target, fleet: Sequence[NodeView]) -> bool:
    """True if only third-party servers have the model."""
    having = [view for view in fleet if target.is_on(view)]
    return bool(having) and all(view.kind == KIND_OPENAI for view in having)


def overflow(target: Target, prompt_bytes: int, moment: Moment) -> Overflow | None:
    """An overflow if the prompt exceeds the model's context on every node, judged by its size in
    bytes; None if it may fit, or if some node does not report the context."""
    contexts = [
        status.context_tokens if (status := view.model(target.model)) else None
        for view in moment.fleet
        if target.is_on(view)
    ]
    known = [each for each in contexts if each]
    if not known or len(known) < len(contexts):
        return None
    return Overflow.by_size(prompt_bytes, max(known))


def _is_open(target: Target, query: TargetQuery) -> bool:
    return target.is_known and (query.may_use_paid or not target.is_paid)


class _Rank(NamedTuple):
    """Sort key of a target, the least first."""

    fails: bool
    """True if requests fail on all its nodes."""
    distance: int
    """Distance as the selector measures it."""


def _rank(route: ModelRoute, at: int, query: TargetQuery, moment: Moment) -> _Rank:
    target = route.targets[at]
    up = [view for view in moment.fleet if target.is_on(view) and _is_up(view)]
    fails = all(
        target.model in view.stalled or (view.node_id, target.model) in query.failing for view in up
    )
    if route.selector == WARM:
        statuses = (view.model(target.model) for view in up)
        states = [status.state for status in statuses if status]
        return _Rank(fails, min((_NEARNESS.get(state, _FAR) for state in states), default=0))
    if route.selector == SPILLOVER:
        return _Rank(fails, int(query.in_flight[at] >= route.spill_at))
    return _Rank(fails, 0)


def _stays(route: ModelRoute, at: int, rank: _Rank, query: TargetQuery) -> bool:
    """True if the target served the session's last turn and serves this one, too. It does not if it
    is paid, if its nodes fail, or if the selector is `warm` and the model is not in memory any
    more."""
    target = route.targets[at]
    is_there = keeps_sessions(route) and target.key == query.last
    is_gone = route.selector == WARM and rank.distance == _FAR
    return is_there and not (rank.fails or target.is_paid or is_gone)


def _is_too_small(status: ModelStatus, query: TargetQuery) -> bool:
    sure_tokens = query.prompt_bytes * SURE_TOKENS_PER_BYTE
    return status.context_tokens is not None and status.context_tokens < sure_tokens


def _has_failed(view: NodeView, status: ModelStatus, now_s: float) -> bool:
    """True if the model's load has failed on the node and must not be tried again yet."""
    is_due = now_s >= view.status_at_s + status.retry_after_s
    return status.state is ModelState.FAILED and not is_due
