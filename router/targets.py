"""Which of an alias's models a request goes to, and which next. Pure."""

import msgspec

from node.protocol.messages import ModelState, ModelStatus
from router.errors import (
    ContextTooLong,
    NodeAway,
    NodeFailed,
    NodeRefused,
    NoNodeReady,
    QueueFull,
    RouterError,
    UnknownModel,
    WrongNodeToken,
)
from router.types import ACTIVE, Moment, NodeView, Road, Target

FIRST, WARM, SPILLOVER = "first", "warm", "spillover"
SELECTORS = (FIRST, WARM, SPILLOVER)
SURE_TOKENS_PER_BYTE = 0.12
"""A prompt has at least so many: half of what English has, or code."""
_NEARNESS = {ModelState.READY: 0, ModelState.LOADING: 1}
_WHY = {
    FIRST: "the first that can take it",
    WARM: "the one nearest to an answer",
    SPILLOVER: "the first with room",
}


_LEADING_ON = (
    ContextTooLong,
    NoNodeReady,
    NodeAway,
    NodeFailed,
    NodeRefused,
    UnknownModel,
    WrongNodeToken,
)
"""What is no fault of the request, but of a model or of its nodes."""


class Order(msgspec.Struct, frozen=True):
    """The targets that a request may go to, the best first; never empty."""

    targets: tuple[Target, ...]
    why: str = ""
    """A sentence; empty where there was nothing to choose."""


class Asked(msgspec.Struct, frozen=True):
    """What is known of the request that a target is chosen for."""

    prompt_bytes: int
    may_pay: bool = False
    """Whether its key may use paid servers."""
    in_flight: tuple[int, ...] = ()
    """Requests on each target; for `spillover` only."""


def order(road: Road, asked: Asked, moment: Moment) -> Order:
    """The targets that fit, as the road's selector has them; where none does, the first one that
    some node has, whose own error is told."""
    if len(road.targets) == 1:
        return Order(road.targets)
    reasons = [unfit(target, asked, moment) for target in road.targets]
    able = [at for at, reason in enumerate(reasons) if not reason]
    passed = "; ".join(
        f"{target.model}: {reason}"
        for target, reason in zip(road.targets, reasons, strict=True)
        if reason
    )
    if not able:
        first = next((each for each in road.targets if _is_open(each, asked)), road.targets[0])
        return Order((first,), f"No target of the alias {road.alias} can take it ({passed}).")
    able.sort(key=lambda at: _rank(road, at, asked, moment))
    chosen = tuple(road.targets[at] for at in able)
    besides = f" (passed over: {passed})" if passed else ""
    what = f"Of the targets of the alias {road.alias}, {chosen[0].model} is {_WHY[road.selector]}"
    return Order(chosen, f"{what}{besides}.")


def leads_on(error: RouterError, road: Road) -> bool:
    """Whether a request that one target has failed so goes to the next one."""
    if isinstance(error, QueueFull):
        return road.selector == SPILLOVER
    return isinstance(error, _LEADING_ON)


def unfit(target: Target, asked: Asked, moment: Moment) -> str:
    """Why the request had better not go to the target, in a few words; empty where it may."""
    if target.is_paid and not asked.may_pay:
        return "it costs money, and the key has no budget"
    having = [view for view in moment.fleet if target.is_on(view)]
    if not having:
        return "no node has it"
    up = [view for view in having if view.reachable and view.state == ACTIVE]
    if not up:
        return "no node that has it can be reached"
    statuses = [(view, status) for view in up if (status := _model_of(view, target.model))]
    if all(_is_too_small(status, asked) for _, status in statuses):
        return "its context is too small for the prompt"
    if all(_has_failed(view, status, moment.now_s) for view, status in statuses):
        return "its load has failed"
    return ""


def _is_open(target: Target, asked: Asked) -> bool:
    return target.is_known and (asked.may_pay or not target.is_paid)


def _rank(road: Road, at: int, asked: Asked, moment: Moment) -> int:
    """The least goes first, of equal ones the earlier."""
    target = road.targets[at]
    if road.selector == WARM:
        states = [
            status.state
            for view in moment.fleet
            if target.is_on(view)
            and view.reachable
            and view.state == ACTIVE
            and (status := _model_of(view, target.model))
        ]
        return min((_NEARNESS.get(state, len(_NEARNESS)) for state in states), default=0)
    if road.selector == SPILLOVER:
        return int(asked.in_flight[at] >= road.spill_at)
    return 0


def _model_of(view: NodeView, model: str) -> ModelStatus | None:
    statuses = view.status.models if view.status else ()
    return next((status for status in statuses if status.name == model), None)


def _is_too_small(status: ModelStatus, asked: Asked) -> bool:
    sure_tokens = asked.prompt_bytes * SURE_TOKENS_PER_BYTE
    return status.context_tokens is not None and status.context_tokens < sure_tokens


def _has_failed(view: NodeView, status: ModelStatus, now_s: float) -> bool:
    """And may not be tried again yet."""
    is_due = now_s >= view.heard_s + status.retry_after_s
    return status.state is ModelState.FAILED and not is_due
