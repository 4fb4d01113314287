"""Follows the state of every node, with one task and one client per node."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import structs

from node.protocol.ids import RESPONSE_PREFIX, client_id
from node.protocol.messages import (
    Began,
    Event,
    Finished,
    ModelState,
    NodeStatus,
    PrefixDelta,
    PrefixGone,
    PrefixSnapshot,
    StatusEvent,
    Stored,
)
from node.protocol.names import is_name
from node.protocol.versions import SPOKEN
from registry.records import NodeRecord
from router.errors import NodeRefused, NodeUnreachable, RouterError, WrongNodeProtocol
from router.fleet.fleet import Fleet
from router.fleet.prefix_index import PrefixIndex
from router.records.ledger import Ledger
from router.settings import LOST_GRACE_S
from router.states import KIND_OPENAI
from router.upstream.credentials import NodeCredential
from router.upstream.foreign_nodes import foreign_status, unaccepted
from router.upstream.node_client import NodeClient
from router.upstream.rate_limiter import RateLimiter
from serving.log_limiter import LogLimiter

log = logging.getLogger("mlx_fleet.nodes")

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 1.5
"""Keeps the time until a returned node is noticed below 2 s."""
FOREIGN_POLL_S = 5.0
MOVED = "The node is called at another address, or has another certificate."
SLEPT = "This router's machine has slept, and the node has sent no status since."


class _PrefixGap(Exception):
    """Some of a node's prefix reports are missing; a new stream begins with a complete snapshot."""


class _Loss(NamedTuple):
    """The reason why a node is lost."""

    reason: str
    silent: bool = False
    """True if the node sent no response at all."""


@dataclass(slots=True)
class _Watched:
    record: NodeRecord
    client: NodeClient
    task: asyncio.Task[None] | None = None
    first_contact: asyncio.Event = field(default_factory=asyncio.Event)
    listed: list[str] = field(default_factory=list)
    """The models that a third-party server lists."""
    pace: RateLimiter = field(default_factory=RateLimiter)
    instance_id: str = ""
    last_seq: int = 0
    breaking: asyncio.TimerHandle | None = None
    """Set while the node is lost and its open requests still wait for its return."""

    def break_later(self) -> None:
        if self.breaking is None:
            loop = asyncio.get_running_loop()
            self.breaking = loop.call_later(LOST_GRACE_S, self.client.break_all)

    def keep_requests(self) -> None:
        if self.breaking is not None:
            self.breaking.cancel()
            self.breaking = None


