"""Runs actions on nodes, one at a time for each node and model, and records what became of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from node.protocol.lifecycle import Policies, PullCommand
from registry import audit
from registry.db import Registry
from registry.errors import RegistryError
from registry.records import AuditRecord
from router.errors import NodeRefused, NoNodeReady, RouterError
from router.fleet.fleet import Fleet
from router.fleet.watcher import Watcher
from router.lifecycle.attempts import RETRY_S, Attempts, Pushes
from router.lifecycle.reconcile import Action, LoadModel, PullModel, PushPolicies, UnloadModel
from router.states import KIND_AGENT
from router.upstream.node_client import NodeClient

log = logging.getLogger("mlx_fleet.lifecycle")

LOAD_RETRY_S = 30.0
WITHDRAW_S = 2.0
"""Seconds that a node which is being removed may take to accept that its policies are withdrawn."""
_VERBS = {LoadModel: "load", UnloadModel: "unload", PullModel: "pull"}


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The other parts of the router that the lifecycle uses."""

    registry: Registry
    fleet: Fleet
    watcher: Watcher
    queued: Callable[[], frozenset[str]]
    """Returns the models that requests wait for."""
    router_id: str
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic


class ActionRunner:
    """Owns the running actions, their retry times, and what was last sent to each node."""

    def __init__(self, parts: Dependencies, on_end: Callable[[], None]) -> None:
        """`on_end` is called after each action, since others may have waited for it."""
        self.attempts = Attempts(parts.clock)
        self._parts = parts
        self._on_end = on_end
        self._pushes = Pushes(parts.clock)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Running tasks by node and model; the model is empty for sending policies."""
        self._removed: set[str] = set()
        """Nodes that are being removed; no action is started on them."""
        self._copied_from: dict[tuple[str, str], str] = {}
        """Node that last supplied each partial copy; it is tried last."""

    def pushed(self) -> Mapping[str, PushPolicies]:
        """Returns the policies that each node has and need not be sent again."""
        return self._pushes.fresh()

    async def close(self) -> None:
        """Cancels the actions in progress."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def withdraw_policies(self, node_id: str) -> None:
        """Starts the removal of a node: withdraws its policies, if it can be reached."""
        self._removed.add(node_id)
        view, client = self._parts.fleet.node(node_id), self._parts.watcher.client(node_id)
        if view is None or client is None or view.kind != KIND_AGENT or not view.reachable:
            return
        try:
            async with asyncio.timeout(WITHDRAW_S):
                pushing = self._tasks.get((node_id, ""))
                if pushing is not None:
                    await asyncio.wait({pushing})
                await client.control.set_policies(Policies(self._parts.router_id, {}))
        except (RouterError, TimeoutError) as error:
            log.warning("%s could not be notified of its removal: %s", view.name, error)

    def forget_node(self, node_id: str) -> None:
        """Cancels the actions on a node that has been removed, and deletes their state."""
        self._removed.discard(node_id)
        self._pushes.forget_node(node_id)
        for place in [place for place in self._copied_from if place[0] == node_id]:
            del self._copied_from[place]
        for where, task in self._tasks.items():
            if where[0] == node_id:
                task.cancel()
        self.attempts.forget_node(node_id)

    def begin(self, action: Action, actor: str) -> None:
        """Starts the action, unless one for the same node and model runs or it must wait for its
        retry. `actor` is that of its audit entry."""
        is_push = isinstance(action, PushPolicies)
        place = (action.node_id, "" if isinstance(action, PushPolicies) else action.model)
        is_new = is_push and self._pushes.fresh().get(action.node_id) != action
        if place in self._tasks or action.node_id in self._removed:
            return
        if self.attempts.must_wait(action, is_new=is_new):
            return
        task = asyncio.create_task(self._run(action, actor))
        self._tasks[place] = task
        task.add_done_callback(lambda _task: self._ended(place))

    def _ended(self, place: tuple[str, str]) -> None:
        if self._tasks.pop(place, None) is not None:
            self._on_end()

    async def _run(self, action: Action, actor: str) -> None:
        client = self._parts.watcher.client(action.node_id)
        if client is None:
            return  # removed meanwhile
        try:
            await self._act(client, action, actor)
            self.attempts.on_done(action)
        except RouterError as error:
            retry_s = LOAD_RETRY_S if isinstance(action, LoadModel) else RETRY_S
            if self.attempts.on_failed(action, error.message, retry_s):
                self._log_failure(action, error)

    async def _act(self, client: NodeClient, action: Action, actor: str) -> None:
        if isinstance(action, PushPolicies):
            await client.control.set_policies(
                Policies(self._parts.router_id, action.policies, action.in_maintenance)
            )
            self._pushes.on_sent(action)
            return
        if isinstance(action, LoadModel):
            await client.control.load(action.model)
        elif isinstance(action, PullModel):
            await self._continue_pull(client, action)
        else:
            await client.control.unload(action.model, action.generation, action.min_idle_s)
        await self._audit(actor, action)

    def _log_failure(self, action: Action, error: RouterError) -> None:
        """Logs the failure, except that of unloading a model in use, which is normal."""
        if isinstance(action, UnloadModel) and isinstance(error, NodeRefused):
            return
        what = (
            "sending policies"
            if isinstance(action, PushPolicies)
            else f"{_VERBS[type(action)]} of {action.model}"
        )
        name = self._name(action.node_id)
        log.warning("%s on %s: %s It will be retried.", what, name, error.message)

    def _name(self, node_id: str) -> str:
        view = self._parts.fleet.node(node_id)
        return view.name if view else node_id

    async def _continue_pull(self, client: NodeClient, action: PullModel) -> None:
        """Continues the pull with a ticket of the first node that supplies one. Raises the last
        node's error."""
        place = (action.node_id, action.model)
        last = self._copied_from.get(place, "")
        failure: RouterError = NoNodeReady(f"No node that has {action.model} can be reached.")
        for node_id in sorted(action.sources, key=lambda each: each == last):
            source = self._parts.watcher.client(node_id)
            if source is None:
                continue  # removed meanwhile
            try:
                peer = await source.as_peer(action.model)
            except RouterError as error:
                failure = error
                continue
            self._copied_from[place] = node_id
            await client.control.pull(PullCommand(action.model, peer=peer, resumes=True))
            return
        raise failure

    async def _audit(self, actor: str, action: LoadModel | UnloadModel | PullModel) -> None:
        verb = f"model.{_VERBS[type(action)]}"
        detail = f"on {self._name(action.node_id)}"
        entry = AuditRecord(self._parts.wall(), actor, verb, action.model, detail)
        try:
            await self._parts.registry.write(partial(audit.add, entry=entry))
        except RegistryError:
            log.error("the audit entry of %s %s cannot be written", verb, action.model)
