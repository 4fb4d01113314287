"""The admin API over a real registry; nodes are played."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httpx
import pytest
from fastapi import FastAPI

from node.protocol.chain.prefix import PrefixHasher
from node.protocol.lifecycle import Policies
from node.protocol.messages import ModelState, ModelStatus, NodeStatus
from registry import audit, keys
from registry.backup import Backups
from registry.db import Registry
from registry.migrate import open_migrated
from registry.records import KeyRecord, NodeRecord
from router.api.admin import adding
from router.api.admin.routes import admin_routes
from router.auth import KeyRing, new_key
from router.core import Core
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.traffic import Traffic
from router.errors import NodeRefused, RouterError, WrongNodeToken
from router.fleet.discovery import Discovery
from router.fleet.fleet import Fleet
from router.fleet.prefix_index import PrefixIndex
from router.fleet.stall_watchdog import StallWatchdog
from router.fleet.token_rates import TokenRates
from router.fleet.waker import Waker
from router.fleet.watcher import Watcher
from router.lifecycle.action_runner import Dependencies
from router.lifecycle.lifecycle import Lifecycle
from router.limits.limiter import Limiter
from router.records.decisions import Decisions
from router.records.ledger import Ledger
from router.records.metrics import Metrics
from router.records.refusals import Refusals
from router.routing.model_names import Names
from router.routing.paid_budgets import Budgets
from router.routing.sticky_targets import StickyTargets
from router.scheduler.breaker import Breaker
from router.settings import Settings
from router.upstream.credentials import NodeCredential
from router.upstream.foreign_nodes import foreign_status, unaccepted
from router.upstream.origins import Origins
from serving.awake import Awake
from serving.live_settings import LiveSettings
from serving.stay_awake import StayAwake

GIB = 1024**3


def a_model(name: str, state: ModelState = ModelState.ON_DISK) -> ModelStatus:
    return ModelStatus(name=name, state=state, weight_bytes=GIB, context_tokens=4096)


def a_status(node_id: str, *models: ModelStatus, free: int = 8 * GIB) -> NodeStatus:
    return NodeStatus(
        protocol=1,
        node_id=node_id,
        instance_id="i",
        version="0.1.0",
        engine="scripted",
        chip="M4",
        memory_budget_bytes=16 * GIB,
        memory_leased_bytes=16 * GIB - free,
        models=models,
    )


@dataclass
class PlayedNode:
    """The responses of one address: a status, or a failure."""

    status: NodeStatus
    token: str = ""
    failure: RouterError | None = None
    refuses: str | None = None
    orders: list[str] = field(default_factory=list)


@dataclass
class PlayedClient:
    node: PlayedNode
    token: str = ""

    async def __aenter__(self) -> "PlayedClient":
        return self

    async def __aexit__(self, *_error: object) -> None:
        return

    @property
    def control(self) -> "PlayedClient":
        return self

    async def status(self) -> NodeStatus:
        if self.node.failure:
            raise self.node.failure
        if self.token != self.node.token:
            raise WrongNodeToken
        return self.node.status

    async def foreign_models(self) -> list[str]:
        return [model.name for model in (await self.status()).models]

    async def load(self, model: str) -> None:
        await self._order("load", model)

    async def unload(self, model: str) -> None:
        await self._order("unload", model)

    async def set_policies(self, policies: Policies) -> None:
        assert not policies.models

    async def _order(self, verb: str, model: str) -> None:
        if self.node.refuses:
            raise NodeRefused(self.node.refuses)
        self.node.orders.append(f"{verb} {model}")


class World:
    """A fleet whose nodes are played, and an admin's connection to it."""

    def __init__(self, registry: Registry, admin_key: str, ring: KeyRing) -> None:
        self.played: dict[str, PlayedNode] = {}
        self.records: dict[str, NodeRecord] = {}
        self.registry = registry
        self.fleet = Fleet()
        self.rates = TokenRates(self.fleet)
        self.packets: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.waker = Waker(
            self.fleet, lambda *sent: self.packets.append((tuple(sent[0]), tuple(sent[1])))
        )
        self.names = Names(self.fleet)
        self.budgets = Budgets(self.fleet, {}, time.time, lambda _lease, _cost: None)
        self.limiter = Limiter()
        self.ring = ring
        self.admin_key = admin_key
        self.waits: dict[tuple[str, str], float] = {}
        """Seconds that the oldest of two waiting tickets has waited, by model and class."""
        self.forgotten: list[str] = []

    def play(self, url: str, node: PlayedNode) -> PlayedNode:
        self.played[url] = node
        return node

    # --- what the core sees of it ---

    def open(self, url: str, credential: NodeCredential, kind: str) -> PlayedClient:
        return PlayedClient(self.played[url], credential.token)

    async def watch(self, record: NodeRecord) -> None:
        self.records[record.id] = record
        self.fleet.add(record)
        node = self.played[record.url]
        if node.failure:
            self.fleet.lost(record.id, node.failure.message)
        elif record.kind == "openai":
            self.accept(record)
        else:
            self.fleet.on_status(record.id, node.status)

    def accept(self, record: NodeRecord) -> None:
        listed = [model.name for model in self.played[record.url].status.models]
        self.fleet.set_unaccepted(record.id, unaccepted(record, listed))
        self.fleet.on_status(record.id, foreign_status(record, listed))

    async def unwatch(self, node_id: str) -> None:
        del self.records[node_id]
        self.fleet.remove(node_id)

    def client(self, node_id: str) -> PlayedClient | None:
        record = self.records.get(node_id)
        return PlayedClient(self.played[record.url]) if record else None

    def breakers(self) -> list[Breaker]:
        return []

    def in_flight(self, node_id: str) -> int:
        return 3 if node_id in self.records else 0

    def queue_lengths(self) -> list[tuple[tuple[str, str], float]]:
        return [(labels, 2.0) for labels in self.waits]

    def oldest_waits(self) -> dict[tuple[str, str], float]:
        return self.waits

    def forget_node(self, node_id: str) -> None:
        self.forgotten.append(node_id)

    def core(self, home: Path) -> Core:
        return Core(
            rates=self.rates,
            settings=LiveSettings(Settings(home=home)),
            router_id="r",
            registry=self.registry,
            backups=Backups(self.registry.path),
            keys=self.ring,
            fleet=self.fleet,
            discovery=Discovery(None),
            names=self.names,
            last_targets=StickyTargets(),
            budgets=self.budgets,
            limiter=self.limiter,
            prefixes=PrefixIndex(),
            ledger=Ledger(Origins("r", b"")),
            metrics=Metrics(str),
            refusals=Refusals(self.registry),
            prefix_hasher=PrefixHasher(),
            watcher=cast(Watcher, self),
            waker=self.waker,
            dispatcher=cast(Dispatcher, self),
            stalls=cast(StallWatchdog, self),
            traffic=cast(Traffic, self),
            decisions=Decisions(),
            lifecycle=Lifecycle(
                Dependencies(self.registry, self.fleet, cast(Watcher, self), frozenset, "r")
            ),
            awake=Awake(StayAwake.NEVER),
        )

    async def audited(self) -> list[tuple[str, str, str, str]]:
        """The audit entries of what was done."""
        async with self.registry.read() as session:
            entries = await audit.recent(session, 50)
        return [
            (entry.actor, entry.verb, entry.subject, entry.detail)
            for entry in entries
            if entry.outcome == "done"
        ]


def a_key(name: str, *scopes: str, expires_at_s: float | None = None) -> tuple[str, KeyRecord]:
    key, prefix, digest = new_key()
    return key, KeyRecord(f"id-{name}", name, prefix, digest, scopes, 1.0, expires_at_s, None)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    registry = await open_migrated(tmp_path / "registry.db")
    key, record = a_key("boss", "admin", "inference")
    await registry.write(lambda session: keys.add(session, record))
    made = World(registry, key, KeyRing([record]))
    monkeypatch.setattr(adding, "NodeClient", made.open)
    yield made
    await registry.close()


@asynccontextmanager
async def connected(world: World, key: str | None) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(admin_routes(lambda: world.core(Path())))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://router/admin", headers=headers
    ) as client:
        yield client


@pytest.fixture
async def api(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with connected(world, world.admin_key) as client:
        yield client


def message(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["error"]["message"])


async def added(world: World, api: httpx.AsyncClient, name: str, *models: ModelStatus) -> None:
    url = f"http://127.0.0.1:{9000 + len(world.played)}"
    world.play(url, PlayedNode(a_status(f"id-{name}", *models)))
    response = await api.post("/nodes", json={"url": url, "name": name})
    assert response.status_code == 201, response.text
