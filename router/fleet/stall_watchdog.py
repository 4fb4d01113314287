"""Ends attempts that make no progress although their node is connected.

A reachable node and a ready model do not imply progress, and a heartbeat does not show it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from node.protocol.messages import ModelState
from router.errors import DeadlineExceeded, NodeFailed, RouterError
from router.fleet.fleet import Fleet
from router.states import ACTIVE, KIND_AGENT
from router.types import Lease, NodeView

CHECKS = 20
"""Number of checks within the shortest limit."""
MAX_CHECK_S = 5.0
_AT_WORK = (ModelState.READY, ModelState.DRAINING)


@dataclass(frozen=True, slots=True)
class StallLimits:
    """Longest times without progress on a connected node."""

    stall_s: float = 150.0
    """Limit without a token of a loaded model; for a third-party server, between two pieces of a
    response that has begun."""
    load_s: float = 900.0
    """Limit without progress of a load."""
    first_token_s: float = 900.0
    """Limit until a third-party server's response begins; `stall_s` applies instead if the server
    has sent no response for as long and another node has the model."""


class WorkState(NamedTuple):
    """State of a node's work with one model; each change of it is progress."""

    instance_id: str
    state: ModelState
    generation: int
    progress: float | None
    work_tokens: int


@dataclass(slots=True, eq=False)
class Progress:
    """Progress of one attempt. As a context manager it registers with its `StallWatchdog`, which
    cancels the task on a stall; the context then raises the failure instead."""

    lease: Lease
    is_paused: Callable[[], bool]
    """True if the attempt waits for a client that does not read."""
    progressed_s: float
    """When progress was last seen."""
    work: WorkState | None
    has_data: bool = False
    """True if a piece of the response has come since the last check; set by the attempt."""
    has_head: bool = False
    """True once the head of the response has come."""
    has_begun: bool = False
    """True once a piece of the response has come."""
    is_unresponsive: bool = False
    """Result of `is_unresponsive` at the last check."""
    failure: RouterError | None = None
    """The error that ends the attempt; None until there is one."""
    watched_by: StallWatchdog | None = None
    task: asyncio.Task[object] | None = None
    timer: asyncio.TimerHandle | None = None
    """Fires at the deadline by which the response must begin."""

    def begin(self) -> None:
        """The response begins, which meets its deadline."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def abort(self, failure: RouterError) -> None:
        """Ends the attempt with this error."""
        if self.failure is None and self.task is not None:
            self.failure = failure
            self.task.cancel()

    def __enter__(self) -> Progress:
        self.task = asyncio.current_task()
        if self.watched_by is not None:
            self.watched_by.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        self.begin()
        if self.watched_by is not None:
            self.watched_by.discard(self)
        if self.failure is None or self.task is None:
            return
        # If the client disconnects at the same time, the task stays cancelled.
        if not self.task.uncancel() and kind is asyncio.CancelledError:
            raise self.failure from None


def work_state_of(view: NodeView | None, model: str) -> WorkState | None:
    """The state of the node's work with the model; None if the node reports no status."""
    if view is None or view.kind != KIND_AGENT or view.status is None:
        return None
    status = view.model(model)
    if status is None:
        return None
    return WorkState(
        view.status.instance_id,
        status.state,
        status.generation,
        status.progress,
        status.work_tokens,
    )


def is_unresponsive(
    lease: Lease, views: tuple[NodeView, ...], now_s: float, limits: StallLimits
) -> bool:
    """True if the lease's node has sent no response for `stall_s` and another node has the model.

    A server that does one thing at a time looks the same during a long prefill. So a request that
    was placed again already, or has no other node, waits for it.
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


def limit_s(progress: Progress, limits: StallLimits) -> float:
    """Seconds that the attempt may be without progress."""
    if progress.work is None:
        is_short = progress.has_begun or progress.is_unresponsive
        return limits.stall_s if is_short else limits.first_token_s
    return limits.stall_s if progress.work.state in _AT_WORK else limits.load_s


def stalled(progress: Progress, work: WorkState | None, now_s: float, limits: StallLimits) -> bool:
    """True if the attempt must end. Updates `progress`; `work` is the node's current state."""
    if progress.has_data or work != progress.work or progress.is_paused():
        progress.has_begun |= progress.has_data
        progress.has_data, progress.work, progress.progressed_s = False, work, now_s
        return False
    return now_s - progress.progressed_s >= limit_s(progress, limits)