class Watcher:
    """Owner of the node clients. Passes statuses to `Fleet`, usage records to `Ledger` and prefix
    reports to `PrefixIndex`."""

    def __init__(self, fleet: Fleet, ledger: Ledger, prefixes: PrefixIndex) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._prefixes = prefixes
        self._nodes: dict[str, _Watched] = {}
        self._removed: dict[str, list[NodeClient]] = {}
        """Clients of removed nodes, with the requests that are still open there."""
        self._closing: set[asyncio.Task[None]] = set()
        self._log_limiter = LogLimiter()
        self._piece = asyncio.Lock()
        """Locked for one iteration of the event loop, so that each iteration applies one part of a
        snapshot, even if many nodes have sent some."""

    def start(self, record: NodeRecord) -> None:
        """Begins to watch a node, which may be unreachable yet."""
        watched = _Watched(record, NodeClient.of(record))
        self._nodes[record.id] = watched
        self._fleet.add(record)
        self._begin(watched)

    def _begin(self, watched: _Watched) -> None:
        record = watched.record
        loop = self._poll if record.kind == KIND_OPENAI else self._follow
        watched.task = asyncio.create_task(self._forever(watched, loop), name=record.name)

    async def on_wake(self) -> None:
        """Reconnects to all nodes after the machine has slept: statuses are old, and connections
        may be dead unnoticed. No node counts as reachable until its next status."""
        known = list(self._nodes.values())
        await asyncio.gather(*(_end(watched) for watched in known))
        for watched in known:
            await watched.client.renew()
            if self._nodes.get(watched.record.id) is watched:
                self._over(watched, _Loss(SLEPT))
                self._begin(watched)

    async def watch(self, record: NodeRecord) -> None:
        """Like `start`, and returns after the first contact or its failure."""
        self.start(record)
        await self._nodes[record.id].first_contact.wait()

    async def update(self, record: NodeRecord) -> None:
        """Applies a node's new credential or address. Only with another certificate or address are
        its connections made anew."""
        watched = self._nodes.get(record.id)
        if watched is None:
            return
        before, watched.record = watched.record, record
        credential = NodeCredential.from_text(record.credential)
        is_same_server = NodeCredential.from_text(before.credential).leads_like(credential)
        if before.url == record.url and is_same_server:
            watched.client.set_credential(credential)
            return
        await _end(watched)
        watched.client.break_all()
        await watched.client.close()
        watched.client = NodeClient.of(record)
        self._over(watched, _Loss(MOVED))
        self._fleet.set_url(record.id, record.url)
        if self._nodes.get(record.id) is watched:
            self._begin(watched)

    async def first_contacts(self, limit_s: float) -> None:
        """Returns once every node has had its first contact or its failure, or after that time."""
        waits = [asyncio.create_task(each.first_contact.wait()) for each in self._nodes.values()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=limit_s)
            for wait in pending:
                wait.cancel()

    async def unwatch(self, node_id: str) -> None:
        """Stops watching. The node's client stays for its open requests until `release`."""
        watched = self._nodes.pop(node_id, None)
        self._fleet.remove(node_id)
        if watched is not None:
            self._removed.setdefault(node_id, []).append(watched.client)
            await _end(watched)
            self._prefixes.forget_node(node_id)

    def awaits_release(self, node_id: str) -> bool:
        """True if the node was removed and its client is not released yet."""
        return node_id in self._removed

    def release(self, node_id: str) -> None:
        """Closes the clients of a removed node."""
        for client in self._removed.pop(node_id, []):
            task = asyncio.create_task(client.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        nodes, self._nodes = list(self._nodes.values()), {}
        await asyncio.gather(*(_end(watched) for watched in nodes))
        for watched in nodes:
            watched.keep_requests()
        await asyncio.gather(*(watched.client.close() for watched in nodes))
        for node_id in list(self._removed):
            self.release(node_id)
        await asyncio.gather(*self._closing)

    def client(self, node_id: str) -> NodeClient | None:
        watched = self._nodes.get(node_id)
        return watched.client if watched else None

    # --- one node ---

    async def _forever(
        self, watched: _Watched, loop: Callable[[_Watched], Awaitable[None]]
    ) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            started_s = time.monotonic()
            try:
                self._over(watched, await self._end_of(watched, loop))
            except Exception:
                # A listener of the fleet may fail; the node is watched all the same.
                log.exception(
                    "a fault of the router while handling the loss of node %s", watched.record.name
                )
            finally:
                watched.first_contact.set()
            if time.monotonic() - started_s > MAX_BACKOFF_S:
                backoff_s = FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _end_of(
        self, watched: _Watched, loop: Callable[[_Watched], Awaitable[None]]
    ) -> _Loss | None:
        """Follows the node until that ends. Returns why it is lost; None if only its stream must
        begin anew."""
        try:
            await loop(watched)
        except RouterError as error:
            return _Loss(error.message, isinstance(error, NodeUnreachable))
        except _PrefixGap:
            log.info("node %s: a change of its prefixes is missing", watched.record.name)
            return None
        except Exception:
            log.exception(
                "a fault of the router while handling an event of node %s", watched.record.name
            )
            return _Loss("The router failed to handle an event of the node; its log has the error.")
        return _Loss("The node closed its event stream.")

    def _over(self, watched: _Watched, loss: _Loss | None) -> None:
        self._prefixes.forget_node(watched.record.id)
        if loss is not None:
            self._lost(watched, loss)

    def _lost(self, watched: _Watched, loss: _Loss) -> None:
        if self._reachable(watched):
            log.warning("node %s is lost: %s", watched.record.name, loss.reason)
            if watched.record.kind != KIND_OPENAI:
                watched.break_later()
        self._fleet.lost(watched.record.id, loss.reason, silent=loss.silent)

    async def _follow(self, watched: _Watched) -> None:
        stream = watched.client.control.events(watched.instance_id, watched.last_seq)
        pace = watched.pace
        async with aclosing(stream) as events:
            async for event in events:
                if (rest_s := pace.on_event(event)) is not None:
                    await asyncio.sleep(rest_s)
                if isinstance(event, StatusEvent):
                    self._on_status(watched, event.status)
                elif isinstance(event, Finished):
                    watched.last_seq = event.seq
                    self._ledger.on_finished(watched.record.id, watched.instance_id, event)
                elif isinstance(event, Began):
                    self._ledger.on_began(watched.record.id, watched.instance_id, event)
                elif isinstance(event, Stored):
                    self._on_stored(watched.record.id, event)
                elif isinstance(event, PrefixSnapshot):
                    async with self._piece:
                        self._on_prefixes(watched, event)
                        await asyncio.sleep(0)
                else:
                    self._on_prefixes(watched, event)

    def _on_stored(self, node_id: str, stored: Stored) -> None:
        """Records a stored response, if its id shows that the node itself has stored it."""
        is_there = stored.response_id.startswith(client_id(RESPONSE_PREFIX, node_id, ""))
        if is_there and self._ledger.origins.is_own(stored.origin):
            self._prefixes.on_stored(stored)

    def _on_prefixes(self, watched: _Watched, event: Event) -> None:
        node_id, whole = watched.record.id, True
        try:
            if isinstance(event, PrefixDelta):
                whole = self._prefixes.on_delta(node_id, event)
            elif isinstance(event, PrefixSnapshot):
                whole = self._prefixes.on_snapshot(node_id, event)
            elif isinstance(event, PrefixGone):
                self._prefixes.on_gone(node_id, event)
        except ValueError as error:
            raise NodeRefused(f"{watched.record.url} sent invalid prefixes.") from error
        if not whole:
            raise _PrefixGap

    def _on_status(self, watched: _Watched, status: NodeStatus) -> None:
        if status.protocol not in SPOKEN:
            older = "node" if status.protocol < SPOKEN.oldest else "router"
            raise WrongNodeProtocol(
                f"The node speaks version {status.protocol} of the node protocol, this router "
                f"{SPOKEN}. Upgrade mlx-fleet on the {older}'s machine."
            )
        self._check(watched.record, status)
        status = _known(watched.record, status, self._log_limiter)
        if status.instance_id != watched.instance_id:
            if watched.breaking is not None:
                watched.client.break_all()
            watched.instance_id = status.instance_id
            watched.last_seq = 0
            self._prefixes.forget_node(watched.record.id)
        watched.keep_requests()
        if not self._reachable(watched):
            log.info("node %s is connected: %s", watched.record.name, watched.record.url)
        self._fleet.on_status(watched.record.id, status)
        watched.first_contact.set()

    def _check(self, record: NodeRecord, status: NodeStatus) -> None:
        """Raises `NodeRefused` for a status that the node's own agent would not send."""
        if status.node_id != record.id:
            raise NodeRefused(
                f"Another node agent responds at {record.url} than the one that was added as "
                f"{record.name}. If that is right, `router remove-node {record.name}` and add it "
                "again."
            )
        names = [each.name for each in status.models] + [each.name for each in status.broken]
        for name in names:
            if not is_name(name):
                raise NodeRefused(f"{record.url} reports a model whose name cannot be shown.")

    def _reachable(self, watched: _Watched) -> bool:
        view = self._fleet.node(watched.record.id)
        return view is not None and view.reachable

    async def _poll(self, watched: _Watched) -> None:
        while True:
            watched.listed = await watched.client.control.foreign_models()
            self._on_list(watched)
            await asyncio.sleep(FOREIGN_POLL_S)

    def accept(self, record: NodeRecord) -> None:
        """Applies models of a server that an admin has accepted."""
        watched = self._nodes.get(record.id)
        if watched is not None:
            watched.record = record
            if self._reachable(watched):
                self._on_list(watched)

    def _on_list(self, watched: _Watched) -> None:
        record, view = watched.record, self._fleet.node(watched.record.id)
        waiting = unaccepted(record, watched.listed)
        if view is not None and set(waiting) - set(view.unaccepted):
            log.info(
                "node %s lists models that await acceptance; `router nodes` shows them", record.name
            )
        self._fleet.set_unaccepted(record.id, waiting)
        self._on_status(watched, foreign_status(record, watched.listed))


async def _end(watched: _Watched) -> None:
    if watched.task is not None:
        watched.task.cancel()
        await asyncio.gather(watched.task, return_exceptions=True)


def _known(record: NodeRecord, status: NodeStatus, log_limiter: LogLimiter) -> NodeStatus:
    """Leaves out models in a state that only newer versions have."""
    known = tuple(each for each in status.models if each.state is not ModelState.UNKNOWN)
    if len(known) == len(status.models):
        return status
    if log_limiter.due(record.id):
        names = ", ".join(each.name for each in status.models if each not in known)
        more = log_limiter.suppressed(record.id)
        log.warning(
            "node %s reports a state that this router does not know of %s: they are not used%s",
            *(record.name, names, more),
        )
    return structs.replace(status, models=known)
