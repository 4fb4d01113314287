"""Leaves requests whose nodes are there and do not go on with them.

That a node can be reached, that its model is ready and that it makes progress are three things: a
heartbeat says nothing of the last one.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from node.protocol.messages import ModelState
from router.fleet import Fleet
from router.states import ACTIVE, KIND_AGENT
from router.types import Lease, NodeView

LOOKS = 20
"""Within the shortest limit."""
MAX_LOOK_S = 5.0
_AT_WORK = (ModelState.READY, ModelState.DRAINING)


@dataclass(frozen=True, slots=True)
class Limits:
    """What is too long, for a node that is there."""

    stall_s: float = 150.0
    """Without a token of a loaded model; of a server that tells nothing, between two pieces of an
    answer that has begun."""
    load_s: float = 900.0
    """Without progress of a model that is not loaded yet."""
    first_token_s: float = 900.0
    """Until an answer begins, of a server that tells nothing of itself; `stall_s` where it has not
    answered anything for as long, and another node has the model."""


class Sign(NamedTuple):
    """What a node shows of its work with one model; each change of it is progress."""

    instance_id: str
    state: ModelState
    generation: int
    progress: float | None
    work_tokens: int


@dataclass(slots=True, eq=False)
class Attempt:
    """A request on one node."""

    lease: Lease
    is_paused: Callable[[], bool]
    """Whether it is the caller who does not go on."""
    moved_s: float
    """When progress was last seen."""
    sign: Sign | None
    moved: bool = False
    """Whether something of its answer has come since the last look; its relay says so."""
    is_headed: bool = False
    """Whether the head of the answer has come."""
    began: bool = False
    """Whether something of the answer has come."""
    is_deaf: bool = False
    """What `is_deaf` said at the last look."""
    reason: str = ""
    """Why it was left, as the end of a sentence that begins with the node; empty while it was
    not."""


def sign_of(view: NodeView | None, model: str) -> Sign | None:
    """None where the node tells nothing of itself."""
    if view is None or view.kind != KIND_AGENT or view.status is None:
        return None
    for each in view.status.models:
        if each.name == model:
            return Sign(
                view.status.instance_id,
                each.state,
                each.generation,
                each.progress,
                each.work_tokens,
            )
    return None


def is_deaf(lease: Lease, views: tuple[NodeView, ...], now_s: float, limits: Limits) -> bool:
    """Whether the lease's node has not answered anything for `stall_s`, and another has the model.

    A server that does one thing at a time looks just so in a long prefill: whoever has been sent on
    once, or can go nowhere else, waits for it.
    """
    before_s = now_s - limits.stall_s
    if lease.attempt > 1 or not any(
        view.node_id == lease.node_id
        and view.silent_since_s is not None
        and view.silent_since_s <= before_s
        for view in views
    ):
        return False
    return any(
        view.reachable
        and view.state == ACTIVE
        and not view.is_paid
        and lease.model in view.model_names()
        for view in views
    )


def limit_s(attempt: Attempt, limits: Limits) -> float:
    """How long the request may be without progress."""
    if attempt.sign is None:
        is_short = attempt.began or attempt.is_deaf
        return limits.stall_s if is_short else limits.first_token_s
    return limits.stall_s if attempt.sign.state in _AT_WORK else limits.load_s


def stalled(attempt: Attempt, sign: Sign | None, now_s: float, limits: Limits) -> bool:
    """Whether the request is to leave its node. Notes progress: `sign` is the node's last word."""
    if attempt.moved or sign != attempt.sign or attempt.is_paused():
        attempt.began |= attempt.moved
        attempt.moved, attempt.sign, attempt.moved_s = False, sign, now_s
        return False
    return now_s - attempt.moved_s >= limit_s(attempt, limits)


def _reason(attempt: Attempt, limits: Limits) -> str:
    seconds = f"for {limit_s(attempt, limits):g} s"
    if attempt.sign is not None and attempt.sign.state not in _AT_WORK:
        return f"has made no progress with loading the model {seconds}"
    if attempt.began:
        return f"has fallen silent in its answer, {seconds}"
    if attempt.sign is not None:
        return f"is there and has made no token {seconds}"
    if attempt.is_deaf:
        return f"has not answered anything {seconds}"
    if attempt.is_headed:
        return f"has sent no content {seconds}"
    return f"has not begun to answer {seconds}"


class Stalls:
    """Owner of what is known of the progress of requests that are on nodes."""

    def __init__(
        self, fleet: Fleet, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._limits = limits
        self._clock = clock
        self._look_s = min(
            MAX_LOOK_S, min(limits.stall_s, limits.load_s, limits.first_token_s) / LOOKS
        )
        self._attempts: dict[Attempt, asyncio.Task[object]] = {}
        """Each with what carries it, which is cancelled where the request leaves its node."""
        self._wedged: dict[tuple[str, str], Sign] = {}
        """By node and model, with what the node showed when it was left."""
        self._timer: asyncio.TimerHandle | None = None
        fleet.listen(self._on_fleet)

    def watch(self, lease: Lease, is_paused: Callable[[], bool]) -> Attempt:
        """An attempt that the current task makes. Until `unwatch` it is cancelled once its node
        makes no progress."""
        sign = sign_of(self._fleet.node(lease.node_id), lease.model)
        task = asyncio.current_task()
        assert task is not None
        attempt = Attempt(lease, is_paused, self._clock(), sign)
        self._attempts[attempt] = task
        if self._timer is None:
            self._look_later()
        return attempt

    def unwatch(self, attempt: Attempt) -> None:
        """The attempt is over."""
        del self._attempts[attempt]

    def is_left(self, attempt: Attempt) -> bool:
        """Where its task has been cancelled: whether that was only to leave the node."""
        return bool(attempt.reason) and self._attempts[attempt].uncancel() == 0

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._clock()
        for attempt in self._attempts:
            sign = sign_of(self._fleet.node(attempt.lease.node_id), attempt.lease.model)
            attempt.is_deaf = is_deaf(attempt.lease, self._fleet.snapshot, now_s, self._limits)
            if not attempt.reason and stalled(attempt, sign, now_s, self._limits):
                self._leave(attempt)
        if self._attempts:
            self._look_later()

    def _leave(self, attempt: Attempt) -> None:
        lease, sign = attempt.lease, attempt.sign
        attempt.reason = _reason(attempt, self._limits)
        self._attempts[attempt].cancel()
        if sign is not None and sign.state in _AT_WORK:
            self._wedged[lease.node_id, lease.model] = sign
            self._fleet.set_wedged(lease.node_id, self._models(lease.node_id))

    def _on_fleet(self) -> None:
        """A node that goes on, or has started anew, is wedged no more."""
        if not self._wedged:
            return
        well = [
            key
            for key, sign in self._wedged.items()
            if sign_of(self._fleet.node(key[0]), key[1]) != sign
        ]
        for node_id, model in well:
            if self._wedged.pop((node_id, model), None) is not None:
                self._fleet.set_wedged(node_id, self._models(node_id))

    def _models(self, node_id: str) -> frozenset[str]:
        return frozenset(model for node, model in self._wedged if node == node_id)
