"""A router that manages the models of a played node: the real lifecycle and the real view of the
fleet, over reports that arrive late, and a registry that forgets."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, cast

from node.errors import NodeError
from node.protocol.lifecycle import Policies
from node.protocol.messages import ModelState, NodeStatus
from registry.db import Registry
from registry.records import PolicyRecord
from router.errors import NodeRefused, NodeUnreachable
from router.fleet.fleet import Fleet
from router.fleet.watcher import Watcher
from router.lifecycle.action_runner import Dependencies
from router.lifecycle.lifecycle import Lifecycle
from router.lifecycle.reconcile import LoadModel, UnloadModel, idle, plan
from router.states import ACTIVE, CORDONED, MAINTENANCE
from router.types import NodeView
from tests.faults.played import HOPS, NODE_ID, Order, PlayedNode
from tests.router.conftest import node_record

WORDS = (*HOPS, 0.1, 10.0)
"""Delays of an order on its way."""


class PlayedRouter:
    """One of those that watch the node."""

    def __init__(self, router_id: str, node: PlayedNode) -> None:
        self.node = node
        self.fleet = Fleet(clock=node.clock.time)
        self.fleet.add(node_record("http://n", node_id=NODE_ID))
        self.statuses: deque[NodeStatus] = deque()
        self.requests: set[asyncio.Task[None]] = set()
        self.changes = 0
        """Number of changes to the state that an admin set for the node."""
        parts = Dependencies(
            registry=cast(Registry, self),
            fleet=self.fleet,
            watcher=cast(Watcher, self),
            queued=frozenset,
            router_id=router_id,
            wall=node.clock.time,
            clock=node.clock.time,
        )
        self.lifecycle = Lifecycle(parts)
        node.listeners.append(self.statuses.append)

    @property
    def view(self) -> NodeView:
        view = self.fleet.node(NODE_ID)
        assert view is not None
        return view

    # --- what it does ---

    def receive(self, count: int = 99) -> None:
        """Some of what the node has reported, the oldest first; then it reconciles."""
        for _ in range(min(count, len(self.statuses))):
            self.fleet.on_status(NODE_ID, self.statuses.popleft())
        if self.node.chance.random() < 0.3:
            self.check_plan()
        self.lifecycle.reconcile()

    def connect(self) -> None:
        """Anew: what was sent to it before is lost."""
        self.statuses.clear()
        self.statuses.append(self.node.status())

    def set_state(self, state: str) -> None:
        self.changes += 1
        self.fleet.set_state(NODE_ID, state)
        self.lifecycle.reconcile()

    def send(self, model: str, hold_s: float) -> asyncio.Task[None] | None:
        """A request, but to a node that takes none."""
        if self.view.state != ACTIVE:
            return None
        task = asyncio.create_task(self._serve(model, hold_s))
        self.requests.add(task)
        task.add_done_callback(self.requests.discard)
        task.add_done_callback(self.node.witness.on_end)
        return task

    async def _serve(self, model: str, hold_s: float) -> None:
        with contextlib.suppress(NodeError):
            await self.node.request(model, hold_s)

    async def drain(self, deadline_s: float) -> None:
        """Leaves the node, if need be without its last requests; then its models leave, too."""
        self.set_state(CORDONED)
        changes = self.changes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self.requests:
                    await asyncio.wait(self.requests)
        left = set(self.requests) if self.changes == changes else set()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self.changes == changes:
            assert not self.requests, "a node that takes no requests was sent one"
            self.set_state(MAINTENANCE)

    def want(self, model: str, *, pinned: bool, keep_alive_s: float | None) -> None:
        self.lifecycle.put_policy(PolicyRecord(model, NODE_ID, pinned, keep_alive_s))

    async def sweep(self) -> None:
        await self.lifecycle.sweep()

    def check_plan(self) -> None:
        """Nothing is wanted of a model that is not whole."""
        status = self.view.status
        if status is None:
            return
        whole = {each.name for each in status.models if each.state is not ModelState.PULLING}
        actions = plan((self.view,), self.lifecycle._requirements((self.view,)), {})
        for action in (*actions, *idle(self.view, self.node.clock.now_s, frozenset())):
            assert not isinstance(action, LoadModel | UnloadModel) or action.model in whole

    # --- in place of its registry ---

    async def write(self, _change: Any) -> bool:
        await self.node.take(HOPS)
        return True

    # --- in place of its watcher, and of its client of the node ---

    def client(self, _node_id: str) -> PlayedRouter:
        return self

    @property
    def control(self) -> PlayedRouter:
        return self

    async def load(self, model: str) -> None:
        await self._ask(lambda: self.node.request(model, 0.0, ahead=True))

    async def unload(self, model: str, generation: int, min_idle_s: float) -> None:
        await self._ask(lambda: self.node.unload(Order(model, generation, min_idle_s)))

    async def set_policies(self, policies: Policies) -> None:
        async def tell() -> None:
            self.node.set_policies(policies)

        await self._ask(tell)

    async def _ask(self, what: Any) -> None:
        await self.node.take(WORDS)
        if self.node.is_closing:
            raise NodeUnreachable
        try:
            await what()
        except NodeError as error:
            raise NodeRefused(error.message) from error
        await self.node.take(HOPS)