def _reason(progress: Progress, limits: StallLimits) -> str:
    seconds = f"for {limit_s(progress, limits):g} s"
    if progress.work is not None and progress.work.state not in _AT_WORK:
        return f"has made no progress with loading the model {seconds}"
    if progress.has_begun:
        return f"has sent nothing more of its response {seconds}"
    if progress.work is not None:
        return f"is connected and has computed no token {seconds}"
    if progress.is_unresponsive:
        return f"has sent no response {seconds}"
    if progress.has_head:
        return f"has sent no content {seconds}"
    return f"has not begun to respond {seconds}"


def _check_s(limits: StallLimits) -> float:
    return min(MAX_CHECK_S, min(limits.stall_s, limits.load_s, limits.first_token_s) / CHECKS)


class StallWatchdog:
    """Owner of the progress of all attempts."""

    def __init__(
        self,
        fleet: Fleet,
        limits: StallLimits,
        on_stalled: Callable[[Lease], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_stalled` is called for each attempt that ends because of a stall."""
        self._on_stalled = on_stalled
        self._fleet = fleet
        self._limits = limits
        self._clock = clock
        self._check_s = _check_s(limits)
        self._watched: dict[Progress, None] = {}
        self._stalled: dict[tuple[str, str], WorkState] = {}
        """By node and model, the state of the node's work when an attempt stalled."""
        self._timer: asyncio.TimerHandle | None = None
        fleet.listen(self._on_fleet)

    def set_limits(self, limits: StallLimits) -> None:
        """Changes the limits of all attempts, also of those that are open."""
        self._limits = limits
        self._check_s = _check_s(limits)
        if self._timer is not None:
            self._timer.cancel()
            self._check_later()

    def watch(
        self, lease: Lease, is_paused: Callable[[], bool], deadline_s: float = math.inf
    ) -> Progress:
        """The context of an attempt in the current task. It raises `NodeFailed` once the node makes
        no progress, and `DeadlineExceeded` if the response has not begun by `deadline_s`, on the
        event loop's clock."""
        work = work_state_of(self._fleet.node(lease.node_id), lease.model)
        progress = Progress(lease, is_paused, self._clock(), work, watched_by=self)
        if deadline_s < math.inf:
            wait_s = deadline_s - time.monotonic()
            loop = asyncio.get_running_loop()
            progress.timer = loop.call_later(max(0.0, wait_s), self._abort_late, progress)
        return progress

    def add(self, progress: Progress) -> None:
        self._watched[progress] = None
        if self._timer is None:
            self._check_later()

    def discard(self, progress: Progress) -> None:
        del self._watched[progress]

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._check_s, self._check)

    def _check(self) -> None:
        self._timer = None
        now_s = self._clock()
        for progress in self._watched:
            lease = progress.lease
            work = work_state_of(self._fleet.node(lease.node_id), lease.model)
            progress.is_unresponsive = is_unresponsive(
                lease, self._fleet.snapshot, now_s, self._limits
            )
            if progress.failure is None and stalled(progress, work, now_s, self._limits):
                self._abort(progress)
        if self._watched:
            self._check_later()

    def _abort(self, progress: Progress) -> None:
        lease, work = progress.lease, progress.work
        reason = _reason(progress, self._limits)
        progress.abort(NodeFailed(f"The node {self._fleet.name_of(lease.node_id)} {reason}."))
        self._on_stalled(lease)
        if work is not None and work.state in _AT_WORK:
            self._stalled[lease.node_id, lease.model] = work
            self._fleet.set_stalled(lease.node_id, self._models(lease.node_id))

    def _abort_late(self, progress: Progress) -> None:
        name = self._fleet.name_of(progress.lease.node_id)
        progress.abort(
            DeadlineExceeded(
                f"The node {name} had not begun to respond at the deadline in `x-fleet-deadline-s`."
            )
        )

    def _on_fleet(self) -> None:
        """Clears stalls of nodes that have made progress or restarted."""
        if not self._stalled:
            return
        well = [
            key
            for key, work in self._stalled.items()
            if work_state_of(self._fleet.node(key[0]), key[1]) != work
        ]
        for node_id, model in well:
            if self._stalled.pop((node_id, model), None) is not None:
                self._fleet.set_stalled(node_id, self._models(node_id))

    def _models(self, node_id: str) -> frozenset[str]:
        return frozenset(model for node, model in self._stalled if node == node_id)
