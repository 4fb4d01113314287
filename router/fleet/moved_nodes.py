"""Finds paired nodes again whose address has changed.

A node that does not respond is looked for among the agents that announce themselves. The announced
address counts only if the agent there has the pinned certificate and the node's id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from registry import audit, nodes
from registry.db import Registry, WriteSession
from registry.errors import RegistryError
from registry.records import AuditRecord, NodeRecord
from router.errors import DiscoveryFailed, RouterError
from router.fleet.discovery import Discovery, FoundAgent
from router.fleet.fleet import Fleet
from router.fleet.watcher import Watcher
from router.states import KIND_AGENT
from router.types import NodeView
from router.upstream.credentials import NodeCredential
from router.upstream.node_client import NodeClient
from serving.own_machine import is_loopback

CHECK_S = 10.0
SILENT_S = 10.0
"""Seconds of silence after which a node is looked for: shorter ones are restarts."""
EACH_S = 30.0
"""Seconds between two looks."""
ACTOR = "router"

log = logging.getLogger("mlx_fleet.nodes")


class MovedNodes:
    """Looks for silent nodes every now and then."""

    def __init__(
        self,
        registry: Registry,
        fleet: Fleet,
        watcher: Watcher,
        discovery: Discovery,
        is_near: Callable[[str], bool] = is_loopback,
    ) -> None:
        """A node at an address that `is_near` tells to be this machine's cannot have moved."""
        self._registry = registry
        self._fleet = fleet
        self._watcher = watcher
        self._discovery = discovery
        self._is_near = is_near
        self._looked_s = -EACH_S
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        if self._discovery.is_on:
            self._task = asyncio.create_task(self._run())

    async def __aexit__(self, *_error: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now_s = time.monotonic()
            if now_s - self._looked_s < EACH_S:
                continue
            silent = [view for view in self._fleet.snapshot if self._is_missing(view, now_s)]
            if silent:
                self._looked_s = now_s
                await self.look_for(silent)

    def _is_missing(self, view: NodeView, now_s: float) -> bool:
        since_s = view.silent_since_s
        return (
            view.kind == KIND_AGENT
            and since_s is not None
            and now_s - since_s >= SILENT_S
            and not self._is_near(urlsplit(view.url).hostname or "")
        )

    async def look_for(self, silent: list[NodeView]) -> None:
        """Follows those of the nodes that are found at another address."""
        async with self._registry.read() as session:
            records = {each.id: each for each in await nodes.list_all(session)}
        paired = {
            view.node_id
            for view in silent
            if view.node_id in records
            and NodeCredential.from_text(records[view.node_id].credential).is_paired
        }
        if not paired:
            return
        try:
            found = await self._discovery.look()
        except DiscoveryFailed as error:
            log.info("%s", error.message)
            return
        for agent in found:
            if agent.about.node_id in paired:
                await self._follow(records[agent.about.node_id], agent)

    async def _follow(self, record: NodeRecord, agent: FoundAgent) -> None:
        for url in agent.urls:
            if url != record.url and await self._is_there(record, url):
                await self._move(record, url)
                return

    async def _is_there(self, record: NodeRecord, url: str) -> bool:
        """Returns True if the node's own agent responds there."""
        async with NodeClient(url, NodeCredential.from_text(record.credential)) as client:
            try:
                return (await client.control.status()).node_id == record.id
            except RouterError as error:
                log.info("node %s is not at %s: %s", record.name, url, error.message)
                return False

    async def _move(self, record: NodeRecord, url: str) -> None:
        async def change(session: WriteSession) -> NodeRecord:
            changed = await nodes.set_access(session, record.name, url=url)
            detail = f"from {record.url} to {url}"
            entry = AuditRecord(time.time(), ACTOR, "node.move", record.name, detail)
            await audit.add(session, entry)
            return changed

        try:
            changed = await self._registry.write(change)
        except RegistryError as error:
            log.warning("node %s is now at %s: %s", record.name, url, error)
            return
        log.warning("node %s has moved from %s to %s", record.name, record.url, url)
        await self._watcher.update(changed)
